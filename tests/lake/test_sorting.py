"""Rows of a file are sorted by key and version, whatever order they arrive in."""

import pyarrow as pa
import pytest

from vitrina.connectors.files import parquet
from vitrina.connectors.files.columns import VERSION


def rows(*found: tuple[int, str, int]) -> pa.Table:
    ids, names, versions = zip(*found, strict=True) if found else ((), (), ())
    columns = [pa.array(ids, pa.int64()), pa.array(names, pa.string()), pa.array(versions, pa.int64())]
    return pa.table(columns, names=["id", "name", VERSION])


@pytest.mark.parametrize(
    ("given", "key", "versions"),
    [
        ([(3, "c", 1), (1, "a", 2), (2, "b", 3)], ["id"], [2, 3, 1]),
        ([(1, "a", 1), (2, "b", 2), (3, "c", 3)], ["id"], [1, 2, 3]),
        # Equal keys stand in the order of their versions.
        ([(1, "a", 9), (1, "a", 4), (2, "b", 5)], ["id"], [4, 9, 5]),
        # The first column is in order, and the second decides.
        ([(1, "b", 1), (1, "a", 2), (2, "a", 3)], ["id", "name"], [2, 1, 3]),
        ([], ["id"], []),
    ],
)
def test_rows_are_sorted_by_key_and_version(
    given: list[tuple[int, str, int]], key: list[str], versions: list[int]
) -> None:
    assert parquet.sorted_by_key(rows(*given), key).column(VERSION).to_pylist() == versions
