"""Open a query and a stage by name in worker processes, each with its own sessions."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg

from vitrina.connectors.postgres.copy import CopySource
from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.sessions import QueryReader
from vitrina.connectors.postgres.source import Bounds, Order, Query
from vitrina.connectors.postgres.stage import Stage, Turns
from vitrina.errors import FatalError
from vitrina.ports.batch import Batch, Part
from vitrina.ports.ranges import FilledRange, Task
from vitrina.ports.schema import Column
from vitrina.ports.source import BaseSource, Description, Form, Window
from vitrina.ports.target import Writer
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.store import database, named_sessions
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    import pyarrow as pa

# A server continues a query whose client has disconnected; it checks the connection at this interval.
LOOK_MILLISECONDS = "1000"


@dataclass(frozen=True)
class QueryHandle:
    """Describe a query of which several processes read ranges."""

    connection: str
    session_name: str
    # Settings of the runner's session: limits, and where types of extensions are found.
    session: Mapping[str, str]
    query: Query
    result: tuple[Column, ...]
    bounds: Bounds
    order: Order
    # The target's name, if a row without a key must be refused.
    needs_position: str | None
    # The database that the runner reads; see `origin_of`.
    origin: str | None

    @property
    def modules(self) -> tuple[str, ...]:
        return (__name__, "vitrina.connectors.postgres.stream", "vitrina.transforms.outputs")

    def open(self, settings: Settings) -> "QueryRanges":
        return QueryRanges(self, settings)

    def open_reader(self, settings: Settings) -> QueryReader:
        url = database.reader_url(settings, self.connection)
        session = named_sessions.connect(settings, url, self.connection, self.session_name, self.session)
        return QueryReader(session, url, self.session_name)

    def require_origin(self, reader: QueryReader, snapshot: str | None) -> None:
        """Refuse to read without the runner's snapshot, except from the runner's database or a replica of it."""
        if snapshot is None and (self.origin is None or origin_of(reader.connection) != self.origin):
            raise FatalError(say("run.other_database"))


def origin_of(connection: database.Connection) -> str | None:
    """Identify a database; its physical replicas have the same identity. None: the server does not report it."""
    with suppress(psycopg.Error):
        row = connection.execute(
            """
            SELECT s.system_identifier || '/' || d.oid AS origin
            FROM pg_catalog.pg_control_system() AS s, pg_catalog.pg_database AS d
            WHERE d.datname = pg_catalog.current_database()
            """
        ).fetchone()
        return str(row["origin"]) if row else None
    return None


class QueryRanges(BaseSource):
    """Read ranges of one query in a snapshot that the runner holds."""

    name = "the query"

    def __init__(self, handle: QueryHandle, settings: Settings) -> None:
        self._handle = handle
        self._settings = settings
        self._reader = handle.open_reader(settings)
        self._looks = looked_after(self._reader.connection)

    def describe(self, window: Window) -> Description:
        return Description(self._handle.result)

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        # Imported here: rows that COPY passes on do not need pyarrow, whose import takes half a second.
        from vitrina.connectors.postgres.stream import ArrowReader, outputs_of
        from vitrina.transforms.outputs import outputs

        handle = self._handle
        handle.require_origin(self._reader, window.snapshot)
        return ArrowReader(
            self._reader,
            handle.query,
            bounds=replace(handle.bounds, upto=window.upto),
            outputs=outputs(handle.result) if form == "natural" else outputs_of(handle.result),
            order=handle.order,
            batch_size=window.batch_rows,
            max_value_bytes=self._settings.max_value_mb << 20,
            needs_position=handle.needs_position if form == "natural" else None,
            snapshot=window.snapshot,
            settings=self._looks,
            # No function of such a query changes anything: one that is volatile is not read in ranges.
            keeps_session=True,
        ).batches(window.after)

    def look_up(self, query: str) -> "pa.Table":
        return self._reader.look_up(self._settings, query)

    def close(self) -> None:
        self._reader.cancel_stream()
        self._reader.close_stream()
        self._reader.connection.close()


def looked_after(connection: database.Connection) -> Mapping[str, str]:
    """Make the server detect during a query that its client has disconnected; not every platform supports it."""
    setting = {"client_connection_check_interval": LOOK_MILLISECONDS}
    with suppress(psycopg.Error):
        for name, value in setting.items():
            connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
        return setting
    return {}


@dataclass(frozen=True)
class StageHandle:
    """Describe a stage into which several processes copy rows."""

    connection: str | None
    session_name: str
    stages: tuple[Stage, ...]
    epoch: int
    target: PostgresTarget

    def open(self, settings: Settings) -> AbstractContextManager[Writer]:
        # Imported here, as above.
        from vitrina.connectors.postgres.stream import Stager

        url = settings.connection_url(self.connection)
        return closing(Stager(url, self.session_name, Turns(*self.stages), epoch=self.epoch, target=self.target))


@dataclass(frozen=True)
class CopyHandle:
    """Describe rows that no step changes: each worker passes COPY lines from a range of the query to the stage."""

    source: QueryHandle
    target: StageHandle
    staged_as: tuple[str, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        return (__name__,)

    def open(self, settings: Settings) -> "CopyRanges":
        return CopyRanges(self, settings)


class CopyRanges:
    """Fill a stage with ranges of a query."""

    def __init__(self, handle: CopyHandle, settings: Settings) -> None:
        self._handle = handle
        self._settings = settings
        self._reader = handle.source.open_reader(settings)
        looked_after(self._reader.connection)
        target = handle.target
        url = settings.connection_url(target.connection)
        self._sink = named_sessions.connect(settings, url, target.connection, target.session_name, {})

    def fill(self, task: Task, progressed: Callable[[int], None]) -> FilledRange:
        self._handle.source.require_origin(self._reader, task.snapshot)
        with closing(self._copying(task, progressed).parts(task.number, task.range.after)) as parts:  # type: ignore[type-var]
            part = next(parts, Part(task.number, 0, None))
        # If as many as requested came, there may be more. Reading an empty range costs little.
        reached = part.last if part.rows >= task.most_rows else None
        return FilledRange(replace(part, last=None), reached)

    def _copying(self, task: Task, progressed: Callable[[int], None]) -> CopySource:
        source, target = self._handle.source, self._handle.target
        return CopySource(
            self._reader,
            self._sink,
            source.query,
            bounds=replace(source.bounds, upto=task.range.upto),
            turns=Turns(*target.stages),
            paging=Paging(source.order, self._handle.staged_as),
            epoch=target.epoch,
            target=target.target,
            result=source.result,
            batch_size=lambda: task.most_rows,
            max_value_bytes=self._settings.max_value_mb << 20,
            snapshot=task.snapshot,
            is_one_part=True,
            progressed=progressed,
        )

    def close(self) -> None:
        self._reader.connection.close()
        self._sink.close()
