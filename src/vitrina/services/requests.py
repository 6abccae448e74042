"""Request work that only a runner can do, through the metastore, and wait briefly for the answer."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from vitrina import schemas
from vitrina.errors import FieldError, NotFound
from vitrina.sentences import say
from vitrina.services import audit, labels, policy, steps, versions
from vitrina.services.callers import Caller
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import requests, runners
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# After this long no client waits for the answer any more.
EXPIRES_SECONDS = 600.0
TABLES_FRESH_SECONDS = 60.0
_POLL_SECONDS = 0.05

# Its answer contains the address and the login of a connection.
TEST_CONNECTION = "test_connection"

# Requests that editors send while users type.
TYPING_KINDS = ("explain", "validate")
SUPERSEDED = "superseded"

Connect = Callable[[], AbstractContextManager[Connection]]


def ask(connection: Connection, caller: Caller, kind: str, row: Row, payload: dict[str, Any]) -> Row:
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        request_id = requests.insert(connection, kind, row["id"], payload, caller.name)
        audit.record(connection, caller, kind, versions.object_name(row), after=payload or None)
        return get(connection, request_id)


def ask_about_draft(connection: Connection, caller: Caller, kind: str, payload: dict[str, Any]) -> Row:
    """Request work on a definition that is sent along, because no pipeline has it yet."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        request_id = requests.insert(connection, kind, None, payload, caller.name)
        name = payload["definition"]["name"]
        audit.record(connection, caller, kind, f"pipeline:{name}", after=payload)
        return get(connection, request_id)


def ask_about_typing(connection: Connection, caller: Caller, kind: str, payload: dict[str, Any]) -> Row:
    """Request work on a draft. Editors do so while users type, so the audit log does not record it."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        error = {"code": SUPERSEDED, "message": say("request.superseded")}
        requests.withdraw_typing(connection, TYPING_KINDS, caller.name, error)
        return get(connection, requests.insert(connection, kind, None, payload, caller.name))


def ask_for_tables(connection: Connection, caller: Caller, source_connection: str) -> Row:
    """Request the tables that queries on the connection may read. Callers within one minute get the same answer."""
    payload = {"connection": source_connection}
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        fresh = requests.find_shared(connection, "tables", payload, younger_than_seconds=TABLES_FRESH_SECONDS)
        if fresh is not None:
            return fresh
        return get(connection, requests.insert(connection, "tables", None, payload, caller.name))


def ask_for_receivers(connection: Connection, caller: Caller) -> Row:
    """Request the receivers of notifications. Callers within one minute get the same answer."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        fresh = requests.find_shared(connection, "receivers", {}, younger_than_seconds=TABLES_FRESH_SECONDS)
        return fresh or get(connection, requests.insert(connection, "receivers", None, {}, caller.name))


def ask_to_notify(connection: Connection, caller: Caller) -> Row:
    """Ask a runner to send a test message."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        request_id = requests.insert(connection, "test_notifications", None, {}, caller.name)
        audit.record(connection, caller, "test_notifications", "notifications")
        return get(connection, request_id)


def ask_to_try(connection: Connection, caller: Caller, name: str) -> Row:
    """Ask a runner to test a connection."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        request_id = requests.insert(connection, TEST_CONNECTION, None, {"connection": name}, caller.name)
        audit.record(connection, caller, TEST_CONNECTION, f"connection:{name}")
        return get(connection, request_id)


def ask_for_copy(connection: Connection, caller: Caller, payload: dict[str, Any]) -> Row:
    """Ask a runner to suggest a definition that copies a table."""
    with connection.transaction():
        requests.expire(connection, older_than_seconds=EXPIRES_SECONDS)
        return get(connection, requests.insert(connection, "suggest", None, payload, caller.name))


def get(connection: Connection, request_id: UUID) -> Row:
    row = requests.find(connection, request_id)
    if row is None:
        raise NotFound(say("request.none", id=request_id))
    return row


def get_latest(connection: Connection, row: Row, kind: str) -> Row:
    found = requests.find_latest(connection, row["id"], kind)
    if found is None:
        raise NotFound(say("pipeline.no_report_of_kind", name=row["name"], kind=kind))
    return found


def wait_for(connect: Connect, asked: Row, *, seconds: float) -> Row:
    """Wait until the request is finished or the time is over, and return it. Hold no connection while waiting."""
    deadline = time.monotonic() + seconds
    while asked["finished_at"] is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        with connect() as connection:
            asked = get(connection, asked["id"])
    return asked


def somebody_works(connection: Connection, settings: Settings) -> bool:
    return runners.count_alive(connection, stale_after_seconds=settings.lease_ttl_seconds) > 0


def static_report(connection: Connection, settings: Settings, fields: dict[str, Any]) -> schemas.ValidationReport:
    """Report what can be checked without the source: fields, target, query, connections, steps."""
    wanted_labels, fields = labels.split(fields)
    definition, found = policy.parse_piecemeal(fields)
    found += labels.problems(wanted_labels) if wanted_labels is not None else []
    if definition is None:
        return _report(found, [])
    warnings: list[str] = [] if somebody_works(connection, settings) else [_NOBODY_WORKS]
    # Invalid fields were removed from the definition, so they are not checked further.
    wrong = {error.path.partition(".")[0] for error in found}
    judged = policy.problems(definition, settings, connection)
    found += [error for error in judged if error.path.partition(".")[0] not in wrong]
    return _report(found or steps.problems(connection, settings, definition), warnings)


_NOBODY_WORKS = say("warning.nobody_works")


def what_to_ask(report: schemas.ValidationReport, fields: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Choose what to ask a runner about a draft: all of it if it is complete, else its query, else nothing."""
    _, definition = labels.split(fields)
    if report.valid:
        return "validate", {"definition": policy.parse(definition).model_dump(mode="json", exclude_unset=True)}
    path, query = _query_of(definition)
    source = definition.get("source_connection", DEFAULT_CONNECTION)
    unusable = {error.path for error in report.errors} & {path, "source_connection"}
    if unusable or not isinstance(query, str) or not query.strip() or not isinstance(source, str):
        return None
    return "explain", {"source_query": query, "source_connection": source}


def _query_of(fields: dict[str, Any]) -> tuple[str, Any]:
    """Find where the query of a definition is, as far as it is written, and the query."""
    tasks = fields.get("tasks")
    if isinstance(tasks, list) and tasks and all(isinstance(task, dict) for task in tasks):
        orders = [task.get("order_index") for task in tasks]
        first = orders.index(min(orders)) if all(isinstance(order, int) for order in orders) else 0
        return f"tasks.{first}.body", tasks[first].get("body")
    return "source_query", fields.get("source_query")


def with_findings(report: schemas.ValidationReport, fields: dict[str, Any] | None = None) -> schemas.ValidationReport:
    """Add the runner's error to those found here. `fields` is the draft."""
    if report.deep is None or report.deep.error is None:
        return report
    code = str(report.deep.error.get("code", "error"))
    # A later request replaced it, or the runner is too old for it: there is no result.
    if code == SUPERSEDED or (fields is not None and code == NotFound.code):
        return report
    message = str(report.deep.error.get("message", say("run.not_checked")))
    place = {name: report.deep.error.get(name) for name in ("line", "column")}
    path = _PATHS.get(code, "")
    if path == "source_query" and fields is not None:
        path, _ = _query_of(fields)
    found = schemas.FieldProblem(path=path, message=message, code=code, **place)
    return report.model_copy(update={"valid": False, "errors": [*report.errors, found]})


# Which field an error of a run is about.
_PATHS = {
    "source_query_failed": "source_query",
    "invalid_query": "source_query",
    "forbidden_target": "target_table",
    "target_mismatch": "target_table",
    "bad_key": "target_key",
    "bad_check": "checks",
}


def _report(found: list[FieldError], warnings: list[str]) -> schemas.ValidationReport:
    errors = [schemas.FieldProblem.model_validate(vars(error)) for error in found]
    return schemas.ValidationReport(valid=not errors, errors=errors, warnings=warnings)
