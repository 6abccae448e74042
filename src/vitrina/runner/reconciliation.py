"""A runner compares a mart with its source, twice before it calls anything a difference, and repairs it on request."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import structlog
from psycopg.sql import SQL, Composable, Identifier
from pydantic import ValidationError

from vitrina import schedule
from vitrina.adapters import carriage
from vitrina.adapters import cursor as cursors
from vitrina.adapters.readers.pushdown import Paging
from vitrina.adapters.readers.sql import Bounds, translate_read
from vitrina.adapters.writers.stage import BATCH, EPOCH, SCHEMA, Stage
from vitrina.definition import Definition, ReconcileSchedule
from vitrina.errors import Conflict, Disconnected, FatalError, LeaseLost, NotFound, VitrinaError
from vitrina.reconcile import compare, repair
from vitrina.reconcile.compare import Difference, Look, Verdict
from vitrina.reconcile.repair import Repaired, TextRow
from vitrina.reconcile.report import Report
from vitrina.reconcile.sides import Field, Key, Side, refuse_strange_keys
from vitrina.runner import job as jobs
from vitrina.runner.control import RunControl, clock
from vitrina.runner.job import Job
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status, can_move
from vitrina.store import database, events, leases, pipelines, requests, runs, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters
from vitrina.targets import SearchTarget, parse_target

# Between the two looks: long enough for what was on its way to arrive, short enough to wait for.
CONFIRM_AFTER_SECONDS = 2.0
DEFAULT_SHOWN, MAX_SHOWN = 100, 10_000
SAMPLE_KEYS = 1_000
REPAIR_BATCH_ROWS = 5_000

Hold = Callable[[Claim, float], AbstractContextManager[RunControl]]


def reconcile(
    request: dict[str, Any],
    metastore: Connection,
    settings: Settings,
    hold: Hold,
    *,
    confirm_after_seconds: float = CONFIRM_AFTER_SECONDS,
) -> dict[str, Any]:
    """Compare; with `repair`, also correct what differs. The answer is the report."""
    row = pipelines.find(metastore, request["pipeline_id"])
    if row is None:
        raise NotFound(f"pipeline {request['pipeline_id']} was deleted meanwhile")
    wish = request["payload"]
    if wish.get("repair"):
        _refuse_beside_a_run(row)
    started, began_at = time.monotonic(), datetime.now(UTC).isoformat()
    report = _compared(row, metastore, settings, wish, confirm_after_seconds)
    if wish.get("repair") and report.verdict.confirmed:
        report.repair = _repaired(request, metastore, settings, report.verdict, hold)
    elif report.verdict.confirmed:
        report.repair = {"done": False, **repair.plan(report.verdict.confirmed)}
    report.started_at, report.duration_seconds = began_at, time.monotonic() - started
    _announce(row, metastore, report)
    return report.as_dict()


def request_due(metastore: Connection) -> int:
    """Ask for the comparisons that `options.reconcile` schedules; any runner may perform them."""
    asked = 0
    for found in requests.list_reconcile_schedules(metastore):
        try:
            wish = ReconcileSchedule.model_validate(found["wish"])
        except ValidationError:
            structlog.get_logger().error("reconcile.schedule_invalid", pipeline=found["name"])
            continue
        if schedule.next_after(wish.interval, found["last_at"]) <= found["now"]:
            requests.insert(metastore, "reconcile", found["id"], {"level": wish.level}, "schedule")
            asked += 1
    return asked


def _refuse_beside_a_run(row: dict[str, Any]) -> None:
    if not can_move("claim_idle", row["status"]):
        raise Conflict(
            f"pipeline {row['name']} is {row['status']}: nothing is repaired beside a run; pause it or wait until it is"
            " IDLE, then ask again"
        )


def _announce(row: dict[str, Any], metastore: Connection, report: Report) -> None:
    """A line in any case; an event when people should look."""
    told = {
        "pipeline_id": str(row["id"]),
        "pipeline": row["name"],
        "differences": report.differences,
        "remaining": report.remaining,
        "in_flight": report.verdict.in_flight,
        **{str(kind): number for kind, number in report.verdict.counts.items()},
    }
    structlog.get_logger().info("reconcile.done", **told, duration_ms=round(report.duration_seconds * 1000))
    if report.differences:
        events.publish(metastore, "drift", told | {"level": report.level})


# --- comparing -----------------------------------------------------------------------------------------------------


def _compared(
    row: dict[str, Any], metastore: Connection, settings: Settings, wish: dict[str, Any], wait_seconds: float
) -> Report:
    level = wish.get("level", "full")
    with ExitStack() as sessions:
        job = _open(row, settings, metastore, sessions)
        with database.translated(f"comparing with {job.target}"):
            with _both_sides(job) as (source, target):
                compare.refuse_other_encoding(source, target)
                first = _look(level, source, target, job, wish)
                report = _report(job, level, first)
            if not first.places and level != "quick":
                return report
            if level == "quick":
                return _confirm_quickly(job, report, first, wait_seconds)
            time.sleep(wait_seconds)
            pending = _is_pending(metastore, job)
            with _both_sides(job) as (source, target):
                report.verdict = compare.confirm(
                    first,
                    source,
                    target,
                    still_moving=_movement(job, pending=pending),
                    others_write=job.definition.options.shared_target,
                )
                shown = min(int(wish.get("limit") or DEFAULT_SHOWN), MAX_SHOWN)
                report.details = compare.details(report.verdict.confirmed[:shown], source, target)
                report.looks = 2
            return report


def _open(row: dict[str, Any], settings: Settings, metastore: Connection, sessions: ExitStack) -> Job:
    _refuse_others(pipelines.definition_of(row), settings)
    job = jobs.open_for_inspection(row, settings, metastore, sessions)
    with database.translated(f"comparing with {job.target}"):
        _inspect(job)
    return job


def _refuse_others(definition: Definition, settings: Settings) -> None:
    target = parse_target(definition.final_target, settings.target_policy)
    if isinstance(target, SearchTarget):
        raise FatalError(
            f"{target} is a search index, and documents are not compared with their rows yet: only Postgres marts can"
            " be reconciled; a full run rebuilds the index and checks the number of its documents"
        )
    if definition.python_source:
        raise FatalError(
            f"the rows come from the Python source {definition.python_source!r}, which cannot be asked for all of them"
            " again without moving its checkpoint: only pipelines with a query can be reconciled"
        )


def _inspect(job: Job) -> None:
    jobs.inspect(job, create_target=False)
    if not job.writer.exists:
        raise FatalError(f"{job.target} does not exist yet: run the pipeline first")
    if job.output and any(job.writer.table.column(column.name) is None for column in job.output):
        missing = [
            c.name for c in job.output if job.writer.table.column(c.name) is None and c.name not in _cursors(job)
        ]
        if missing:
            raise FatalError(f"{job.target} lacks the column {missing[0]!r}: run the pipeline, which adds it")
    kinds = [_kind(job, name) for name in job.key]
    found = job.writer.connection.execute(
        "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
    ).fetchall()
    fields = [Field(name, Identifier(name), kind) for name, kind in zip(job.key, kinds, strict=True)]
    refuse_strange_keys(fields, frozenset(row["name"] for row in found))


def _cursors(job: Job) -> set[str | None]:
    return {job.definition.incremental_key, job.definition.incremental_id_key} if job.cursor else set()


def _look(level: str, source: Side, target: Side, job: Job, wish: dict[str, Any]) -> Look:
    if level == "quick":
        return compare.look_quickly(source, target)
    if level == "sample":
        return compare.look_at_sample(source, target, keys=int(wish.get("keys") or SAMPLE_KEYS))
    return compare.look_fully(source, target, expected_rows=job.estimated_rows)


def _confirm_quickly(job: Job, report: Report, first: Look, wait_seconds: float) -> Report:
    others = job.definition.options.shared_target
    findings = compare.quick_findings(first, others_write=others)
    if findings:
        time.sleep(wait_seconds)
        pending = _is_pending(job.metastore, job)
        with _both_sides(job) as (source, target):
            second = compare.look_quickly(source, target)
        again = compare.quick_findings(second, others_write=others)
        report.looks, report.extents, report.rows = 2, second.extents, second.rows
        in_flight = pending and _knows_no_age(job)
        report.quick_findings = again if not in_flight else []
        report.verdict.in_flight = len(again) if in_flight else 0
    return report


def _is_pending(metastore: Connection, job: Job) -> bool:
    row = pipelines.find(metastore, job.claim.pipeline_id)
    return row is not None and row["status"] in (Status.RUN_REQUESTED, Status.RUNNING, Status.PAUSE_REQUESTED)


def _movement(job: Job, *, pending: bool) -> Callable[[Difference, Difference], bool]:
    """With a cursor, a row's age says whether it is on its way. Without one, a load at work or a changing row does."""
    if not _knows_no_age(job):
        return lambda before, again: False
    if pending:
        return lambda before, again: True
    return lambda before, again: before.source_image != again.source_image


def _knows_no_age(job: Job) -> bool:
    return job.cursor is None or (job.passage is not None and job.cursor.key not in job.writer.columns)


def _report(job: Job, level: str, look: Look) -> Report:
    not_compared = [name for name in job.writer.columns if name in job.writer.not_compared and name not in job.key]
    return Report(
        level=level,
        key=job.key,
        compared=[name for name in job.writer.columns if name not in not_compared],
        not_compared=not_compared,
        guarantee=_guarantee(job, level),
        checkpoint=job.checkpoint.safe_upto if job.cursor else None,
        verdict=Verdict(),
        rows=look.rows,
        extents=look.extents,
    )


def _guarantee(job: Job, level: str) -> str:
    what = {
        "quick": "row counts and ends of key and cursor only",
        "sample": "random keys of both sides, column by column",
        "full": "every row by a 64-bit hash of its key and columns, taken inside each database",
    }[level]
    if _knows_no_age(job):
        last = runs.find_last_success(job.metastore, job.claim.pipeline_id)
        since = f"the last load, begun {last['started_at'].isoformat()}," if last else "the beginning"
        return f"{what}; against the source as it is now: what changed in it since {since} counts as a difference"
    assert job.cursor is not None
    kept = cursors.guarantee(job.cursor, job.definition.options)
    return (
        f"{what}; rows whose {job.cursor.key} is before the checkpoint must be in the mart ({kept}), newer ones are in"
        " flight; rows deleted in the source are extra"
    )


# --- the two sides -------------------------------------------------------------------------------------------------


@contextmanager
def _both_sides(job: Job) -> Iterator[tuple[Side, Side]]:
    """Checkpoint, mart, source, in this order: see `vitrina.reconcile.compare`."""
    job.checkpoint = state.peek(job.metastore, job.claim.pipeline_id)
    target = _target_side(job)
    with target.snapshot(), _source_side(job) as source, source.snapshot():
        yield source, target


def _target_side(job: Job) -> Side:
    return Side(
        connection=job.writer.connection,
        head=SQL(""),
        source=job.writer.table.identifier,
        key=_fields(job, job.key),
        columns=_fields(job, _compared_columns(job)),
        translate=_translate_target,
        cursor=_cursor_field(job),
    )


def _translate_target(exc: psycopg.Error) -> Exception:
    try:
        database.raise_translated("comparing with the mart", exc)
    except VitrinaError as translated:
        return translated


@contextmanager
def _source_side(job: Job, *, all_columns: bool = False) -> Iterator[Side]:
    if job.passage:
        with _passed_rows(job) as (connection, rows):
            yield Side(
                connection=connection,
                head=SQL(""),
                source=rows,
                key=_fields(job, job.key),
                columns=_fields(job, _other_columns(job) if all_columns else _compared_columns(job)),
                translate=_translate_target,
                young=_young(job) if not _knows_no_age(job) else SQL("false"),
                cursor=_cursor_field(job),
            )
        return
    head, source = job.query.wrapped(Bounds())
    yield Side(
        connection=job.reader.connection,
        head=head,
        source=source,
        key=_fields(job, job.key, cast=True),
        columns=_fields(job, _other_columns(job) if all_columns else _compared_columns(job), cast=True),
        translate=_translate_source,
        # Rows that do not say when they changed are left out by every run, too.
        condition=SQL("q.{} IS NOT NULL").format(Identifier(job.cursor.key)) if job.cursor else SQL("true"),
        young=_young(job),
        latest=tuple(job.cursor.columns("q")) if job.cursor else (),
        cursor=_cursor_field(job),
    )


def _translate_source(exc: psycopg.Error) -> Exception:
    return translate_read(exc)


def _other_columns(job: Job) -> list[str]:
    return [name for name in job.writer.columns if name not in job.key]


def _compared_columns(job: Job) -> list[str]:
    return [name for name in _other_columns(job) if name not in job.writer.not_compared]


def _fields(job: Job, names: Sequence[str], *, cast: bool = False) -> tuple[Field, ...]:
    return tuple(Field(name, _spelled(job, name, cast=cast), _kind(job, name)) for name in names)


def _kind(job: Job, name: str) -> str:
    column = job.writer.table.column(name)
    assert column is not None
    return carriage.merge_type(column.base_type)


def _spelled(job: Job, name: str, *, cast: bool) -> Composable:
    """In the mart's type: 0.1 as real is another text than as double precision."""
    reference = SQL("q.{}").format(Identifier(name))
    kind = _kind(job, name)
    if cast and job.types[name] != kind and carriage.merge_type(job.types[name]) != kind:
        return SQL("({}::{})").format(reference, SQL(kind))
    return reference


def _cursor_field(job: Job) -> Field | None:
    if job.cursor is None or job.cursor.key not in job.writer.columns or job.cursor.key in job.key:
        return None
    return Field(job.cursor.key, SQL("q.{}").format(Identifier(job.cursor.key)), job.cursor.key_type)


def _young(job: Job) -> Composable:
    """Whether the mart may not have the row yet."""
    if job.cursor is None:
        return SQL("false")
    safe = job.checkpoint.safe_upto
    if safe is None:
        return SQL("true")  # no pass has come to its end
    # A number is drawn once; a moment may still come again.
    operator = SQL(">" if job.cursor.is_number else ">=")
    return SQL("({} {} {})").format(job.cursor.columns("q")[0], operator, job.cursor.literal(safe))


@contextmanager
def _passed_rows(job: Job) -> Iterator[tuple[Connection, Composable]]:
    """What the Python steps make of the source, in a table of its own beside the mart, for as long as the block."""
    from vitrina.adapters.readers.arrow import ArrowSource, Stager

    assert job.passage is not None
    name = f"r_{job.claim.pipeline_id.hex}_{uuid4().hex[:12]}"
    stage = job.writer.stage(name, {column: place.staged for column, place in job.landings.items()})
    session = f"vitrina:reconcile:{job.claim.pipeline_id}"
    with database.connect(job.target_url, session) as connection:
        _drop_leftovers(connection, job.claim.pipeline_id)
        stage.create(connection, fillable_by=None)
        try:
            stager = Stager(job.target_url, session, (stage,), epoch=0, target=job.table)
            try:
                rows = ArrowSource(
                    job.reader,
                    job.query,
                    bounds=Bounds(),
                    result=job.result,
                    paging=Paging(),
                    stager=stager,
                    batch_size=lambda: job.definition.batch_size,
                    passage=job.passage,
                )
                for _ in rows.batches(1, None):
                    pass
            finally:
                stager.close()
            stage.analyze(connection)
            yield connection, stage.of_batch(0, 1)
        finally:
            stage.drop(connection)


def _drop_leftovers(connection: Connection, pipeline_id: UUID) -> None:
    """Of a reconciliation whose runner died: nobody else has this lock now."""
    row = connection.execute(
        "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0)) AS ours",
        [f"vitrina:reconcile:{pipeline_id}"],
    ).fetchone()
    if not (row and row["ours"]):
        raise Conflict("another reconciliation of this pipeline is at work: wait for its report")
    found = connection.execute(
        """
        SELECT c.relname AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND starts_with(c.relname, %s)
        """,
        [SCHEMA, f"r_{pipeline_id.hex}_"],
    ).fetchall()
    for left in found:
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(SCHEMA, left["name"])))


# --- repairing -----------------------------------------------------------------------------------------------------


def _repaired(
    request: dict[str, Any], metastore: Connection, settings: Settings, verdict: Verdict, hold: Hold
) -> dict[str, Any]:
    """Under the pipeline's lease, as a run of its own: whoever else would write waits until it is over."""
    asked_at = clock()
    claim = leases.claim_idle(metastore, request["pipeline_id"], request["runner_id"], settings.lease_ttl_seconds)
    counters = Counters(metrics={"repair": repair.plan(verdict.confirmed)})
    with hold(claim, asked_at) as control:
        try:
            done = _mend_all(claim, settings, verdict, control, counters)
        except (LeaseLost, Disconnected):
            raise  # the lease is not ours to give back: recovery does it
        except VitrinaError as exc:
            _conclude(metastore, claim, counters)
            leases.finish_run(metastore, claim.run_id, RunStatus.FAILED, exc.code, exc.message)
            raise
        _conclude(metastore, claim, counters)
    return {**repair.outcome(done, verdict.total), "run_id": str(claim.run_id)}


def _conclude(metastore: Connection, claim: Claim, counters: Counters) -> None:
    runs.record_progress(metastore, claim.run_id, counters, attempts=1)
    leases.conclude_run(metastore, claim, answered=False)


def _mend_all(claim: Claim, settings: Settings, verdict: Verdict, control: RunControl, counters: Counters) -> Repaired:
    with ExitStack() as sessions, database.translated(f"repairing {claim.name}"):
        job = jobs.open_job(claim, settings, sessions, guard=control.guard)
        _inspect(job)
        deletes = 0 if job.definition.options.shared_target else repair.plan(verdict.confirmed)["deletes"]
        if deletes:
            job.writer.refuse_shrinking(deletes)
        for connection in (job.reader.connection, job.writer.connection):
            connection.execute("SET lc_monetary = 'C'")
        with _source_side(job, all_columns=True) as source:
            mender = _LeasedMender(job, control, counters, ignores_pause=claim.row["status"] == Status.PAUSE_REQUESTED)
            with mender.stage_at_hand():
                size = min(job.definition.batch_size, REPAIR_BATCH_ROWS)
                return repair.repair(verdict.confirmed, source, mender, batch_rows=size)


class _LeasedMender:
    """Writes batches like a run does: staged, merged, fenced, with the lease looked at last."""

    def __init__(self, job: Job, control: RunControl, counters: Counters, *, ignores_pause: bool) -> None:
        self._job = job
        self._control = control
        self._counters = counters
        # A paused pipeline is repaired without becoming anything else than paused.
        self._ignores_pause = ignores_pause
        self._checkpoint = job.checkpoint
        self._target = _target_side(job)
        names = job.writer.columns
        self._stage: Stage = job.writer.stage(
            f"r_{job.claim.pipeline_id.hex}_{job.claim.epoch}", dict.fromkeys(names, "text")
        )
        self.pause_asked = False

    @contextmanager
    def stage_at_hand(self) -> Iterator[None]:
        connection = self._job.writer.connection
        self._stage.create(connection, fillable_by=None)
        try:
            yield
        finally:
            if not connection.closed and not connection.broken:
                self._stage.drop(connection)

    def mend(self, rows: Sequence[TextRow], absent: Sequence[Key]) -> Repaired:
        self._control.check()
        writer, number = self._job.writer, self._checkpoint.batch_no + 1
        deletes = absent and not self._job.definition.options.shared_target
        with database.translated(f"repairing {self._job.target}"), writer.connection.transaction():
            deleted = writer.delete_rows(self._target.has_key(absent)) if deletes else 0
            merged = Repaired(deleted=deleted)
            if rows:
                self._fill(rows, number)
                counts = writer.merge_batch(self._stage, number)
                merged = Repaired(counts.inserted, counts.updated, deleted, counts.unchanged)
            self._stage.truncate(writer.connection)
            writer.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._checkpoint = replace(self._checkpoint, batch_no=number)
            self._count(rows, merged)
            self._job.ledger.fence(self._checkpoint, self._counters, attempt=1)
            self._control.require_lease()
        status = self._job.ledger.settle(self._checkpoint, self._counters, attempt=1)
        self.pause_asked = status is Status.PAUSE_REQUESTED and not self._ignores_pause
        return merged

    def _fill(self, rows: Sequence[TextRow], number: int) -> None:
        names = [column.name for column in self._stage.columns]
        statement = SQL("COPY {} ({}) FROM STDIN").format(
            self._stage.identifier, SQL(", ").join(map(Identifier, [*names, EPOCH, BATCH]))
        )
        with self._job.writer.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([*(row[name] for name in names), self._job.claim.epoch, number])

    def _count(self, rows: Sequence[TextRow], done: Repaired) -> None:
        self._counters.rows_read += len(rows)
        self._counters.rows_written += done.inserted + done.updated
        self._counters.rows_deleted += done.deleted
        self._counters.batches += 1
