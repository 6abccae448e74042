"""Moving the data: the only place where reading, staging, merging and the checkpoint come together."""

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
import structlog

from vitrina import failpoints
from vitrina.connectors.postgres import carriage
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres import sessions as source_sessions
from vitrina.connectors.postgres.cursor import Watermark
from vitrina.connectors.postgres.pushdown import Paging, SharedSnapshot
from vitrina.connectors.postgres.source import Bounds, Order
from vitrina.connectors.postgres.stage import Stage, stage_name
from vitrina.connectors.postgres.target import DuplicateKeys, StageLost
from vitrina.definition import fingerprint
from vitrina.errors import TransientError
from vitrina.loads import columns, incremental, passes, refusals
from vitrina.loads import job as jobs
from vitrina.loads.control import Paused, RunControl
from vitrina.loads.dead_letters import Letters
from vitrina.loads.filling import Routes
from vitrina.loads.job import Job
from vitrina.loads.plan import Plan
from vitrina.loads.prefetch import Ahead
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import Counts, Filling, Part, PartId, Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.status import Status
from vitrina.store import database, leases
from vitrina.store.database import Connection

if TYPE_CHECKING:
    from vitrina.connectors.postgres.stream import StagesTables


class Run:
    """One run into a table, from a query. Other kinds of runs are made of it."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        *,
        control: RunControl,
        meter: RunMeter,
        log: structlog.stdlib.BoundLogger,
        sessions: ExitStack,
    ) -> None:
        self._job = job
        self._plan = plan
        self._control = control
        self._meter = meter
        self._log = log
        self._sessions = sessions
        # What fills stages: one session at a time.
        self._filler = sessions.enter_context(ExitStack())
        self._checkpoint = job.checkpoint
        self._letters = Letters(job, meter)
        # A load or pass that was begun before the request may have passed by what the request is about.
        self.answers_request = True

    def move_data(self) -> None:
        if self._job.starts_over_because:
            self._say_started_over(self._job.starts_over_because)
        if self._job.columns_to_clear:
            self._clear_columns()
        if self._plan.loads_at_once:
            self._load_at_once()
        else:
            self._merge_batches()

    def _clear_columns(self) -> None:
        job = self._job
        with self._transaction(f"clearing columns of {job.target}"):
            rows = job.writer.clear_columns(job.columns_to_clear)
            self._checkpoint = self._checkpoint.identified(columns=columns.cleared(self._checkpoint, job))
            self._fence(progressed=False)
        self._log.info("columns.cleared", columns=list(job.columns_to_clear), rows=rows)

    # --- everything staged, then published in one transaction -----------------------------------------------------

    def _load_at_once(self) -> None:
        stage = self._continue_load() or self._begin_load()
        if self._job.cursor:
            self._count_null_cursors()
        if not self._is_complete():
            with refusals.of_reading(), self._until_paused():
                self._fill(stage)
        try:
            with refusals.of_publish(self._checkpoint.load_started_at):
                self._publish(stage)
        except DuplicateKeys:
            if not self._job.cursor:
                raise
            self._merge_instead()

    def _fill(self, stage: Stage) -> None:
        source = self._source((stage,), self._load_bounds(), self._load_paging(), snapshot=self._snapshot())
        with self._ahead(source, self._resume_point()) as batches:
            for filled in batches:
                self._count_batch(filled)

    def _merge_instead(self) -> None:
        """The source has several versions of a row: batch by batch the latest wins, as in every later pass."""
        self._say_started_over("the source has several versions of a row, which are merged in the order of the cursor")
        self._meter.starts_over()
        self._filler.close()
        self._checkpoint = self._checkpoint.without_cursor()
        self._merge_batches()

    def _continue_load(self) -> Stage | None:
        """The stage of an interrupted load, when it may still be used; says why when it may not."""
        found, job = self._checkpoint, self._job
        if found.stage is None:
            return None
        stage = self._stage(found.stage)
        obstacle = self._obstacle_to_continue(found, stage)
        if obstacle:
            self._say_started_over(obstacle)
            if job.cursor:  # it may be another one by now, and all rows are read anyway
                self._checkpoint = found.without_cursor()
            return None
        with self._transaction("cleaning the stage"):
            stage.discard_uncounted(job.writer.connection, found.accepted)
            self._fence(progressed=False)
        self.answers_request = False
        self._log.info("load.continued", rows=found.rows, batches=found.batch_no)
        self._meter.continued(found)
        return stage

    def _say_started_over(self, reason: str) -> None:
        self._log.info("load.started_over", reason=reason)
        self._meter.note("started_over", reason)

    def _obstacle_to_continue(self, found: Checkpoint, stage: Stage) -> str | None:
        job, options = self._job, self._job.definition.options
        if found.fingerprint != self._fingerprint():
            return "the definition changed"
        if not stage.exists(job.writer.connection):
            return "the stage is gone"
        if stage.count(job.writer.connection, found.accepted) != found.rows:
            return "the database lost the stage in a crash"
        if options.consistency == "snapshot" and not self._is_complete():
            return "options.consistency asks for one snapshot"
        now = database.now(job.metastore)
        age = now - (found.load_started_at or now)
        if age > timedelta(seconds=options.max_stage_age_seconds):
            return f"the stage is {age} old"
        return None

    def _begin_load(self) -> Stage:
        job = self._job
        self._meter.starts_over()
        stage = self._stage(job.writer.new_stage_name())
        upto = self._watermark_of_load() if job.cursor else None
        self._checkpoint = replace(
            self._checkpoint.without_cursor(),
            stage=stage.name,
            fingerprint=self._fingerprint(),
            # By the clock that letters are dated by.
            load_started_at=database.now(job.metastore),
            held_upto=upto.remembered if upto else None,
        )
        leases.note_hold(job.metastore, job.claim, upto.hold if upto else None)
        with self._transaction("preparing the stage"):
            job.writer.drop_other_stages(keep=[])
            stage.create(job.writer.connection, fillable_by=self._reader_role())
            self._fence(progressed=False)
            failpoints.hit("load.fenced")
        leases.answer_request(job.metastore, job.claim)
        failpoints.hit("load.begun")
        return stage

    def _is_complete(self) -> bool:
        """A load in one statement is complete as soon as its only batch counts."""
        return bool(self._checkpoint.accepted) and self._checkpoint.last_key is None

    def _load_bounds(self) -> Bounds:
        return incremental.all_rows(self._job)

    def _load_paging(self) -> Paging:
        if self._plan.paging == "one statement":
            return Paging()
        job, order, rows = self._job, jobs.order_of_key(self._job), self._plan.page_rows
        if not rows:
            return Paging(order, job.reading_key)
        order = replace(order, collations=tuple(jobs.collation(job, name) for name in job.reading_key))
        return Paging(order, job.reading_key, lambda: rows)

    def _snapshot(self) -> SharedSnapshot | None:
        """Chunks of one load see one state of the source."""
        if self._plan.route != "pushdown" or self._plan.page_rows is None:
            return None
        job = self._job
        patient = database.READ_ONLY | {"idle_in_transaction_session_timeout": "0"}
        holder = source_sessions.connect(
            job.settings, job.reader_url, job.definition.source_connection, job.claim.session_name, patient
        )
        self._sessions.callback(holder.close)
        self._control.guard(holder)
        return SharedSnapshot(holder, self._max_snapshot_seconds)

    def _resume_point(self) -> Position | None:
        return tuple(json.loads(self._checkpoint.last_key)) if self._checkpoint.last_key else None

    def _count_batch(self, filled: Part) -> None:
        """The staged batch counts from here on: checkpoint and fence, nothing else."""
        self._control.check()
        after = json.dumps(filled.last) if filled.last else None
        started = time.monotonic()
        with self._transaction("counting a batch"):
            self._letters.leave_behind(filled)
            part = PartId(self._job.claim.epoch, filled.number)
            self._checkpoint = self._checkpoint.accepting(part, filled.staged_rows, after)
            self._meter.batch(filled, Counts(), time.monotonic() - started)
            self._fence(progressed=self._keeps_progress)
            failpoints.hit("batch.fenced")
        self._after_batch(filled)

    def _publish(self, stage: Stage) -> None:
        self._control.check()
        started = time.monotonic()
        job, begun_at = self._job, self._checkpoint.load_started_at
        try:
            with self._until_paused(), self._transaction(f"publishing to {job.target}"):
                counts = job.writer.publish(stage, self._checkpoint, deletes=self._plan.deletes)
                self._check_constraints()
                self._letters.rebuilt(begun_at)
                rows = self._checkpoint.rows
                self._checkpoint = self._knowing_mart(self._after_load(), rows)
                self._meter.published(counts, time.monotonic() - started)
                self._fence()
                failpoints.hit("publish.fenced")
        except StageLost:
            self._forget_load()
            raise
        failpoints.hit("publish.committed")
        self._letters.rebuilt(begun_at, committed=True)
        self._log.info("run.published", **vars(counts), duration_ms=round((time.monotonic() - started) * 1000))
        self._settle(obey_pause=False)
        stage.drop(job.writer.connection)

    def _after_load(self) -> Checkpoint:
        done = self._checkpoint.without_load()
        if not self._job.cursor:
            return done
        upto, rows = Watermark.recalled(self._checkpoint.held_upto), self._checkpoint.rows
        # That rows were delivered is how a mart that somebody emptied by hand is told from one that is still empty.
        done = replace(done, safe_upto=None, rows=rows, fingerprint=jobs.cursor_identity(self._job))
        return passes.loaded(self._job, done, upto, rows)

    def _forget_load(self) -> None:
        self._checkpoint = self._checkpoint.without_load()
        with self._transaction("forgetting a lost stage"):
            self._fence(progressed=False)

    # --- batch by batch: each is merged in the transaction of its checkpoint ----------------------------------------

    def _merge_batches(self) -> None:
        """One pass over an open end. The checkpoint is held back; it moves when the pass is done."""
        job = self._job
        assert job.cursor is not None
        upto = self._begin_pass()
        self._count_null_cursors()
        stages = self._pass_stages()
        self._letters.watch_steps()
        self._meter.started_from(self._checkpoint.last_key or self._checkpoint.safe_upto)
        for bounds, paging, after in self._pass_parts():
            source = self._source(stages, bounds, paging)
            with self._until_paused(), self._ahead(source, after) as batches:
                for filled in batches:
                    self._merge_batch(stages[filled.number % len(stages)], filled)
        self._end_pass(upto)

    def _begin_pass(self) -> Watermark:
        """A pass that was interrupted goes on with the watermark that it began with."""
        if self._checkpoint.last_key is not None and not self._job.backfill:
            self.answers_request = False
            return Watermark.recalled(self._checkpoint.held_upto)
        leases.answer_request(self._job.metastore, self._job.claim)
        upto = self._watermark()
        leases.note_hold(self._job.metastore, self._job.claim, upto.hold)
        if self._job.backfill:
            self._meter.starts_over()
        else:
            found = replace(self._checkpoint, fingerprint=jobs.cursor_identity(self._job))
            self._checkpoint = passes.begun(self._job, found, upto)
            upto = Watermark.recalled(self._checkpoint.held_upto)
        return upto

    def _watermark_of_load(self) -> Watermark:
        """A load reads in another order than that of the cursor: it is asked beforehand how far it will come."""
        newest = incremental.newest_cursor(self._job, from_the_future=False) if self._is_by_clock else None
        return replace(self._watermark(), newest=newest)

    @property
    def _is_by_clock(self) -> bool:
        return self._job.cursor is not None and self._job.cursor.is_clock

    def _count_null_cursors(self) -> None:
        rows = incremental.null_cursors(self._job)
        self._meter.rejected(rows)
        if rows:
            self._meter.warn(
                f"{rows} row(s) have no value in incremental_key {self._job.definition.incremental_key} and are left"
                " out: fill it in, or set options.null_cursor to 'read', which reads them on every pass"
            )

    def _watermark(self) -> Watermark:
        job = self._job
        assert job.cursor is not None
        newest = None if self._is_by_clock else incremental.newest_cursor(job)
        self._warn_of_lower_numbers(newest)
        held = self._checkpoint.held_upto
        # What was remembered of a finished pass is the pair of a sequence cursor, not a whole watermark.
        return cursors.watermark(
            job.source_statistics,
            job.cursor,
            job.definition.options,
            safe=self._checkpoint.safe_upto,
            held=held if held and not held.startswith("{") else None,
            newest=newest,
        )

    def _warn_of_lower_numbers(self, newest: str | None) -> None:
        """Nothing tells a sequence that began again from rows that were deleted at its end."""
        cursor, safe = self._job.cursor, self._checkpoint.safe_upto
        if cursor is None or not cursor.is_number or newest is None or safe is None or self._job.backfill:
            return
        highest, reached = Decimal(newest), Decimal(safe)
        if highest.is_finite() and reached.is_finite() and highest < reached:
            self._meter.warn(
                f"the highest value of incremental_key {cursor.key} is {newest}, below the checkpoint {safe}: if its"
                " numbers began again, the rows up to there were not read; read them with `vitrina state"
                f" {self._job.definition.name} --reset`"
            )

    def _pass_stages(self) -> tuple[Stage, ...]:
        job = self._job
        assert job.cursor is not None
        types = (job.cursor.key_type, *([job.cursor.id_type] if job.cursor.id_type else []))
        return self._created(
            tuple(
                self._stage(stage_name(str(job.claim.pipeline_id), suffix), cursor_types=types) for suffix in ("a", "b")
            )
        )

    def _created(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        job = self._job
        with self._transaction("preparing the stages"):
            job.writer.drop_other_stages(keep=[])
            for stage in stages:
                stage.create(job.writer.connection, fillable_by=self._reader_role())
            self._fence(progressed=False)
        failpoints.hit("pass.begun")
        return stages

    def _pass_parts(self) -> Iterator[tuple[Bounds, Paging, Position | None]]:
        """What is new, and behind it what does not say whether it is."""
        yield self._pass_bounds(), self._pass_paging(), self._pass_position()
        if self._job.definition.options.null_cursor == "read" and not self._job.backfill:
            # Steps take no rows without a position: theirs are one batch.
            yield Bounds(nulls="alone"), Paging() if self._job.passage else self._pass_paging(), None

    def _pass_bounds(self) -> Bounds:
        backfill = self._job.backfill
        if backfill:
            return Bounds(since=backfill.get("since"), until=backfill.get("until"))
        return Bounds(since=self._checkpoint.safe_upto)

    def _pass_paging(self) -> Paging:
        cursor = self._job.cursor
        assert cursor is not None
        types = (cursor.key_type, *([cursor.id_type] if cursor.id_type else []))
        names = ("_cursor_key", "_cursor_id")[: len(types)]
        pages = self._plan.paging == "keyset pages"
        nullable = (False, *([jobs.may_be_null(self._job, cursor.id)] if cursor.id else []))
        order = Order(tuple(cursor.columns("q")), types, nullable, cursor.collations)
        return Paging(order, names, self._batch_size if pages else None)

    def _pass_position(self) -> Position | None:
        found = self._checkpoint
        if found.last_key is None or self._job.backfill:
            return None
        assert self._job.cursor is not None
        return (found.last_key, found.last_id) if self._job.cursor.id else (found.last_key,)

    def _merge_batch(self, stage: Stage, filled: Part) -> None:
        self._control.check()
        started = time.monotonic()
        job = self._job
        with self._transaction(f"merging into {job.target}"):
            self._refuse_emptied()
            counts = job.writer.merge_batch(stage, filled.number)
            self._letters.leave_behind(filled)
            stage.truncate(job.writer.connection)
            self._check_constraints()
            self._checkpoint = self._knowing_batch(self._after_merge(filled), counts)
            self._meter.batch(filled, counts, time.monotonic() - started)
            self._meter.merged(counts)
            self._fence(progressed=self._keeps_progress)
            failpoints.hit("batch.fenced")
        self._after_batch(filled)

    def _refuse_emptied(self) -> None:
        """What earlier batches brought is gone, and nobody would notice once this one is merged: begin again."""
        known = None if self._job.backfill else self._checkpoint.identity.get("mart")
        if (self._checkpoint.rows or known) and self._job.writer.was_emptied(known):
            raise TransientError(f"{self._job.target} was emptied or made anew by hand during the run")

    def _knowing_batch(self, checkpoint: Checkpoint, counts: Counts) -> Checkpoint:
        """A backfill says nothing of the mart: rows that were there when it began may have been lost before."""
        if self._job.backfill:
            return checkpoint.identified(columns=columns.written(checkpoint, self._job))
        known = checkpoint.identity.get("mart")
        return self._knowing_mart(checkpoint, (known["rows"] if known else 0) + counts.inserted)

    def _knowing_mart(self, checkpoint: Checkpoint, rows: int) -> Checkpoint:
        job = self._job
        return checkpoint.identified(
            mart=job.writer.remembered(checkpoint.identity.get("mart"), rows),
            columns=columns.written(checkpoint, job),
        )

    def _after_merge(self, filled: Part) -> Checkpoint:
        last = filled.last or ()
        key = last[0] if last else None
        identity = last[1] if len(last) > 1 else None
        if self._job.backfill:
            return replace(self._checkpoint, batch_no=filled.number)
        rows = self._checkpoint.rows + filled.staged_rows
        if key is None:  # a row without a cursor value is no place to go on from
            return replace(self._checkpoint, batch_no=filled.number, rows=rows)
        return replace(self._checkpoint, batch_no=filled.number, rows=rows, last_key=key, last_id=identity)

    def _end_pass(self, upto: Watermark) -> None:
        if not self._job.backfill:
            self._checkpoint = passes.ended(self._job, self._checkpoint, upto, self._meter.counters.rows_read)
        with self._transaction("ending the pass"):
            self._drop_stages()
            self._meter.reached(self._checkpoint.safe_upto)
            self._fence()
            failpoints.hit("pass.fenced")
        failpoints.hit("pass.ended")
        self._settle(obey_pause=False)

    def _drop_stages(self) -> None:
        self._job.writer.drop_other_stages(keep=[])

    # --- shared by both ----------------------------------------------------------------------------------------

    def _ahead(self, source: Filling, after: Position | None) -> Ahead:
        return Ahead(
            source,
            self._checkpoint.batch_no + 1,
            after,
            check=self._while_waiting,
            silence_limit_seconds=self._control.silence_limit_seconds,
            on_wait=self._meter.waited,
        )

    @property
    def _keeps_progress(self) -> bool:
        """Whether an interrupted run goes on behind its last batch. If not, its batches must not excuse every loss."""
        whole = self._plan.loads_at_once and self._job.definition.options.consistency == "snapshot"
        return not whole and not self._job.backfill

    def _while_waiting(self) -> None:
        """Several times a second, as long as no batch comes."""
        self._control.check()
        if self._control.is_interrupted:
            raise Paused

    def _until_paused(self) -> AbstractContextManager[None]:
        """Work in one statement has no batch boundary to wait for: a pause cancels it."""
        return self._control.one_statement() if self._plan.paging == "one statement" else nullcontext()

    def _source(
        self, stages: tuple[Stage, ...], bounds: Bounds, paging: Paging, *, snapshot: SharedSnapshot | None = None
    ) -> Filling:
        if self._plan.route == "arrow":
            return self._arrow_source(stages, bounds, paging)
        filling, session = self._filling(bounds, paging), self._second_session()
        if self._plan.route == "copy":
            return filling.by_copy(stages, session)
        return filling.by_postgres(stages, session, isolate=self._plan.isolate, snapshot=snapshot)

    def _second_session(self) -> Connection:
        """On the target, for the thread that fills stages."""
        job = self._job
        name = job.definition.options.target_connection
        session = source_sessions.connect(job.settings, job.target_url, name, job.claim.session_name, {})
        self._filler.callback(session.close)
        self._control.guard(session)
        return session

    @property
    def _max_snapshot_seconds(self) -> float | None:
        """A load that promises one snapshot keeps it, however long that takes."""
        options, full = self._job.definition.options, self._plan.loads_at_once
        return None if full and options.consistency == "snapshot" else options.max_snapshot_seconds

    def _arrow_source(self, stages: tuple[Stage, ...], bounds: Bounds, paging: Paging) -> Filling:
        # Imported here: pushdown runs need neither pyarrow nor its half second.
        from vitrina.connectors.postgres.stream import Stager

        job = self._job
        stager = Stager(job.target_url, job.claim.session_name, stages, epoch=job.claim.epoch, target=job.table)
        self._filler.callback(stager.close)
        return self._stream_into(stager, bounds, paging)

    def _stream_into(self, stager: "StagesTables", bounds: Bounds, paging: Paging) -> Filling:
        return self._filling(bounds, paging).through_arrow(stager)

    def _filling(self, bounds: Bounds, paging: Paging) -> Routes:
        return Routes(self._job, bounds, paging, self._batch_size, self._max_snapshot_seconds)

    def _stage(self, name: str, *, cursor_types: tuple[str, ...] = ()) -> Stage:
        """Rows that came through Arrow wait in the types in which they travelled."""
        staged = None
        if self._job.landings:
            # Steps may make any number of rows out of one: which cursor value a row had is no longer known.
            staged, cursor_types = {name: place.staged for name, place in self._job.landings.items()}, ()
        elif self._plan.route == "arrow":
            staged = {column.name: carriage.staged_type(column.type) for column in self._job.result}
        return self._job.writer.stage(name, staged, cursor_types)

    def _reader_role(self) -> str | None:
        return self._job.reader.connection.info.user if self._plan.route == "pushdown" else None

    def _fingerprint(self) -> str:
        kinds = [f"{column.name} {column.type}" for column in (*self._job.result, *self._job.output)]
        kinds += self._job.code_digests
        return fingerprint(self._job.definition, list(self._job.key), [self._plan.route, self._plan.paging, *kinds])

    @contextmanager
    def _transaction(self, what: str) -> Iterator[None]:
        with database.translated(what):
            try:
                with self._job.target_connection.transaction():
                    yield
                    self._control.require_lease()
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as exc:
                # Changed by hand under the run: the next try looks at it anew, and makes it or names what is wrong.
                raise TransientError(f"{what}: {database.sql_message(exc)}") from exc
            except psycopg.errors.UniqueViolation as exc:
                # The merge itself checked the key: somebody else wrote the row, or another unique key is in the way.
                raise TransientError(
                    f"{what}: {database.sql_message(exc)} Rows may exchange values of a unique constraint that is"
                    " DEFERRABLE."
                ) from exc

    def _check_constraints(self) -> None:
        """Before the fence, not in COMMIT: the heartbeat waits for the row that the fence locks."""
        self._job.target_connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _fence(self, *, progressed: bool = True) -> None:
        self._job.ledger.fence(
            self._checkpoint, self._meter.counters, attempt=self._meter.attempt, progressed=progressed
        )

    def _after_batch(self, filled: Part) -> None:
        failpoints.hit("batch.committed")
        self._letters.delivered(filled, committed=True)
        self._log.info(
            "batch.done",
            batch_no=filled.number,
            rows=filled.rows,
            rows_read=self._meter.counters.rows_read,
            duration_ms=self._meter.last_batch_ms,
        )
        self._meter.progressed(filled)
        self._settle()

    def _batch_size(self) -> int:
        return self._job.definition.batch_size

    def _take_batch_size(self) -> None:
        """`reload-config` put the run on a newer version: what may change under a run is taken from it."""
        size = self._job.ledger.batch_size
        if size is not None and size != self._batch_size():
            self._log.info("config.reloaded", batch_size=size)
            self._job.definition = self._job.definition.model_copy(update={"batch_size": size})

    def _settle(self, *, obey_pause: bool = True) -> None:
        status = self._job.ledger.settle(
            self._checkpoint, self._meter.counters, attempt=self._meter.attempt, progressed=self._keeps_progress
        )
        self._meter.announce(self._job.metastore, self._job.claim)
        self._take_batch_size()
        if status is Status.PAUSE_REQUESTED and obey_pause:
            raise Paused
