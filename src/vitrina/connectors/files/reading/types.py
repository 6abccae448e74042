"""Convert the columns of a query's result: how each leaves DuckDB, and which types are compatible."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import SourceQueryFailed
from vitrina.transforms import arrow_types

# Types that leave DuckDB unchanged. Values finer than microseconds are refused when they are written.
_PLAIN = frozenset(
    "boolean tinyint smallint integer bigint utinyint usmallint uinteger float double decimal varchar blob uuid date"
    " time time_ns timestamp timestamp_ns".split()
) | {"timestamp with time zone"}
_CAST = {
    "ubigint": "DECIMAL(20,0)",
    # The result of sum() over whole numbers. The cast refuses values of 39 digits.
    "hugeint": "DECIMAL(38,0)",
    "uhugeint": "DECIMAL(38,0)",
    "bignum": "DECIMAL(38,0)",
    "enum": "VARCHAR",
    "timestamp_s": "TIMESTAMP",
    "timestamp_ms": "TIMESTAMP",
}
_NESTED = frozenset({"list", "array", "struct", "map"})

_WIDER: Mapping[str, frozenset[str]] = {
    "TINYINT": frozenset({"SMALLINT", "INTEGER", "BIGINT"}),
    "SMALLINT": frozenset({"INTEGER", "BIGINT"}),
    "INTEGER": frozenset({"BIGINT"}),
    "UTINYINT": frozenset({"SMALLINT", "INTEGER", "BIGINT"}),
    "USMALLINT": frozenset({"INTEGER", "BIGINT"}),
    "UINTEGER": frozenset({"BIGINT"}),
    "FLOAT": frozenset({"DOUBLE"}),
}
# The words may also occur inside a string.
_NO_NUMBER = r"[:,\[]\s*(NaN|-?Infinity)"
_DAY = {"us": 86_400 * 10**6, "ns": 86_400 * 10**9}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


class Result(NamedTuple):
    """Describe a column as DuckDB reports it."""

    name: str
    type: str


def described(relation: Any) -> list[Result]:
    """Return the columns of a result. Refuse duplicate names."""
    found = [Result(name, str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
    seen: set[str] = set()
    for column in found:
        if column.name in seen:
            raise SourceQueryFailed(f"the query gives two columns {column.name!r}: name one of them with AS")
        seen.add(column.name)
    return found


def carried(relation: Any) -> tuple[list[str], dict[str, str]]:
    """Return the expression with which each column leaves DuckDB, and the columns that are JSON."""
    expressions, documents = [], {}
    for place, (column, kind) in enumerate(zip(described(relation), relation.types, strict=True)):
        expression, is_document = _carried(f"c{place}", column, kind)
        expressions.append(f"{expression} AS {identifier(column.name)}")
        if is_document:
            documents[column.name] = "jsonb"
    return expressions, documents


def _carried(value: str, column: Result, kind: Any) -> tuple[str, bool]:
    if kind.id == "varchar" and str(kind) == "JSON":
        return f"{value}::VARCHAR", True
    if kind.id in _PLAIN:
        return value, False
    if kind.id in _CAST:
        return f"{value}::{_CAST[kind.id]}", False
    if kind.id in _NESTED:
        return _nested(value, kind)
    raise SourceQueryFailed(
        f"column {column.name!r} is of type {column.type}, which no target can hold: cast it in the query, such as"
        f" CAST({identifier(column.name)} AS VARCHAR)"
    )


def _nested(value: str, kind: Any) -> tuple[str, bool]:
    """Keep lists of plain values; convert all other nested values to JSON."""
    if kind.id in ("list", "array"):
        element = dict(kind.children)["child"]
        if element.id in _PLAIN and str(element) != "JSON":
            return f"{value}::{element}[]", False
        if element.id in _CAST:
            return f"{value}::{_CAST[element.id]}[]", False
    return f"to_json({value})::VARCHAR", True


def tagged(schema: pa.Schema, documents: Mapping[str, str]) -> pa.Schema:
    """Mark columns that are JSON, like those of a query on PostgreSQL."""
    return pa.schema(
        [arrow_types.tagged(one.name, documents[one.name]) if one.name in documents else _plain(one) for one in schema]
    )


def _plain(field: pa.Field) -> pa.Field:
    if pa.types.is_list(field.type):
        return pa.field(field.name, pa.list_(_known(field.type.value_type)))
    return pa.field(field.name, _known(field.type))


def _known(kind: pa.DataType) -> pa.DataType:
    """Return booleans as such, because DuckDB returns them as bytes."""
    return pa.bool_() if isinstance(kind, pa.Bool8Type) else kind


def fitted(found: Sequence[Result], expected: Sequence[Result], where: str) -> list[str]:
    """Return expressions that convert columns to the types and order of the first files. Refuse differences by name."""
    here = {column.name: column.type for column in found}
    wanted = {column.name: column.type for column in expected}
    lacking, more = wanted.keys() - here.keys(), here.keys() - wanted.keys()
    if lacking or more:
        name = min(lacking or more)
        raise SourceQueryFailed(
            f"{where} {'lacks' if lacking else 'has'} the column {name!r}, which the files before it"
            f" {'have' if lacking else 'lack'}: name the columns in the query instead of *, or move the file elsewhere"
        )
    return [_fitted(column, here[column.name], where) for column in expected]


def _fitted(expected: Result, kind: str, where: str) -> str:
    name = identifier(expected.name)
    if kind == expected.type:
        return name
    if expected.type in _WIDER.get(kind, ()) or _is_wider(kind, expected.type):
        return f"CAST({name} AS {expected.type}) AS {name}"
    raise SourceQueryFailed(
        f"{where} has {expected.name!r} as {kind}, the files before it as {expected.type}: say in the query what it"
        f" should be, such as CAST({name} AS {expected.type}) AS {name}"
    )


def _is_wider(kind: str, wanted: str) -> bool:
    narrow, wide = _DECIMAL.fullmatch(kind), _DECIMAL.fullmatch(wanted)
    if not narrow or not wide:
        return False
    digits, scale, wide_digits, wide_scale = int(narrow[1]), int(narrow[2]), int(wide[1]), int(wide[2])
    return wide_scale >= scale and wide_digits - wide_scale >= digits - scale


def refuse_infinite(batch: pa.RecordBatch) -> None:
    """Refuse `infinity` in dates and times, and 24:00:00 as a time, which Arrow cannot hold."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
        name = identifier(field.name)
        if pa.types.is_time64(values.type) and pc.max(values.cast(pa.int64())).as_py() == _DAY[values.type.unit]:
            raise SourceQueryFailed(
                f"column {field.name!r} has the time 24:00:00, which most targets cannot hold: write it as another one,"
                f" such as CASE WHEN {name} < '24:00:00' THEN {name} END"
            )
        if _is_infinite(values):
            raise SourceQueryFailed(
                f"column {field.name!r} has the value infinity, which does not arrive as such: leave it out, such as"
                f" CASE WHEN isfinite({name}) THEN {name} END"
            )


def _is_infinite(values: pa.Array) -> bool:
    if pa.types.is_date32(values.type):
        limit, numbers = 2**31 - 1, values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        limit, numbers = 2**63 - 1, values.cast(pa.int64())
    else:
        return False
    ends = pc.min_max(numbers).as_py()
    return bool(ends["max"] == limit or ends["min"] == -limit)


def refuse_no_json(batch: pa.RecordBatch, documents: Iterable[str]) -> None:
    """Refuse NaN and infinity inside documents: JSON has no such numbers, but DuckDB writes them."""
    for name in documents:
        column = batch.column(name)
        for text in column.filter(pc.match_substring_regex(column, _NO_NUMBER)).to_pylist():
            json.loads(text, parse_constant=partial(_refuse_constant, name))


def _refuse_constant(column: str, found: str) -> NoReturn:
    raise SourceQueryFailed(
        f"column {column!r} has {found} in a document, which JSON cannot hold: leave it out in the query, such as CASE"
        " WHEN isfinite(x) THEN x END"
    )


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
