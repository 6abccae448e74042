"""Define steps for the benchmarks: the same small change to a title, on Arrow batches and on single rows."""

import hashlib
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.transforms import transform


@transform("bench_upper")
def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert titles to capitals, a batch at a time."""
    place = batch.schema.get_field_index("title")
    return batch.set_column(place, batch.schema.field(place), pc.utf8_upper(batch.column(place)))


@transform("bench_parse_rows", rows=True)
def parse_rows(row: dict[str, Any]) -> dict[str, Any]:
    """Parse and hash a title, a row at a time: the cost of a typical user's step rather than the least."""
    words = json.loads(json.dumps(row["title"].split() * 4))
    row["title"] = hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()
    return row


@transform("bench_upper_rows", rows=True)
def upper_rows(row: dict[str, Any]) -> dict[str, Any]:
    """Convert titles to capitals, a row at a time."""
    row["title"] = row["title"].upper()
    return row
