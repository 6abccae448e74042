"""A Python step of the pipelines that runners are killed in."""

from typing import Any

from vitrina.transforms import transform


@transform("arena_drop", rows=True)
def arena_drop(row: dict[str, Any]) -> dict[str, Any] | None:
    """Some rows go, and the cursor's column with them all."""
    return None if drops(row["id"]) else {name: row[name] for name in ("id", "version", "applied")}


def drops(identity: int) -> bool:
    return identity % 7 == 0
