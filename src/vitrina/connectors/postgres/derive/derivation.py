"""Derive which tables a query follows, and compute the stale keys of a batch of changes."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from vitrina.connectors.postgres.derive import paths, reading, warnings
from vitrina.connectors.postgres.derive.affects import Affects
from vitrina.connectors.postgres.derive.graph import Graph
from vitrina.connectors.postgres.derive.images import Images, ValueMissing
from vitrina.connectors.postgres.derive.paths import Path, Search
from vitrina.connectors.postgres.derive.refusals import Allowed
from vitrina.connectors.postgres.derive.statements import Estimate, Statement, statement
from vitrina.connectors.postgres.derive.tables import SourceCatalog, Table, unsized
from vitrina.errors import SourceQueryFailed
from vitrina.ports.batch import Key
from vitrina.ports.live import Change, FollowedTable, Stale
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection

# For a longer key, only the whole key and single columns are tried.
_MOST_KEY_COLUMNS = 6


@dataclass(frozen=True)
class Step:
    """Describe how changes of one occurrence of a table lead to keys; without a statement, to every key."""

    table: Table
    statement: Statement | None
    leads_to: str


class QueryDerivation:
    """Compute stale keys with one statement for each occurrence of a changed table."""

    def __init__(
        self,
        *,
        key: Sequence[str],
        columns: Sequence[str],
        steps: Sequence[Step],
        stated: Mapping[str, Affects],
        names: Sequence[str],
        warned: Sequence[str] = (),
    ) -> None:
        self.key = tuple(key)
        # The columns of the key by which the stale keys of every batch are expressed.
        self.columns = tuple(columns)
        # Every relation that the query names or a view leads to, as SQL writes it.
        self.names = tuple(names)
        self._steps = [step for step in steps if step.table.followed_as not in stated]
        self._stated = stated
        self._tables = {step.table.followed_as: step.table for step in steps}
        self.warnings: Sequence[str] = tuple(warned)
        self._estimates: dict[str, Estimate] = {}

    def estimate(self, ask: Callable[[Statement, str], Estimate]) -> None:
        """Estimate the cost of a changed row of each table, to be shown with a plan."""
        for step in self._steps:
            if step.statement is not None:
                name = step.table.followed_as
                made = ask(step.statement, name)
                self._estimates[name] = self._estimates[name] + made if name in self._estimates else made

    @property
    def tables(self) -> Sequence[FollowedTable]:
        return [self._followed(name) for name in self._tables]

    def _followed(self, name: str) -> FollowedTable:
        if name in self._stated:
            columns = self._stated[name].columns
            return FollowedTable(name, columns, columns, leads_to=say("derive.as_stated"))
        own = [step for step in self._steps if step.table.followed_as == name]
        columns = self._image_columns(name)
        every_key = any(step.statement is None for step in own)
        found = self._estimates.get(name)
        return FollowedTable(
            name,
            columns,
            columns,
            leads_to=", ".join(dict.fromkeys(step.leads_to for step in own)),
            every_key=every_key,
            keys_per_row=found.keys if found else None,
            scans=found.scanned if found else (),
        )

    def _image_columns(self, name: str) -> tuple[str, ...]:
        """Return the columns whose images any statement reads."""
        made = (step.statement.images.get(name, ()) for step in self._steps if step.statement)
        return tuple(sorted(set(itertools.chain.from_iterable(made))))

    def stale(self, session: "psycopg.Connection[Any]", changes: Sequence[Change]) -> Stale:
        """Compute the stale keys in the session's open snapshot."""
        changed = {change.relation for change in changes} & self._tables.keys()
        why = self._everything(changed, changes)
        if why is not None:
            return Stale(self.columns, everything=True, why=why)
        images = Images(self._tables, changes)
        keys: set[Key] = set()
        try:
            for step in self._steps:
                if step.statement is not None and step.table.followed_as in changed:
                    keys |= _asked(session, step.statement.text, images.parameters(step.statement.images))
            for name in changed & self._stated.keys():
                keys |= self._stated[name].keys(session, images)
        except ValueMissing as exc:
            return Stale(self.columns, everything=True, why=say("derive.value_missing", table=exc.table))
        return Stale(self.columns, sorted(keys))

    def _everything(self, changed: Iterable[str], changes: Sequence[Change]) -> str | None:
        """Return why a batch may affect every key; None if it does not."""
        truncated = next((each.relation for each in changes if each.kind == "truncate"), None)
        if truncated is not None:
            return say("derive.truncated", table=truncated)
        open_ended = {step.table.followed_as for step in self._steps if step.statement is None} & set(changed)
        return say("derive.every_key_of", table=min(open_ended)) if open_ended else None


def _asked(session: "psycopg.Connection[Any]", text: str, values: Mapping[str, Any]) -> set[Key]:
    with session.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(text.encode(), {name: _as_array(value) for name, value in values.items()})
        return set(cursor.fetchall())


def _as_array(value: Any) -> Any:
    return database.text_array(value) if isinstance(value, list) else value


# --- from the query --------------------------------------------------------------------------------------------------


def derive(
    connection: Connection,
    text: str,
    key: Sequence[tuple[str, str]],
    *,
    stamps: frozenset[str] = frozenset(),
    affects: Mapping[str, str] | None = None,
    admit: Callable[[str], object] | None = None,
    reloads: bool = False,
) -> QueryDerivation:
    """Derive how changes of its tables lead to the keys of a query that the server accepts.

    `key` names columns of the result with their types. `admit` raises for a query that the author may not run; it is
    applied to `affects`. `reloads` says that the target is loaded again regularly, so that the query may depend on the
    clock. Raise with the reason if the query cannot be followed.
    """
    catalog = SourceCatalog(connection)
    graph = reading.read(text, catalog, Allowed(stamps, clock=reloads))
    if not graph.leaves:
        raise SourceQueryFailed(say("derive.no_tables"))
    searches = [paths.search(graph, start) for start in graph.leaves]
    stated = frozenset(affects or {})
    columns = _best_columns([each for each in searches if _name(each) not in stated], [name for name, _ in key])
    types = {name: unsized(kind) for name, kind in key}
    steps = [_step(found, [(name, types[name]) for name in columns]) for found in searches]
    _refuse_hopeless(steps, stated)
    _refuse_without_images(steps, stated)
    _refuse_unreadable(steps, stated)
    asked = [(column, types[column]) for column in columns]
    made = {
        name: Affects.made(connection, query, asked, _table(graph, name), admit)
        for name, query in (affects or {}).items()
    }
    return QueryDerivation(
        key=[name for name, _ in key],
        columns=columns,
        steps=steps,
        stated=made,
        names=catalog.names(),
        warned=warnings.of(text, graph),
    )


def _name(found: Search) -> str:
    return found.graph.leaves[found.start].table.followed_as


def _table(graph: Graph, name: str) -> Table:
    found = next((leaf.table for leaf in graph.leaves.values() if leaf.table.followed_as == name), None)
    if found is None:
        raise SourceQueryFailed(say("derive.affects_unknown", table=name))
    return found


def _best_columns(searches: Sequence[Search], key: Sequence[str]) -> Sequence[str]:
    """Choose the key columns to query by: reached from most occurrences, with old values that the log contains."""
    return max(_subsets(key), key=lambda columns: _worth(searches, columns))


def _subsets(key: Sequence[str]) -> Iterator[tuple[str, ...]]:
    sizes = range(len(key), 0, -1) if len(key) <= _MOST_KEY_COLUMNS else (len(key), 1)
    for size in sizes:
        yield from itertools.combinations(key, size)


def _worth(searches: Sequence[Search], columns: Sequence[str]) -> tuple[int, int, int]:
    found = [path for each in searches if (path := each.path(columns))]
    unlogged = {
        (table.followed_as, column)
        for path in found
        for table, used in _used(path)
        for column in used
        if column not in table.identity
    }
    return len(found), -len(unlogged), len(columns)


def _used(path: Path) -> list[tuple[Table, tuple[str, ...]]]:
    made = statement(path, [(name, "text") for name in path.values])
    tables = {leaf.table.followed_as: leaf.table for leaf in path.graph.leaves.values()}
    return [(tables[name], columns) for name, columns in made.images.items()]


def _step(found: Search, columns: Sequence[tuple[str, str]]) -> Step:
    table = found.graph.leaves[found.start].table
    path = found.path([name for name, _ in columns])
    if path is None:
        return Step(table, None, say("derive.every_key"))
    return Step(table, statement(path, columns), _shown(path))


def _shown(path: Path) -> str:
    """Describe the path for users: the key's columns, and the tables by which they are found."""
    names = ", ".join(path.values)
    by = list(dict.fromkeys(path.graph.leaves[lookup.leaf].table.followed_as for lookup in path.lookups))
    return say("derive.by_way_of", columns=names, tables=", ".join(by)) if by else names


def _refuse_hopeless(steps: Sequence[Step], stated: frozenset[str]) -> None:
    """Refuse a query none of whose tables leads to keys."""
    if all(step.statement is None and step.table.followed_as not in stated for step in steps):
        names = list(dict.fromkeys(step.table.followed_as for step in steps))
        raise SourceQueryFailed(say("derive.nothing_derived", tables=names))


def _refuse_without_images(steps: Sequence[Step], stated: frozenset[str]) -> None:
    """Refuse a table whose old values the log does not contain although keys depend on them."""
    tables = {step.table.followed_as: step.table for step in steps}
    needed: dict[str, set[str]] = {}
    for step in steps:
        if step.table.followed_as in stated or step.statement is None:
            continue
        for name, columns in step.statement.images.items():
            needed.setdefault(name, set()).update(set(columns) - tables[name].identity)
    lacking = {name: sorted(columns) for name, columns in needed.items() if columns}
    if lacking:
        name, lacked = next(iter(lacking.items()))
        raise SourceQueryFailed(
            say("derive.no_old_values", table=name, columns=lacked, statements="; ".join(_remedies(tables, lacking)))
        )


def _remedies(tables: Mapping[str, Table], lacking: Iterable[str]) -> list[str]:
    return [f"ALTER TABLE {part} REPLICA IDENTITY FULL" for name in lacking for part in tables[name].without_identity]


def _refuse_unreadable(steps: Sequence[Step], stated: frozenset[str]) -> None:
    """Refuse look-ups in a table that only the owner of a view may read."""
    for step in steps:
        if step.statement is None or step.table.followed_as in stated:
            continue
        for table in step.statement.reads:
            if not table.readable:
                raise SourceQueryFailed(say("derive.not_readable", table=f"{table.schema}.{table.name}"))
