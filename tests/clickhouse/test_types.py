"""Every type of Postgres arrives exactly, is refused by its column's name, or travels as text on request."""

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.clickhouse.places import Place
from vitrina.errors import BadKey, TargetMismatch
from vitrina.ports.batch import DeadLetter, Part, PartId, Written
from vitrina.ports.schema import Column
from vitrina.ports.target import Wanted
from vitrina.testing.contracts import Attempt, Ledger

UTC = dt.UTC
SOME = UUID("0190f5c2-52b3-7c3e-8a6f-7f5f8f9b1a2b")

# The type in Postgres, its natural Arrow type, the type in ClickHouse, and awkward values.
EXACT: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("smallint", pa.int16(), "Nullable(Int16)", [-(2**15), 2**15 - 1, None]),
    ("integer", pa.int32(), "Nullable(Int32)", [-(2**31), 2**31 - 1, None]),
    ("bigint", pa.int64(), "Nullable(Int64)", [-(2**63), 2**63 - 1, None]),
    ("real", pa.float32(), "Nullable(Float32)", [1.5, float("inf"), None]),
    ("double precision", pa.float64(), "Nullable(Float64)", [0.1, -float("inf"), 5e-324, None]),
    ("boolean", pa.bool_(), "Nullable(Bool)", [True, False, None]),
    ("text", pa.string(), "Nullable(String)", ["", "a\x00b", "quote ' and \\ and \n", "Ж 🎬", None]),
    ("character varying(20)", pa.string(), "Nullable(String)", ["x", None]),
    ("character(5)", pa.string(), "Nullable(String)", ["x    ", None]),
    ("jsonb", pa.string(), "Nullable(String)", ['{"a": 1.10, "b": [null]}', "null", None]),
    ("content.mpaa_rating", pa.string(), "Nullable(String)", ["PG-13", None]),
    ("bytea", pa.binary(), "Nullable(String)", [b"", b"\x00\xff\xfe", None]),
    ("uuid", pa.uuid(), "Nullable(UUID)", [SOME.bytes, UUID(int=0).bytes, None]),
    ("date", pa.date32(), "Nullable(Date32)", [dt.date(1900, 1, 1), dt.date(2299, 12, 31), None]),
    (
        "timestamp with time zone",
        pa.timestamp("us", "UTC"),
        "Nullable(DateTime64(6, 'UTC'))",
        [
            dt.datetime(1900, 1, 1, tzinfo=UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            dt.datetime(2299, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            None,
        ],
    ),
    (
        "timestamp(3) without time zone",
        pa.timestamp("us"),
        "Nullable(DateTime64(6, 'UTC'))",
        [dt.datetime(2024, 2, 29, 1, 2, 3, 123_456), None],  # noqa: DTZ001
    ),
    (
        "numeric(10,2)",
        pa.decimal128(10, 2),
        "Nullable(Decimal(10, 2))",
        [Decimal("-99999999.99"), Decimal("0.10"), None],
    ),
    ("numeric(38,0)", pa.decimal128(38, 0), "Nullable(Decimal(38, 0))", [Decimal("9" * 38), None]),
    ("numeric(76,20)", pa.decimal256(76, 20), "Nullable(Decimal(76, 20))", [Decimal("1" * 56 + "." + "9" * 20), None]),
    (
        "text[]",
        pa.list_(pa.string()),
        "Array(Nullable(String))",
        [[], ["a,b", "it's", '"quoted"', "{}", "\\", "", None]],
    ),
    ("integer[]", pa.list_(pa.int32()), "Array(Nullable(Int32))", [[1, None, -1], []]),
    ("uuid[]", pa.list_(pa.binary(16)), "Array(Nullable(UUID))", [[SOME.bytes, None], []]),
    ("numeric(6,3)[]", pa.list_(pa.decimal128(6, 3)), "Array(Nullable(Decimal(6, 3)))", [[Decimal("1.100"), None]]),
    (
        "timestamp with time zone[]",
        pa.list_(pa.timestamp("us", "UTC")),
        "Array(Nullable(DateTime64(6, 'UTC')))",
        [[dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None], []],
    ),
    ("boolean[]", pa.list_(pa.bool_()), "Array(Nullable(Bool))", [[True, None, False]]),
    ("bytea[]", pa.list_(pa.binary()), "Array(Nullable(String))", [[b"\xff\x00", None]]),
]

REFUSED = [
    "numeric", "numeric(77,0)", "numeric(3,-2)", "interval", "time without time zone", "inet", "int4range", "money",
    "point", "numeric[]", "bit(3)", "tsvector",
]  # fmt: skip


def loaded(place: Place, pg_type: str, values: pa.Array, **options: Any) -> Written:
    """Load values of one type as a full run does, and say what became of them."""
    attempt = Attempt.__new__(Attempt)
    attempt.ledger, attempt.epoch = Ledger(1), 1
    attempt.target = target = place.target(1, clickhouse=options)
    target.seize()
    columns = (Column("id", "bigint"), Column("v", pg_type))
    target.prepare(Wanted(columns, ("id",)), create=True)
    attempt.begin("replace")
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values})
    with attempt.load.writer() as writer:
        written = writer.write(table, PartId(1, 1))()
    attempt.commit(Part(1, len(values), None, staged=written.rows, letters=written.letters))
    attempt.publish()
    return written


@pytest.mark.parametrize(("pg_type", "arrow", "kind", "values"), EXACT, ids=[one[0] for one in EXACT])
def test_what_arrives_is_what_was_sent(place: Place, pg_type: str, arrow: pa.DataType, kind: str, values: Any) -> None:
    storage = pa.binary(16) if isinstance(arrow, pa.UuidType) else arrow
    sent = pa.array(values, storage)
    sent = pa.ExtensionArray.from_storage(arrow, sent) if isinstance(arrow, pa.UuidType) else sent
    assert loaded(place, pg_type, sent).letters == ()
    found = place.session.arrow(f"SELECT v FROM {place.database}.films ORDER BY id").column("v")
    [(told,)] = place.session.rows(
        f"SELECT type FROM system.columns WHERE database = '{place.database}' AND table = 'films' AND name = 'v'"
    )
    assert told == kind
    assert _plain(found.to_pylist()) == _plain(values)


def _plain(values: list[Any]) -> list[Any]:
    """As bytes, texts and moments: how Arrow wraps them says nothing about the value."""
    return [_plain_value(value) for value in values]


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return _plain(value)
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=UTC)
    return value


@pytest.mark.parametrize("pg_type", REFUSED)
def test_what_has_no_place_is_refused_by_name_or_travels_as_text(place: Place, pg_type: str) -> None:
    is_array = pg_type.endswith("[]")
    values: Any = [["1.10", None], []] if is_array else ["1.10", None]
    sent = pa.array(values, pa.list_(pa.string()) if is_array else pa.string())
    with pytest.raises(
        TargetMismatch, match=r"v \(" + pg_type.replace("(", r"\(").replace(")", r"\)").replace("[]", "")
    ):
        loaded(place, pg_type, sent)
    loaded(place, pg_type, sent, as_string=["v"])
    told = ['["1.10", null]', "[]"] if is_array else ["1.10", None]
    assert [value for _, value in place.rows("id, v")] == told


@pytest.mark.parametrize(
    ("pg_type", "values", "why"),
    [
        ("date", pa.array([dt.date(1899, 12, 31), dt.date(1900, 1, 1)]), "1900 to 2299"),
        ("date", pa.array([dt.date(2300, 1, 1), None]), "1900 to 2299"),
        ("timestamp with time zone", pa.array([-(10**17), 0], pa.timestamp("us", "UTC")), "1900 to 2299"),
        ("timestamp without time zone", pa.array([10**17, 0], pa.timestamp("us")), "1900 to 2299"),
        ("text[]", pa.array([None, []], pa.list_(pa.string())), "NULL"),
        ("date[]", pa.array([[dt.date(1, 1, 1)], [None]], pa.list_(pa.date32())), "1900 to 2299"),
    ],
)
def test_a_value_beyond_its_type_is_a_dead_letter(place: Place, pg_type: str, values: pa.Array, why: str) -> None:
    written = loaded(place, pg_type, values)
    [letter] = written.letters
    assert isinstance(letter, DeadLetter)
    assert (letter.document_id, why in letter.error) == ("0", True)
    assert [key for key, _ in place.rows("id, v")] == [1]


def test_a_key_without_a_value_is_refused(place: Place) -> None:
    target = place.target(1)
    target.seize()
    target.prepare(Wanted((Column("id", "bigint"), Column("title", "text")), ("id",)), create=True)
    attempt = Attempt.__new__(Attempt)
    attempt.ledger, attempt.epoch, attempt.target = Ledger(1), 1, target
    attempt.begin("replace")
    with attempt.load.writer() as writer, pytest.raises(BadKey, match="'id' is NULL in 1 row"):
        writer.write(pa.table({"id": pa.array([1, None], pa.int64()), "title": ["a", "b"]}), PartId(1, 1))
    target.close()


@pytest.mark.parametrize("pg_type", ["double precision", "text[]"])
def test_a_key_that_cannot_be_told_apart_is_refused(place: Place, pg_type: str) -> None:
    with pytest.raises(TargetMismatch, match="'id' is"):
        place.target(1).prepare(Wanted((Column("id", pg_type),), ("id",)), create=True)
