"""Every kind of value goes to the server and comes back equal in meaning, natively and as Postgres text."""
# ruff: noqa: E501  the table of values reads best with one line for each

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrina.connectors.search import mapping
from vitrina.connectors.search.batch import BulkOutcome
from vitrina.connectors.search.bulk import BulkEngine
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.documents import DocumentEncoder

Action = Literal["update", "index"]


class Documents:
    """One index through which rows are sent, and from which they are read back."""

    def __init__(self, client: SearchClient, index: str, mappings: dict[str, Any], types: Mapping[str, str]) -> None:
        self._client = client
        self._index = index
        self._types = types
        self._mappings = mappings
        client.create_index(index, {"mappings": mappings, "aliases": {f"{index}.w": {}}})
        self._engine = BulkEngine(client, f"{index}.w")

    def put(self, batch: pa.RecordBatch, action: Action, version: int | None = None) -> BulkOutcome:
        fields = mapping.field_types(self._mappings)
        encoder = DocumentEncoder(types=self._types, field_types=fields, key=["id"], action=action)
        prepared = encoder.encode(batch, version=version)
        outcome = self._engine.send(prepared.actions)
        outcome.rejected += prepared.rejected
        return outcome

    def get(self, ids: list[str]) -> dict[str, Any]:
        """By id, straight from the write path: no refresh needed. Numbers with a point come as Decimal."""
        parts = [f'{{"_id":{json.dumps(i)}}}' for i in ids]
        body = f'{{"docs":[{",".join(parts)}]}}'.encode()
        reply = self._client.request("POST", f"/{self._index}/_mget", body=body)
        return {found["_id"]: found["_source"] for found in reply.body["docs"] if found["found"]}


# Postgres type, value as Arrow carries it, its text in Postgres, what the document shall hold.
VALUES: list[tuple[str, pa.Array, str | None, Any]] = [
    ("boolean", pa.array([True]), "t", True),
    ("smallint", pa.array([-32768], pa.int16()), "-32768", -32768),
    ("bigint", pa.array([2**63 - 1]), str(2**63 - 1), 2**63 - 1),
    ("real", pa.array([0.1], pa.float32()), "0.1", 0.1),
    ("double precision", pa.array([1.7976931348623157e308]), "1.7976931348623157e+308", 1.7976931348623157e308),
    ("double precision", pa.array([5e-324]), "5e-324", 5e-324),
    ("numeric", pa.array(["123456789012345678901234567890.1234567890"]), None, "123456789012345678901234567890.1234567890"),
    ("numeric", pa.array([Decimal("1.50")]), "1.50", "1.50"),
    ("numeric(5,2)", pa.array(["123.45"]), "123.45", 123.45),
    ("numeric(18,0)", pa.array(["999999999999999999"]), "999999999999999999", 999999999999999999),
    ("uuid", pa.array([UUID(int=1).bytes], pa.binary(16)), str(UUID(int=1)), str(UUID(int=1))),
    ("text", pa.array(['quote " backslash \\ \x01\x1f\t\n control, эмодзи 🎬']), None, 'quote " backslash \\ \x01\x1f\t\n control, эмодзи 🎬'),
    ("text", pa.array([""]), "", ""),
    ("character(4)", pa.array(["ab  "]), "ab", "ab"),
    ("content.genre", pa.array(["drama"]), "drama", "drama"),
    ("bytea", pa.array([b"\x00\xff\n"]), "\\x00ff0a", base64.b64encode(b"\x00\xff\n").decode()),
    ("date", pa.array([dt.date(2024, 2, 29)]), "2024-02-29", "2024-02-29"),
    ("date", pa.array([-735_101], pa.date32()), "0044-05-13 BC", "-0043-05-13"),
    ("time without time zone", pa.array([dt.time(1, 2, 3, 4)]), None, "01:02:03.000004"),
    ("time without time zone", pa.array([86_400_000_000], pa.time64("us")), None, "24:00:00.000000"),
    ("time with time zone", pa.array(["10:00:00+03"]), None, "10:00:00+03"),
    ("timestamp without time zone", pa.array([1], pa.timestamp("us")), None, "1970-01-01T00:00:00.000001"),
    ("timestamp with time zone", pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")), "2023-11-14 22:13:20.123456+00", "2023-11-14T22:13:20.123456Z"),
    ("timestamp(3) with time zone", pa.array(["1850-01-01 12:00:00.5+00"]), None, "1850-01-01T12:00:00.5Z"),
    ("interval", pa.array([pa.MonthDayNano([14, 3, 14_706_789_000_000])]), "1 year 2 mons 3 days 04:05:06.789", "P1Y2M3DT4H5M6.789S"),
    ("interval", pa.array([pa.MonthDayNano([-1, 2, -1_000_000_000])]), "-1 mons +2 days -00:00:01", "P-1M2DT-1S"),
    ("json", pa.array(['{"b": [1, 2.50, null],\n "a": {"deep": "x"}}']), None, {"b": [1, 2.5, None], "a": {"deep": "x"}}),
    ("jsonb", pa.array(['"only text"']), None, "only text"),
    ("jsonb", pa.array(["[[[1]], 7]"]), None, [[[1]], 7]),
    ("inet", pa.array(["10.0.0.1/32"]), "10.0.0.1", "10.0.0.1"),
    ("inet", pa.array(["::1/128"]), "::1", "::1"),
    ("cidr", pa.array(["10.0.0.0/8"]), None, "10.0.0.0/8"),
    ("int4range", pa.array(["[1,10)"]), None, {"gte": 1, "lt": 10}),
    ("int8range", pa.array(["(,9007199254740993]"]), None, {"gt": None, "lte": 9007199254740993}),
    ("numrange", pa.array(["[1.50,2.75]"]), None, {"gte": "1.50", "lte": "2.75"}),
    ("daterange", pa.array(["[2024-01-01,infinity)"]), None, {"gte": "2024-01-01", "lt": None}),
    ("tstzrange", pa.array(['["2024-01-01 00:00:00+00","2024-02-01 00:00:00+00")']), None, {"gte": "2024-01-01T00:00:00Z", "lt": "2024-02-01T00:00:00Z"}),
    ("int4multirange", pa.array(["{[1,3),[5,7)}"]), None, [{"gte": 1, "lt": 3}, {"gte": 5, "lt": 7}]),
    ("text[]", pa.array([["a", None, 'b"c', ""]]), '{a,NULL,"b\\"c",""}', ["a", None, 'b"c', ""]),
    ("text[]", pa.array([[]], pa.list_(pa.string())), "{}", []),
    ("integer[]", pa.array([[[1, 2], [3, 4]]]), "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
    ("numeric[]", pa.array([["1.10", "2"]]), "{1.10,2}", ["1.10", "2"]),
    ("uuid[]", pa.array([[UUID(int=2).bytes]], pa.list_(pa.binary(16))), f"{{{UUID(int=2)}}}", [str(UUID(int=2))]),
    ("timestamp with time zone[]", pa.array([[0]], pa.list_(pa.timestamp("us", "UTC"))), None, ["1970-01-01T00:00:00.000000Z"]),
    ("boolean[]", pa.array([[True, False]]), "{t,f}", [True, False]),
    ("bytea[]", pa.array([[b"\x00"]]), '{"\\\\x00"}', ["AA=="]),
    ("content.person", pa.array([{"name": "Luke", "born": 19.5, "tags": ["jedi"]}]), None, {"name": "Luke", "born": 19.5, "tags": ["jedi"]}),
]  # fmt: skip
IDS = [f"{number}-{pg_type}" for number, (pg_type, *_) in enumerate(VALUES)]


@pytest.mark.parametrize("action", ["update", "index"])
def test_every_type_comes_back(client: SearchClient, index: str, action: Action) -> None:
    """All of them in one index, each in a column of its own, so that four servers take seconds and not minutes."""
    columns: dict[str, pa.Array] = {"id": pa.array([1])}
    types, expected = {"id": "bigint"}, {"id": 1}
    for name, (pg_type, native, text, value) in zip(IDS, VALUES, strict=True):
        columns[name], types[name], expected[name] = native, pg_type, value
        if text is not None:
            columns[f"{name} as text"], types[f"{name} as text"] = pa.array([text]), pg_type
            expected[f"{name} as text"] = value
    batch = pa.record_batch(columns)
    documents = Documents(client, index, mapping.derive(batch.schema, types), types)

    outcome = documents.put(batch, action)

    assert outcome.rejected == []
    stored = documents.get(["1"])["1"]
    assert {name: stored[name] for name in expected} == expected


def test_nulls_of_every_type_clear_the_fields(client: SearchClient, index: str) -> None:
    columns = {name: pa.nulls(1, native.type) for name, (_, native, _, _) in zip(IDS, VALUES, strict=True)}
    types = {name: pg_type for name, (pg_type, *_) in zip(IDS, VALUES, strict=True)}
    full = {name: native for name, (_, native, _, _) in zip(IDS, VALUES, strict=True)}
    schema = pa.record_batch({"id": pa.array([1]), **full}).schema
    documents = Documents(client, index, mapping.derive(schema, types), types)
    documents.put(pa.record_batch({"id": pa.array([1]), **full}), "update")

    assert documents.put(pa.record_batch({"id": pa.array([1]), **columns}), "update").updated == 1

    stored = documents.get(["1"])["1"]
    assert {name: stored[name] for name in columns} == dict.fromkeys(columns)


def test_numbers_can_be_searched_by_size_though_their_digits_are_kept(client: SearchClient, index: str) -> None:
    types = {"id": "bigint", "n": "numeric"}
    batch = pa.record_batch(
        {"id": pa.array([1, 2, 3]), "n": pa.array(["9.5", "10.25", "1e400".replace("e400", "0" * 400)])}
    )
    documents = Documents(client, index, mapping.derive(batch.schema, types), types)

    assert documents.put(batch, "update").acknowledged == 3, "also the one that no double can hold"

    client.refresh(index)
    found = client.search(index, {"query": {"range": {"n.number": {"gte": 9}}}, "sort": [{"n.number": "desc"}]})
    assert [hit["_source"]["n"] for hit in found["hits"]["hits"]] == ["10.25", "9.5"]


def test_microseconds_can_be_searched(client: SearchClient, index: str) -> None:
    types = {"id": "bigint", "at": "timestamp with time zone"}
    batch = pa.record_batch({"id": pa.array([1, 2]), "at": pa.array([1_000_001, 1_000_002], pa.timestamp("us", "UTC"))})
    documents = Documents(client, index, mapping.derive(batch.schema, types), types)
    documents.put(batch, "update")

    client.refresh(index)
    found = client.search(index, {"query": {"range": {"at": {"gt": "1970-01-01T00:00:01.000001Z"}}}})
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["2"]


def test_values_beyond_the_keyword_limit_are_kept(client: SearchClient, index: str) -> None:
    types = {"id": "bigint", "t": "text", "k": "content.genre"}
    long = "длинное слово " * 4000
    batch = pa.record_batch({"id": pa.array([1]), "t": pa.array([long]), "k": pa.array([long])})
    documents = Documents(client, index, mapping.derive(batch.schema, types), types)

    assert documents.put(batch, "update").rejected == []
    assert documents.get(["1"])["1"] == {"id": 1, "t": long, "k": long}


@pytest.mark.parametrize("action", ["update", "index"])
def test_json_that_the_server_refuses_is_rejected_alone(client: SearchClient, index: str, action: Action) -> None:
    """Too deep, and a repeated key: the server refuses them, and says so about that document only."""
    types = {"id": "bigint", "j": "json"}
    deep = "[" * 1500 + "]" * 1500
    batch = pa.record_batch({"id": pa.array([1, 2, 3]), "j": pa.array(['{"fine": 1}', deep, '{"a": 1, "a": 2}'])})
    documents = Documents(client, index, mapping.derive(batch.schema, types), types)

    outcome = documents.put(batch, action)

    assert outcome.created == 1
    assert sorted(letter.id for letter in outcome.rejected) == ["2", "3"]
    assert all(letter.reason for letter in outcome.rejected)
    assert set(documents.get(["1", "2", "3"])) == {"1"}


TYPES = {
    "id": "bigint",
    "flag": "boolean",
    "number": "bigint",
    "ratio": "double precision",
    "single": "real",
    "amount": "numeric",
    "price": "numeric(12,3)",
    "title": "text",
    "raw": "bytea",
    "day": "date",
    "clock": "time without time zone",
    "at": "timestamp(3) with time zone",
    "span": "interval",
    "tags": "text[]",
    "sizes": "double precision[]",
    "extra": "jsonb",
    "key": "uuid",
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("single", pa.float32()),
        ("amount", pa.string()),
        ("price", pa.string()),
        ("title", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us", "UTC")),
        ("span", pa.month_day_nano_interval()),
        ("tags", pa.list_(pa.string())),
        ("sizes", pa.list_(pa.float64())),
        ("extra", pa.string()),
        ("key", pa.binary(16)),
    ]
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e15, 1e15) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts.filter(bool), inner, max_size=3),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "number": st.integers(-(2**63), 2**63 - 1),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "single": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "amount": st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: f"{number:f}"),
        "price": st.decimals(-(10**8), 10**8, places=3).map(str),
        "title": texts,
        "raw": st.binary(max_size=20),
        "day": st.dates(),
        "clock": st.times(),
        "at": st.datetimes(min_value=dt.datetime(1, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
        "span": st.builds(
            lambda *parts: pa.MonthDayNano(parts),
            st.integers(-9999, 9999),
            st.integers(-9999, 9999),
            st.integers(-(10**15), 10**15).map(lambda us: us * 1000),
        ),
        "tags": st.lists(st.none() | texts, max_size=4),
        "sizes": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "extra": json_values,
        "key": st.uuids(),
    }
).flatmap(lambda row: st.sets(st.sampled_from(sorted(row))).map(lambda nulls: row | dict.fromkeys(nulls)))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(rows, min_size=1, max_size=25), st.sampled_from(["update", "index"]))
def test_random_rows_come_back_equal_in_meaning(
    random_rows: "RandomRows", examples: list[dict[str, Any]], action: Action
) -> None:
    stored = random_rows.through_the_server(examples, action)

    for sent, got in zip(examples, stored, strict=True):
        assert got.pop("id") is not None
        assert {name: meaning(name, value) for name, value in got.items()} == {
            name: expected(name, value) for name, value in sent.items()
        }


class RandomRows:
    """One index for all examples, with ids that never come again."""

    def __init__(self, client: SearchClient, index: str) -> None:
        self._documents = Documents(client, index, mapping.derive(SCHEMA, TYPES), TYPES)
        self._next = 0

    def through_the_server(self, examples: list[dict[str, Any]], action: Action) -> list[dict[str, Any]]:
        ids = range(self._next, self._next + len(examples))
        self._next = ids.stop
        arrow_rows = [_arrow_row(number, row) for number, row in zip(ids, examples, strict=True)]
        outcome = self._documents.put(pa.RecordBatch.from_pylist(arrow_rows, SCHEMA), action)
        assert outcome.rejected == []
        stored = self._documents.get([str(number) for number in ids])
        return [stored[str(number)] for number in ids]


def _arrow_row(number: int, row: dict[str, Any]) -> dict[str, Any]:
    extra = None if row["extra"] is None else json.dumps(row["extra"])
    return row | {"id": number, "extra": extra, "key": row["key"].bytes if row["key"] else None}


@pytest.fixture
def random_rows(client: SearchClient, index: str) -> RandomRows:
    return RandomRows(client, index)


def expected(name: str, value: Any) -> Any:
    """What was sent, in the terms in which documents are compared."""
    if value is None:
        return None
    if name == "amount":
        return Decimal(value)
    if name == "price":
        return float(value)
    if name == "span":
        return tuple(value)
    return str(value) if name == "key" else value


def meaning(name: str, value: Any) -> Any:
    """What the document says, read independently of how it was written."""
    if value is None:
        return None
    readers: dict[str, Callable[[Any], Any]] = {
        "amount": Decimal,
        "single": lambda number: _as_single(float(number)),
        "raw": base64.b64decode,
        "day": dt.date.fromisoformat,
        "clock": dt.time.fromisoformat,
        "at": dt.datetime.fromisoformat,
        "span": _read_interval,
    }
    return readers[name](value) if name in readers else value


def _as_single(number: float) -> float:
    value = pa.array([number]).cast(pa.float32())[0].as_py()
    assert isinstance(value, float)
    return value


def _read_interval(text: str) -> tuple[int, int, int]:
    date, _, clock = text.removeprefix("P").partition("T")
    amounts = {unit: int(amount) for amount, unit in re.findall(r"(-?\d+)([YMD])", date)}
    times = {unit: Decimal(amount) for amount, unit in re.findall(r"(-?[\d.]+)([HMS])", clock)}
    seconds = times.get("H", 0) * 3600 + times.get("M", 0) * 60 + times.get("S", Decimal(0))
    return amounts.get("Y", 0) * 12 + amounts.get("M", 0), amounts.get("D", 0), int(seconds * 10**9)


def test_the_comparison_itself_notices_a_difference() -> None:
    """A property that cannot fail proves nothing."""
    assert meaning("span", "P1M") != expected("span", pa.MonthDayNano([0, 30, 0]))
    assert meaning("amount", "0.1") != expected("amount", "0.10000000000000001")
    assert meaning("single", 0.1) == _as_single(0.1)
    assert not math.isclose(meaning("ratio", 0.1), 0.2)
