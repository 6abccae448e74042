"""Query the rows of given keys at a cost that depends on the keys and not on the size of the tables.

PostgreSQL does not push a condition on the key into grouped sub-selects under outer joins, so it would compute all rows
whatever the number of keys. LATERAL with OFFSET 0 runs the query once for each key. That is cheap if an index reaches
every table, and far too slow if one table is scanned. The plan is therefore checked before the query is followed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.derive.tables import unsized
from vitrina.connectors.postgres.source import Bounds, Query, SqlReader
from vitrina.errors import SourceQueryFailed
from vitrina.ports.live import Stale
from vitrina.sentences import say
from vitrina.store import database

if TYPE_CHECKING:
    from vitrina.connectors.postgres.derive.derivation import QueryDerivation
    from vitrina.connectors.postgres.opened_query import OpenedQuery

# A table of this size may be scanned once for each key; the planner prefers that to an index for small tables.
SMALL_TABLE_ROWS = 1_000
# With these settings, such nodes stay in the plan only if there is no alternative.
SHOW_SCANS = {"enable_seqscan": "off", "enable_material": "off"}
_KEPT_WHOLE = {"CTE Scan": "a WITH query that is computed whole", "Materialize": "a sub-select that is computed whole"}
_BY_INDEX = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")


@dataclass(frozen=True)
class KeyedQuery:
    """Represent a query that is run once for each key."""

    query: Query
    # The complete key of the target.
    key: tuple[str, ...]
    types: Mapping[str, str]

    @classmethod
    def plan(cls, source: "OpenedQuery", derivation: "QueryDerivation") -> "KeyedQuery":
        """Choose the query for stale keys; raise if each of them would cost a scan."""
        types = {name: unsized(source.types[name]) for name in derivation.key}
        made = cls(source.query, derivation.key, types)
        made.refuse_scans(source.reader, derivation.columns)
        return made

    def refuse_scans(self, reader: SqlReader, columns: Sequence[str]) -> None:
        nothing = Stale(tuple(columns), [(None,) * len(columns)])  # type: ignore[list-item]  # NULL fits every type
        with reader.reading(SHOW_SCANS):
            plan = reader.explain(self.select([SQL("q.*")], nothing)).plan
        sizes = Sizes(reader.connection)
        for why in costly(plan[0]["Plan"], sizes):
            raise SourceQueryFailed(say("derive.not_keywise", why=why))

    def select(self, outputs: Sequence[Composable], stale: Stale) -> Composed:
        """Build the statement that returns `outputs`, expressions over `q`, for the rows with stale keys."""
        head, source = self.query.wrapped(Bounds())
        names = [Identifier(name) for name in stale.columns]
        arrays = [
            SQL("{}::text[]").format(Literal(database.text_array(values))) for values in zip(*stale.keys, strict=True)
        ]
        typed = [SQL("u.{0}::{1} AS {0}").format(Identifier(name), SQL(self.types[name])) for name in stale.columns]
        return SQL(
            "{head} SELECT {outputs} FROM (SELECT DISTINCT {typed} FROM unnest({arrays}) AS u({names})) AS k"
            " CROSS JOIN LATERAL (SELECT * FROM {source} AS i WHERE {same} OFFSET 0) AS q"
        ).format(
            head=head,
            outputs=SQL(", ").join(outputs),
            typed=SQL(", ").join(typed),
            arrays=SQL(", ").join(arrays),
            names=SQL(", ").join(names),
            source=source,
            same=SQL(" AND ").join(SQL("i.{0} = k.{0}").format(name) for name in names),
        )

    def ask(self, session: "psycopg.Connection[Any]", stale: Stale) -> list[tuple[Any, ...]]:
        """Return the rows with stale keys as of the session's snapshot."""
        if not stale.keys:
            return []
        with session.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(self.select([SQL("q.*")], stale), prepare=True).fetchall()


class Sizes:
    """Look up how many rows tables have, according to the server."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def is_small(self, schema: str, table: str) -> bool:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(
                """
                SELECT pg_catalog.pg_relation_size(c.oid) / 8192 * 50, c.reltuples
                FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = %s AND c.relname = %s
                """,
                [schema, table],
            ).fetchone()
        # Statistics may be older than the rows; a page holds fifty rows or more.
        return row is not None and max(row) <= SMALL_TABLE_ROWS


def costly(plan: Mapping[str, Any], sizes: Sizes) -> Iterator[str]:
    """Yield what would be computed or read completely for each key."""
    for node in nodes(plan):
        kind = node["Node Type"]
        if kind in _KEPT_WHOLE:
            yield _KEPT_WHOLE[kind]
        elif is_scan(node):
            schema, table = node.get("Schema", ""), node.get("Relation Name", "")
            if not table:
                yield f"all of the index {node.get('Index Name')} is read for each key"
            elif not sizes.is_small(schema, table):
                yield f"all of {schema}.{table} is read for each key"
        elif kind in ("Foreign Scan", "Sample Scan", "Tid Range Scan"):
            yield f"a {kind} for each key"


def is_scan(node: Mapping[str, Any]) -> bool:
    """Return whether a node reads a whole table or index."""
    kind = node["Node Type"]
    return kind == "Seq Scan" or (kind in _BY_INDEX and "Index Cond" not in node)


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.get("Plans", []))
