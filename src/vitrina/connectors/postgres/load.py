"""Load a mart: stage rows, then merge or publish them in one transaction with the checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina import failpoints
from vitrina.connectors.postgres import (
    catalog,
    first_load,
    history,
    left_columns,
    live_merge,
    mart_identity,
    mart_rows,
    money,
)
from vitrina.connectors.postgres.copy import CopySource
from vitrina.connectors.postgres.derive.tables import unsized
from vitrina.connectors.postgres.following import QueryMoment
from vitrina.connectors.postgres.mart_comparison import MartComparison
from vitrina.connectors.postgres.pushdown import Paging, PushdownSource, SharedSnapshot, sharing
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.query_window import QueryWindow
from vitrina.connectors.postgres.range_workers import CopyHandle, StageHandle
from vitrina.connectors.postgres.stage import CURSOR_ID, CURSOR_KEY, Stage, Turns, stage_name
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.definition import Definition
from vitrina.errors import DuplicateKeys, FatalError, StageLost, TransientError
from vitrina.ports.batch import Counts, Filling, Key, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Comparison, Looked
from vitrina.ports.live import Moment, RefuseDeletes, Stale
from vitrina.ports.schema import Column, Known
from vitrina.ports.source import Form, Source, Window
from vitrina.ports.target import (
    BaseLoad,
    BaseTarget,
    Done,
    Fence,
    Load,
    Loading,
    Prepared,
    Route,
    Shortcut,
    Wanted,
    Writer,
)
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    from vitrina.connectors.postgres.checks import MartChecks
    from vitrina.connectors.postgres.source import SqlReader
    from vitrina.connectors.postgres.stream import Stager
    from vitrina.ports.checks import Checks, Judgement
    from vitrina.ports.profile import TargetProfile


@dataclass(frozen=True)
class MartOpening:
    """Hold what a mart is opened with."""

    definition: Definition
    settings: Settings
    claim: Claim
    name: PostgresTarget
    connection: Connection
    url: str = field(repr=False)
    # Pipelines that write to the same table.
    others: Callable[[], Sequence[str]]
    # Lends a session for a part of the run; it ends with the lease.
    lend: Callable[[str, str | None, Mapping[str, str]], AbstractContextManager[Connection]]


def _cursor_of(definition: Definition) -> tuple[str, ...]:
    return tuple(name for name in (definition.incremental_key, definition.incremental_id_key) if name)


class MartTarget(BaseTarget):
    """Represent a PostgreSQL table as a target."""

    form: Form = "exact"
    loads_first_pass = True
    takes_ranges = True
    corrects = True

    def __init__(self, opening: MartOpening) -> None:
        self.opening = opening
        self.writer = PostgresWriter(
            opening.connection,
            opening.claim,
            opening.name,
            opening.definition.options,
            memory_mb=opening.settings.merge_memory_mb,
            cursor=_cursor_of(opening.definition),
        )
        self.session: Connection = opening.connection
        # Snapshots are dated by the source's clock if it is a database.
        self._source: QuerySource | None = None
        self._latest_snapshot: datetime | None = None
        self._to_clear: tuple[str, ...] = ()
        # Sessions for checks, which end with the run.
        self._opened = ExitStack()
        self._check_reader: SqlReader | None = None

    # --- the table -------------------------------------------------------------------------------------------------

    def known(self) -> Known | None:
        return catalog.find_table(self.opening.connection, self.opening.name)

    def meet(self, source: Source) -> Shortcut | None:
        if not isinstance(source, QuerySource):
            return None
        self._source = source
        money.refuse_unlike(source.reader.connection, self.opening.connection, source.result)
        return PostgresShortcut(self, source)

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        key = self.writer.prepare(
            wanted.columns, wanted_key=wanted.key, ignorable=wanted.ignorable, stamps=wanted.stamps, create=create
        )
        self._latest_snapshot = history.latest_of(wanted.found, self.opening.name)
        settled = left_columns.Settled()
        if wanted.has_rows:
            opening = self.opening
            settled = left_columns.settle(self.writer, wanted.found, opening.definition.options, opening.others)
        self._to_clear = settled.to_clear
        warnings = (*settled.warnings, *self.writer.drift())
        return Prepared(key, self.writer.exists, not self.writer.had_rows(), self.writer.columns, warnings)

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare with only the key's columns, which are enough to publish an empty result."""
        table = catalog.find_table(self.opening.connection, self.opening.name)
        if table is None:
            return None
        definition = self.opening.definition
        kept = definition.options.history
        names = definition.target_key or (history.main_key(table, kept) if kept else table.primary_key)
        columns = tuple(Column(column.name, column.type) for column in table.columns if column.name in names)
        key = tuple(definition.target_key) if definition.target_key else None
        stamps = frozenset(definition.options.stamps)
        return self.prepare(Wanted(columns, key, stamps=stamps, has_rows=False), create=True) if columns else None

    def adjust(self, fence: Fence) -> Mapping[str, Any] | None:
        if not self._to_clear:
            return None
        with self.transaction(f"clearing columns of {self.opening.name}"):
            rows = self.writer.clear_columns(self._to_clear)
            known = left_columns.cleared(fence.found, self.writer, self._to_clear)
            fence.inside(self.session, Done(identity={"columns": known}))
        return {"columns": list(self._to_clear), "rows": rows}

    def lost(self, found: Checkpoint) -> str | None:
        known = found.identity.get("mart")
        if known is None or self.writer.is_same(known):
            return None
        return say("plan.restored", target=self.opening.name)

    def fingerprint(self) -> Sequence[object]:
        gone = self.opening.definition.options.delete_when
        deletes = self.opening.definition.options.deletes
        soft = deletes.soft if deletes else None
        return (gone, soft, self.keeps_history) if gone or soft or self.keeps_history else ()

    def open_load(self, loading: Loading) -> Load:
        return StageLoad(self, loading) if loading.kind == "replace" else MergeLoad(self, loading)

    def compare(self, looked: Looked) -> Comparison:
        opening = self.opening
        name = opening.definition.options.target_connection
        return MartComparison(self.writer, opening.url, looked, lambda: opening.lend(opening.url, name, {}))

    def profile(self) -> "TargetProfile | None":
        # Imported here: runs do not need it.
        from vitrina.connectors.postgres import mart_profile

        table = catalog.find_table(self.opening.connection, self.opening.name)
        if table is None:
            return None
        with database.translated(f"looking at {self.opening.name}"):
            return mart_profile.profile(self.opening.connection, table)

    # --- for the loads ---------------------------------------------------------------------------------------------

    def stage(self, name: str, loading: Loading, version_types: tuple[str, ...] = ()) -> Stage:
        """Create a stage. Rows from Arrow are staged in the types in which they arrived."""
        arrives_as = dict(loading.arrives_as) if loading.arrives_as is not None else None
        return self.writer.stage(name, arrives_as, version_types)

    @contextmanager
    def creating(self, *stages: Stage, loading: Loading, keep: str | None = None) -> Iterator[None]:
        """Create the stages, and what the block does, in a transaction.

        Of other stages, keep only that of a load that resumes later.
        """
        drops = self.writer.drops_of_others(keep=[keep] if keep else [])
        creates = [self.creation_of(stage, loading) for stage in stages]
        with self.transaction("preparing the stage", begin=SQL("; ").join([*drops, *creates])):
            yield

    def create_stage(self, stage: Stage, loading: Loading) -> None:
        self.session.execute(self.creation_of(stage, loading))

    def creation_of(self, stage: Stage, loading: Loading) -> Composed:
        """Build the statements that create a stage and grant the rights to fill and check it."""
        shortcut = loading.shortcut
        # The role that fills a stage from within PostgreSQL: the reader, which may do nothing else there.
        role = shortcut.role if isinstance(shortcut, PostgresShortcut) and loading.route == "pushdown" else None
        asks = loading.checks is not None and any(check.needs_reader for check in loading.checks.listed)
        reader = self.check_reader().connection.info.user if asks else None
        if stage.is_tagged:
            return stage.creation(fillable_by=role, readable_by=reader)
        return first_load.creation(stage, self.writer.table, fillable_by=role, readable_by=reader)

    # --- checks ------------------------------------------------------------------------------------------------------

    def checks_of(self, checks: "Checks | None") -> "MartChecks | None":
        """Open the checks of rows; return None if there are none."""
        if checks is None:
            return None
        # Imported here: pipelines without checks do not need it.
        from vitrina.connectors.postgres.checks import MartChecks

        opening = self.opening
        name = opening.definition.options.target_connection
        return MartChecks(
            checks,
            self.writer,
            opening.settings,
            open_reader=self.check_reader,
            beside=lambda: opening.lend(opening.url, name, {"lock_timeout": "30000"}),
        )

    def check_reader(self) -> "SqlReader":
        """Open a session of the reader for checks, once: the source's session may be reading the next batch."""
        if self._check_reader is None:
            from vitrina.connectors.postgres import sessions

            opening, url = self.opening, database.reader_url(self.opening.settings, None)
            seconds = opening.settings.statement_timeout_on(None)
            limits = {
                "lock_timeout": "30000",
                "statement_timeout": str(int(seconds * 1000)),
                # As for a merge: a stage is joined in one pass with the tables it refers to.
                "work_mem": f"{opening.settings.merge_memory_mb}MB",
            }

            def connect(more: Mapping[str, str]) -> Connection:
                wanted = database.READ_ONLY | limits | dict(more)
                return self._opened.enter_context(opening.lend(url, None, wanted))

            connection = sessions.with_extensions(opening.settings, connect)
            self._check_reader = sessions.QueryReader(connection, url, opening.claim.session_name)
        return self._check_reader

    def judge(self, checks: "Checks", written: Counts) -> "Judgement":
        judging = self.checks_of(checks)
        if judging is None:
            raise RuntimeError("there are checks")
        with database.translated(f"checking {self.opening.name}"):
            return judging.judge_mart(written)

    def close(self) -> None:
        self._opened.close()

    @property
    def keeps_history(self) -> bool:
        return self.opening.definition.options.history is not None

    def date_snapshot(self) -> None:
        """Date the snapshot that is about to be taken, later than all before, if the mart keeps a history."""
        if not self.keeps_history:
            return
        clock = self._source.reader.connection if self._source else self.session
        now: datetime = database.one(clock.execute("SELECT pg_catalog.clock_timestamp() AS now"))["now"]
        self.use_snapshot(now)

    def use_snapshot(self, moment: datetime) -> None:
        """Write with the time of a snapshot, or the first time after the latest: those of a mart only increase."""
        latest = self._latest_snapshot or self.writer.latest_snapshot()
        self._latest_snapshot = self.writer.snapshot_at = history.later(moment, latest)

    def of_snapshot(self) -> dict[str, Any]:
        """Describe the latest snapshot for the checkpoint."""
        at = self.writer.snapshot_at
        return history.remembered(self.opening.name, at) if at else {}

    def notes(self) -> dict[str, Any]:
        """Return what users are told about the run."""
        at = self.writer.snapshot_at
        return {"snapshot_at": at.astimezone(UTC).isoformat()} if at else {}

    def stager(self, turns: Turns) -> AbstractContextManager[Writer]:
        self.date_snapshot()
        return closing(self._open_stager(turns))

    def kept_stager(self, turns: Turns) -> "Stager":
        """Open a stager that stays open as long as the target: a follower writes a batch every second."""
        return self._opened.enter_context(closing(self._open_stager(turns)))

    def _open_stager(self, turns: Turns) -> "Stager":
        # Imported here: pushdown runs do not need pyarrow, whose import takes half a second.
        from vitrina.connectors.postgres.stream import Stager

        opening = self.opening
        return Stager(opening.url, opening.claim.session_name, turns, epoch=opening.claim.epoch, target=opening.name)

    @property
    def is_backfill(self) -> bool:
        return self.opening.claim.is_backfill

    @contextmanager
    def transaction(self, what: str, *, begin: Composable | None = None) -> Iterator[None]:
        """Run a transaction. `begin`: the statements that it begins with."""
        session = self.session
        with database.translated(what):
            try:
                with database.beginning_with(session, begin) if begin else session.transaction():
                    yield
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as exc:
                # The table was changed during the run: the retry reads it again, and creates it or reports what is
                # wrong.
                raise TransientError(f"{what}: {database.sql_message(exc)}") from exc
            except psycopg.errors.UniqueViolation as exc:
                # The merge itself checked the key: another session wrote the row, or another unique key conflicts.
                raise TransientError(self._taken(what, exc, "a unique constraint")) from exc
            except psycopg.errors.ExclusionViolation as exc:
                raise FatalError(self._taken(what, exc, "an exclusion constraint")) from exc

    def _taken(self, what: str, exc: psycopg.Error, constraint: str) -> str:
        """Say what to do about a value that another row of the mart has."""
        message, definition = database.sql_message(exc), self.opening.definition
        kept = definition.options.history
        if kept is None:
            return f"{what}: {message} Rows may exchange values of {constraint} that is DEFERRABLE."
        if definition.mode == "incremental":
            return say("run.history_value_taken", what=what, message=message, valid_to=kept.valid_to)
        return say("run.history_value_repeated", what=what, message=message, valid_to=kept.valid_to)

    def check_constraints(self, *dropped: Stage) -> None:
        """Check constraints before the fence, not in COMMIT: the heartbeat waits for the row that the fence locks.

        Stages that are no longer needed are dropped in the same message.
        """
        drops = [SQL("DROP TABLE IF EXISTS {}").format(stage.identifier) for stage in dropped]
        self.session.execute(SQL("; ").join([*drops, SQL("SET CONSTRAINTS ALL IMMEDIATE")]))

    def remember(self, found: Checkpoint, rows: int) -> dict[str, object]:
        """Describe the mart for the checkpoint, so that a later run recognises it."""
        return self.of_snapshot() | {
            "mart": self.writer.remembered(found.identity.get("mart"), rows),
            "columns": left_columns.written(found, self.writer),
        }


class StageLoad(BaseLoad):
    """Stage everything, then publish it in one transaction."""

    def __init__(self, target: MartTarget, loading: Loading) -> None:
        self._target = target
        self._loading = loading
        self._writer = target.writer
        self.name = loading.name or target.writer.new_stage_name()
        self.stage = replace(target.stage(self.name, loading), is_tagged=self._needs_tags(loading))
        self.turns = Turns(self.stage)
        self.checks = target.checks_of(loading.checks)
        self._is_dropped = False

    def _needs_tags(self, loading: Loading) -> bool:
        """Return whether rows must record their part; not if the stage is to become the mart."""
        if loading.name:
            return self._target.stage(loading.name, loading).has_tags(self._target.session)
        unopened = loading.in_one_statement and loading.arrives_as is None
        return not unopened or not self._writer.may_be_replaced()

    def obstacle(self, found: Checkpoint) -> str | None:
        if not self.stage.exists(self._target.session):
            return say("plan.stage_gone")
        if self.stage.count(self._target.session, found.accepted) != found.rows:
            return say("plan.stage_lost")
        return None

    def begin(self, fence: Fence) -> None:
        with self._target.creating(self.stage, loading=self._loading):
            fence.inside(self._target.session)
        failpoints.hit("load.begun")

    def resume(self, fence: Fence) -> bool:
        with self._target.transaction("cleaning the stage"):
            self.stage.discard_uncounted(self._target.session, fence.found.accepted)
            fence.inside(self._target.session)
        return True

    def writer(self) -> AbstractContextManager[Writer]:
        return self._target.stager(self.turns)

    def handle(self) -> StageHandle:
        """Describe the stage for the processes that fill it."""
        self._target.date_snapshot()
        opening = self._target.opening
        claim, name = opening.claim, opening.definition.options.target_connection
        return StageHandle(name, claim.session_name, self.turns.stages, claim.epoch, opening.name)

    def commit(self, part: Part, fence: Fence) -> None:
        """Accept the staged batch: only move the checkpoint and check the fence."""
        at = self._writer.snapshot_at
        with self._target.transaction("counting a batch"):
            fence.inside(self._target.session, Done(identity={history.OF_LOAD: at.isoformat()} if at else {}))

    def publish(self, fence: Fence) -> Counts:
        target, found = self._target, fence.found
        if target.keeps_history and self._writer.snapshot_at is None:
            self._recall_snapshot(found)
        with target.transaction(f"publishing to {target.opening.name}"):
            counts, judged = self._publish(found)
            # In the same transaction: a separate one would wait for the disk once more.
            target.check_constraints(self.stage)
            rows = counts.inserted + counts.updated + counts.unchanged
            fence.inside(target.session, Done(counts, target.remember(found, rows), target.notes(), judged))
        self._is_dropped = True
        return counts

    def _publish(self, found: Checkpoint) -> "tuple[Counts, Judgement | None]":
        deletes, checks = self._loading.deletes, self.checks
        if checks is None:
            return self._writer.publish(self.stage, found, deletes=deletes), None
        self._writer.end_filling(self.stage)
        judged = self.judge(checks, found)
        before = checks.rows_before(deletes=deletes)
        left = replace(found, rows=found.rows - len(judged.letters))
        try:
            counts = self._writer.publish(self.stage, left, deletes=deletes, counted=checks.rows_judged)
        except DuplicateKeys:
            checks.refuse_repeated(judged, self.stage, self.stage.counted_to_judge(found.accepted))
            raise
        return counts, checks.judge_change(judged, counts, before)

    def judge(self, checks: "MartChecks", found: Checkpoint) -> "Judgement":
        """Check the accepted rows in the caller's transaction; rejected ones are deleted from the stage."""
        return checks.judge_load(self.stage, self.stage.counted_to_judge(found.accepted), has_rows=found.rows > 0)

    def _recall_snapshot(self, found: Checkpoint) -> None:
        """Use the time of the snapshot that an earlier run has read; without rows there was none.

        A repair since then has written states of a later snapshot: what was read before it must be read again.
        """
        dated = found.identity.get(history.OF_LOAD)
        if dated is None:
            self._target.date_snapshot()
            return
        moment = datetime.fromisoformat(dated)
        self._target.use_snapshot(moment)
        if self._writer.snapshot_at != moment:
            raise StageLost(f"the mart was repaired after the rows of this load were read ({dated})")

    def discard(self) -> None:
        """Drop the stage, unless publishing has dropped it."""
        if not self._is_dropped:
            self.stage.drop(self._target.session)


# This many merged rows may stay in a stage: skipping them is faster than truncating the stage.
MAX_LEFT_ROWS = 25_000


class MergeLoad(BaseLoad):
    """Alternate between two stages: one is filled while the other is merged with the checkpoint of its part.

    If one batch is expected, there is one stage, because creating a table costs the server more than merging a few
    hundred rows. The second stage is created when more batches arrive.
    """

    def __init__(self, target: MartTarget, loading: Loading) -> None:
        self._target = target
        self._loading = loading
        self._writer = target.writer
        pipeline = str(target.opening.claim.pipeline_id)
        first, second = (
            target.stage(stage_name(pipeline, suffix), loading, loading.version_types) for suffix in ("a", "b")
        )
        self._second = second
        self.turns = Turns(first) if self._needs_one(loading) else Turns(first, second)
        self.live_stage = live_merge.LiveStage(target.session, target.writer)
        self._checks = target.checks_of(loading.checks)
        self._kept: Stager | None = None
        self._has_merged = False
        # Rows of merged batches that were left in a stage.
        self._left: dict[str, int] = {}

    def _needs_one(self, loading: Loading) -> bool:
        return loading.in_one_batch and self._target.opening.definition.mode != "live"

    def begin(self, fence: Fence) -> None:
        with self._target.creating(*self.turns.stages, loading=self._loading, keep=fence.found.stage):
            fence.inside(self._target.session)
        failpoints.hit("pass.begun")

    def writer(self) -> AbstractContextManager[Writer]:
        target = self._target
        if target.opening.definition.mode != "live":
            return target.stager(self.turns)
        target.date_snapshot()
        self._kept = self._kept or target.kept_stager(self.turns)
        return nullcontext(self._kept)

    def commit(self, part: Part, fence: Fence) -> None:
        stage = self.turns.of(part.number)
        is_added = False

        def make_room() -> tuple[Stage, ...]:
            nonlocal is_added
            is_added = self._make_room(stage, part)
            return ()

        self._merge(stage, part, fence, make_room)
        self._has_merged = True
        if is_added:
            self.turns.add(self._second)

    def commit_last(self, part: Part, fence: Fence) -> None:
        # What earlier runs have left was dropped when these were created.
        self._merge(self.turns.of(part.number), part, fence, lambda: self.turns.stages)

    def _merge(self, stage: Stage, part: Part, fence: Fence, afterwards: Callable[[], tuple[Stage, ...]]) -> None:
        """Merge a staged part. `afterwards` returns stages that are no longer needed."""
        target = self._target
        begin = self._writer.locking if self._has_rows(fence.found) else None
        with target.transaction(f"merging into {target.opening.name}", begin=begin):
            self._refuse_emptied(fence.found)
            judged = self._judge(stage, part)
            counts = self._writer.merge_batch(stage, part.number, self._rows_to_merge(part, judged))
            target.check_constraints(*afterwards())
            fence.inside(target.session, Done(counts, self._remember(fence.found, counts), target.notes(), judged))

    def _drop_stages(self, found: Checkpoint) -> None:
        """Drop the stages, but not that of a load that resumes later."""
        self._writer.drop_other_stages(keep=[found.stage] if found.stage else [])

    def _make_room(self, stage: Stage, part: Part) -> bool:
        """Empty a stage that has grown. Return whether a second stage was created instead.

        A few rows stay in it: their batch number is not used again, so they never count. TRUNCATE creates new files for
        the table, and the server searches all its buffers for pages of the old ones. A single stage is not emptied,
        because the next batch may already be written to it.
        """
        self._left[stage.name] = self._left.get(stage.name, 0) + part.staged_rows
        if len(self.turns.stages) == 1:
            if self._has_merged:
                self._target.create_stage(self._second, self._loading)
            return self._has_merged
        if self._left[stage.name] > MAX_LEFT_ROWS:
            self._left[stage.name] = 0
            stage.truncate(self._target.session)
        return False

    def _judge(self, stage: Stage, part: Part) -> "Judgement | None":
        if self._checks is None:
            return None
        epoch = self._target.opening.claim.epoch
        return self._checks.judge_batch(stage, stage.batch_to_judge(epoch, part.number))

    def _rows_to_merge(self, part: Part, judged: "Judgement | None") -> int:
        """Return how many rows of a part are still staged: those that checks reject are deleted."""
        return part.staged_rows - (len(judged.letters) if judged else 0)

    def remove(self, keys: Sequence[Key], number: int, fence: Fence) -> Counts:
        target = self._target
        target.date_snapshot()
        with target.transaction(f"repairing {target.opening.name}"):
            counts = Counts(deleted=self._writer.delete_rows(mart_rows.have_keys(self._writer, keys)))
            target.check_constraints()
            known = fence.found.identity.get("mart")
            removed = 0 if self._writer.keeps_rows else counts.deleted
            fewer = known and {"mart": known | {"rows": max(known["rows"] - removed, 0)}}
            fence.inside(target.session, Done(counts, target.of_snapshot() | (fewer or {})))
        return counts

    def correct(self, part: Part, stale: Stale, read: Sequence[Key], fence: Fence, refuse: RefuseDeletes) -> Counts:
        """Merge the part and delete absent rows in one transaction: the mart moves from one snapshot to the next."""
        target, writer = self._target, self._writer
        stage = self.turns.of(part.number)
        with target.transaction(f"correcting {target.opening.name}"):
            judged = self._judge(stage, part) if part.staged_rows else None
            rows = self._rows_to_merge(part, judged)
            counts = writer.merge_batch(stage, part.number, rows) if part.staged_rows else Counts()
            stage.truncate(target.session)
            deleted = self._delete_absent(stale, read)
            return self.finish(replace(counts, deleted=counts.deleted + deleted), fence, judged)

    def _delete_absent(self, stale: Stale, read: Sequence[Key]) -> int:
        session, writer = self._target.session, self._writer
        if not read:
            return live_merge.delete_absent(writer, stale, SQL("false"))
        session.execute("CREATE TEMPORARY TABLE IF NOT EXISTS vitrina_read (key text[]) ON COMMIT DELETE ROWS")
        with session.cursor() as cursor, cursor.copy("COPY pg_temp.vitrina_read FROM STDIN") as rows:
            for key in read:
                rows.write_row([list(key)])
        columns = {column.name: column for column in writer.table.columns}
        same = SQL(" AND ").join(
            SQL("q.{} {} r.key[{}]::{}").format(
                Identifier(name), SQL(columns[name].equal), Literal(place), SQL(unsized(columns[name].base_type))
            )
            for place, name in enumerate(writer.key, 1)
        )
        is_read = SQL("EXISTS (SELECT FROM pg_temp.vitrina_read AS r WHERE {})").format(same)
        return live_merge.delete_absent(writer, stale, is_read)

    def finish(self, counts: Counts, fence: Fence, judged: "Judgement | None" = None) -> Counts:
        """Run the remaining checks and pass the fence."""
        target, writer = self._target, self._writer
        if counts.deleted:
            writer.refuse_cascading()
        target.check_constraints()
        # The merge holds a lock that prevents other sessions from truncating the mart.
        if live_merge.is_rewritten(target.session, writer):
            raise TransientError(say("run.target_replaced", target=target.opening.name))
        fence.inside(target.session, Done(counts, self._followed(), target.notes(), judged))
        return counts

    def _followed(self) -> dict[str, object]:
        return self._target.of_snapshot() | {"mart": mart_identity.followed(self._writer.table)}

    def count_rows(self) -> int:
        return self._writer.count_rows()

    def _refuse_emptied(self, found: Checkpoint) -> None:
        """Refuse to merge if earlier batches were removed from the mart; merging this one would hide that.

        The transaction began with a lock, so that it cannot happen between this check and the merge.
        """
        if self._has_rows(found) and self._writer.was_emptied(self._known(found)):
            raise TransientError(say("run.target_replaced", target=self._target.opening.name))

    def _has_rows(self, found: Checkpoint) -> bool:
        """Return whether the pipeline has written rows that should still be in the mart."""
        return bool(found.rows or self._known(found))

    def _known(self, found: Checkpoint) -> dict[str, Any] | None:
        return None if self._target.is_backfill else found.identity.get("mart")

    def _remember(self, found: Checkpoint, counts: Counts) -> dict[str, object]:
        """Describe the mart for the checkpoint. A backfill does not, because rows may have been lost before."""
        if self._target.is_backfill:
            return self._target.of_snapshot() | {"columns": left_columns.written(found, self._writer)}
        known = found.identity.get("mart")
        deleted = 0 if self._writer.keeps_rows else counts.deleted
        return self._target.remember(found, max((known["rows"] if known else 0) + counts.inserted - deleted, 0))

    def publish(self, fence: Fence) -> Counts:
        """End the pass: every part is already visible."""
        with self._target.transaction("ending the pass"):
            self._drop_stages(fence.found)
            fence.inside(self._target.session, Done(identity=self._target.of_snapshot(), notes=self._target.notes()))
        return Counts()


class PostgresShortcut:
    """Move rows from a query to a mart: PostgreSQL fills the stage itself, or COPY lines are passed on unparsed."""

    def __init__(self, target: MartTarget, source: QuerySource) -> None:
        self._target = target
        self._source = source

    @property
    def same_database(self) -> bool:
        definition = self._source.definition
        same = (definition.options.target_connection or DEFAULT_CONNECTION) == definition.source_connection
        return same and self._source.reads_metastore

    @property
    def pageable(self) -> bool:
        return self._source.is_pageable

    @property
    def foreign_functions(self) -> frozenset[str]:
        return self._source.foreign_functions

    @property
    def role(self) -> str:
        return self._source.reader.connection.info.user

    @contextmanager
    def fill(self, load: Load, window: Window, route: Route) -> Iterator[Filling]:
        if not isinstance(load, StageLoad | MergeLoad):
            raise TypeError(f"a stage is filled, not {load}")
        self._source.admit_window(self._source.bounds_of(window))
        with ExitStack() as sessions:
            if route.route == "copy":
                second = self._second_session(sessions)
                shared = self._dated_snapshot(window, sessions)
                yield self._by_copy(load.turns, window, route, second, shared)
            else:
                paging = self._paging(window, route)

                def probe() -> Connection:
                    return self._second_session(sessions)

                snapshot = self._dated_snapshot(window, sessions) or self._snapshot(window, route, sessions)
                yield self._by_postgres(load.turns, window, probe, snapshot, paging=paging, isolate=route.isolate)

    def handle(self, load: Load, window: Window, route: Route) -> CopyHandle:
        """Describe how rows are copied, for processes that each copy a range."""
        if not isinstance(load, StageLoad):
            raise TypeError(f"ranges are copied into a stage, not {load}")
        return CopyHandle(self._source.handle(window), load.handle(), self._paging(window, route).staged_as)

    def correct(self, load: Load, moment: Moment, stale: Stale, number: int, fence: Fence) -> Counts:
        """Copy the rows of stale keys as COPY writes them and publish them in one transaction."""
        if not isinstance(load, MergeLoad) or not isinstance(moment, QueryMoment):
            raise TypeError(f"a mart is corrected from a snapshot of a query, not {load} from {moment}")
        target = self._target
        if not load.live_stage.is_made:
            with target.transaction("preparing the stage"):
                load.live_stage.make()
        if target.keeps_history:
            target.use_snapshot(moment.at)
        with target.transaction(f"correcting {target.opening.name}"):
            read = load.live_stage.fill(moment, stale)
            failpoints.hit("batch.filled")
            counts = load.live_stage.apply(stale)
            unchanged = read - counts.inserted - counts.updated
            return load.finish(replace(counts, unchanged=unchanged), fence)

    def _by_postgres(
        self,
        turns: Turns,
        window: Window,
        probe: Callable[[], Connection],
        snapshot: SharedSnapshot | None,
        *,
        paging: Paging,
        isolate: bool,
    ) -> Filling:
        source, opening = self._source, self._target.opening
        return PushdownSource(
            source.reader,
            probe,
            source.query,
            bounds=source.bounds_of(window),
            turns=turns,
            paging=paging,
            epoch=opening.claim.epoch,
            target=opening.name,
            isolate=isolate,
            snapshot=snapshot,
        )

    def _by_copy(
        self, turns: Turns, window: Window, route: Route, sink: Connection, shared: SharedSnapshot | None
    ) -> Filling:
        source, opening = self._source, self._target.opening
        return CopySource(
            source.reader,
            sink,
            source.query,
            bounds=source.bounds_of(window),
            turns=turns,
            paging=self._paging(window, route),
            epoch=opening.claim.epoch,
            target=opening.name,
            result=source.result,
            batch_size=window.batch_rows,
            max_value_bytes=opening.settings.max_value_mb << 20,
            max_snapshot_seconds=source.max_snapshot_seconds(window),
            snapshot=shared.name if shared else None,
        )

    def _paging(self, window: Window, route: Route) -> Paging:
        source = self._source
        order = source.order_of(window)
        if not order.columns:
            return Paging()
        if isinstance(window, QueryWindow):
            names = (CURSOR_KEY, CURSOR_ID)[: len(order.columns)]
            return Paging(order, names, window.batch_rows if route.paging == "keyset pages" else None)
        names = tuple(name for name in window.order if name in source.types)
        rows = route.page_rows
        if not rows:
            return Paging(order, names)
        order = replace(order, collations=tuple(map(source.collation, names)))
        return Paging(order, names, lambda: rows)

    def _snapshot(self, window: Window, route: Route, sessions: ExitStack) -> SharedSnapshot | None:
        """Share one snapshot among the chunks of one load."""
        if route.page_rows is None or isinstance(window, QueryWindow):
            return None
        return self._shared(window, sessions)

    def _dated_snapshot(self, window: Window, sessions: ExitStack) -> SharedSnapshot | None:
        """Share one snapshot among all that is read for a history, and date the states by the clock in it.

        A time that was read before the snapshot would be too early for what was committed in between.
        """
        if not self._target.keeps_history:
            return None
        shared = self._shared(window, sessions)
        shared.renew()
        self._target.use_snapshot(shared.at)
        return shared

    def _shared(self, window: Window, sessions: ExitStack) -> SharedSnapshot:
        source = self._source
        patient = database.READ_ONLY | {"idle_in_transaction_session_timeout": "0"}
        name = source.definition.source_connection
        holder = sessions.enter_context(self._target.opening.lend(source.reader_url, name, patient))
        return sessions.enter_context(sharing(holder, source.max_snapshot_seconds(window)))

    def _second_session(self, sessions: ExitStack) -> Connection:
        """Open a session on the target, for the thread that fills stages."""
        opening = self._target.opening
        name = opening.definition.options.target_connection
        return sessions.enter_context(opening.lend(opening.url, name, {}))
