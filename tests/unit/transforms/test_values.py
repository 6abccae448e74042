"""Values between Arrow, Python and Postgres: natural on the way in, and nothing rounded or lost on the way home."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrina.errors import NotCarried, StepFailed, TargetMismatch
from vitrina.ports.schema import Column
from vitrina.transforms import arrow_types, call, python_values, registry, to_target
from vitrina.transforms.to_target import Landing

ANY_UUID = UUID("11111111-1111-1111-1111-111111111111")
NAIVE = datetime(2020, 1, 1, 12)  # noqa: DTZ001
AWARE = datetime(2020, 1, 1, 12, tzinfo=UTC)

EXAMPLES: dict[str, Any] = {
    "smallint": -5,
    "integer": 2**31 - 1,
    "bigint": -(2**63),
    "real": 1.5,
    "double precision": 0.1,
    "boolean": True,
    "text": "Ünïcödé",
    "character varying(5)": "abc",
    "bytea": b"\x00\xff",
    "uuid": ANY_UUID,
    "date": date(1, 1, 1),
    "timestamp without time zone": NAIVE,
    "timestamp(3) with time zone": AWARE,
    "time without time zone": time(23, 59, 59, 999999),
    "numeric(3,1)": Decimal("7.0"),
    "numeric(60,5)": Decimal("1234567890123456789012345678901234567890.12345"),
    "numeric": Decimal("1.500"),
    "jsonb": {"a": [1, None, {"b": Decimal("1.10")}]},
    "json": [True, "x"],
    "inet": "10.0.0.1",
    "interval": "1 mon 2 days",
    "text[]": ["a", None, ""],
    "integer[]": [],
    "uuid[]": [ANY_UUID],
    "numeric[]": [Decimal("1.50"), None],
    "numeric(4,2)[]": [Decimal("1.50")],
    "timestamp with time zone[]": [AWARE],
    "jsonb[]": [{"a": 1}],
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_natural_value_goes_there_and_back(kind: str) -> None:
    rows = [{"x": EXAMPLES[kind]}, {"x": None}]
    field = arrow_types.tagged("x", kind)

    batch = python_values.batch_of(rows, pa.schema([field]))

    assert batch.schema.field("x").type == arrow_types.arrow_type(kind)
    assert arrow_types.tag_of(batch.schema.field("x")) == kind
    assert python_values.rows_of(batch) == rows


def test_uuids_are_read_from_any_part_of_a_column() -> None:
    values = [None, ANY_UUID, UUID(int=0), None, UUID(int=2**128 - 1), UUID("00000000-0000-0001-0000-000000000002")]
    column, field = python_values.column_of(values, "x", arrow_types.tagged("x", "uuid"))
    for start in range(len(values) + 1):
        for length in range(len(values) - start + 1):
            found = python_values.to_python(column.slice(start, length), field)
            assert found == values[start : start + length]
            assert [str(value) for value in found] == [str(value) for value in values[start : start + length]]


def touched(row: dict[str, Any]) -> dict[str, Any]:
    """Changes values in their place and swaps others between names; the key is left alone."""
    row["list"].append("new")
    row["json"]["new"] = 1
    row["left"], row["right"] = row["right"], row["left"]
    return row


def test_a_step_may_change_values_in_their_place() -> None:
    rows = [
        {"id": ANY_UUID, "list": ["a"], "json": {"a": 1}, "left": Decimal("1.5"), "right": Decimal("2.5")},
        {"id": UUID(int=7), "list": [], "json": {}, "left": Decimal("3.5"), "right": None},
    ]
    kinds = {"id": "uuid", "list": "text[]", "json": "jsonb", "left": "numeric(3,1)", "right": "numeric(3,1)"}
    batch = python_values.batch_of(rows, pa.schema([arrow_types.tagged(name, kind) for name, kind in kinds.items()]))
    step = registry.Registered("touched", "transform", "rows", touched)

    made = call.call_rows(step, touched, batch, None, [])

    assert python_values.rows_of(made) == list(map(touched, python_values.rows_of(batch)))
    assert made.schema == batch.schema


def test_nan_and_scale_of_a_plain_numeric_survive() -> None:
    field = arrow_types.tagged("x", "numeric")
    column = pa.array(["1.500", "NaN", "-Infinity", "1E+5"])
    values = python_values.to_python(column, field)
    assert python_values.column_of(values, "x", field)[0].to_pylist() == ["1.500", "NaN", "-Infinity", "1E+5"]


def test_json_null_is_not_null() -> None:
    field = arrow_types.tagged("x", "jsonb")
    column = pa.array(["null", None, '{"a": null}'])
    values = python_values.to_python(column, field)
    assert values[1:] == [None, {"a": None}]
    assert not values[0]
    assert python_values.column_of(values, "x", field)[0].to_pylist() == ["null", None, '{"a": null}']


def test_json_with_a_key_twice_is_refused() -> None:
    with pytest.raises(NotCarried, match="same key twice"):
        python_values.to_python(pa.array(['{"a": 1, "a": 2}']), arrow_types.tagged("x", "json"))


@pytest.mark.parametrize(
    ("hint", "value", "made"),
    [
        ("integer", 1.5, pa.float64()),
        ("integer", True, pa.bool_()),
        ("integer", 2**40, pa.int64()),
        ("date", NAIVE, pa.timestamp("us")),
        ("timestamp with time zone", NAIVE, pa.timestamp("us")),
        ("timestamp without time zone", AWARE, pa.timestamp("us", "UTC")),
        ("numeric(3,1)", Decimal("7.25"), pa.string()),
        ("text", 5, pa.int64()),
        ("text[]", [1, 2], pa.list_(pa.int64())),
    ],
)
def test_a_value_of_another_type_changes_the_column_instead_of_being_bent(
    hint: str, value: Any, made: pa.DataType
) -> None:
    column, field = python_values.column_of([value, None], "x", arrow_types.tagged("x", hint))
    assert field.type == made
    assert python_values.to_python(column, field) == [value, None]


@pytest.mark.parametrize("values", [[NAIVE, AWARE], [1, "a"], [time(1), NAIVE], [True, 1]])
def test_mixed_values_are_refused(values: list[Any]) -> None:
    with pytest.raises(python_values.Unfit, match="'x'"):
        python_values.column_of(values, "x", None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None], "bigint"),
        ([2**80], "numeric"),
        ([1.5, 2], "double precision"),
        ([True], "boolean"),
        (["a"], "text"),
        ([b"a"], "bytea"),
        ([Decimal("1.5"), 2], "numeric"),
        ([AWARE], "timestamp with time zone"),
        ([NAIVE], "timestamp without time zone"),
        ([date(2020, 1, 1)], "date"),
        ([time(1, 2)], "time without time zone"),
        ([timedelta(days=1)], "interval"),
        ([ANY_UUID], "uuid"),
        ([{"a": 1}, {"b": 2}], "jsonb"),
        ([[1, 2], []], "bigint[]"),
        ([["a"]], "text[]"),
        ([[Decimal(1)]], "numeric[]"),
        ([[{"a": 1}]], "jsonb"),
        ([[[1]]], "jsonb"),
    ],
)
def test_new_columns_get_a_postgres_type_from_their_values(values: list[Any], expected: str) -> None:
    _, field = python_values.column_of(values, "x", None)
    assert to_target.postgres_type(field) == expected


def test_a_zone_is_converted_not_dropped() -> None:
    moment = datetime(2020, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    column, field = python_values.column_of([moment], "x", None)
    assert python_values.to_python(column, field) == [datetime(2020, 1, 1, tzinfo=UTC)]


def test_rows_must_have_the_same_columns() -> None:
    with pytest.raises(python_values.Unfit, match="lacks 'b'"):
        python_values.batch_of([{"a": 1, "b": 2}, {"a": 1}], pa.schema([]))
    with pytest.raises(python_values.Unfit, match="'c' as well"):
        python_values.batch_of([{"a": 1}, {"a": 1, "c": 3}], pa.schema([]))


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [
        ("timestamp with time zone", -9222425352054775809, "infinity"),
        ("date", -2147472692, "infinity"),
        ("time without time zone", 86_400_000_000, "24:00"),
    ],
)
def test_what_the_driver_wraps_around_is_refused(kind: str, number: int, words: str) -> None:
    schema = arrow_types.schema_of([Column("x", kind)])
    storage = pa.int32() if kind == "date" else pa.int64()
    table = pa.table({"x": pa.chunked_array([pa.array([0, number], storage).view(arrow_types.arrow_type(kind))])})
    with pytest.raises(NotCarried, match=words):
        arrow_types.naturalise(table, schema)


def test_nan_in_a_numeric_with_scale_is_refused() -> None:
    with pytest.raises(NotCarried, match="NaN"):
        arrow_types.naturalise(pa.table({"x": ["1.5", "NaN"]}), arrow_types.schema_of([Column("x", "numeric(3,1)")]))


@pytest.mark.parametrize(
    ("kind", "target", "fits"),
    [
        (pa.int64(), "integer", True),
        (pa.int64(), "numeric(5,2)", True),
        (pa.int64(), "double precision", False),
        (pa.float64(), "real", False),
        (pa.float64(), "numeric", False),
        (pa.float32(), "double precision", True),
        (pa.decimal128(5, 2), "numeric(3,1)", True),
        (pa.decimal128(5, 2), "double precision", False),
        (pa.decimal128(5, 0), "bigint", True),
        (pa.decimal128(5, 2), "bigint", False),
        (pa.string(), "inet", True),
        (pa.string(), "character varying(5)", True),
        (pa.string(), "character(5)", False),
        (pa.string(), "numeric(3,1)", True),
        (pa.string(), "timestamp(3) with time zone", False),
        (pa.string(), "bit(3)", False),
        (pa.list_(pa.string()), "numeric[]", True),
        (pa.list_(pa.string()), "character varying(5)[]", True),
        (pa.list_(pa.string()), "numeric(3,1)[]", False),
        (pa.list_(pa.int64()), "text[]", False),
        (pa.timestamp("us", "UTC"), "timestamp(3) with time zone", True),
        (pa.timestamp("us"), "timestamp with time zone", False),
        (pa.uuid(), "text", True),
        (pa.struct([("a", pa.int64())]), "jsonb", True),
        (pa.struct([("a", pa.int64())]), "text", True),
        (pa.bool_(), "integer", False),
        (pa.null(), "integer", True),
    ],
)
def test_which_targets_take_which_columns(kind: pa.DataType, target: str, fits: bool) -> None:
    assert to_target.lands(pa.field("x", kind), target) is fits


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.array([Decimal("7.25")]), "numeric(3,1)"),
        (pa.array(["7.25"]), "numeric(3,1)"),
        (pa.array(["725e-2"]), "numeric(3,1)"),
        (pa.array(["15"]), "numeric(3,-1)"),
        (pa.array([datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]), "timestamp(3) with time zone"),
        (pa.array([1], pa.timestamp("ns", "UTC")), "timestamp with time zone"),
        (pa.array([time(0, 0, 0, 500_000)]), "time(0) without time zone"),
    ],
)
def test_what_postgres_would_round_is_refused(column: pa.Array, target: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], names=["x"])
    places = {"x": Landing("x", to_target.staged_type(batch.schema.field("x")), target)}
    with pytest.raises(TargetMismatch, match="'x'"):
        to_target.to_stage(batch, places)


@pytest.mark.parametrize(
    ("column", "target"),
    [
        (pa.array([Decimal("7.20"), None]), "numeric(3,1)"),
        (pa.array(["7.200", None, "NaN", "7e0"]), "numeric(3,1)"),
        (pa.array([datetime(2020, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)]), "timestamp(3) with time zone"),
        (pa.array([1000], pa.timestamp("ns", "UTC")), "timestamp with time zone"),
    ],
)
def test_what_postgres_would_not_round_passes(column: pa.Array, target: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], names=["x"])
    places = {"x": Landing("x", to_target.staged_type(batch.schema.field("x")), target)}
    assert to_target.to_stage(batch, places).num_rows == len(column)


def test_a_column_without_any_value_has_no_type_of_its_own() -> None:
    with pytest.raises(StepFailed, match="'x' has no value"):
        to_target.settle(pa.schema([pa.field("x", pa.null())]), None)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6), st.integers(0, 8))
def test_rounding_is_noticed_exactly_when_it_happens(value: Decimal, scale: int) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([str(value)])], names=["x"])
    places = {"x": Landing("x", "text", f"numeric(100,{scale})")}
    rounded = value.quantize(Decimal(1).scaleb(-scale)) if abs(value) < Decimal(10) ** 15 else None
    if rounded is None:
        return
    if rounded == value:
        to_target.to_stage(batch, places)
    else:
        with pytest.raises(TargetMismatch):
            to_target.to_stage(batch, places)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("gaps", [False, True])
def test_every_type_is_read_from_any_part_of_a_column_with_and_without_null(kind: str, gaps: bool) -> None:
    values = [EXAMPLES[kind]] * 3 + ([None, EXAMPLES[kind]] if gaps else [])
    column, field = python_values.column_of(values, "x", arrow_types.tagged("x", kind))
    for start in range(len(values) + 1):
        for length in range(len(values) - start + 1):
            assert python_values.to_python(column.slice(start, length), field) == values[start : start + length]


# What a step may do to a row of whatever kind; `None` leaves it alone.
DEEDS: dict[str, Any] = {
    "keep": lambda row: row,
    "copy": dict,
    "drop": lambda row: None,
    "twice": lambda row: [row, dict(row)],
    "none of them": lambda row: [],
    "raise": lambda row: int("x"),
    "stop": lambda row: next(iter(())),
    "append": lambda row: row["list"].append("new") or row if row["list"] is not None else row,
    "other list": lambda row: {**row, "list": ["z"]},
    "equal list": lambda row: {**row, "list": None if row["list"] is None else list(row["list"])},
    "tuple": lambda row: {**row, "list": None if row["list"] is None else tuple(row["list"])},
    "title": lambda row: {**row, "title": "other"},
}


@given(st.lists(st.sampled_from(sorted(DEEDS)), min_size=1, max_size=250), st.booleans())
def test_rows_come_out_of_a_step_as_one_call_for_each_would_have_them(deeds: list[str], nulls: bool) -> None:
    lists = [None if nulls and place % 3 == 0 else ["a", None][: place % 3] for place in range(len(deeds))]
    given_rows = [{"id": place, "title": f"t{place}", "list": lists[place]} for place in range(len(deeds))]
    kinds = {"id": "integer", "title": "text", "list": "text[]"}
    schema = pa.schema([arrow_types.tagged(name, kind) for name, kind in kinds.items()])
    batch = python_values.batch_of(given_rows, schema)

    def step(row: dict[str, Any]) -> Any:
        return DEEDS[deeds[row["id"]]](row)

    expected: list[dict[str, Any]] = []
    failed: list[int] = []
    for place, row in enumerate(python_values.rows_of(batch)):
        try:
            made = step(row)
        except (ValueError, StopIteration):
            failed.append(place)
            continue
        expected += made if isinstance(made, list) else [made] if made is not None else []
    rejected: list[tuple[int, Exception]] = []
    registered = registry.Registered("any", "transform", "rows", step, columns={"id": pa.int32()})
    result = call.call_rows(registered, step, batch, None, rejected)

    assert [place for place, _ in rejected] == failed
    plain = [{**row, "list": None if row["list"] is None else list(row["list"])} for row in expected]
    assert python_values.rows_of(result) == plain
    assert all(type(exc) is (StopIteration if deeds[place] == "stop" else ValueError) for place, exc in rejected)


def test_a_text_that_spells_the_items_of_a_list_is_not_taken_for_it() -> None:
    batch = python_values.batch_of([{"x": ["a", "b"]}], pa.schema([arrow_types.tagged("x", "text[]")]))
    spell = lambda row: {"x": "ab"}  # noqa: E731
    made = call.call_rows(registry.Registered("spell", "transform", "rows", spell), spell, batch, None, [])
    assert python_values.rows_of(made) == [{"x": "ab"}]


def test_names_of_columns_are_only_ever_keys() -> None:
    names = ["a'b", 'c"d', "e\\f", "{g}", "h\ni", "Ünï", "__import__('os')"]
    for count in (0, 1, len(names)):
        columns = [[place, -place] for place in range(count)]
        made = python_values.rows_from(columns, pa.schema([pa.field(name, pa.int64()) for name in names[:count]]))
        assert made == [dict(zip(names, row, strict=False)) for row in zip(*columns, strict=True)]
