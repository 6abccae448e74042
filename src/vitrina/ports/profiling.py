"""Profile rows that are read back, for targets that cannot compute a profile."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vitrina.ports.profile import LONGEST_SHOWN, TOP_VALUES, ColumnProfile, TargetProfile

if TYPE_CHECKING:
    import pyarrow as pa

# Columns are profiled on an even sample of at most so many rows and bytes.
MOST_ROWS = 100_000
MOST_BYTES = 64 << 20


def profile_of(tables: "Iterable[pa.Table]", size_bytes: int | None = None) -> TargetProfile:
    """Read all rows and profile the columns on a sample of them."""
    sample = Sample()
    for table in tables:
        sample.add(table)
    return TargetProfile(sample.rows, size_bytes, sample.kept_rows, sample.columns())


class Sample:
    """Keep every row of a small target, or every second, fourth or eighth row of a larger one."""

    def __init__(self) -> None:
        self.rows = 0
        self._step = 1
        self._kept: pa.Table | None = None

    @property
    def kept_rows(self) -> int:
        return self._kept.num_rows if self._kept is not None else 0

    def add(self, table: "pa.Table") -> None:
        import pyarrow as pa

        chosen = _every(table, self._step, first=-self.rows % self._step)
        self.rows += table.num_rows
        kept = chosen if self._kept is None else pa.concat_tables([self._kept, chosen])
        while kept.num_rows > MOST_ROWS or (kept.nbytes > MOST_BYTES and kept.num_rows > 1):
            self._step *= 2
            kept = _every(kept, 2)
        self._kept = kept

    def columns(self) -> list[ColumnProfile]:
        if self._kept is None:
            return []
        return [
            _profile(field.name, column) for field, column in zip(self._kept.schema, self._kept.columns, strict=True)
        ]


def _every(table: "pa.Table", step: int, first: int = 0) -> "pa.Table":
    if step == 1:
        return table
    import pyarrow as pa

    return table.take(pa.array(range(first, table.num_rows, step), pa.int64()))


def _profile(name: str, column: "pa.ChunkedArray") -> ColumnProfile:
    import pyarrow.compute as pc

    texts = _texts(column)
    counted = pc.value_counts(texts.drop_null())
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    # Values that occur once are never the most frequent.
    top = sorted(((value, rows) for value, rows in pairs if rows > 1), key=lambda pair: (-pair[1], pair[0]))
    least, greatest = _ends(column)
    return ColumnProfile(
        name=name,
        type=str(column.type),
        nulls=column.null_count,
        distinct=len(counted),
        least=least,
        greatest=greatest,
        top=[(value[:LONGEST_SHOWN], rows) for value, rows in top[:TOP_VALUES]],
    )


def _texts(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return the values as text, converted by Arrow if it can."""
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.chunked_array([texts_of(column.to_pylist())])


def texts_of(values: Sequence[Any]) -> "pa.Array":
    import pyarrow as pa

    return pa.array(map(_text, values), pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list)) else str(value)


def _ends(column: "pa.ChunkedArray") -> tuple[str | None, str | None]:
    """Return the least and the greatest value, or None for types without an order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.min_max(column)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None, None
    # Converted by Arrow: Python cannot hold years after 9999.
    ends = pa.chunked_array([pa.array([found["min"], found["max"]], column.type)])
    least, greatest = (text and text[:LONGEST_SHOWN] for text in _texts(ends).to_pylist())
    return least, greatest
