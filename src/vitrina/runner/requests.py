"""Perform requests that need a source or a target, which only a runner can reach."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import structlog

from vitrina import revalidation
from vitrina.checks import data_plan, delete_scan, previews, reconcile
from vitrina.definition import Definition
from vitrina.errors import NotFound, VitrinaError
from vitrina.inside import queries
from vitrina.loads import engines, inspection, kept_connections, opening, profiles, replay
from vitrina.loads.control import Hold
from vitrina.observe import logs, notifications
from vitrina.ports import registry
from vitrina.sentences import Sentence, say
from vitrina.services import data_plans, suggestions
from vitrina.settings import Settings
from vitrina.store import connections, database, pipelines
from vitrina.store import kept_connections as kept_rows
from vitrina.store.database import Connection

PREVIEW_ROWS = 20
# More tables than a user would browse by completion.
MAX_TABLES = 2_000
_UNSAVED_ID = UUID(int=0)

Handler = Callable[[dict[str, Any], Connection, Settings], dict[str, Any]]
Answer = tuple[dict[str, Any] | None, dict[str, Any] | None]


def perform(request: dict[str, Any], metastore: Connection, settings: Settings, hold: Hold) -> Answer:
    """Perform a request, and return its result or its error as the API shows it.

    `hold` keeps alive a lease that the request needs.
    """
    handlers: dict[str, Handler] = {
        "validate": validate,
        "plan": make_plan,
        "profile": profile_target,
        "preview": preview,
        "explain": explain_query,
        "receivers": list_receivers,
        "test_notifications": try_notifications,
        "tables": list_tables,
        "suggest": suggest_copy,
        "test_connection": try_connection,
        "reconcile": partial(reconcile.reconcile, hold=hold),
        "replay": partial(replay.replay, hold=hold),
        delete_scan.KIND: partial(delete_scan.scan, hold=hold),
    }
    try:
        handler = handlers.get(request["kind"])
        if handler is None:
            raise NotFound(say("request.unknown_to_runner", kind=request["kind"]))
        return handler(request, metastore, kept_connections.with_kept(settings, metastore)), None
    except VitrinaError as exc:
        return None, {"code": exc.code, "message": logs.masked(exc.message, settings), **_place(exc)}
    except Exception as exc:  # noqa: BLE001 - one request fails, whatever the error is; the runner goes on
        structlog.get_logger().exception("request.crashed", request_id=str(request["id"]), kind=request["kind"])
        return None, {"code": "internal", "message": f"internal error: {type(exc).__name__}"}


def _place(exc: VitrinaError) -> dict[str, int]:
    """Return line and column in the query, if the error names them."""
    told = exc.message.params if isinstance(exc.message, Sentence) else {}
    return {name: int(str(told[name])) for name in ("line", "column") if {"line", "column"} <= told.keys()}


def validate(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Check a definition without running it: describe and explain the query, choose the plan."""
    with ExitStack() as sessions:
        opened = opening.open_for_inspection(_row_to_inspect(request, metastore), settings, metastore, sessions)
        job = inspection.inspect(opened, create_target=False)
    # After the sessions are closed: a cluster may take long to answer.
    warnings = (*job.plan.warnings, *engines.warnings(job.plan, job.definition, settings))
    return {
        "valid": True,
        "plan": replace(job.plan, warnings=warnings).as_dict(),
        "columns": [{"name": column.name, "type": column.type} for column in job.output],
        "estimated_rows": job.described.estimated_rows,
        "target_exists": job.prepared.exists,
        "explain": job.described.outline,
    }


def make_plan(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Compute what the next full load would change in the target, without writing to it, and save the plan."""
    row = _row_to_inspect(request, metastore)
    saved = pipelines.find(metastore, row["name"])
    if saved is None:
        row |= {"id": uuid4()}  # the name of the stage contains it
    made = data_plan.make(row, saved, settings, metastore)
    definition = pipelines.definition_of(row)
    around = data_plans.surroundings(metastore, settings, definition, saved)
    result = {"id": str(request["id"]), **around, **_masked(made.as_dict(), settings)}
    data_plans.keep(metastore, request, saved, result)
    return result


def profile_target(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Return what the target of a pipeline holds: rows, size, and statistics of its columns."""
    with ExitStack() as sessions:
        opened = opening.open_for_inspection(_row(metastore, request["pipeline_id"]), settings, metastore, sessions)
        name = opened.definition.final_target
        found = profiles.look(opened.target, name)
        if found is None:
            raise NotFound(say("target.not_there", target=name))
        return {"target": name, **found.as_dict()}


def _masked(plan: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Mask the passwords that drivers quote in their errors."""
    return plan | {part: [logs.masked(text, settings) for text in plan[part]] for part in ("refusals", "notes")}


def _row_to_inspect(request: dict[str, Any], metastore: Connection) -> dict[str, Any]:
    """Return the pipeline's row, with the request's definition in place of the saved one if it has any."""
    unsaved = request["payload"].get("definition")
    if unsaved is None:
        return _row(metastore, request["pipeline_id"])
    definition = Definition.model_validate(unsaved).model_dump(mode="json")
    saved = pipelines.find(metastore, definition["name"])
    return (saved or {"id": _UNSAVED_ID, "version": 0}) | definition


def pipeline_of(request: dict[str, Any], metastore: Connection) -> str:
    """Return the name of a request's pipeline, saved or not, or an empty string if it was deleted."""
    unsaved = request["payload"].get("definition")
    if unsaved is not None:
        return str(unsaved["name"])
    row = pipelines.find(metastore, request["pipeline_id"])
    return row["name"] if row else ""


def explain_query(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Describe the columns of a query and how the server would run it, without reading rows."""
    asked = request["payload"]
    return queries.installed().explain(asked["source_connection"], asked["source_query"], settings)


def preview(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Return the first rows after the last step as JSON, without writing anything."""
    definition = _definition(request, metastore)
    limit = min(int(request["payload"].get("limit", PREVIEW_ROWS)), 1000)
    judged = revalidation.revalidate_reading(definition, settings)
    if judged is None or definition.steps:
        return previews.preview(definition, settings, limit)
    sizes = previews.Sizes(limit, previews.MAX_BYTES)
    shown: dict[str, Any] = queries.installed().first_rows(definition, judged, settings, sizes)
    return shown


def list_tables(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """List the tables that queries on a connection may read: those the reader may select from in allowed schemas."""
    name = request["payload"]["connection"]
    _require_tables(name, settings)
    tables = queries.installed().list_tables(name, settings, limit=MAX_TABLES + 1)
    return {"connection": name, "tables": tables[:MAX_TABLES], "complete": len(tables) <= MAX_TABLES}


def suggest_copy(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Suggest a definition that copies a table, with the reasons."""
    asked = request["payload"]
    if asked["schema"] not in settings.source_schemas:
        raise NotFound(
            say(
                "suggestion.schema_not_allowed",
                schema=asked["schema"],
                allowed_source_schemas=settings.allowed_source_schemas,
            )
        )
    _require_tables(asked["connection"], settings)
    preferences = suggestions.Preferences(name=asked.get("name"), key=tuple(asked.get("key", ())))
    source = (asked["connection"], asked["schema"], asked["table"])
    with (
        queries.installed().waited_for(asked["connection"], settings, "vitrina:suggest") as reader,
        database.translated(f"looking at {asked['schema']}.{asked['table']}"),
    ):
        made = suggestions.propose(reader.connection, settings, source, asked.get("target"), preferences)
    return {"definition": made.definition, "guarantee": made.guarantee, "reasons": list(made.reasons)}


def try_connection(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Report what keeps this runner from using a connection, and how to fix it."""
    name = request["payload"]["connection"]
    kept = name in kept_rows.list_names(metastore)
    found = list(connections.examine(settings, name, place=connections.kept_place(name) if kept else None))
    usable = all(verdict.status != connections.PROBLEM for verdict in found)
    told = [{part: logs.masked(text, settings) for part, text in asdict(verdict).items()} for verdict in found]
    return {"connection": name, "usable": usable, "findings": told}


def list_receivers(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """List receivers of notifications and whether each has an address here. Addresses are secrets and are left out."""
    found = notifications.senders(settings)
    names = notifications.SETTINGS.items()
    return {"receivers": [{"name": name, "is_set": name in found, "setting": setting} for name, setting in names]}


def try_notifications(request: dict[str, Any], metastore: Connection, settings: Settings) -> dict[str, Any]:
    """Send a test message to every receiver immediately."""
    message = notifications.test_message(database.now(metastore), request["requested_by"])
    return {"receivers": notifications.try_receivers(settings, message)}


def _require_tables(name: str, settings: Settings) -> None:
    connector = settings.connector_of(name)
    if connector not in (registry.POSTGRES, None):
        raise NotFound(say("connection.lists_no_tables", name=name, connector=connector))


def _definition(request: dict[str, Any], metastore: Connection) -> Definition:
    """Return the request's definition if it has one, otherwise the pipeline's."""
    unsaved = request["payload"].get("definition")
    if unsaved is not None:
        return Definition.model_validate(unsaved)
    return pipelines.definition_of(_row(metastore, request["pipeline_id"]))


def _row(metastore: Connection, pipeline_id: UUID) -> dict[str, Any]:
    row = pipelines.find(metastore, pipeline_id)
    if row is None:
        raise NotFound(say("pipeline.deleted", pipeline_id=pipeline_id))
    return row
