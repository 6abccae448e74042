"""Find what pipelines read and write, and keep it by digest of the definition: reading it from SQL is slow."""

from collections.abc import Sequence
from threading import Lock
from typing import Literal, NamedTuple
from uuid import UUID

from pydantic import ValidationError

from vitrina import sqlguard, targets
from vitrina.definition import Definition
from vitrina.errors import InvalidQuery
from vitrina.ports import registry
from vitrina.sqlguard import SqlPolicy
from vitrina.store import graph, pipelines
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Enough for about a hundred thousand pipelines of a few tables each.
MAX_BYTES = 64 * 2**20


class Place(NamedTuple):
    """Something that is read or written. `connection` is the name that the author gave."""

    kind: Literal["table", "index", "python"]
    name: str
    connection: str | None


class Use(NamedTuple):
    """What a pipeline reads and writes. One that was edited into nonsense has no target."""

    sources: tuple[Place, ...]
    target: Place | None


class Known:
    """Keep what was found, up to about `max_bytes`. Threads share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._found: dict[tuple[bytes, SqlPolicy], Use] = {}
        self._lock = Lock()

    def find(self, digest: bytes, policy: SqlPolicy) -> Use | None:
        return self._found.get((digest, policy))

    def keep(self, digest: bytes, policy: SqlPolicy, use: Use) -> None:
        with self._lock:
            if (digest, policy) in self._found:
                return
            self._found[digest, policy] = use
            self._bytes += _size(use)
            while self._bytes > self._max_bytes and self._found:
                self._make_room()

    def _make_room(self) -> None:
        """Drop every tenth entry. To drop the oldest would leave nothing for those who go through all in one order."""
        for key in list(self._found)[::10]:
            self._bytes -= _size(self._found.pop(key))


_known = Known(MAX_BYTES)


def of_rows(connection: Connection, policy: SqlPolicy, lines: Sequence[Row]) -> dict[UUID, Use]:
    """Return what each pipeline of `store.graph.list_lines` reads and writes. Only what is new or changed is parsed."""
    found: dict[UUID, Use] = {}
    unknown: list[UUID] = []
    for line in lines:
        use = _known.find(line["digest"], policy)
        if use is None:
            unknown.append(line["id"])
        else:
            found[line["id"]] = use
    for row in graph.iterate_whole(connection, unknown):
        found[row["id"]] = _of_row(row, policy)
        # By the digest of this statement: the row may have changed since the line was read.
        _known.keep(row["digest"], policy, found[row["id"]])
    return found


def _of_row(row: Row, policy: SqlPolicy) -> Use:
    try:
        definition = pipelines.definition_of(row)
    except ValidationError:
        return Use((), None)  # edited by hand: its next run says what is wrong with it
    return Use(tuple(_sources(definition, policy)), target_of(definition))


def target_of(definition: Definition) -> Place:
    target = definition.final_target
    is_index = targets.connector_of(target) == registry.SEARCH
    return Place("index" if is_index else "table", target, definition.options.target_connection)


def _sources(definition: Definition, policy: SqlPolicy) -> list[Place]:
    if definition.python_source:
        return [Place("python", definition.python_source, None)]
    if not definition.reads_postgres:
        named = definition.source_table or definition.query or definition.source_type
        return [Place("table", f"{definition.source_type}:{named}", definition.source_connection)]
    tables = _tables(definition.query or "", policy)
    return [Place("table", f"{schema}.{table}", definition.source_connection) for schema, table in tables]


def _tables(query: str, policy: SqlPolicy) -> Sequence[tuple[str, str]]:
    """List the tables that the query really reads. A query that may not run reads none."""
    try:
        return list(dict.fromkeys(sqlguard.check(query, policy).tables))
    except InvalidQuery:
        return ()


def _size(use: Use) -> int:
    """Estimate the memory of an entry, including its key."""
    places = [*use.sources, *([use.target] if use.target else [])]
    return 400 + sum(200 + len(place.name) for place in places)
