"""Write marts in PostgreSQL: stage rows, then merge them into the target in one transaction with the checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina import failpoints
from vitrina.connectors.postgres import (
    bulk_load,
    catalog,
    counted_merge,
    first_load,
    history,
    mart_identity,
    merge,
    ranges,
    table_options,
)
from vitrina.connectors.postgres.catalog import Table
from vitrina.connectors.postgres.merge import Merge
from vitrina.connectors.postgres.stage import BATCH, CURSOR_ID, CURSOR_KEY, EPOCH, RUN, Stage, StageColumn, stage_name
from vitrina.data_checks import EMPTY
from vitrina.definition import Options
from vitrina.errors import BadKey, DuplicateKeys, FatalError, ShrinkRefused, StageLost, TargetMismatch, TransientError
from vitrina.mart_options import History
from vitrina.ports import types
from vitrina.ports.batch import Counts
from vitrina.ports.checkpoint import RANGES, Checkpoint
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.prepared import Statement
from vitrina.targets import PostgresTarget


class Foreseen(NamedTuple):
    """Describe what publishing a stage would do: the difference is in `merge.DIFF` until the transaction ends."""

    merging: Merge
    counts: Counts
    staged_rows: int
    target_rows: int


class PostgresWriter:
    """Write the target of one run over one connection, used by one thread; `fence` calls come from the caller."""

    def __init__(
        self,
        connection: Connection,
        claim: Claim,
        target: PostgresTarget,
        options: Options,
        *,
        memory_mb: int = 128,
        cursor: Sequence[str] = (),
    ) -> None:
        self.connection = connection
        # The source's columns that order the versions of a row.
        self._cursor = cursor
        self._memory_mb = memory_mb
        self._claim = claim
        self._target = target
        self._options = options
        self._table: Table | None = None
        # Created by this run, so it has no long-standing readers.
        self._made_table = False
        # Whether the table had rows when this run last looked.
        self._had_rows = False
        self._key: tuple[str, ...] = ()
        self._columns: tuple[str, ...] = ()
        self._not_compared: frozenset[str] = frozenset()
        # Whether a batch of this run had a repeated key, so that the next ones probably have some too.
        self._has_repeats = False
        # The rows that the latest merge wrote: a condition on the alias `t`.
        self._written: Composable | None = None
        self._history = options.history
        # The column that marks a row as deleted in the source: it is staged, but not written.
        self._gone = options.delete_when
        # The column that records when a row left the source; None: such rows are deleted.
        self._soft = options.deletes.soft if options.deletes else None
        # The time of the snapshot whose rows are being written, in a mart that keeps a history.
        self.snapshot_at: datetime | None = None
        # Set by `prepare` without `create`: what the query returns, and the columns that a run would add.
        self._given: tuple[str, ...] = ()
        self.lacking: tuple[Column, ...] = ()
        # FROM item with the rows of the table as a run would make it (`imagine`).
        self._imagined: Composable | None = None
        self.stage_prefix = RUN

    # --- the target ------------------------------------------------------------------------------------------

    def prepare(
        self,
        result: Sequence[Column],
        *,
        wanted_key: Sequence[str] | None,
        ignorable: frozenset[str],
        stamps: frozenset[str],
        create: bool = True,
    ) -> tuple[str, ...]:
        """Find or create the target, determine the key and the columns that will be written; return the key."""
        _refuse_reserved(result)
        result = self._without_gone(result, wanted_key)
        if self._soft in [column.name for column in result]:
            raise TargetMismatch(say("run.soft_column_given", column=self._soft, target=self._target))
        table = catalog.find_table(self.connection, self._target)
        self._given = tuple(column.name for column in result)
        if table is None:
            self._key = catalog.choose_key(None, wanted_key, result)
            if not create:
                self.lacking = (*result, *self._soft_column())
                return self._key
            self._create(result, self._key)
            table = self._require_table()
        catalog.refuse_unusable(table)
        plain = self._without_validity(table, result)
        self._key = catalog.choose_key(plain, wanted_key, result)
        missing = catalog.compare(plain, result, key=self._key, ignorable=ignorable)
        missing += catalog.lacking(table, self._soft_column())
        if missing:
            table = self._add_missing(table, missing, alter=create)
        self._table = table
        if create and self._history and self._history.current_view:
            grants = self._options.table.grants if self._options.table else ()
            history.keep_view(self.connection, table, self._history, grants)
        self._columns = tuple(column.name for column in result if table.column(column.name) is not None)
        self._not_compared = stamps
        return self._key

    def _without_gone(self, result: Sequence[Column], key: Sequence[str] | None) -> Sequence[Column]:
        """Remove the column of options.delete_when, which is not part of the mart."""
        if self._gone is None:
            return result
        kind = next((column.type for column in result if column.name == self._gone), None)
        if kind != "boolean" or self._gone in (key or ()):
            raise TargetMismatch(say("run.delete_when", column=self._gone, type=kind or "missing"))
        return [column for column in result if column.name != self._gone]

    def _soft_column(self) -> list[Column]:
        return [Column(self._soft, "timestamp with time zone")] if self._soft else []

    def _without_validity(self, table: Table, result: Sequence[Column]) -> Table:
        """Return the table without the columns that a history adds to those of the query."""
        if self._history is None:
            return table
        return history.without_validity(self.connection, table, result, self._history)

    def _create(self, result: Sequence[Column], key: tuple[str, ...]) -> None:
        try:
            with self.connection.transaction():
                self._create_table(result, key)
            self._made_table = True
        except psycopg.errors.DuplicateTable:
            pass  # another session was faster: compare with its table
        except psycopg.errors.InsufficientPrivilege as exc:
            raise FatalError(
                say(
                    "run.cannot_create",
                    target=self._target,
                    message=database.sql_message(exc),
                    login=self.connection.info.user,
                    schema=self._target.schema,
                )
            ) from exc
        except (
            psycopg.errors.UndefinedObject,
            psycopg.errors.InvalidTableDefinition,
            psycopg.errors.UndefinedColumn,
            psycopg.errors.FeatureNotSupported,
            psycopg.errors.InvalidObjectDefinition,
        ) as exc:
            # A key of json, which has no order; a column of type record, which no table can have.
            raise TargetMismatch(
                say("run.cannot_create_from", target=self._target, message=exc.diag.message_primary)
            ) from exc
        except psycopg.errors.InvalidSchemaName as exc:
            raise FatalError(say("run.no_schema", target=self._target, schema=self._target.schema)) from exc

    def _create_table(self, result: Sequence[Column], key: tuple[str, ...]) -> None:
        options = self._options.table
        table_options.refuse_key(self._target, options, key, result)
        cut = table_options.partitioning(options)
        if self._history:
            history.create_table(self.connection, self._target, result, key, self._history, partitioning=cut)
        else:
            catalog.create_table(self.connection, self._target, [*result, *self._soft_column()], key, cut)
        if options:
            table_options.create_partitions(self.connection, self._target, options)
            table_options.add_missing(self.connection, self._require_table(), options)

    def drift(self) -> tuple[str, ...]:
        """Return what an existing table lacks of options.table and options.history."""
        options, kept = self._options.table, self._history
        if self._table is None or self._made_table:
            return ()
        of_history = history.drift(self._table, self._key, kept) if kept else ()
        if options is None:
            return tuple(of_history)
        view = history.name_of_view(self._table) if kept and kept.current_view else None
        return (*of_history, *table_options.drift(self.connection, self._table, options, view))

    def _add_missing(self, table: Table, missing: Sequence[Column], *, alter: bool) -> Table:
        named = ", ".join(f"{column.name} {column.type}" for column in missing)
        if self._options.on_schema_change != "add_columns":
            raise TargetMismatch(say("run.target_lacks_columns", schema=table.schema, table=table.name, columns=named))
        if not alter:
            self.lacking = tuple(missing)
            return table
        catalog.add_columns(self.connection, table, missing)
        return self._require_table()

    def _require_table(self) -> Table:
        table = catalog.find_table(self.connection, self._target)
        if table is None:
            raise TransientError(f"{self._target} disappeared while it was being prepared")
        return table

    def imagine(self) -> None:
        """Treat the table as the next run would change it, with the columns it lacks. Nothing is created or changed."""
        if self._table is not None and not self.lacking:
            return
        kept = self._history
        condition = SQL("m.{} IS NULL").format(Identifier(kept.valid_to)) if kept else SQL("true")
        self._imagined = catalog.rows_with_columns(self._table, self.lacking, condition)
        self._table = catalog.with_columns(self.connection, self._table, self._target, self._key, self.lacking)
        self._columns = tuple(name for name in self._given if self._table.column(name) is not None)

    @property
    def table(self) -> Table:
        assert self._table is not None, "prepare() comes first"
        return self._table

    @property
    def target(self) -> PostgresTarget:
        return self._target

    @property
    def key(self) -> tuple[str, ...]:
        return self._key

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    @property
    def keeps_rows(self) -> bool:
        """Return whether rows that left the source stay in the table."""
        return self._history is not None or self._soft is not None

    @property
    def keeps_history(self) -> bool:
        return self._history is not None

    @property
    def gone(self) -> str | None:
        return self._gone

    @property
    def staged_columns(self) -> tuple[str, ...]:
        """Return the columns that are written, and the one that marks deleted rows."""
        return (*self._columns, *([self._gone] if self._gone else []))

    @property
    def not_compared(self) -> frozenset[str]:
        """Return the stamps: a row does not differ because of them."""
        return self._not_compared

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def rows(self) -> Composable:
        """Return a FROM item with the rows that mirror the source: in a history, the current ones."""
        return self._mirroring(SQL("*"))

    @property
    def placed_rows(self) -> Composable:
        """Return the same of a table that exists, including their positions."""
        return self._mirroring(SQL("*, ctid"))

    def _mirroring(self, columns: SQL) -> Composable:
        if self._soft:
            return SQL("(SELECT {} FROM {} AS k WHERE {} IS NULL)").format(
                columns, self.loaded_rows, Identifier(self._soft)
            )
        return self.loaded_rows

    @property
    def loaded_rows(self) -> Composable:
        """Return a FROM item with the rows that a full load is compared with, including their positions."""
        if self._imagined:
            return self._imagined
        return history.current_rows(self.table, self._history) if self._history else self.table.identifier

    def latest_snapshot(self) -> datetime | None:
        """Find the latest snapshot that was written to a history."""
        if self._history is None or self._table is None:
            return None
        return history.latest_in(self.connection, self._table, self._history)

    def had_rows(self) -> bool:
        """Return whether the table had rows when this run looked."""
        return self._had_rows or not self.is_empty()

    def is_empty(self) -> bool:
        if self._table is None:
            return True
        row = self.connection.execute(
            SQL("SELECT NOT EXISTS (SELECT FROM {}) AS empty").format(self.table.identifier)
        ).fetchone()
        self._had_rows = not (row and row["empty"])
        return not self._had_rows

    @property
    def locking(self) -> Composed:
        """Return the statement that keeps others from truncating or changing the table until a transaction ends."""
        return SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(self.table.identifier)

    def was_emptied(self, known: dict[str, Any] | None = None) -> bool:
        """Return whether the table was truncated or recreated since the run, or the checkpoint, recorded it."""
        files = catalog.files_of(self.connection, self._target)
        if files == self.table.files:
            return False
        self._table = replace(self.table, files=files)
        return self.is_empty() or (known is not None and not self.is_same(known))

    def is_same(self, known: dict[str, Any]) -> bool:
        """Return whether the table still holds what `remembered` recorded."""
        if known["name"] != str(self._target):
            return True
        is_same = mart_identity.is_same(self.connection, self._target, known)
        self._had_rows = self._had_rows or (is_same and mart_identity.shows_rows(known))
        return is_same

    def remembered(self, before: dict[str, Any] | None, rows: int) -> dict[str, Any]:
        """Describe the table after a merge, in its transaction, so that a later run recognises it.

        At least `rows` of its rows are the pipeline's.
        """
        if before and before["name"] != str(self._target):
            before = None
        known = mart_identity.remember(self.table, rows, before)
        if self._written is None:
            return known
        # A key may have had the same values before: only the time tells an older copy from the mart.
        since = (self._history.valid_from,) if self._history else ()
        key, columns = (*self._key, *since), (*self._columns, *since)
        return known | mart_identity.witnesses(self.connection, self.table, key, columns, self._written)

    def clear_columns(self, names: Sequence[str]) -> int:
        """Set columns to NULL in all rows."""
        columns = [Identifier(name) for name in names]
        return self.connection.execute(
            SQL("UPDATE {} SET {} WHERE {}").format(
                self.table.identifier,
                SQL(", ").join(SQL("{} = NULL").format(column) for column in columns),
                SQL(" OR ").join(SQL("{} IS NOT NULL").format(column) for column in columns),
            )
        ).rowcount

    # --- the stage -------------------------------------------------------------------------------------------

    def stage(self, name: str, staged_types: dict[str, str] | None = None, cursor_types: tuple[str, ...] = ()) -> Stage:
        """Build a stage of the target's exact types; `staged_types` names the columns that arrive as another type."""
        columns = []
        by_name = {column.name: column for column in self.table.columns}
        for column in (by_name[name] for name in self._columns):
            staged = (staged_types or {}).get(column.name, column.type)
            merged = column.type if staged == column.type else types.merge_type(column.type)
            columns.append(StageColumn(column.name, staged, merged, column.collation))
        if self._gone:
            columns.append(StageColumn(self._gone, (staged_types or {}).get(self._gone, "boolean"), "boolean"))
        return Stage(name, tuple(columns), self._key, cursor_types, cursor_as_text=staged_types is not None)

    def new_stage_name(self) -> str:
        return stage_name(str(self._claim.pipeline_id), uuid4().hex[:12], self.stage_prefix)

    @property
    def stage_names(self) -> str:
        """Return a LIKE pattern for the stages of this pipeline and for the views created for checks."""
        return stage_name(str(self._claim.pipeline_id), "", self.stage_prefix).replace("_", r"\_") + "%"

    def drop_other_stages(self, keep: Sequence[str]) -> None:
        """Drop stages of this pipeline that no checkpoint refers to."""
        if drops := self.drops_of_others(keep):
            self.connection.execute(SQL("; ").join(drops))

    def drops_of_others(self, keep: Sequence[str]) -> list[Composed]:
        """Build the statements that drop stages of this pipeline that no checkpoint refers to."""
        rows = _STAGES_OF.fetch_all(self.connection, [self.stage_names])
        return [
            SQL("DROP {} IF EXISTS {}").format(SQL(row["kind"]), Identifier("etl_stage", row["name"]))
            for row in rows
            if row["name"] not in keep
        ]

    # --- merging: inside the caller's transaction -----------------------------------------------------------------

    def merge_batch(self, stage: Stage, number: int, rows: int) -> Counts:
        """Upsert one staged batch. If a key is repeated, the row with the latest cursor wins."""
        batch = self._merge_of(stage.of_batch(self._claim.epoch, number))
        if counts := self._apply_few(batch, rows, deletes=False):
            failpoints.hit("merge.applied")
            return counts
        self._prepare_merge()
        self._make_partitions(batch)
        if self._history and self._gone is None and history.may_renew(self.connection, self.table, self._history):
            return self._renew(batch, rows)
        if not self._history and (counts := self._upsert_unread(batch, rows)):
            failpoints.hit("merge.applied")
            return counts
        # Without statistics the planner looks up each row by its key; those of the key would not change that.
        staged = database.one(self.connection.execute(merge.count_staged(batch)))
        if staged["keys"] < staged["rows"]:
            batch = self._latest_rows(batch, stage)
        live, gone, deleted = self._remove_gone(batch)
        counts = self.write_states(live) if self._history else self._upsert(live)
        failpoints.hit("merge.applied")
        unchanged = staged["keys"] - gone - counts.inserted - counts.updated
        return replace(counts, deleted=deleted, unchanged=unchanged)

    def _renew(self, batch: Merge, rows: int) -> Counts:
        """Add states without looking for repeated keys first: the server refuses to write a row twice.

        Only rows that were not written may still repeat a key, and such a batch is counted.
        """
        counts = self.write_states(batch)
        unchanged = rows - counts.inserted - counts.updated
        if unchanged and self._repeats_keys(batch):
            self._refuse_duplicates(batch)
        failpoints.hit("merge.applied")
        return replace(counts, unchanged=unchanged)

    def _upsert_unread(self, batch: Merge, rows: int) -> Counts | None:
        """Merge without looking for repeated keys first: the server refuses to write a row twice.

        Only rows that were not written may still repeat a key, and such a batch is counted afterwards.
        Return None, with nothing written, if a key is repeated or the server would not notice it. Later batches of the
        run are then counted first: rows that are taken back stay in the file of the table until it is cleaned.
        """
        if self._gone or self._has_repeats or not counted_merge.notices_repeats(self.table):
            return None
        try:
            merged = counted_merge.try_upsert(self.connection, batch)
        except counted_merge.REPEATED:
            self._has_repeats = True
            merged = None
        if merged is None:
            counted_merge.take_back(self.connection)
            return None
        unchanged = rows - merged.counts.inserted - merged.counts.updated
        if unchanged:
            staged = database.one(self.connection.execute(merge.count_staged(batch)))
            if staged["keys"] < staged["rows"]:
                self._has_repeats = True
                counted_merge.take_back(self.connection)
                return None
            unchanged = staged["keys"] - merged.counts.inserted - merged.counts.updated
        counted_merge.keep(self.connection)
        self._know_places(merged.places)
        return replace(merged.counts, unchanged=unchanged)

    def _know_places(self, places: Sequence[str]) -> None:
        """Remember where some of the rows are that a merge has written."""
        self._written = SQL("t.ctid = ANY({}::tid[])").format(Literal(list(places))) if places else None

    def _remove_gone(self, batch: Merge) -> tuple[Merge, int, int]:
        """Remove rows that the source marks as deleted; return the rest, and how many were staged and removed."""
        if self._gone is None:
            return batch, 0, 0
        gone = replace(batch, staged=_where(batch.staged, self._gone, "IS TRUE"))
        staged = database.one(self.connection.execute(merge.count_staged(gone)))["keys"]
        removed = self.delete_rows(merge.is_staged(gone)) if staged else 0
        return replace(batch, staged=_where(batch.staged, self._gone, "IS NOT TRUE")), staged, removed

    def _upsert(self, batch: Merge) -> Counts:
        """Merge in one statement if the server can count what it did and the target has only one key."""
        merged = counted_merge.upsert(self.connection, batch) if self.table.has_one_key else None
        if merged:
            self._know_places(merged.places)
            return merged.counts
        self.connection.execute(merge.create_diff(batch, deletes=False))
        return self._apply(batch, self._planned())

    def write_states(self, merging: Merge, *, replaces: bool = False, deletes: bool = False) -> Counts:
        """Close and add states of a history. A key may have only one row per snapshot; a second one is an error."""
        kept, at = self._require_history()
        if replaces:
            done = history.replace_all(self.connection, merging, kept, at, deletes=deletes)
        else:
            done = self._write_states(merging, kept, at)
        if done.ahead is not None:
            raise self._not_later(done.ahead, at)
        self._know_places(done.places)
        if done.counts != done.planned:
            self._refuse_partial(done.planned, done.counts)
        return done.counts

    def _write_states(self, merging: Merge, kept: History, at: datetime) -> history.Versioned:
        """Close each state together with adding its successor, unless the table requires, or the server demands, that
        all are closed first: rows may exchange values of a constraint of the mart's own.
        """
        if history.may_renew(self.connection, merging.target, kept):
            try:
                return history.renew(self.connection, merging, kept, at)
            except history.REFUSED:
                history.take_back(self.connection)
                self._refuse_duplicates(merging)
        return history.close_then_add(self.connection, merging, kept, at)

    def _require_history(self) -> tuple[History, datetime]:
        if self._history is None or self.snapshot_at is None:
            raise RuntimeError(f"{self._target}: states are written with the time of their snapshot")
        return self._history, self.snapshot_at

    def _not_later(self, key: str, at: datetime) -> FatalError:
        """Explain why a current state is not older than the snapshot: a repeated key, or another clock wrote it."""
        latest = self.latest_snapshot()
        if latest is not None and latest > at:
            return FatalError(say("run.history_ahead", target=self._target, latest=latest, at=at))
        return self._duplicate_keys(1, key)

    def delete_rows(self, condition: Composable) -> int:
        """Delete rows that left the source and match the condition on the alias `q`."""
        if self._history:
            return self._close_states(condition)
        if self._soft:
            return self.connection.execute(
                SQL("UPDATE {0} AS q SET {1} = now() WHERE q.{1} IS NULL AND {2}").format(
                    self.table.identifier, Identifier(self._soft), condition
                )
            ).rowcount
        return self.connection.execute(
            SQL("DELETE FROM {} AS q WHERE {}").format(self.table.identifier, condition)
        ).rowcount

    def _close_states(self, condition: Composable) -> int:
        kept, at = self._require_history()
        closed = history.close(self.connection, self.table, kept, condition, at, key=self._key)
        if closed.ahead is None:
            return closed.rows
        raise self._not_later(closed.ahead, at)

    def refuse_shrinking(self, removed: int) -> None:
        """Apply the guard of a publish for a caller that deletes rows itself."""
        self._refuse_shrinking(removed, self._rows_in_target())

    def _prepare_merge(self) -> None:
        """Give the merge enough memory to join in one pass, and defer constraints.

        Unique values may then move from one row to another until the transaction ends.
        """
        settings = {
            "work_mem": f"{self._memory_mb}MB",
            "maintenance_work_mem": f"{2 * self._memory_mb}MB",
            # A batch is small compared with its mart: look up its rows by index rather than reading the whole mart.
            "random_page_cost": 1.1,
            # The planner only needs to know how many rows a stage has, and that its keys are distinct.
            "default_statistics_target": 10,
        }
        local = [SQL("SET LOCAL {} = {}").format(SQL(name), Literal(value)) for name, value in settings.items()]
        self.connection.execute(SQL("; ").join([*local, SQL("SET CONSTRAINTS ALL DEFERRED")]))

    def _make_partitions(self, merging: Merge) -> None:
        """Create partitions for the time spans of which these rows are the first."""
        cut = self._options.table.partition_by if self._options.table else None
        if cut is None or cut.range is None or self.table.kind != "p":
            return
        if ranges.make_missing(self.connection, self.table, cut, merging.staged):
            self._table = replace(self.table, files=catalog.files_of(self.connection, self._target))

    def _latest_rows(self, merging: Merge, stage: Stage) -> Merge:
        """Keep the latest of several versions of one row in a batch. Refuse two that cannot be ordered."""
        order = [column for column in (CURSOR_KEY, CURSOR_ID) if column in stage.cursor_columns]
        if not order or self._history:
            self._refuse_duplicates(merging)
        self._refuse_ambiguous(merging, order)
        return replace(merging, staged=self._latest_of(merging.staged, order))

    def _refuse_ambiguous(self, merging: Merge, order: Sequence[str]) -> None:
        cursor = self._cursor[: len(order)]
        named = {name: staged for name, staged in zip(cursor, order, strict=False) if name not in self._key}
        tied = replace(merging, key=(*merging.key, *order))
        shown = (*self._key, *named.values())
        row = self.connection.execute(merge.find_duplicates(tied, shown)).fetchone()
        if not (row and row["keys"]):
            return
        if not named:
            raise self._duplicate_keys(row["keys"], row["example"])
        raise DuplicateKeys(
            say(
                "run.key_tied",
                keys=row["keys"],
                cursor=", ".join(cursor),
                columns=", ".join((*self._key, *named)),
                example=row["example"],
                target=self._target,
            )
        )

    def end_filling(self, stage: Stage) -> None:
        """Wait for sessions that still fill a stage without tags, and prevent further ones from starting."""
        if not stage.is_tagged:
            self.connection.execute(SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(stage.identifier))

    def publish(self, stage: Stage, checkpoint: Checkpoint, *, deletes: bool, counted: int | None = None) -> Counts:
        """Make the target equal to the accepted rows of the stage; `counted`: their number, if known."""
        if self._gone:
            counted = None  # such rows were not checked
        merging, gone = self._to_publish(stage, checkpoint)
        if counts := self._apply_few(merging, checkpoint.rows, deletes=deletes):
            failpoints.hit("publish.applied")
            return counts
        self._prepare_merge()
        self._make_partitions(merging)
        if self.is_empty():
            if self._become_table(merging, stage, checkpoint, counted):
                return Counts(inserted=checkpoint.rows)
            if self._become_copy(merging, stage, checkpoint):
                return Counts(inserted=checkpoint.rows)
            # Checked again: rows may have been added while the indexes of the stage were built.
            if self.is_empty():
                return self._fill_empty(merging, stage, checkpoint, gone)
        staged_rows = counted if counted is not None else stage.count(self.connection, checkpoint.accepted)
        self._refuse_lost_stage(staged_rows, checkpoint.rows)
        staged_rows -= gone
        # If rows are kept after they left the source, none can be lost.
        if deletes and not staged_rows and self._rows_in_target():
            self._refuse_empty(staged_rows)
        stage.analyze(self.connection)
        if self._history:
            return self._publish_states(merging, staged_rows, deletes=deletes)
        self.connection.execute(merge.create_diff(merging, deletes=deletes))
        return self._publish_diff(merging, staged_rows, deletes=deletes)

    def _to_publish(self, stage: Stage, checkpoint: Checkpoint) -> tuple[Merge, int]:
        """Describe how the accepted rows relate to the target, and count those that the source marks as deleted."""
        merging = self._merge_of(stage.counted(checkpoint.accepted))
        if not self._gone:
            return merging, 0
        gone = self._count(_where(merging.staged, self._gone, "IS TRUE"))
        return replace(merging, staged=_where(merging.staged, self._gone, "IS NOT TRUE")), gone

    def foresee(self, stage: Stage, checkpoint: Checkpoint, *, deletes: bool, latest: Sequence[str] = ()) -> Foreseen:
        """Join stage and target as `publish` does, and count. Only a temporary table is written.

        `latest`: of several rows with one key, use the one with the greatest of these; if empty, they are refused.
        """
        merging, gone = self._to_publish(stage, checkpoint)
        merging = replace(merging, rows=self.loaded_rows)
        self._prepare_merge()
        stage.analyze(self.connection)
        self.connection.execute(merge.create_diff(merging, deletes=deletes))
        staged_rows, target_rows = checkpoint.rows - gone, self._rows_in_target()
        try:
            planned = self._planned()
            self._refuse_repeats(merging, planned, staged_rows, target_rows, deletes=deletes)
        except DuplicateKeys:
            if not latest:
                raise
            merging = replace(merging, staged=self._latest_of(merging.staged, latest))
            self.connection.execute(SQL("DROP TABLE {}").format(merge.DIFF))
            self.connection.execute(merge.create_diff(merging, deletes=deletes))
            planned, staged_rows = self._planned(), self._count(merging.staged)
        self.connection.execute(SQL('ANALYZE {} ("_op")').format(merge.DIFF))
        return Foreseen(merging, planned, staged_rows, target_rows)

    def _latest_of(self, staged: Composable, order: Sequence[str]) -> Composed:
        key = SQL(", ").join(SQL("b.{}").format(Identifier(name)) for name in self._key)
        descending = SQL(", ").join(SQL("b.{} DESC").format(Identifier(name)) for name in order)
        return SQL("(SELECT DISTINCT ON ({0}) b.* FROM {1} AS b ORDER BY {0}, {2})").format(key, staged, descending)

    def refuse_loss(self, foreseen: Foreseen) -> None:
        """Apply the guards of a publish to what a deleting one would do."""
        if foreseen.target_rows:
            self._refuse_empty(foreseen.staged_rows)
        if foreseen.counts.deleted:
            self._refuse_shrinking(foreseen.counts.deleted, foreseen.target_rows)

    def _refuse_empty(self, staged_rows: int) -> None:
        if staged_rows == 0 and not self._options.allow_empty:
            raise ShrinkRefused(say("run.source_is_empty", target=self._target), EMPTY)

    def _publish_states(self, merging: Merge, staged_rows: int, *, deletes: bool) -> Counts:
        self._refuse_duplicates(merging)
        before = self._rows_in_target()
        counts = self.write_states(merging, replaces=True, deletes=deletes)
        if counts.deleted:
            self._refuse_shrinking(counts.deleted, before)
        failpoints.hit("publish.applied")
        return replace(counts, unchanged=staged_rows - counts.inserted - counts.updated)

    def _publish_diff(self, merging: Merge, staged_rows: int, *, deletes: bool) -> Counts:
        target_rows = self._rows_in_target()
        planned = self._planned()
        self._refuse_repeats(merging, planned, staged_rows, target_rows, deletes=deletes)
        if planned.deleted:
            self._refuse_shrinking(planned.deleted, target_rows)
        counts = self._apply(merging, planned)
        failpoints.hit("publish.applied")
        return replace(counts, unchanged=staged_rows - counts.inserted - counts.updated)

    def _refuse_repeats(
        self, merging: Merge, planned: Counts, staged_rows: int, target_rows: int, *, deletes: bool
    ) -> None:
        """Refuse repeated keys. Every staged row that is not new must match a different target row."""
        inserts = planned.inserted
        if not deletes or staged_rows - inserts != target_rows - planned.deleted or inserts:
            self._refuse_duplicates(merging)

    def may_be_replaced(self) -> bool:
        """Return whether the stage of a first load may take the place of the table."""
        if self.keeps_rows or self._gone or self.had_rows():
            return False
        return first_load.is_possible(self.connection, self.table, self._columns, self._key)

    def _become_table(self, merging: Merge, stage: Stage, checkpoint: Checkpoint, counted: int | None) -> bool:
        """Replace the empty table with the stage. Return False if the rows have to be copied."""
        if stage.is_tagged or checkpoint.rows < bulk_load.WORTHWHILE_ROWS:
            return False
        # Sessions that still fill the stage end first; the count reveals rows that arrived too late.
        self.end_filling(stage)
        if counted is None:
            counted = stage.count(self.connection, checkpoint.accepted)
        self._refuse_lost_stage(counted, checkpoint.rows)
        try:
            if not first_load.take_place(self.connection, stage, self.table, self._columns, self._key):
                return False
        except psycopg.errors.UniqueViolation:
            self._refuse_duplicates(merging)
            raise
        self._notice_exchange()
        return True

    def _become_copy(self, merging: Merge, stage: Stage, checkpoint: Checkpoint) -> bool:
        """Replace the empty table with a copy of a stage that several processes have filled.

        Return False if the rows have to be copied into the table.
        """
        is_worthwhile = RANGES in checkpoint.identity and checkpoint.rows >= bulk_load.WORTHWHILE_ROWS
        if not is_worthwhile or self.keeps_rows or self._gone:
            return False
        try:
            copied = first_load.copy_in_place(self.connection, stage, self.table, merging.staged)
        except psycopg.errors.UniqueViolation:
            self._refuse_duplicates(merging)
            raise
        if copied is None:
            return False
        self._refuse_lost_stage(copied, checkpoint.rows)
        self._notice_exchange()
        return True

    def _notice_exchange(self) -> None:
        failpoints.hit("publish.applied")
        self._table = self._require_table()
        self._written = SQL("true")

    def _fill_empty(self, merging: Merge, stage: Stage, checkpoint: Checkpoint, gone: int) -> Counts:
        try:
            with self.connection.transaction():
                indexes = self._indexes_to_detach(checkpoint.rows)
                is_detached = indexes is not None and indexes.detach(self.connection)
                # Insert keys in order into an index that stays: in random order they cost twice as much.
                inserted = self._insert_all(merging, in_order=not is_detached)
                if inserted != checkpoint.rows - gone:
                    self._refuse_lost_stage(stage.count(self.connection, checkpoint.accepted), checkpoint.rows)
                    raise self._skipped(checkpoint.rows - gone - inserted, checkpoint.rows - gone, "INSERT")
                if indexes is not None and is_detached:
                    indexes.restore(self.connection)
                if not self.table.refuses_repeats:
                    # While a repeated key can still be taken back and named.
                    self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
        except psycopg.errors.UniqueViolation:
            self._refuse_duplicates(merging)
            raise
        failpoints.hit("publish.applied")
        self._written = SQL("true") if inserted else None
        return Counts(inserted=inserted)

    def _insert_all(self, merging: Merge, *, in_order: bool) -> int:
        if self._history:
            kept, at = self._require_history()
            return history.fill(self.connection, merging, kept, at, in_order=in_order)
        return self.connection.execute(merge.insert_all(merging, in_order=in_order)).rowcount

    def _indexes_to_detach(self, rows: int) -> bulk_load.DetachedIndexes | None:
        """Plan to detach indexes from a large new table.

        Return None if that does not pay, or if the mart may have readers: they would wait for the whole publish.
        """
        if not self._made_table or rows < bulk_load.WORTHWHILE_ROWS:
            return None
        return bulk_load.plan_detachment(self.connection, self.table)

    def _skipped(self, skipped: int, rows: int, event: str) -> FatalError:
        named = ", ".join(catalog.skippers(self.connection, self.table, event))
        return FatalError(
            f"{self._target} took {rows - skipped} of {rows} rows of an {event}: {named or 'a trigger or rule'} left"
            " the others out, and a mart shall hold what its query gives; drop it, or filter such rows out in the query"
        )

    def _refuse_lost_stage(self, staged_rows: int, counted_rows: int) -> None:
        if staged_rows != counted_rows:
            raise StageLost(f"the stage has {staged_rows} of {counted_rows} rows: the database lost it in a crash")

    def _apply_few(self, merging: Merge, rows: int, *, deletes: bool) -> Counts | None:
        """Compare and write in one statement; a temporary table and statistics cost more than a few rows.

        Return None if nothing was written, because the load has many rows, or has to be refused.
        """
        is_plain = self.table.has_one_key and not self.keeps_rows and not self._gone
        if not (is_plain and self._had_rows and 0 < rows <= FEW_ROWS):
            return None
        cascades = self.table.cascading and not self._options.allow_cascade
        limit = 0.0 if cascades else self._options.shrink_limit
        found = database.one(
            self.connection.execute(merge.apply_few(merging, rows=rows, deletes=deletes, shrink_limit=limit))
        )
        if not found["is_applied"]:
            return None
        planned, done = (
            Counts(**{name: found[prefix + name] for name in ("inserted", "updated", "deleted")})
            for prefix in ("", "done_")
        )
        if done != planned:
            self._refuse_partial(planned, done)
        self._know_places([place for place in found["places"] if place])
        return replace(done, unchanged=rows - done.inserted - done.updated)

    def _apply(self, merging: Merge, planned: Counts) -> Counts:
        """Delete, update, insert. In this order a value of a second unique key can move from row to row."""
        if planned.inserted + planned.updated + planned.deleted > _FEW_CHANGES:
            self.connection.execute(SQL('ANALYZE {} ("_op")').format(merge.DIFF))
        deleted = self.connection.execute(merge.delete_rows(merging)).rowcount if planned.deleted else 0
        update = merge.update_rows(merging) if planned.updated else None
        updated = self.connection.execute(update).rowcount if update else 0
        inserted = self.connection.execute(merge.insert_rows(merging)).rowcount if planned.inserted else 0
        done = Counts(inserted=inserted, updated=updated, deleted=deleted)
        self._written = merge.is_in_diff(merging) if inserted or updated else None
        if done != planned:
            self._refuse_partial(planned, done)
        return done

    def _refuse_partial(self, planned: Counts, done: Counts) -> None:
        """Raise if fewer rows were written than planned.

        No other session can remove a row that this transaction has just inserted, so a trigger or rule skipped it. A
        row to update or delete may have been moved by another session.
        """
        if done.inserted != planned.inserted:
            # In a history, each closed state is followed by a new one: an INSERT adds these as well.
            followed = done.updated if self._history else 0
            raise self._skipped(planned.inserted - done.inserted, planned.inserted + followed, "INSERT")
        event = "UPDATE" if done.updated != planned.updated else "DELETE"
        named = catalog.skippers(self.connection, self.table, event)
        by_whom = f", or {', '.join(named)} leaves out rows of an {event}: drop it if so" if named else ""
        raise TransientError(f"{self._target} was changed by another session during the merge{by_whom}")

    def _planned(self) -> Counts:
        rows = {row["op"]: row["rows"] for row in self.connection.execute(merge.count_diff()).fetchall()}
        return Counts(inserted=rows.get("I", 0), updated=rows.get("U", 0), deleted=rows.get("D", 0))

    def merging(self, staged: Composable) -> Merge:
        """Describe how staged rows relate to the target's, and prepare memory and constraints for the merge."""
        self._prepare_merge()
        made = self._merge_of(staged)
        self._make_partitions(made)
        return made

    def count_rows(self) -> int:
        return self._rows_in_target()

    def refuse_cascading(self) -> None:
        """Refuse deletes that would cascade through foreign keys."""
        if self.table.cascading and not self._options.allow_cascade:
            raise ShrinkRefused(
                say("run.would_cascade", rows=1, target=self._target, tables=", ".join(self.table.cascading)), None
            )

    def _merge_of(self, staged: Composable) -> Merge:
        return Merge(self.table, self._key, self._columns, self._not_compared, self._soft, staged)

    def _rows_in_target(self) -> int:
        return self._count(self.rows)

    def _count(self, rows: Composable) -> int:
        row = self.connection.execute(SQL("SELECT count(*) AS rows FROM {} AS q").format(rows)).fetchone()
        return int(row["rows"]) if row else 0

    # --- refusals --------------------------------------------------------------------------------------------

    def _repeats_keys(self, merging: Merge) -> bool:
        """Return whether a key is repeated; counting keys takes half as long as grouping rows by them."""
        staged = database.one(self.connection.execute(merge.count_staged(merging)))
        return bool(staged["keys"] < staged["rows"])

    def _refuse_duplicates(self, merging: Merge) -> None:
        row = self.connection.execute(merge.find_duplicates(merging)).fetchone()
        if row and row["keys"]:
            raise self._duplicate_keys(row["keys"], row["example"])

    def _duplicate_keys(self, keys: int, example: str) -> DuplicateKeys:
        return DuplicateKeys(
            say("run.key_repeated", keys=keys, columns=", ".join(self._key), example=example, target=self._target)
        )

    def _refuse_shrinking(self, removed: int, target_rows: int) -> None:
        if self.table.cascading and not self._options.allow_cascade and not self.keeps_rows:
            raise ShrinkRefused(
                say("run.would_cascade", rows=removed, target=self._target, tables=", ".join(self.table.cascading)),
                None,
            )
        if removed > target_rows * self._options.shrink_limit:
            raise ShrinkRefused(say("run.would_shrink", removed=removed, rows=target_rows, target=self._target))


_STAGES_OF = Statement(
    b"""
    SELECT c.relname AS name, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'etl_stage' AND c.relkind IN ('r', 'v') AND c.relname LIKE %s
    """
)


# This many changes are applied as fast without statistics: each row is found by its position.
_FEW_CHANGES = 200
# This many staged rows are compared without statistics: the planner expects one row, and looks up each by its key.
FEW_ROWS = 1_000
# Names of our own columns in stages and differences.
_RESERVED = frozenset((EPOCH, BATCH, CURSOR_KEY, CURSOR_ID, "_op"))
# PostgreSQL's limit for a table, less our own columns of a stage.
MAX_COLUMNS = 1_600 - 4


def _refuse_reserved(result: Sequence[Column]) -> None:
    names = [column.name for column in result]
    taken = [name for name in names if name in _RESERVED or name.startswith(merge.POSITION)]
    if taken:
        raise TargetMismatch(
            f"the result has a column named {taken[0]}, a name that stages need themselves: give it another with AS"
        )
    if len(result) > MAX_COLUMNS:
        raise TargetMismatch(
            f"the result has {len(result):,} columns; {MAX_COLUMNS:,} fit into a table of Postgres beside the stage's"
            " own: select fewer, or split them between two marts"
        )


def _where(rows: Composable, column: str, condition: str) -> Composable:
    return SQL("(SELECT * FROM {} AS r WHERE r.{} {})").format(rows, Identifier(column), SQL(condition))


def null_key_error(column: str | None, target: PostgresTarget) -> BadKey:
    return BadKey(say("run.key_is_null", column=column, target=target))
