"""Implement the rules of pipelines: when one may be defined, changed, deleted, started and stopped."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import structlog

from vitrina import data_checks, status
from vitrina.definition import LOCKED_WHILE_RUNNING, Definition
from vitrina.errors import Conflict, InvalidField, NotFound, PreconditionFailed
from vitrina.sentences import say
from vitrina.services import audit, backfills, policy, run_after, schedules, steps, versions
from vitrina.services import labels as labels_of
from vitrina.services.callers import Caller
from vitrina.settings import Settings
from vitrina.status import Status, Trigger
from vitrina.store import feeds, leases, pipelines, runs, state
from vitrina.store import run_after as edges
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Fields that decide which pipeline writes where. Changes of these are serialised by a lock.
_TARGET_FIELDS = frozenset({"target_table", "mode", "options", "tasks"})
# Fields that decide which pipeline waits for which. These too.
_GRAPH_FIELDS = frozenset({"run_after"})
# Fields that name Python steps, which are looked up among those of live runners.
_STEP_FIELDS = frozenset({"type", "source_query", "source_table", "python_task", "tasks"})


# --- definitions -----------------------------------------------------------------------------------------------


def get(connection: Connection, id_or_name: str | UUID, *, lock: bool = False) -> Row:
    # Postgres cannot store this character, so no pipeline can have such a name.
    row = None if "\x00" in str(id_or_name) else pipelines.find(connection, id_or_name, lock=lock)
    if row is None:
        raise no_such(connection, str(id_or_name))
    return row


def no_such(connection: Connection, name: str) -> NotFound:
    near = difflib.get_close_matches(name, pipelines.list_names(connection), 1)
    if near:
        return NotFound(say("pipeline.none_but", name=name, near=near[0]))
    return NotFound(say("pipeline.none", name=name))


def create(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    definition: Definition,
    *,
    managed_by: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Row:
    try:
        with connection.transaction():
            pipelines.lock_targets(connection)
            row = insert(connection, settings, caller, definition, managed_by=managed_by, labels=labels)
            refuse_second_writer(connection, row)
            run_after.refuse_circles(connection, [row["name"]])
            return row
    except psycopg.errors.UniqueViolation as exc:
        raise _name_taken(definition.name) from exc


def insert(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    definition: Definition,
    *,
    managed_by: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Row:
    """Insert a new row after checking it. The caller checks for second writers when everything is written."""
    policy.check(definition, settings, connection)
    steps.check(connection, settings, definition)
    pipeline_id = pipelines.insert(connection, definition, pipeline_id=None, managed_by=managed_by)
    schedules.renew(connection, pipeline_id)
    pipelines.set_owner(connection, pipeline_id, managed_by=managed_by, labels=dict(labels or {}))
    row = get(connection, pipeline_id)
    versions.record(connection, caller, row, action="create", before=None, summary=say("version.created"))
    return row


def change(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    id_or_name: str | UUID,
    fields: Mapping[str, Any],
    *,
    expected_version: int | None = None,
    action: str = "change",
) -> Row:
    """Set the given fields; `options` and `labels` are merged key by key, null resets an option to its default."""
    wanted_labels, fields = labels_of.split(fields)
    try:
        with connection.transaction():
            if (_TARGET_FIELDS | _GRAPH_FIELDS) & fields.keys():
                pipelines.lock_targets(connection)
            row = get(connection, id_or_name, lock=True)
            _require_version(row, expected_version)
            definition = policy.parse(_merged(row, fields))
            after = redefine(connection, settings, caller, row, definition, action=action)
            changed = versions.changed_fields(versions.snapshot(row), versions.snapshot(after))
            if _TARGET_FIELDS & changed:
                refuse_second_writer(connection, after)
            if _GRAPH_FIELDS & changed:
                run_after.refuse_circles(connection, [after["name"]])
            return after if wanted_labels is None else labels_of.change(connection, caller, after, wanted_labels)
    except psycopg.errors.UniqueViolation as exc:
        raise _name_taken(str(fields.get("name"))) from exc


def redefine(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    row: Row,
    definition: Definition,
    *,
    action: str,
    summary: str | None = None,
) -> Row:
    """Write a whole definition over a locked row. The caller checks for second writers when everything is written."""
    before = versions.snapshot(row)
    wanted = versions.snapshot_of(definition)
    changed = versions.changed_fields(before, wanted)
    if not changed:
        return row
    _refuse_locked(row, changed)
    if policy.JUDGED_FIELDS & changed:
        policy.check(definition, settings, connection)
    if _STEP_FIELDS & changed or ("options" in changed and definition.options.params):
        steps.check(connection, settings, definition)
    versions.keep_baseline(connection, row)
    if not pipelines.update(connection, row["id"], definition, version=row["version"], changed=changed):
        raise PreconditionFailed(say("pipeline.changed_now", name=row["name"]))
    if schedules.moves_ticks(before, wanted):
        schedules.renew(connection, row["id"])
    if not definition.enabled:
        pipelines.withdraw_request(connection, row["id"], "disable")
    if row["mode"] == "live" and definition.mode != "live":
        feeds.unregister(connection, row["id"])
    after = get(connection, row["id"])
    said = summary or say("version.changed", fields=sorted(changed))
    versions.record(connection, caller, after, action=action, before=before, summary=said)
    return after


def replace_tasks(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    id_or_name: str | UUID,
    tasks: list[dict[str, Any]],
    *,
    expected_version: int | None = None,
) -> Row:
    """Replace the task plan as a whole; with an empty one, `source_query` is used again."""
    return change(
        connection,
        settings,
        caller,
        id_or_name,
        {"tasks": tasks},
        expected_version=expected_version,
        action="replace_tasks",
    )


def roll_back(
    connection: Connection,
    settings: Settings,
    caller: Caller,
    id_or_name: str | UUID,
    version: int,
    *,
    expected_version: int | None = None,
) -> Row:
    """Make the definition of an older version the newest one; the name stays, because other systems use it."""
    with connection.transaction():
        pipelines.lock_targets(connection)  # before the row: every transaction takes the locks in this order
        row = get(connection, id_or_name, lock=True)
        _require_version(row, expected_version)
        old = versions.get(connection, row, version)["definition"]
        definition = policy.parse(old | {"name": row["name"]})
        said = say("version.rolled_back", version=version)
        after = redefine(connection, settings, caller, row, definition, action="roll_back", summary=said)
        refuse_second_writer(connection, after)
        run_after.refuse_circles(connection, [after["name"]])
        return after


def remove(
    connection: Connection,
    caller: Caller,
    id_or_name: str | UUID,
    *,
    expected_version: int | None = None,
    also_removed: Collection[UUID] = (),
) -> None:
    """Delete a pipeline. `also_removed` are pipelines that the same transaction deletes; they no longer wait for it."""
    with connection.transaction():
        pipelines.lock_targets(connection)
        row = get(connection, id_or_name, lock=True)
        _require_version(row, expected_version)
        run_after.refuse_removal(connection, row, also_removed=also_removed)
        if not pipelines.delete(connection, row["id"]):
            raise Conflict(say("pipeline.no_delete_now", name=row["name"], status=row["status"]))
        audit.record(connection, caller, "delete", versions.object_name(row), before=versions.snapshot(row))


# --- verbs -----------------------------------------------------------------------------------------------------


def request_run(
    connection: Connection,
    caller: Caller,
    id_or_name: str | UUID,
    *,
    trigger: Trigger = Trigger.API,
    since: str | None = None,
    until: str | None = None,
    accepts: Collection[str] = (),
) -> Row:
    """Request a run. Repeating the request has no effect. During a run, the request is kept for another run.

    With a range it is a backfill: those rows are read again, and the checkpoint stays where it is. `accepts` names
    checks that may fail in this run.
    """
    asked = {name: value for name, value in (("since", since), ("until", until)) if value is not None}
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        _refuse_accepting(row, accepts)
        by: dict[str, Any] = {"trigger": trigger, "traceparent": caller.traceparent, "accepts": sorted(accepts)}
        if asked:
            backfills.refuse(connection, row, asked)
            moved = pipelines.request_backfill(connection, row["id"], asked, **by)
        else:
            moved = pipelines.request_run(connection, row["id"], **by)
        if moved is None:
            raise Conflict(_why_not_run(row))
        if row["run_after"] and not asked:
            edges.use_up(connection, row["id"])
        if row["status"] != Status.RUN_REQUESTED or row["run_requested_at"] is None:
            _record_move(connection, caller, "run", row, moved)
        if accepts:
            told = {"checks": sorted(accepts)}
            audit.record(connection, caller, "accept_checks", versions.object_name(row), after=told)
        return row | moved


def resume(connection: Connection, caller: Caller, id_or_name: str | UUID) -> Row:
    """Resume a paused pipeline where it stopped, with exactly one run unless more were requested."""
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        if not row["enabled"]:
            raise Conflict(say("pipeline.disabled_no_resume", name=row["name"]))
        moved = pipelines.resume(connection, row["id"], trigger=Trigger.API, traceparent=caller.traceparent)
        if moved is None and row["status"] == Status.PAUSE_REQUESTED:
            raise Conflict(say("pipeline.about_to_pause", name=row["name"]))
        if moved is None:
            raise Conflict(say("pipeline.not_paused", name=row["name"], status=row["status"]))
        _record_move(connection, caller, "resume", row, moved)
        return row | moved


def request_pause(connection: Connection, caller: Caller, id_or_name: str | UUID) -> Row:
    """Request a pause at the next batch boundary; a paused pipeline stays paused."""
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        if row["status"] in (Status.PAUSED, Status.PAUSE_REQUESTED):
            return row
        moved = pipelines.request_pause(connection, row["id"])
        if moved is None:
            raise Conflict(say("pipeline.nothing_to_pause", name=row["name"], status=row["status"]))
        _record_move(connection, caller, "pause", row, moved)
        return row | moved


def cancel(
    connection: Connection, caller: Caller, id_or_name: str | UUID, *, requested_at: datetime | None = None
) -> Row:
    """Withdraw a requested run, or end the current one now; rows that it committed stay.

    With `requested_at`, cancel only the run that answers that request, and no other caller's.
    """
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        if requested_at is not None and not _answers_only(connection, row, requested_at):
            raise Conflict(
                say("pipeline.request_is_over", name=row["name"], status=row["status"], at=requested_at.isoformat())
            )
        ended = pipelines.withdraw_request(connection, row["id"], "cancel") or leases.cancel_run(
            connection, row["id"], say("run.cancelled", who=caller.name)
        )
        if not ended:
            raise Conflict(say("pipeline.nothing_to_cancel", name=row["name"], status=row["status"]))
        moved = get(connection, row["id"])
        _record_move(connection, caller, "cancel", row, moved)
        return moved


def _answers_only(connection: Connection, row: Row, requested_at: datetime) -> bool:
    """Return whether the waiting or current run is for this request and for no later one."""
    asked = {row["run_requested_at"], row["range_requested_at"]} - {None}
    if not asked:
        # Running, or interrupted and waiting for another runner. A repair answers no request.
        return row["claim_returns"] is None and runs.find_latest_answer(connection, row["id"]) == requested_at
    run = runs.find_current(connection, row["id"])
    began = row["status"] == Status.RUN_REQUESTED or (run is not None and run["started_at"] >= requested_at)
    return bool(asked == {requested_at} and began)


def enable(connection: Connection, caller: Caller, id_or_name: str | UUID) -> Row:
    return _set_enabled(connection, caller, id_or_name, enabled=True)


def disable(connection: Connection, caller: Caller, id_or_name: str | UUID) -> Row:
    """Stop starting a pipeline. An unclaimed request is withdrawn; a current run continues to its end.

    A live pipeline has no end: the runner stops following it.
    """
    return _set_enabled(connection, caller, id_or_name, enabled=False)


def reload_config(connection: Connection, settings: Settings, caller: Caller, id_or_name: str | UUID) -> Row:
    """Reload the row: check it, record a version if it was edited by hand, and compute its next due time.

    A current run continues with this version; fields that may change during a run apply from its next batch.
    """
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        definition = policy.parse(versions.fields_of(row))
        policy.check(definition, settings, connection)
        versions.keep_baseline(connection, row)
        known = versions.get(connection, row, row["version"])["definition"]
        changed = versions.changed_fields(known, versions.snapshot_of(definition))
        _refuse_locked(row, changed)
        if _GRAPH_FIELDS & changed:
            run_after.refuse_circles(connection, [row["name"]])
        if changed:
            pipelines.bump_version(connection, row["id"])
            row = get(connection, row["id"])
            versions.record(
                connection, caller, row, action="reload_config", before=known, summary=say("version.edited")
            )
        else:
            audit.record(connection, caller, "reload_config", versions.object_name(row))
        runs.move_to_version(connection, row["id"], row["version"])
        # An unchanged schedule keeps its due time, however often it is reloaded.
        if row["next_run_at"] is None or row["needs_attention"] or schedules.moves_ticks(known, versions.snapshot(row)):
            schedules.renew(connection, row["id"])
        return get(connection, row["id"])


def reset_state(
    connection: Connection, caller: Caller, id_or_name: str | UUID, *, cursor: str | None = None
) -> Row | None:
    """Discard the checkpoint, or set it to a cursor value, while no runner runs the pipeline."""
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        _refuse_reset(row, cursor)
        before = state.find(connection, row["id"])
        state.reset(connection, row["id"], cursor=cursor)
        audit.record(
            connection,
            caller,
            "reset_state",
            versions.object_name(row),
            before={name: before[name] for name in ("last_processed_key", "safe_upto")} if before else None,
            after={"safe_upto": cursor},
        )
        return state.find(connection, row["id"])


def find_current_run(connection: Connection, row: Row) -> Row | None:
    """Find the current run, if there is one."""
    run = runs.find_current(connection, row["id"]) if row["status"] in status.ACTIVE else None
    return run if run and run["finished_at"] is None else None


def refuse_second_writer(connection: Connection, row: Row) -> None:
    """Refuse a second writer: a full load deletes what its source lacks, and so what another pipeline wrote."""
    definition = pipelines.definition_of(row)
    other = pipelines.find_rival(connection, row["id"], definition)
    if other:
        target = definition.final_target
        if definition.options.history or other["keeps_history"]:
            raise Conflict(say("pipeline.history_has_a_writer", target=target, other=other["name"]))
        raise Conflict(say("pipeline.target_has_a_writer", target=target, other=other["name"]))


# --- guards ----------------------------------------------------------------------------------------------------


def _require_version(row: Row, expected: int | None) -> None:
    if expected is not None and row["version"] != expected:
        raise PreconditionFailed(
            say("pipeline.changed_since", name=row["name"], version=row["version"], expected=expected)
        )


def _refuse_locked(row: Row, changed: Iterable[str]) -> None:
    locked = sorted(LOCKED_WHILE_RUNNING.intersection(changed))
    if row["mode"] == "live":
        return  # it always runs, and its runner uses the new version within a second
    if locked and row["status"] in status.ACTIVE:
        raise Conflict(say("pipeline.locked", name=row["name"], status=row["status"], fields=", ".join(locked)))


def _refuse_reset(row: Row, cursor: str | None) -> None:
    name = row["name"]
    if row["status"] in status.ACTIVE:
        raise Conflict(say("pipeline.no_reset_now", name=name, status=row["status"]))
    if cursor is not None and row["mode"] != "incremental":
        raise InvalidField("cursor", say("pipeline.no_cursor", name=name, mode=row["mode"]))


def _refuse_accepting(row: Row, accepts: Collection[str]) -> None:
    if not accepts:
        return
    known = data_checks.names(pipelines.definition_of(row).checks)
    unknown = sorted(set(accepts) - set(known))
    if unknown:
        raise InvalidField("accept", say("pipeline.no_check", name=row["name"], check=unknown[0], known=known))
    if row["status"] in status.ACTIVE:
        raise Conflict(say("pipeline.no_accept_now", name=row["name"], status=row["status"]))


def _why_not_run(row: Row) -> str:
    if not row["enabled"]:
        return say("pipeline.disabled_no_run", name=row["name"])
    return say("pipeline.run_when_paused", name=row["name"], status=row["status"])


def _name_taken(name: str) -> Conflict:
    return Conflict(say("pipeline.name_taken", name=name))


# --- writing ---------------------------------------------------------------------------------------------------


def _merged(row: Row, fields: Mapping[str, Any]) -> dict[str, Any]:
    merged = versions.fields_of(row) | dict(fields)
    if isinstance(fields.get("options"), dict):
        options = {**row["options"], **fields["options"]}
        merged["options"] = {name: value for name, value in options.items() if value is not None}
    return merged


def _set_enabled(connection: Connection, caller: Caller, id_or_name: str | UUID, *, enabled: bool) -> Row:
    with connection.transaction():
        row = get(connection, id_or_name, lock=True)
        if row["enabled"] == enabled:
            return row
        versions.keep_baseline(connection, row)
        pipelines.set_enabled(connection, row["id"], enabled)
        schedules.renew(connection, row["id"])
        after = get(connection, row["id"])
        action = "enable" if enabled else "disable"
        before = versions.snapshot(row)
        versions.record(connection, caller, after, action=action, before=before, summary=say(f"version.{action}d"))
        return after


def _record_move(connection: Connection, caller: Caller, action: str, before: Row, after: Row) -> None:
    if before["status"] != after["status"]:
        structlog.get_logger("vitrina.services").info(
            "status.moved",
            pipeline=after["name"],
            pipeline_id=str(after["id"]),
            source=before["status"],
            target=after["status"],
            caller=caller.name,
        )
    audit.record(
        connection,
        caller,
        action,
        versions.object_name(before),
        before={"status": before["status"]},
        after={"status": after["status"]},
    )
