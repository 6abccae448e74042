"""Rows of a real Postgres become the same document whether a value travels natively through ADBC or as text."""

import json
from collections.abc import Iterator
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrina.connectors.search import mapping
from vitrina.connectors.search.documents import DocumentEncoder
from vitrina.connectors.search.values import travels_as
from vitrina.embedded.temporary import TemporaryServer

# An SQL literal, what the document shall hold, and whether ADBC carries the type natively.
VALUES: list[tuple[str, Any, bool]] = [
    ("true", True, True),
    ("'-32768'::smallint", -32768, True),
    ("9223372036854775807::bigint", 2**63 - 1, True),
    ("0.1::real", 0.1, True),
    ("'1e300'::double precision", 1e300, True),
    ("1234567890123456789.10::numeric", "1234567890123456789.10", True),
    ("12.5::numeric(3,1)", 12.5, True),
    ("'a\"b\\ \t'::text", 'a"b\\ \t', True),
    ("'ab'::char(4)", "ab", True),
    ("'11111111-1111-1111-1111-111111111111'::uuid", "11111111-1111-1111-1111-111111111111", True),
    ("'\\x00ff'::bytea", "AP8=", True),
    ("'2024-02-29'::date", "2024-02-29", True),
    ("'0044-03-15 BC'::date", "-0043-03-15", True),
    ("'2024-02-29 12:00:00.5+02'::timestamptz", "2024-02-29T10:00:00.5Z", True),
    ("'2024-02-29 12:00:00.123456'::timestamp", "2024-02-29T12:00:00.123456", True),
    ("'12000-01-01'::timestamptz", "+12000-01-01T00:00:00Z", True),
    ("'24:00'::time", "24:00:00", True),
    ("'10:30:00.25+03'::timetz", "10:30:00.25+03", False),
    ("'1 year -2 mons 3 days -04:05:06.789'::interval", "P10M3DT-4H-5M-6.789S", True),
    ("'{\"a\": [1, null]}'::jsonb", {"a": [1, None]}, True),
    ("'{\"a\":\n1}'::json", {"a": 1}, True),
    ("'10.1.2.3'::inet", "10.1.2.3", False),
    ("'10.0.0.0/8'::cidr", "10.0.0.0/8", False),
    ("'[1,5]'::int4range", {"gte": 1, "lt": 6}, False),
    ("'[2024-01-01 00:00:00+00,)'::tstzrange", {"gte": "2024-01-01T00:00:00Z", "lt": None}, False),
    ("'{[1,3),[7,9)}'::int4multirange", [{"gte": 1, "lt": 3}, {"gte": 7, "lt": 9}], False),
    ("ARRAY['a', NULL, 'b,c', '', 'NULL', 'q\"\\']", ["a", None, "b,c", "", "NULL", 'q"\\'], True),
    ("'{}'::text[]", [], True),
    ("ARRAY[1.10, 2]::numeric[]", ["1.10", "2"], True),
    ("ARRAY[[1,2],[3,NULL]]", [[1, 2], [3, None]], False),
    ("ARRAY['11111111-1111-1111-1111-111111111111']::uuid[]", ["11111111-1111-1111-1111-111111111111"], True),
    ("ARRAY['2024-01-01 00:00:00+00']::timestamptz[]", ["2024-01-01T00:00:00Z"], True),
    ("ARRAY['\\x00']::bytea[]", ["AA=="], True),
    ("ARRAY[true, false]", [True, False], True),
    ("ARRAY['1 day'::interval]", ["P1D"], True),
    ("'101'::bit(3)", "101", False),
    ("'08:00:2b:01:02:03'::macaddr", "08:00:2b:01:02:03", False),
]


@pytest.mark.parametrize("route", ["native", "text", "as advised"])
def test_a_row_of_every_type(server: TemporaryServer, route: str) -> None:
    chosen = [(literal, value) for literal, value, native in VALUES if native or route != "native"]
    names = [f"c{number}" for number in range(len(chosen))]
    query = ", ".join(f"{literal} AS {name}" for name, (literal, _) in zip(names, chosen, strict=True))
    types = _types(server, query, names)
    outputs = ", ".join(_output(name, travels_as(types[name]) if route == "as advised" else route) for name in names)

    batch = _read(server, f"SELECT 1::bigint AS id, {outputs} FROM (SELECT {query}) AS source")

    fields = mapping.field_types(mapping.derive(batch.schema, types))
    prepared = DocumentEncoder(types=types, field_types=fields, key=["id"]).encode(batch)
    assert prepared.rejected == []
    document = json.loads(prepared.actions.lines[0].splitlines()[1])["doc"]
    got = {literal: _normal(document[name]) for name, (literal, _) in zip(names, chosen, strict=True)}
    assert got == dict(chosen)


def _output(name: str, how: str) -> str:
    return {"native": name, "text": f"{name}::text AS {name}", "json": f"to_jsonb({name})::text AS {name}"}[how]


@pytest.mark.parametrize("literal", ["'infinity'::timestamptz", "'-infinity'::date", "'NaN'::numeric", "'NaN'::real"])
def test_what_has_no_json_form_is_rejected(server: TemporaryServer, literal: str) -> None:
    types = _types(server, f"{literal} AS x", ["x"])
    batch = _read(server, f"SELECT 1::bigint AS id, x::text AS x FROM (SELECT {literal} AS x) AS source")

    prepared = DocumentEncoder(types=types, field_types={"x": "date"}, key=["id"]).encode(batch)

    assert prepared.actions.ids == []
    assert prepared.rejected[0].reason.startswith("x: ")


def _types(server: TemporaryServer, query: str, names: list[str]) -> dict[str, str]:
    with psycopg.connect(server.urls.admin) as connection:
        cursor = connection.execute(f"SELECT {query}")
        descriptions = cursor.description or []
        rows = [
            connection.execute("SELECT format_type(%s, %s)", [column.type_code, _typmod(column)]).fetchone()
            for column in descriptions
        ]
    return {name: row[0] for name, row in zip(names, rows, strict=True) if row}


def _typmod(column: psycopg.Column) -> int:
    if column.type_code == 1700 and column.precision is not None:
        return (column.precision << 16 | (column.scale or 0)) + 4
    return -1


def _read(server: TemporaryServer, query: str) -> pa.RecordBatch:
    with adbc.connect(server.urls.admin) as connection, connection.cursor() as cursor:
        cursor.execute("SET TimeZone = 'UTC'")
        cursor.execute(query)
        return cursor.fetch_arrow_table().combine_chunks().to_batches()[0]


def _normal(value: Any) -> Any:
    """Natively, times come with all six digits of a second; as text, without the last zeros."""
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, str) and value[-8:].rstrip("Z").endswith("000") and ":" in value:
        zone = "Z" if value.endswith("Z") else ""
        return value.removesuffix("Z").rstrip("0").rstrip(".").ljust(8, "0") + zone
    return value


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6))
        | st.lists(st.none() | st.sampled_from(["drama", "null", "NULL", "{", '"', "\\", "a,b", "", " ", "\t", "\x01"]))
        | st.lists(st.none() | st.sampled_from(["drama", "film noir", "NULL", "a,NULL,b", "{}", ""]), max_size=4),
        min_size=1,
        max_size=20,
    )
)
def test_arrays_of_any_text(postgres: psycopg.Connection[Any], arrays: list[list[str | None]]) -> None:
    """Postgres writes them, we read them: quotes, escapes, NULLs and the fast route for plain ones."""
    rows = [postgres.execute("SELECT %s::text[]::text", [array]).fetchone() for array in arrays]
    batch = pa.record_batch({"id": pa.array(range(len(arrays))), "x": pa.array([row[0] for row in rows if row])})

    prepared = DocumentEncoder(types={"x": "text[]"}, field_types={"x": "text"}, key=["id"]).encode(batch)

    assert [json.loads(line.splitlines()[1])["doc"]["x"] for line in prepared.actions.lines] == arrays


@pytest.fixture(scope="module")
def postgres(server: TemporaryServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.urls.admin, autocommit=True) as connection:
        yield connection
