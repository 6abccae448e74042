"""Describe connectors to users: which exist, which runners have them, and which pipelines wait for one."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from vitrina import schemas
from vitrina.ports import registry
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import coverage, runners
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def list_all(connection: Connection, settings: Settings) -> list[schemas.Connector]:
    """List the connectors installed here and those that live runners report, by name. A runner's description wins."""
    found: dict[str, dict[str, Any]] = {
        name: {**connector.describe(), "runners": 0} for name, connector in registry.installed().connectors.items()
    }
    for row in runners.list_connectors(connection, stale_after_seconds=settings.lease_ttl_seconds):
        found[row["name"]] = {**row["described"], "runners": row["runners"]}
    return [schemas.Connector.model_validate(found[name]) for name in sorted(found)]


def waiting(connection: Connection, settings: Settings, only: Iterable[Row] | None = None) -> dict[UUID, str]:
    """Describe what each requested pipeline waits for that no live runner covers, among these rows or all."""
    asked = (
        None
        if only is None
        else [row["id"] for row in only if row["enabled"] and row["status"] == Status.RUN_REQUESTED]
    )
    if asked == []:
        return {}
    found = coverage.list_waiting(connection, stale_after_seconds=settings.lease_ttl_seconds, only=asked)
    return {pipeline: words(missing) for pipeline, missing in found.items()}


def words(missing: Sequence[str]) -> str:
    """Format needs (`source:csv`, `target:parquet`, `step:title_case`) as a sentence."""
    named = dict.fromkeys(map(_named, missing))
    return say("pipeline.waits_for", what=" and ".join(named))


def _named(need: str) -> str:
    kind, _, name = need.partition(":")
    if kind == coverage.STEP:
        return f"step {name}"
    if kind == coverage.TARGET:
        connector = registry.installed().of_prefix(name) if name else None
        return f"connector {connector.name if connector else name or registry.POSTGRES}"
    return f"connector {name}"
