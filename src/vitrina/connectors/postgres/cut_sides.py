"""Ask one side of a comparison in parts: several sessions count and hash their parts in one shared snapshot.

Counts and sums are independent of order, so the parts of one side need not be those of the other. The conditions of
one side's parts are complements of each other, so each row is in exactly one part.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable, Literal

from vitrina.connectors.postgres.compare import SESSION, TableSide
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.range_workers import LOOK_MILLISECONDS, looked_after
from vitrina.errors import VitrinaError
from vitrina.ports.compare import SideCut
from vitrina.ports.ranges import KeyRange
from vitrina.ports.source import Window
from vitrina.sentences import say
from vitrina.side_by_side import side_by_side
from vitrina.store import database
from vitrina.store.database import Connection

Answer = TypeVar("Answer")
# Parts for each session: one that ends early takes another part.
_PARTS_OF_SESSION = 4
_CANCEL_SECONDS = 2.0
# What a session adopts from the one whose snapshot it reads in.
_ADOPTED = ("lock_timeout", "statement_timeout", "search_path")


@dataclass
class Cutting:
    """Hold how one side is asked by several sessions, and what came of it."""

    sessions: int
    lend: Callable[[], AbstractContextManager[Connection]]
    # The conditions of the parts, or the table that is cut into parts when its side is asked.
    conditions: Sequence[Composable] = ()
    table: Composable | None = None
    report: SideCut = field(default_factory=SideCut)
    # The sessions beside that of the side, and the parts that no session has begun.
    others: list[Connection] = field(default_factory=list)
    waiting: deque[Composable] = field(default_factory=deque)


def of_query(source: QuerySource, key: Sequence[str], sessions: int) -> Cutting:
    """Cut the rows of a query into ranges of the key. Bounds need not come from the snapshot."""
    names = [name for name in key if name in source.types]
    conditions: list[Composable] = []
    report = SideCut()
    try:
        found = source.plan_cut(names, _PARTS_OF_SESSION * sessions, sessions)
        if found.obstacle:
            report.obstacle = found.obstacle
        else:
            conditions = _in_ranges(source, names, source.split(names, KeyRange(), found.ranges))
    except (VitrinaError, psycopg.Error) as exc:
        # A key that can be hashed may have no order, such as text of two collations. A lost server is noticed later.
        report.obstacle = _message(exc)
    return Cutting(sessions, source.lend_reader, conditions, report=report)


def _in_ranges(source: QuerySource, names: Sequence[str], ranges: Sequence[KeyRange]) -> list[Composable]:
    order = source.order_of(Window(order=tuple(names)))
    conditions: list[Composable] = []
    for one in ranges:
        bounds = [order.behind(one.after)] if one.after is not None else []
        bounds += [order.upto(one.upto)] if one.upto is not None else []
        conditions.append(_all(bounds))
    return conditions


def _in_places(connection: Connection, table: Composable, parts: int) -> list[Composable]:
    """Cut a table by the places of its rows on disk: a row stays in its place as long as a snapshot can see it.

    The last part has no end: the table may grow, and partitions have sizes of their own.
    """
    found = connection.execute(
        SQL(
            """
            SELECT coalesce(max(pg_relation_size(p.relid)), pg_relation_size({table}::regclass))
                   / current_setting('block_size')::bigint AS pages
            FROM pg_partition_tree({table}::regclass) AS p
            """
        ).format(table=Literal(table.as_string(connection)))
    )
    pages = int(database.one(found)["pages"])
    parts = max(min(parts, pages), 1)
    edges = [None, *(pages * number // parts for number in range(1, parts)), None]
    conditions: list[Composable] = []
    for first, end in pairwise(edges):
        bounds = [SQL("q.ctid >= {}::tid").format(Literal(f"({first},0)"))] if first is not None else []
        bounds += [SQL("q.ctid < {}::tid").format(Literal(f"({end},0)"))] if end is not None else []
        conditions.append(_all(bounds))
    return conditions


def _all(bounds: Sequence[Composable]) -> Composable:
    return SQL("({})").format(SQL(" AND ").join(bounds)) if bounds else SQL("true")


def _message(exc: VitrinaError | psycopg.Error) -> str:
    return exc.message if isinstance(exc, VitrinaError) else database.sql_message(exc)


def cut_side(side: TableSide, cutting: Cutting) -> "CutSide":
    return CutSide(**_given(side), cutting=cutting)


def _given(side: TableSide) -> dict[str, Any]:
    return {each.name: getattr(side, each.name) for each in fields(TableSide)}


@dataclass(frozen=True, kw_only=True)
class CutSide(TableSide):
    """Represent a side that several sessions may be asked about. Single rows are still read by its own session."""

    cutting: Cutting

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with super().snapshot():
            # Not every platform can; the setting of a savepoint that is released stays.
            with suppress(psycopg.errors.InvalidParameterValue), self.connection.transaction():
                self.connection.execute(f"SET LOCAL client_connection_check_interval = {LOOK_MILLISECONDS}")
            yield

    def total(self) -> tuple[int, str]:
        return self.total_of(self._answers(TableSide.sums, may_leave_to_server=True))

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        merged: dict[int, tuple[int, str]] = {}
        found = self._answers(lambda part: part.buckets(mask), may_leave_to_server=False)
        for bucket, (rows, total) in chain.from_iterable(each.items() for each in found):
            before_rows, before = merged.get(bucket, (0, "0"))
            merged[bucket] = before_rows + rows, str(int(before) + int(total))
        return merged

    def cancel(self) -> None:
        """Cancel the statements that run for this side, and begin no further part. Any thread may call it."""
        self.cutting.waiting.clear()
        for connection in (self.connection, *self.cutting.others):
            if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def _answers(self, ask: Callable[[TableSide], Answer], *, may_leave_to_server: bool) -> list[Answer]:
        """Ask for each part, or for the whole if several sessions would gain nothing."""
        cutting, report = self.cutting, self.cutting.report
        with self._translating():
            # Also locks the tables until the transaction ends, so that none is rewritten between two parts.
            workers = self._workers_of_server()
            conditions = cutting.conditions
            if cutting.table:
                conditions = _in_places(self.connection, cutting.table, _PARTS_OF_SESSION * cutting.sessions)
        wanted = min(cutting.sessions, len(conditions))
        if may_leave_to_server and 1 < wanted <= workers + 1:
            report.obstacle = say("check.cut_by_server", workers=workers)
            return [ask(self._part(self.connection, SQL("true")))]
        with ExitStack() as opened:
            sessions = self._open(wanted, opened)
            report.sessions = max(report.sessions, len(sessions))
            cutting.waiting = deque(conditions if len(sessions) > 1 else [SQL("true")])
            calls = [partial(self._ask_parts, session, ask) for session in sessions]
            return list(chain.from_iterable(side_by_side(calls, self.cancel)))

    def _ask_parts(self, connection: Connection, ask: Callable[[TableSide], Answer]) -> list[Answer]:
        """Take one part after another, until none is left."""
        found: list[Answer] = []
        with suppress(IndexError):
            while True:
                condition = self.cutting.waiting.popleft()
                found.append(ask(self._part(connection, condition)))
        return found

    def _part(self, connection: Connection, condition: Composable) -> TableSide:
        where = SQL("{} AND {}").format(self.condition, condition)
        return TableSide(**_given(self) | {"connection": connection, "condition": where})

    def _workers_of_server(self) -> int:
        """Return how many parallel workers the server itself would use for the whole."""
        with self.connection.cursor(row_factory=tuple_row) as cursor:
            plan = cursor.execute(SQL("EXPLAIN (COSTS OFF) {}").format(self.statement_of_sums()), prepare=True)
            planned = [line for (line,) in plan if "Workers Planned:" in line]
        return max((int(line.rpartition(":")[2]) for line in planned), default=0)

    # --- sessions ------------------------------------------------------------------------------------------------

    def _open(self, wanted: int, opened: ExitStack) -> list[Connection]:
        """Open sessions in the snapshot of the side's own; be content with those that the server grants."""
        others = self.cutting.others
        opened.callback(others.clear)
        if wanted < 2:
            return [self.connection]
        try:
            snapshot = self.connection.execute("SELECT pg_export_snapshot() AS name").fetchone()
        except psycopg.Error as exc:
            raise self.translate(exc) from exc
        try:
            for _ in range(wanted - 1):
                others.append(opened.enter_context(self._joined(str(snapshot and snapshot["name"]))))
        except (VitrinaError, psycopg.Error) as exc:
            self.cutting.report.obstacle = _message(exc)
        if others:
            opened.enter_context(self._without_workers(self.connection))
        return [self.connection, *others]

    @contextmanager
    def _joined(self, snapshot: str) -> Iterator[Connection]:
        with self.cutting.lend() as connection:
            looked_after(connection)
            with connection.transaction(force_rollback=True):
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(SQL("SET TRANSACTION SNAPSHOT {}").format(Literal(snapshot)))
                for name, value in (SESSION | self._adopted()).items():
                    connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
                with self._without_workers(connection):
                    yield connection

    def _adopted(self) -> dict[str, str]:
        found = self.connection.execute(
            "SELECT name, pg_catalog.current_setting(name) AS value FROM pg_catalog.unnest(%s::text[]) AS name",
            [list(_ADOPTED)],
        )
        return {row["name"]: row["value"] for row in found}

    @contextmanager
    def _without_workers(self, connection: Connection) -> Iterator[None]:
        """Let each session use one processor: as many as were requested, not a multiple of that."""
        connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        yield
        connection.execute("SET LOCAL max_parallel_workers_per_gather TO DEFAULT")
