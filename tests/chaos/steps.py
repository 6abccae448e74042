"""Define a Python step for the pipelines whose runners are killed."""

from typing import Any

from vitrina.transforms import transform


@transform("arena_drop", rows=True)
def arena_drop(row: dict[str, Any]) -> dict[str, Any] | None:
    """Drop some rows, and the cursor's column of all."""
    return None if drops(row["id"]) else {name: row[name] for name in ("id", "version", "applied")}


def drops(identity: int) -> bool:
    return identity % 7 == 0
