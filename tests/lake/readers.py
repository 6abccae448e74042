"""Readers of a target that know nothing of Vitrina but its documentation."""

from pathlib import Path
from typing import Any

import duckdb

# As docs/how-to/parquet-files.md has it.
LATEST = """
SELECT * EXCLUDE (_version, _deleted, latest) FROM (
    SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _version DESC) AS latest
    FROM read_parquet({files}, union_by_name = true, hive_partitioning = true)
) WHERE latest = 1 AND NOT _deleted
ORDER BY {key}
"""


def latest(files: list[str] | list[Path], key: str = "id", columns: str = "*") -> list[dict[str, Any]]:
    """Ask DuckDB for the latest row of each key."""
    if not files:
        return []
    with duckdb.connect() as session:
        query = f"SELECT {columns} FROM ({LATEST.format(key=key, files=[str(file) for file in files])})"
        rows: list[dict[str, Any]] = session.sql(query).to_arrow_table().to_pylist()
        return rows


def titles(files: list[str]) -> dict[int, str]:
    return {row["id"]: row["title"] for row in latest(files)}
