"""Follow a query: take snapshots of its source, test which transactions they show, and read rows of stale keys."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import followed_catalog
from vitrina.errors import FatalError
from vitrina.ports.batch import Batch, Key
from vitrina.ports.live import Change, Stale
from vitrina.ports.source import Form
from vitrina.sentences import say
from vitrina.store import databases
from vitrina.store.database import Connection

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.connectors.postgres.derive.derivation import QueryDerivation
    from vitrina.connectors.postgres.keyed import KeyedQuery
    from vitrina.connectors.postgres.opened_query import OpenedQuery

_XIDS = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """Represent the result of `pg_current_snapshot()`, with 64-bit transaction ids."""

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def shows(self, xid: int) -> bool:
        """Return whether a committed transaction is visible. The log contains only the lower 32 bits of its id."""
        whole = self._nearest(xid)
        return whole < self.xmax and whole not in self.in_progress

    def _nearest(self, xid: int) -> int:
        """Complete the id: no relevant transaction is further than 2^31 from the newest one."""
        ahead = (xid - self.xmax) % _XIDS
        return self.xmax + (ahead if ahead < _XIDS // 2 else ahead - _XIDS)


class QueryFollowing:
    """Follow a query through the reader's session."""

    def __init__(self, source: "OpenedQuery", derivation: "QueryDerivation", keyed: "KeyedQuery") -> None:
        self.source = source
        self.keyed = keyed
        self.derivation = derivation
        self.publications: list[str] | None = None
        self._connection: Connection = source.reader.connection

    @property
    def key(self) -> tuple[str, ...]:
        return self.keyed.key

    @cached_property
    def database(self) -> str:
        seen = databases.look(self._connection)
        if seen is None:
            raise FatalError(say("run.live_no_identity", connection=self.source.definition.source_connection))
        return seen.identity

    def watch(self, publication: str) -> None:
        self.publications = [publication]

    @contextmanager
    def moment(self) -> Iterator["QueryMoment"]:
        """Open a snapshot in which everything is read; the transaction is rolled back.

        Its session idles while changes are read from the metastore and while rows are merged, which may take longer
        than a lease lasts.
        """
        source = self.source
        seconds = source.settings.statement_timeout_on(source.definition.source_connection)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(
                SQL(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
                    " SET LOCAL idle_in_transaction_session_timeout = {}"
                ).format(Literal(int(seconds * 1000)))
            )
            yield QueryMoment(self, self._connection)

    def close(self) -> None:
        """Do nothing: the session belongs to the run."""


class QueryMoment:
    """Represent one snapshot of a followed query's source."""

    def __init__(self, following: QueryFollowing, session: Connection) -> None:
        self._following = following
        self._session = session
        # The snapshot is taken before the statement runs, so the end of the log is read after it.
        row = session.execute(
            """
            SELECT pg_catalog.pg_current_snapshot()::text AS snapshot,
                   pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::int8 AS lsn,
                   pg_catalog.clock_timestamp() AS at
            """
        ).fetchone()
        if row is None:
            raise RuntimeError("a snapshot has a row")
        self.lsn: int = row["lsn"]
        self.at: datetime = row["at"]
        self._snapshot = Snapshot.parse(row["snapshot"])

    @cached_property
    def catalog(self) -> str:
        following = self._following
        return followed_catalog.fingerprint(self._session, following.derivation.names, following.publications)

    def keep(self) -> None:
        self._session.execute("SELECT")

    def sees(self, xid: int) -> bool:
        return self._snapshot.shows(xid)

    def stale(self, changes: Sequence[Change]) -> Stale:
        return self._following.derivation.stale(self._session, changes)

    def select(self, outputs: Sequence[Composable], stale: Stale) -> Composed:
        return self._following.keyed.select(outputs, stale)

    @property
    def session(self) -> Connection:
        return self._session

    def ask(self, stale: Stale, form: Form) -> "AskedRows":
        return AskedRows(self, self._following.source, self._following.key, stale, form)

    @cached_property
    def exported(self) -> str:
        """Return the name by which other sessions import the snapshot while this session holds it."""
        row = self._session.execute("SELECT pg_catalog.pg_export_snapshot() AS name").fetchone()
        return str(row["name"]) if row else ""


class AskedRows:
    """Read the query's rows for stale keys as Arrow."""

    def __init__(
        self, moment: QueryMoment, source: "OpenedQuery", key: Sequence[str], stale: Stale, form: Form
    ) -> None:
        self._moment = moment
        self._key = tuple(key)
        self._source = source
        self._stale = stale
        self._form = form
        self.keys: list[Key] = []

    def batches(self) -> Generator[Batch, None, None]:
        """Read in a separate session that imports the snapshot, because psycopg returns no Arrow."""
        from vitrina.connectors.postgres.stream import POSITIONS, outputs_of
        from vitrina.transforms.outputs import outputs

        source = self._source
        names = POSITIONS[: len(self._key)]
        wanted = list(outputs(source.result) if self._form == "natural" else outputs_of(source.result))
        wanted += [
            SQL("q.{}::pg_catalog.text AS {}").format(Identifier(name), Identifier(place))
            for name, place in zip(self._key, names, strict=True)
        ]
        statement = self._moment.select(wanted, self._stale)
        with source.reader.stream(statement, snapshot=self._moment.exported) as stream:
            for batch in stream:
                yield Batch(self._taken(batch, names))

    def _taken(self, batch: "pa.RecordBatch", names: Sequence[str]) -> "pa.Table":
        """Record the keys and remove their extra columns, so that steps see the same columns in every run."""
        import pyarrow as pa

        self.keys += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        table = pa.Table.from_batches([batch])
        return table.drop_columns(list(names))
