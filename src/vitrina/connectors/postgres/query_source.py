"""Represent a query as a source: describe it, check it, read it in windows, and query single rows."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import SQL, Identifier

from vitrina import explain, sqlguard
from vitrina.connectors.postgres import (
    advice,
    catalog,
    cursor_facts,
    key_ranges,
    plan_check,
    query_pass,
    rescan,
    single_rows,
)
from vitrina.connectors.postgres.cursor import Cursor, cursor_of
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.pushdown import SharedSnapshot, sharing
from vitrina.connectors.postgres.query_pass import QueryPass
from vitrina.connectors.postgres.query_window import QueryWindow
from vitrina.connectors.postgres.range_workers import QueryHandle, origin_of
from vitrina.connectors.postgres.source import NO_ORDER, Bounds, Order, Query
from vitrina.errors import FatalError, SourceQueryFailed
from vitrina.ports.batch import Batch, Key
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Extent
from vitrina.ports.live import Derivation
from vitrina.ports.ranges import Cut, KeyRange
from vitrina.ports.source import Description, Form, Mark, Marked, Pass, Unseen, Window
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.connectors.postgres.following import QueryFollowing


class QuerySource(OpenedQuery):
    """Read the rows of one pipeline's query through one reader."""

    runs_when_described = False
    _admitted: plan_check.Admitted | None = None

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "the query"

    @property
    def digest(self) -> str | None:
        return None

    def describe(self, window: Window) -> Description:
        """Describe the columns, choose the cursor, and check the plan."""
        self.result = tuple(self.reader.describe(self.judged))
        if self.definition.mode == "incremental":
            self.cursor = cursor_of(self.definition, self.types)
        elif self.judged.parameters:
            raise SourceQueryFailed(say("run.parameter_in_full", parameter=sorted(self.judged.parameters)[0]))
        explained = self.reader.explain(self.query.select([SQL("q.*")], Bounds()))
        self._admitted = plan_check.admit(
            self.reader, self.query, self.settings, max_cost=self.definition.options.max_cost, explained=explained
        )
        if self.cursor:  # after the check: its newest value may be read, by the query itself
            self.on_standby = explained.on_standby
            self._refuse_unreadable(cursor_facts.choose_cursor(self))
        plan = self._admitted.plan
        cursor = {"key": self.cursor.key, "type": self.cursor.base_type} if self.cursor else None
        return Description(
            self.result,
            stamps=self.judged.volatile_columns,
            cursor=cursor,
            estimated_rows=int(plan[0]["Plan"]["Plan Rows"]),
            unordered=self._unordered(),
            outline=explain.outline(plan),
        )

    def _unordered(self) -> frozenset[str]:
        """Find columns whose type orders its values by operators that an empty search_path hides."""
        own = catalog.equalities(self.reader.connection, self.types.values())
        return frozenset(name for name, kind in self.types.items() if kind in own)

    @property
    def plan(self) -> plan_check.Plan:
        """Return how the server would run the query; known after `describe`."""
        return self._admitted.plan if self._admitted else []

    @property
    def estimated_rows(self) -> int:
        return int(self.plan[0]["Plan"]["Plan Rows"]) if self.plan else 0

    @property
    def is_pageable(self) -> bool:
        return self._admitted is not None and explain.is_pageable(self._admitted.plan)

    @property
    def foreign_functions(self) -> frozenset[str]:
        return frozenset(self._admitted.functions_of_unknown_effect if self._admitted else ())

    def sample(self, rows: int, max_bytes: int, max_row_bytes: int) -> "pa.Table":
        """Read enough rows to learn what the steps make of them."""
        from vitrina.connectors.postgres import sampling

        return sampling.read_few(self, rows, max_bytes, max_row_bytes)

    # --- where it stands -------------------------------------------------------------------------------------------

    def mark(self, last: Mark | None) -> Marked:
        """Report what holds a pass back; only the pass itself can determine how far it gets."""
        return Marked(None)

    def _refuse_unreadable(self, cursor: Cursor) -> None:
        """Refuse values that the cursor cannot have, in a checkpoint set by `reset-state` or in a requested range."""
        found = self._found
        if self._cursor_was_another(found):
            return
        asked = self.backfill or {}
        # With a fingerprint, a pass of this cursor wrote it. A number may have become too large for its column.
        is_read_back = cursor.is_clock and found.fingerprint is not None and found.stage is None
        given = {
            "the checkpoint": None if is_read_back else found.safe_upto,
            "since": asked.get("since"),
            "until": asked.get("until"),
        }
        for what, value in given.items():
            try:
                if value is not None:
                    self.reader.connection.execute(SQL("SELECT {}").format(cursor.literal(value)))
            except psycopg.DataError as exc:
                raise FatalError(
                    say("run.no_value_of_cursor", what=what, value=value, column=cursor.key, type=cursor.key_type)
                ) from exc

    def disowned(self, found: Checkpoint) -> str | None:
        """Return why the checkpoint does not belong to this cursor; resuming from it would skip rows."""
        if self.cursor is None or found.stage is not None:
            return None
        if self._cursor_was_another(found):
            return say("plan.other_cursor")
        if self._database_was_another(found):
            return say("plan.other_database", connection=self.definition.source_connection)
        return None

    def fitting(self, found: Checkpoint) -> Checkpoint:
        """Discard the position of an interrupted pass if the id column has changed; it restarts at the safe point.

        With a history it always restarts: the rest would come from another snapshot than the beginning.
        """
        if self.cursor is None or found.stage is not None:
            return found
        if self.definition.options.history is None and found.fingerprint in (None, self.identity):
            return found
        return replace(found, last_key=None, last_id=None)

    def _cursor_was_another(self, found: Checkpoint) -> bool:
        """Compare the cursor with that of a checkpoint.

        A checkpoint that was reset, or of an earlier version, does not record it.
        """
        if found.stage is not None or found.fingerprint is None:
            return False
        return found.fingerprint.partition("/")[0] != self.identity.partition("/")[0]

    def _database_was_another(self, found: Checkpoint) -> bool:
        known, seen = found.identity.get(cursor_facts.SOURCE), cursor_facts.source_identity(self)
        return known is not None and seen is not None and known != seen

    # --- passes ----------------------------------------------------------------------------------------------------

    @property
    def version_types(self) -> tuple[str, ...]:
        return self.cursor.types if self.cursor else ()

    def guarantee(self) -> str | None:
        return cursor_facts.guarantee(self)

    def warnings(self, found: Checkpoint) -> list[str]:
        return cursor_facts.warnings(self, found)

    def unseen(self) -> Unseen:
        return cursor_facts.unseen(self)

    def begin_pass(self, found: Checkpoint) -> Pass:
        return QueryPass(self, self._required_cursor, found)

    def begin_load(self, found: Checkpoint) -> Marked:
        upto, warnings = query_pass.watermark_of_load(self, self._required_cursor, found)
        return Marked(upto.remembered, upto.hold, warnings)

    def loaded(self, done: Checkpoint, held: Mark | None, rows: int) -> Checkpoint:
        return query_pass.loaded(self, self._required_cursor, done, held, rows)

    # --- following -------------------------------------------------------------------------------------------------

    def derive(self, key: Sequence[str]) -> Derivation:
        """Derive how changes of the query's tables lead to keys."""
        # Imported here: only live pipelines need the parser.
        from vitrina.connectors.postgres.derive.derivation import derive
        from vitrina.connectors.postgres.key_estimates import estimate

        if self.on_recovery:
            raise FatalError(say("run.live_standby", connection=self.definition.source_connection))
        found = derive(
            self.reader.connection,
            self.judged.text,
            [(name, self.types[name]) for name in key],
            stamps=self.judged.volatile_columns,
            affects=self.definition.options.live.affects,
            admit=self._admit_affects,
            reloads=self.definition.options.live.reload is not None,
        )
        found.estimate(partial(estimate, self.reader))
        return found

    def _admit_affects(self, text: str) -> None:
        """Check a query that states which keys a change affects. It may read no more than the pipeline's query."""
        judged = sqlguard.check(text, self.settings.sql_policy)
        plan_check.admit(self.reader, Query(judged), self.settings, "options.live.affects")

    def follow(self, derivation: Derivation) -> "QueryFollowing":
        from vitrina.connectors.postgres.derive.derivation import QueryDerivation
        from vitrina.connectors.postgres.following import QueryFollowing
        from vitrina.connectors.postgres.keyed import KeyedQuery

        if not isinstance(derivation, QueryDerivation):
            raise TypeError(f"a query is followed by its own derivation, not by {derivation}")
        return QueryFollowing(self, derivation, KeyedQuery.plan(self, derivation))

    @cached_property
    def on_recovery(self) -> bool:
        """Return whether the source's server is a standby, whose log cannot be followed."""
        return bool(self.reader.value(SQL("SELECT pg_catalog.pg_is_in_recovery()").format()))

    # --- rows ------------------------------------------------------------------------------------------------------

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        # Imported here: rows that PostgreSQL moves itself do not need pyarrow, whose import takes half a second.
        from vitrina.connectors.postgres.stream import ArrowReader, outputs_of
        from vitrina.transforms.outputs import outputs

        bounds = self.bounds_of(window)
        self.admit_window(bounds)
        return ArrowReader(
            self.reader,
            self.query,
            bounds=bounds,
            outputs=outputs(self.result) if form == "natural" else outputs_of(self.result),
            order=self.order_of(window),
            batch_size=window.batch_rows,
            max_value_bytes=self.settings.max_value_mb << 20,
            max_snapshot_seconds=self.max_snapshot_seconds(window),
            needs_position=self.definition.final_target if form == "natural" else None,
        ).batches(window.after)

    # --- ranges of the key -----------------------------------------------------------------------------------------

    def plan_cut(self, order: Sequence[str], ranges: int, workers: int) -> Cut:
        return key_ranges.plan_cut(self, order, ranges, workers)

    def split(self, order: Sequence[str], within: KeyRange, ranges: int) -> list[KeyRange]:
        return key_ranges.split(self, order, within, ranges)

    @contextmanager
    def share(self, window: Window) -> Iterator[SharedSnapshot]:
        with self.lend_reader() as holder, sharing(holder, self.max_snapshot_seconds(window)) as shared:
            shared.renew()
            yield shared

    def lend_reader(self) -> AbstractContextManager[Connection]:
        """Lend another session of the reader's login, which may be idle in a transaction."""
        if self._lend is None:
            raise FatalError("a query that is only looked at shares no snapshot")
        patient = database.READ_ONLY | {"idle_in_transaction_session_timeout": "0"}
        return self._lend(self.reader_url, self.definition.source_connection, patient)

    def handle(self, window: Window) -> QueryHandle:
        return QueryHandle(
            self.definition.source_connection,
            self.session_name,
            self._session_settings() | database.READ_ONLY,
            self.query,
            self.result,
            self.bounds_of(window),
            self.order_of(window),
            self.definition.final_target,
            origin_of(self.reader.connection),
        )

    def _session_settings(self) -> dict[str, str]:
        names = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "search_path"]
        found = self.reader.connection.execute(
            "SELECT name, pg_catalog.current_setting(name) AS value FROM unnest(%s::text[]) AS name", [names]
        )
        return {row["name"]: row["value"] for row in found}

    def close(self) -> None:
        self.reader.cancel_stream()
        self.reader.connection.close()

    def bounds_of(self, window: Window) -> Bounds:
        if isinstance(window, QueryWindow):
            return window.bounds
        if window.keys is not None:
            return Bounds(only=single_rows.have_keys(self, window.order, window.keys))
        return self.everything()

    def everything(self) -> Bounds:
        return cursor_facts.all_rows(self)

    def order_of(self, window: Window) -> Order:
        """Order rows by their key, or the cursor, so that reading can resume after any of them."""
        if isinstance(window, QueryWindow):
            return self.cursor_order() if window.by_cursor else NO_ORDER
        if window.keys is not None:
            # Of several rows with one key, the latest must come last.
            return self.cursor_order() if self.cursor else NO_ORDER
        names = [name for name in window.order if name in self.types]
        return Order(
            columns=tuple(SQL("q.{}").format(Identifier(name)) for name in names),
            types=tuple(self.types[name] for name in names),
            nullable=tuple(self.may_be_null(name) for name in names),
        )

    def cursor_order(self) -> Order:
        cursor = self._required_cursor
        nullable = (False, *([self.may_be_null(cursor.id)] if cursor.id else []))
        return Order(tuple(cursor.columns("q")), cursor.types, nullable, cursor.collations)

    def max_snapshot_seconds(self, window: Window) -> float | None:
        """Limit the age of a snapshot; a load that requires one snapshot keeps it until it ends."""
        options = self.definition.options
        whole = window.one_snapshot or options.history is not None
        return None if whole else options.max_snapshot_seconds

    def admit_window(self, bounds: Bounds) -> None:
        """Check the window that is about to be read: `:since` and `:until` may change what a query reads."""
        if self._admitted is not None and bounds == Bounds():
            return  # this statement was checked when the query was described
        plan_check.admit(
            self.reader,
            self.query,
            self.settings,
            statement=self.query.select([SQL("q.*")], bounds),
            max_cost=self.definition.options.max_cost,
            known=self._admitted,
        )

    def collation(self, name: str) -> str | None:
        """Find the collation of a text column in the query's result; it may differ from that of the mart's column."""
        if not self.types[name].startswith(("text", "character", "name")):
            return None
        head, source = self.query.wrapped(Bounds())
        found = self.reader.value(
            SQL("{} SELECT pg_catalog.pg_collation_for((SELECT q.{} FROM {} AS q LIMIT 0))").format(
                head, Identifier(name), source
            )
        )
        return None if found is None else str(found)

    def may_be_null(self, name: str) -> bool:
        """Return whether a column of the query's result can be NULL, as far as is known."""
        origin = next((column.origin for column in self.result if column.name == name), None)
        return origin is None or not advice.is_never_null(self.reader.connection, origin, self.judged.text)

    # --- once more, for a comparison -------------------------------------------------------------------------------

    @property
    def cursor_name(self) -> str | None:
        return self.cursor.key if self.cursor else None

    def rows_by_age(
        self, found: Checkpoint, *, in_order: bool, sample: int | None, natural: bool, batch_rows: int
    ) -> "Iterator[tuple[int, pa.Table, bool]]":
        return rescan.rows_by_age(self, found, in_order=in_order, sample=sample, natural=natural, batch_rows=batch_rows)

    def extent(self, found: Checkpoint, key: Sequence[str], *, unless: str | None) -> Extent:
        return rescan.extent(self, found, key, unless=unless)

    # --- single rows -----------------------------------------------------------------------------------------------

    def canonical(self, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
        return single_rows.in_one_form(self, names, keys)

    def present(self, names: Sequence[str], keys: Sequence[Key]) -> set[Key]:
        return single_rows.present(self, names, keys)

    def refuse_keys(self, names: Sequence[str]) -> None:
        single_rows.refuse_strange(self, names)
