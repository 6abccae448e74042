"""Query `etl_pipelines` and its task plan: definitions, requests, and status changes by the control plane."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.types.json import Jsonb

from vitrina import status
from vitrina.definition import Definition
from vitrina.status import Status, Trigger
from vitrina.store import database, databases, run_after
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Row = dict[str, Any]

# The author's fields, in reading order. Some of them are stored in other tables.
DEFINITION_PARTS = ("run_after", "tasks")
DEFINITION_COLUMNS = tuple(name for name in Definition.model_fields if name not in DEFINITION_PARTS)


@dataclass(frozen=True)
class Filter:
    """Hold what narrows a list of pipelines."""

    status: Sequence[str] = ()
    enabled: bool | None = None
    name: str | None = None
    target: str | None = None
    since: datetime | None = None
    managed_by: str | None = None
    labels: Sequence[str] = ()

    @property
    def asked(self) -> frozenset[str]:
        """Return the names of the fields that narrow the list."""
        return frozenset(name for name, value in vars(self).items() if value is not None and value not in ([], ()))


# Columns by which a list may be sorted, with their types. None of them is ever NULL, so keyset paging misses no row.
SORTABLE = {
    "name": "text",
    "status": "text",
    "status_since": "timestamptz",
    "created_at": "timestamptz",
    "updated_at": "timestamptz",
}

# Columns that a list shows.
_LISTED = (
    *("id", *DEFINITION_COLUMNS, "labels", "status", "status_since", "version", "managed_by", "run_requested_at"),
    *("next_run_at", "last_error", "needs_attention", "lease_until", "created_at", "updated_at"),
)

_TARGETS_LOCK = 0x5649_5452_5447_54


def insert(connection: Connection, definition: Definition, *, pipeline_id: UUID | None, managed_by: str | None) -> UUID:
    columns = [*DEFINITION_COLUMNS, "managed_by"]
    values = [_value(definition, column) for column in DEFINITION_COLUMNS] + [managed_by]
    if pipeline_id is not None:
        columns, values = ["id", *columns], [pipeline_id, *values]
    row = database.one(
        connection.execute(
            sql.SQL("INSERT INTO etl.etl_pipelines ({}) VALUES ({}) RETURNING id").format(
                sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join([sql.Placeholder()] * len(columns))
            ),
            values,
        )
    )
    new_id: UUID = row["id"]
    replace_tasks(connection, new_id, definition)
    run_after.replace(connection, new_id, definition)
    return new_id


def update(
    connection: Connection,
    pipeline_id: UUID,
    definition: Definition,
    *,
    version: int,
    changed: Collection[str] = DEFINITION_PARTS,
) -> bool:
    """Write the whole definition over version `version`. Return False if another session changed it first.

    Parts in other tables are written only if their fields are in `changed`.
    """
    values = [_value(definition, column) for column in DEFINITION_COLUMNS]
    if not _update().execute(connection, [*values, pipeline_id, version]):
        return False
    if "tasks" in changed:
        replace_tasks(connection, pipeline_id, definition)
    if "run_after" in changed:
        run_after.replace(connection, pipeline_id, definition)
    return True


@cache
def _update() -> Statement:
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(column), sql.Placeholder()) for column in DEFINITION_COLUMNS
    )
    text = sql.SQL(
        "UPDATE etl.etl_pipelines SET {}, version = version + 1, updated_at = now() WHERE id = {} AND version = {}"
    ).format(assignments, sql.Placeholder(), sql.Placeholder())
    return Statement(text.as_bytes())


def replace_tasks(connection: Connection, pipeline_id: UUID, definition: Definition) -> None:
    connection.execute("DELETE FROM etl.etl_pipeline_tasks WHERE pipeline_id = %s", [pipeline_id])
    for task in definition.ordered_tasks:
        connection.execute(
            """
            INSERT INTO etl.etl_pipeline_tasks
                (pipeline_id, order_index, task_type, body, params, source_table, target_table)
            VALUES (%s, %s, %s, %s, %s, %s, %s)
            """,
            [
                pipeline_id,
                task.order_index,
                task.task_type,
                task.body,
                Jsonb(task.params),
                task.source_table,
                task.target_table,
            ],
        )


def find(connection: Connection, id_or_name: str | UUID, *, lock: bool = False) -> Row | None:
    """Find a row with its task plan (`tasks`), by uuid or by name."""
    by_id = _as_uuid(id_or_name)
    return _find(by_id is not None, lock).fetch_one(connection, [by_id or str(id_or_name)])


@cache
def _find(by_id: bool, lock: bool) -> Statement:
    """Build the statement once, because every request for one pipeline begins with it."""
    text = sql.SQL(
        "SELECT {columns} FROM etl.etl_pipelines p WHERE {condition} {lock}",
    ).format(
        columns=WITH_PARTS,
        condition=sql.SQL("p.id = %s") if by_id else sql.SQL("p.name = %s"),
        lock=sql.SQL("FOR UPDATE OF p") if lock else sql.SQL(""),
    )
    return Statement(text.as_bytes())


def list_names(connection: Connection, *, limit: int = 1000) -> list[str]:
    found = connection.execute("SELECT name FROM etl.etl_pipelines ORDER BY name LIMIT %s", [limit])
    return [row["name"] for row in found]


def list_page(
    connection: Connection,
    narrowed: Filter,
    *,
    limit: int,
    sort: str = "name",
    descending: bool = False,
    after: tuple[Any, UUID] | None = None,
) -> list[Row]:
    """List pipelines in the order of a column of `SORTABLE`, after the (value, id) pair of the last one seen.

    Their rows have the columns that users see, without those of claims and requests.

    Unused conditions are left out: with all of them, one plan for every filter could use no index.
    """
    return _list(narrowed.asked, sort, descending, after is not None).fetch_all(
        connection,
        {
            "after": after[0] if after else None,
            "after_id": after[1] if after else None,
            "status": list(narrowed.status),
            "enabled": narrowed.enabled,
            "name": narrowed.name,
            "target": narrowed.target,
            "since": narrowed.since,
            "managed_by": narrowed.managed_by,
            **label_values(narrowed.labels),
            "limit": limit,
        },
    )


@cache
def _list(asked: frozenset[str], sort: str, descending: bool, goes_on: bool) -> Statement:
    """Build the statement of a list once for each kind of list."""
    column = sql.Identifier("p", sort)
    wanted: list[sql.Composable] = [condition for name, condition in _conditions().items() if name in asked]
    if goes_on:
        beyond = sql.SQL("<" if descending else ">")
        place = sql.SQL("({}, p.id) {} (%(after)s::{}, %(after_id)s::uuid)")
        wanted.append(place.format(column, beyond, sql.SQL(SORTABLE[sort])))
    text = sql.SQL(
        """
        SELECT {columns}, {tasks} AS tasks, {run_after} AS run_after
        FROM etl.etl_pipelines p
        WHERE {wanted}
        ORDER BY {column} {direction}, p.id {direction}
        LIMIT %(limit)s
        """
    ).format(
        columns=sql.SQL(", ").join(sql.Identifier("p", name) for name in _LISTED),
        tasks=TASKS,
        run_after=run_after.OF_PIPELINE,
        wanted=sql.SQL(" AND ").join(wanted or [sql.SQL("true")]),
        column=column,
        direction=sql.SQL("DESC") if descending else sql.SQL("ASC"),
    )
    return Statement(text.as_bytes())


def _conditions() -> dict[str, sql.Composable]:
    """Return the condition of each field of the filter; the parameters have the names of the fields."""
    return {
        "status": sql.SQL("p.status = ANY(%(status)s)"),
        "enabled": sql.SQL("p.enabled = %(enabled)s"),
        "name": sql.SQL("strpos(lower(p.name), lower(%(name)s::text)) > 0"),
        "since": sql.SQL("p.updated_at >= %(since)s"),
        "managed_by": sql.SQL("p.managed_by = %(managed_by)s"),
        "labels": sql.SQL(LABELLED),
        "target": ON_TARGET,
    }


# Matches pipelines that have every requested label: `key=value` exactly, `key` with any value.
LABELLED: LiteralString = "(p.labels @> %(label_pairs)s AND p.labels ?& %(label_keys)s)"
# The runs of such pipelines.
OF_LABELLED: LiteralString = "r.pipeline_id IN (SELECT p.id FROM etl.etl_pipelines p WHERE " + LABELLED + ")"  # noqa: S608


def label_values(labels: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `LABELLED`."""
    pairs = {key: value for key, equals, value in (label.partition("=") for label in labels) if equals}
    return {"label_pairs": Jsonb(pairs), "label_keys": [label for label in labels if "=" not in label]}


def list_by_name(
    connection: Connection, names: Collection[str] | None, *, or_managed_by: str | None = None, lock: bool = False
) -> list[Row]:
    """List the named pipelines, or all. Every caller locks them in one order, so that two cannot deadlock."""
    named = sql.SQL("p.name = ANY(%(names)s)")
    owned = sql.SQL("p.managed_by = %(managed_by)s")
    wanted = [named, owned] if or_managed_by is not None else [named]
    return connection.execute(
        sql.SQL(
            """
            SELECT p.*, {tasks} AS tasks, {run_after} AS run_after FROM etl.etl_pipelines p
            WHERE {wanted} ORDER BY p.name {lock}
            """
        ).format(
            tasks=TASKS,
            run_after=run_after.OF_PIPELINE,
            wanted=sql.SQL(" OR ").join(wanted if names is not None else [sql.SQL("true")]),
            lock=sql.SQL("FOR UPDATE OF p") if lock else sql.SQL(""),
        ),
        {"names": list(names) if names is not None else None, "managed_by": or_managed_by},
    ).fetchall()


def lock_targets(connection: Connection) -> None:
    """Lock the assignment of targets to pipelines until the end of the transaction."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_TARGETS_LOCK])


def list_on_target(connection: Connection, target: str, target_connection: str | None) -> list[Row]:
    """List the pipelines that write to a target, by their own setting or by that of their last step."""
    return connection.execute(
        sql.SQL(
            """
            SELECT p.id, p.name, p.mode, p.options ->> 'target_connection' AS target_connection,
                   coalesce((p.options ->> 'shared_target')::boolean, false) AS shared,
                   coalesce(jsonb_typeof(p.options -> 'history') = 'object', false) AS keeps_history
            FROM etl.etl_pipelines p
            WHERE {on_target} AND {database} = %(database)s
            ORDER BY p.name
            """
        ).format(on_target=ON_TARGET, database=databases.OF_PIPELINE),
        {"target": target, "database": databases.resolve(connection, target_connection)},
    ).fetchall()


def find_rival(connection: Connection, pipeline_id: UUID, definition: Definition) -> Row | None:
    """Find another pipeline that must not share the target with this one: a full load deletes what others wrote.

    A history belongs to one pipeline: snapshots of two would not be in order.
    """
    for other in list_on_target(connection, definition.final_target, definition.options.target_connection):
        if other["id"] != pipeline_id and (definition.options.history or other["keeps_history"]):
            return other
        nobody_deletes = definition.mode == other["mode"] == "incremental"
        both_share = definition.options.shared_target and other["shared"]
        if other["id"] != pipeline_id and not nobody_deletes and not both_share:
            return other
    return None


def list_targets(connection: Connection, *, after: str | None = None, limit: int) -> list[Row]:
    """List targets in use, after `after`, with the names of the pipelines that write to them."""
    return connection.execute(
        sql.SQL(
            """
            SELECT used.target, array_agg(used.name ORDER BY used.name) AS pipelines
            FROM (SELECT {target} AS target, p.name FROM etl.etl_pipelines p) used
            WHERE {wanted} GROUP BY 1 ORDER BY 1 LIMIT %(limit)s
            """
        ).format(target=FINAL_TARGET, wanted=sql.SQL("true" if after is None else "used.target > %(after)s")),
        {"after": after, "limit": limit},
    ).fetchall()


def delete(connection: Connection, pipeline_id: UUID) -> bool:
    """Delete a pipeline. Return False while a runner works on it."""
    return bool(
        connection.execute(
            "DELETE FROM etl.etl_pipelines WHERE id = %s AND status <> ALL(%s)", [pipeline_id, list(status.ACTIVE)]
        ).rowcount
    )


def request_run(
    connection: Connection,
    pipeline_id: UUID,
    *,
    trigger: Trigger,
    traceparent: str | None = None,
    accepts: Sequence[str] = (),
) -> Row | None:
    """Request a run. During a run the request is remembered. Return None if the pipeline is disabled or pausing.

    `accepts` names checks that may fail in it.
    """
    return _REQUEST_RUN.fetch_one(
        connection,
        {
            "id": pipeline_id,
            "from": list(status.sources_of("request_run")),
            "trigger": trigger,
            "trace": traceparent,
            "accepts": Jsonb(list(accepts)) if accepts else None,
        },
    )


_REQUEST_RUN = Statement(
    b"""
    UPDATE etl.etl_pipelines
    SET status = CASE WHEN status = ANY(%(from)s) THEN 'RUN_REQUESTED' ELSE status END,
        -- None is set while a load is to be continued or a backfill waits: the wish for a run behind it is new.
        run_requested_at = CASE WHEN status = 'RUN_REQUESTED' THEN coalesce(run_requested_at, clock_timestamp())
                                ELSE clock_timestamp() END,
        requested_trigger = CASE WHEN status = 'RUN_REQUESTED' THEN requested_trigger ELSE %(trigger)s END,
        requested_reason = CASE WHEN status = 'RUN_REQUESTED' THEN requested_reason END,
        requested_trace = CASE WHEN status = 'RUN_REQUESTED' THEN requested_trace ELSE %(trace)s END,
        -- A backfill that waits, works or is paused goes on as what it is, and the run follows it.
        requested_range = CASE WHEN status NOT IN ('IDLE', 'FAILED') THEN requested_range END,
        range_requested_at = CASE WHEN status NOT IN ('IDLE', 'FAILED') THEN range_requested_at END,
        accepted_checks = coalesce(%(accepts)s, accepted_checks),
        attempts = CASE WHEN status = ANY(%(from)s) THEN 0 ELSE attempts END
    WHERE id = %(id)s AND enabled AND status <> 'PAUSE_REQUESTED'
    RETURNING id, name, status, run_requested_at
    """
)


def request_backfill(
    connection: Connection,
    pipeline_id: UUID,
    asked: dict[str, Any],
    *,
    trigger: Trigger,
    traceparent: str | None = None,
    accepts: Sequence[str] = (),
) -> Row | None:
    """Request a range to be read again, separately from a request for a run."""
    return connection.execute(
        """
        UPDATE etl.etl_pipelines
        SET status = 'RUN_REQUESTED', requested_range = %(range)s, range_requested_at = clock_timestamp(),
            requested_trigger = %(trigger)s, requested_reason = NULL, requested_trace = %(trace)s, attempts = 0,
            accepted_checks = %(accepts)s
        WHERE id = %(id)s AND enabled AND status = ANY(%(from)s)
        RETURNING id, name, status, range_requested_at AS run_requested_at
        """,
        {
            "id": pipeline_id,
            "from": list(status.sources_of("request_backfill")),
            "trigger": trigger,
            "trace": traceparent,
            "range": Jsonb(asked),
            "accepts": Jsonb(list(accepts)) if accepts else None,
        },
    ).fetchone()


def resume(connection: Connection, pipeline_id: UUID, *, trigger: Trigger, traceparent: str | None) -> Row | None:
    """Resume a paused pipeline without requesting another run. Return None unless it is paused."""
    return connection.execute(
        """
        UPDATE etl.etl_pipelines
        SET status = 'RUN_REQUESTED', requested_trigger = %(trigger)s, requested_trace = %(trace)s,
            requested_reason = 'resumed', attempts = 0
        WHERE id = %(id)s AND enabled AND status = ANY(%(from)s)
        RETURNING id, name, status, clock_timestamp() AS run_requested_at
        """,
        {"id": pipeline_id, "from": list(status.sources_of("resume")), "trigger": trigger, "trace": traceparent},
    ).fetchone()


def request_pause(connection: Connection, pipeline_id: UUID) -> Row | None:
    """Request a pause; a second request changes nothing. Return None if the status does not allow it."""
    return connection.execute(
        """
        UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'
        WHERE id = %s AND status = ANY(%s)
        RETURNING id, name, status
        """,
        [pipeline_id, [*status.sources_of("request_pause"), Status.PAUSE_REQUESTED]],
    ).fetchone()


def set_enabled(connection: Connection, pipeline_id: UUID, enabled: bool) -> Row | None:
    """Enable or disable a pipeline. Disabling also withdraws a request that no runner has claimed yet."""
    return connection.execute(
        """
        UPDATE etl.etl_pipelines
        SET enabled = %(enabled)s,
            status = CASE WHEN NOT %(enabled)s AND status = ANY(%(from)s) THEN 'IDLE' ELSE status END,
            run_requested_at = CASE WHEN %(enabled)s OR status <> ALL(%(from)s) THEN run_requested_at END,
            requested_range = CASE WHEN %(enabled)s OR status <> ALL(%(from)s) THEN requested_range END,
            range_requested_at = CASE WHEN %(enabled)s OR status <> ALL(%(from)s) THEN range_requested_at END,
            accepted_checks = CASE WHEN %(enabled)s OR status <> ALL(%(from)s) THEN accepted_checks END,
            next_run_at = NULL,
            version = version + (enabled <> %(enabled)s)::int,
            updated_at = now()
        WHERE id = %(id)s
        RETURNING id, name, status, enabled, version
        """,
        {"id": pipeline_id, "enabled": enabled, "from": list(status.sources_of("disable"))},
    ).fetchone()


def withdraw_request(connection: Connection, pipeline_id: UUID, move: str) -> bool:
    """Withdraw a run that no runner has started; `move` is the transition to make: `cancel` or `disable`."""
    return bool(
        connection.execute(
            """
            UPDATE etl.etl_pipelines
            SET status = 'IDLE', run_requested_at = NULL, requested_range = NULL, range_requested_at = NULL,
                requested_reason = NULL, accepted_checks = NULL
            WHERE id = %s AND status = ANY(%s)
            """,
            [pipeline_id, list(status.sources_of(move))],
        ).rowcount
    )


def bump_version(connection: Connection, pipeline_id: UUID) -> int:
    """Increase the version of the row, because it was edited by other means."""
    row = database.one(
        connection.execute(
            "UPDATE etl.etl_pipelines SET version = version + 1, updated_at = now() WHERE id = %s RETURNING version",
            [pipeline_id],
        )
    )
    return int(row["version"])


def set_owner(connection: Connection, pipeline_id: UUID, *, managed_by: str | None, labels: dict[str, str]) -> None:
    connection.execute(
        "UPDATE etl.etl_pipelines SET managed_by = %s, labels = %s WHERE id = %s",
        [managed_by, Jsonb(labels), pipeline_id],
    )


def set_labels(connection: Connection, pipeline_id: UUID, labels: dict[str, str]) -> None:
    connection.execute("UPDATE etl.etl_pipelines SET labels = %s WHERE id = %s", [Jsonb(labels), pipeline_id])


def source_connections(connection: Connection) -> list[str]:
    """List the names of the connections that pipelines read from."""
    rows = connection.execute("SELECT DISTINCT source_connection AS name FROM etl.etl_pipelines ORDER BY name")
    return [row["name"] for row in rows]


def definition_of(row: Row) -> Definition:
    """Validate the author's part of a row again, because it may have been written with psql."""
    fields = {name: row[name] for name in DEFINITION_COLUMNS}
    return Definition.model_validate(fields | {name: row[name] for name in DEFINITION_PARTS})


def final_target(row: str) -> sql.Composed:
    """Build the expression for the target of a row of etl_pipelines: its last step may override its target."""
    return sql.SQL(
        """
        coalesce((SELECT t.target_table FROM etl.etl_pipeline_tasks t
                  WHERE t.pipeline_id = {row}.id ORDER BY t.order_index DESC LIMIT 1), {row}.target_table)
        """
    ).format(row=sql.Identifier(row))


FINAL_TARGET = final_target("p")

# The pipelines whose final target is %(target)s. The first condition, any use of it, can be answered by indexes.
ON_TARGET = sql.SQL(
    """
    p.id IN (SELECT named.id FROM etl.etl_pipelines named WHERE named.target_table = %(target)s
             UNION ALL SELECT t.pipeline_id FROM etl.etl_pipeline_tasks t WHERE t.target_table = %(target)s)
    AND {} = %(target)s
    """
).format(FINAL_TARGET)

TASKS = sql.SQL(
    """
    coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'order_index', t.order_index, 'task_type', t.task_type, 'body', t.body, 'params', t.params,
            'source_table', t.source_table, 'target_table', t.target_table) ORDER BY t.order_index)
        FROM etl.etl_pipeline_tasks t WHERE t.pipeline_id = p.id), '[]')
    """
)
# A whole row of `p`, and what other tables hold of its definition.
WITH_PARTS = sql.SQL("p.*, {} AS tasks, {} AS run_after").format(TASKS, run_after.OF_PIPELINE)


def _value(definition: Definition, column: str) -> Any:
    if column == "options":
        return Jsonb(definition.options.model_dump(exclude_defaults=True))
    if column == "checks":
        return Jsonb(definition.model_dump(mode="json", include={"checks"})["checks"])
    return getattr(definition, column)


def _as_uuid(text: str | UUID) -> UUID | None:
    if isinstance(text, UUID):
        return text
    try:
        return UUID(text)
    except ValueError:
        return None
