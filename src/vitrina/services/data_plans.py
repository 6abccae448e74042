"""Store plans, add what they show besides the data, and apply only definitions that a plan covers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from vitrina.definition import Definition
from vitrina.errors import Conflict, NotFound
from vitrina.sentences import say
from vitrina.services import audit, graph, versions
from vitrina.services.callers import Caller
from vitrina.settings import Settings
from vitrina.store import data_plans
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def fingerprint(definition: Definition) -> str:
    """Compute the fingerprint of a whole definition. An applied definition must equal the planned one."""
    return hashlib.sha256(json.dumps(versions.snapshot_of(definition), sort_keys=True).encode()).hexdigest()


def surroundings(
    connection: Connection, settings: Settings, definition: Definition, saved: Row | None
) -> dict[str, Any]:
    """Describe the parts of a plan that need no data: the definition, and what depends on it."""
    changes = versions.compare(versions.snapshot(saved), versions.snapshot_of(definition)) if saved else []
    return {
        "pipeline": definition.name,
        "base_version": saved["version"] if saved else None,
        "fingerprint": fingerprint(definition),
        "definition_changes": [change.model_dump(mode="json") for change in changes],
        "downstream": graph.downstream(connection, settings, definition),
    }


def keep(connection: Connection, request: Row, saved: Row | None, result: dict[str, Any]) -> None:
    data_plans.insert(
        connection,
        {
            "id": request["id"],
            "pipeline_id": saved["id"] if saved else None,
            "pipeline": result["pipeline"],
            "fingerprint": result["fingerprint"],
            "base_version": result["base_version"],
            "result": result,
            "created_by": request["requested_by"],
        },
    )


def get(connection: Connection, plan_id: UUID) -> Row:
    found = data_plans.find(connection, plan_id)
    if found is None:
        raise NotFound(say("request.no_plan", id=plan_id))
    return found


# --- applying --------------------------------------------------------------------------------------------------------


def refuse_unplanned(
    connection: Connection, plan_ids: Sequence[UUID], wanted: Sequence[tuple[Definition, Row | None]]
) -> dict[str, Row]:
    """Return the plans by pipeline. Refuse definitions that no plan covers as they are now."""
    found = {row["id"]: row for row in data_plans.find_all(connection, plan_ids)}
    for plan_id in plan_ids:
        if plan_id not in found:
            raise NotFound(say("request.no_plan", id=plan_id))
    plans = {row["pipeline"]: row for row in found.values()}
    _refuse_strangers(plans, [definition.name for definition, _ in wanted])
    changing = [(definition, row) for definition, row in wanted if _changes(definition, row)]
    for definition, row in changing:
        _refuse_other(plans, definition, row)
    return {definition.name: plans[definition.name] for definition, _ in changing}


def _refuse_strangers(plans: Mapping[str, Row], names: Sequence[str]) -> None:
    for name, plan in plans.items():
        if name not in names:
            raise Conflict(say("request.plan_of_another", id=plan["id"], pipeline=name, declared=list(names)))


def _changes(definition: Definition, row: Row | None) -> bool:
    return row is None or bool(versions.changed_fields(versions.snapshot(row), versions.snapshot_of(definition)))


def _refuse_other(plans: Mapping[str, Row], definition: Definition, row: Row | None) -> None:
    name = definition.name
    if name not in plans:
        raise Conflict(say("request.not_planned", pipeline=name))
    plan = plans[name]
    if plan["fingerprint"] != fingerprint(definition):
        raise Conflict(say("request.plan_of_other_definition", id=plan["id"], pipeline=name))
    version = row["version"] if row else None
    if plan["base_version"] != version:
        raise Conflict(
            say(
                "request.plan_of_other_version",
                id=plan["id"],
                pipeline=name,
                looked_at=plan["base_version"] or 0,
                version=version or 0,
            )
        )


def applied(connection: Connection, caller: Caller, plan: Row, row: Row) -> None:
    """Record that a plan was applied, in the transaction that applies it."""
    data_plans.mark_applied(connection, plan["id"], row["id"], row["version"], caller.name)
    after = {"plan": str(plan["id"]), "planned_by": plan["created_by"], "version": row["version"]}
    audit.record(connection, caller, "apply_plan", versions.object_name(row), after=after)
