"""Profiles of rows that are read back: an even sample, and what its columns hold."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from vitrina.ports import profiling
from vitrina.ports.profile import ColumnProfile
from vitrina.ports.profiling import profile_of


def column(values: list[Any], kind: pa.DataType | None = None) -> ColumnProfile:
    [found] = profile_of([pa.table({"v": pa.array(values, kind)})]).columns
    return found


@pytest.mark.parametrize("sizes", [[1000], [1] * 1000, [7, 300, 0, 693]])
def test_a_sample_is_even_however_the_rows_come(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    monkeypatch.setattr(profiling, "MOST_ROWS", 100)
    first, tables = 0, []
    for size in sizes:
        tables.append(pa.table({"id": pa.array(range(first, first + size), pa.int64())}))
        first += size
    sample = profiling.Sample()
    for table in tables:
        sample.add(table)
    assert sample.rows == 1000
    assert sample._kept is not None
    assert sample._kept["id"].to_pylist() == list(range(0, 1000, 16))


def test_large_values_make_the_sample_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_BYTES", 10_000)
    found = profile_of(pa.table({"v": ["x" * 5_000]}) for _ in range(50))
    assert found.rows == 50
    assert 1 <= found.profiled_rows <= 2


def test_one_value_larger_than_all_that_is_kept_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_BYTES", 10)
    found = profile_of([pa.table({"v": ["x" * 500]})])
    assert (found.profiled_rows, found.columns[0].least) == (1, "x" * 100)


@pytest.mark.parametrize(
    ("values", "kind", "least", "greatest", "distinct"),
    [
        ([2, 10, None], pa.int64(), "2", "10", 2),
        ([Decimal("2.50"), Decimal("10.00")], pa.decimal128(10, 2), "2.50", "10.00", 2),
        ([dt.date(2024, 1, 2), dt.date(2023, 1, 2)], pa.date32(), "2023-01-02", "2024-01-02", 2),
        (["b", "a", "a"], pa.string(), "a", "b", 2),
        ([uuid.UUID(int=1).bytes, uuid.UUID(int=1).bytes], pa.uuid(), None, None, 1),
        ([[1, 2], [1, 2], None], pa.list_(pa.int64()), None, None, 1),
        ([{"a": 1}, {"a": 2}], pa.struct({"a": pa.int64()}), None, None, 2),
        ([b"\xff", b"\x01"], pa.binary(), "01", "ff", 2),
        ([None, None], pa.int64(), None, None, 0),
        ([None], pa.null(), None, None, 0),
        ([], pa.string(), None, None, 0),
        # A year that Python does not hold.
        ([2**58], pa.timestamp("us"), "11103-08-29 17:22:31.711744", "11103-08-29 17:22:31.711744", 1),
        ([True, False, True], pa.bool_(), "false", "true", 2),
    ],
)
def test_values_of_every_type_are_counted(
    values: list[Any], kind: pa.DataType, least: str | None, greatest: str | None, distinct: int
) -> None:
    found = column(values, kind)
    assert (found.least, found.greatest, found.distinct) == (least, greatest, distinct)
    assert found.nulls == values.count(None)


def test_frequent_values_come_first_and_single_ones_not_at_all() -> None:
    found = column(["b", "a", "c", "a", "b", "a"])
    assert found.top == [("a", 3), ("b", 2)]


def test_no_rows_have_no_columns() -> None:
    assert profile_of([]).columns == []
