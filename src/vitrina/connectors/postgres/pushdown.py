"""Load rows that no step changes: the reader's session fills the stage inside PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina import failpoints
from vitrina.connectors.postgres.source import NO_ORDER, Age, Bounds, Order, Query, SqlReader, column, translate_read
from vitrina.connectors.postgres.stage import BATCH, EPOCH, Stage, Turns
from vitrina.connectors.postgres.target import null_key_error
from vitrina.errors import Disconnected
from vitrina.ports.batch import Part, Position, Stopwatch
from vitrina.store import database, sessions
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget


@dataclass(frozen=True)
class Paging:
    """Describe the order in which a query is read in pages, and their size. No order: all in one statement."""

    order: Order = NO_ORDER
    staged_as: tuple[str, ...] = ()
    # Called before each page: the size may change during a run.
    limit: Callable[[], int] | None = None


class PushdownSource:
    """Fill stages by SQL. They take turns, so that one can be filled while the other is merged and emptied."""

    def __init__(
        self,
        reader: SqlReader,
        open_probe: Callable[[], Connection],
        query: Query,
        *,
        bounds: Bounds,
        turns: Turns,
        paging: Paging,
        epoch: int,
        target: PostgresTarget,
        isolate: bool,
        snapshot: "SharedSnapshot | None" = None,
    ) -> None:
        self._reader = reader
        # Reads where a page ended, if another follows. Opened then: most windows are one page.
        self._open_probe = open_probe
        self._probe: Connection | None = None
        self._is_closed = False
        self._query = query
        self._bounds = bounds
        self._turns = turns
        self._paging = paging
        self._epoch = epoch
        self._target = target
        # Whether the query first runs read-only into a temporary table: required if it calls user-defined functions.
        self._isolate = isolate
        self._snapshot = snapshot

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        number, position = first_number, after
        while True:
            started, watch = time.monotonic(), Stopwatch()
            stage = self._turns.of(number)
            limit = self._paging.limit() if self._paging.limit else None
            reopened = self._snapshot.renew() if self._snapshot else False
            # One statement reads and stages the rows, so this time is mostly that of the query.
            with watch.lap("read"):
                rows = self._fill(stage, number, position, limit)
            failpoints.hit("batch.filled")
            part = Part(number, rows, None, time.monotonic() - started, timings=watch.timings, reopened=reopened)
            if limit is None or rows < limit:
                if rows:
                    yield replace(part, ends=True, locate=self._last(stage, number))
                return
            find_last = self._last(stage, number)
            with watch.lap("stage"):
                position = find_last(self._require_probe()) if find_last else None
            yield replace(part, last=position, seconds=time.monotonic() - started)
            number += 1

    def _require_probe(self) -> Connection:
        if self._is_closed:
            raise Disconnected("the run has stopped reading")
        self._probe = self._probe or self._open_probe()
        return self._probe

    def close(self) -> None:
        self._is_closed = True
        with suppress(psycopg.Error):  # a server that does not respond is disconnected anyway
            self._reader.connection.cancel_safe(timeout=2)
        sessions.cut(self._reader.connection)
        if self._probe is not None:
            sessions.cut(self._probe)

    def _fill(self, stage: Stage, number: int, after: Position | None, limit: int | None) -> int:
        connection = self._reader.connection
        select = self._select(stage, after, limit)
        try:
            # A query may have called set_config: each fill starts with the session's initial settings.
            with self._reader.writing():
                if self._snapshot:
                    self._reader.enter(self._snapshot.name)
                if self._isolate:
                    return self._fill_isolated(stage, number, select)
                return connection.execute(
                    _insert_into(stage, stage.identifier, select, self._epoch, number), prepare=True
                ).rowcount
        except psycopg.errors.NotNullViolation as exc:
            raise null_key_error(exc.diag.column_name, self._target) from exc
        except psycopg.Error as exc:
            raise translate_read(exc) from exc

    def _fill_isolated(self, stage: Stage, number: int, select: Composed) -> int:
        """Run the query while the transaction is read-only; PostgreSQL lifts that when the savepoint is released."""
        connection = self._reader.connection
        types = [(c.name, c.type) for c in stage.columns] + list(
            zip(stage.cursor_columns, stage.cursor_types, strict=True)
        )
        definitions = SQL(", ").join(
            SQL("{} {}{}").format(Identifier(name), SQL(kind), SQL(" NOT NULL" if name in stage.key else ""))
            for name, kind in types
        )
        connection.execute(SQL("CREATE TEMPORARY TABLE vitrina_fill ({}) ON COMMIT DROP").format(definitions))
        filling = Identifier("pg_temp", "vitrina_fill")
        connection.execute("SAVEPOINT reading")
        connection.execute("SET LOCAL transaction_read_only = on")
        connection.execute(SQL("INSERT INTO {} {}").format(filling, select), prepare=True)
        connection.execute("RELEASE reading")
        return connection.execute(
            _insert_into(stage, stage.identifier, SQL("SELECT * FROM {}").format(filling), self._epoch, number)
        ).rowcount

    def _select(self, stage: Stage, after: Position | None, limit: int | None) -> Composed:
        outputs: list[Composable] = [column(name) for name in (c.name for c in stage.columns)]
        outputs += [SQL("q.{}").format(Identifier(name)) for name in self._cursor_names(stage)]
        bounds = replace(self._bounds, after=after)
        return self._query.select(outputs, bounds, order=self._paging.order, limit=limit)

    def _cursor_names(self, stage: Stage) -> list[str]:
        cursor = self._query.cursor
        if cursor is None or not stage.cursor_types:
            return []
        return [cursor.key, *([cursor.id] if cursor.id else [])]

    def _last(self, stage: Stage, number: int) -> Callable[[Connection], Position | None] | None:
        """Return what reads from the stage where this batch ended: the reader may only insert there."""
        if not self._paging.staged_as:
            return None
        names = [Identifier(name) for name in self._paging.staged_as]
        known = self._paging.order.collations or (None,) * len(names)
        collations = [SQL(f" COLLATE {name}" if name else "") for name in known]
        # Written as text after the sort: before it, every row of the batch would be.
        last = SQL("SELECT {} FROM (SELECT {} FROM {} WHERE {} = {} AND {} = {} ORDER BY {} LIMIT 1) AS last").format(
            SQL(", ").join(SQL("{0}::text AS {0}").format(name) for name in names),
            SQL(", ").join(names),
            stage.identifier,
            Identifier(EPOCH),
            Literal(self._epoch),
            Identifier(BATCH),
            Literal(number),
            SQL(", ").join(
                SQL("{}{} DESC").format(name, collation) for name, collation in zip(names, collations, strict=True)
            ),
        )

        def find(session: psycopg.Connection[Any]) -> Position | None:
            row = session.execute(last).fetchone()
            return tuple(row.values()) if row else None

        return find


class SharedSnapshot:
    """Share one snapshot between all chunks of a load.

    A session that stays open exports it. The snapshot is replaced when it has grown too old.
    """

    def __init__(self, holder: Connection, max_seconds: float | None) -> None:
        self._holder = holder
        self._max_seconds = max_seconds
        self._age: Age | None = None
        self.name = ""
        # Read in the snapshot, by the server's clock; set by `renew`.
        self.at: datetime

    @property
    def is_old(self) -> bool:
        return self._age is not None and self._age.is_over

    def is_held(self) -> bool:
        """Return whether the session that holds the snapshot is still in its transaction."""
        try:
            self._holder.execute("SELECT")
        except psycopg.Error:
            return False
        return True

    def renew(self) -> bool:
        """Replace a snapshot that is too old; return whether an earlier one was given up.

        Call it between chunks only.
        """
        if self._age and not self._age.is_over:
            return False
        is_first, self._age = self._age is None, Age(self._max_seconds)
        try:
            if not is_first:
                self._holder.execute("ROLLBACK")
            self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = database.one(
                self._holder.execute(
                    "SELECT pg_catalog.pg_export_snapshot() AS name, pg_catalog.clock_timestamp() AS at"
                )
            )
        except psycopg.Error as exc:
            raise translate_read(exc) from exc
        self.name, self.at = str(row["name"]), row["at"]
        return not is_first

    def end(self) -> None:
        """End the transaction that holds the snapshot, so that the session can be kept for another run."""
        with suppress(psycopg.Error):  # its session is closed instead
            self._holder.execute("ROLLBACK")


@contextmanager
def sharing(holder: Connection, max_seconds: float | None) -> Iterator[SharedSnapshot]:
    """Share a snapshot in the block. After an error, its session stays in the transaction and is not kept."""
    snapshot = SharedSnapshot(holder, max_seconds)
    yield snapshot
    snapshot.end()


def _insert_into(stage: Stage, table: Composable, select: Composable, epoch: int, number: int) -> Composed:
    names = [*(c.name for c in stage.columns), *stage.cursor_columns]
    if not stage.is_tagged:
        return SQL("INSERT INTO {} ({}) {}").format(table, SQL(", ").join(map(Identifier, names)), select)
    return SQL("INSERT INTO {} ({}) SELECT r.*, {}::bigint, {}::integer FROM ({}) AS r").format(
        table, SQL(", ").join(map(Identifier, (*names, EPOCH, BATCH))), Literal(epoch), Literal(number), select
    )
