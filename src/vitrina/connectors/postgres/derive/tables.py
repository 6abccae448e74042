"""Look up the names of a query in the source's catalog: tables, views, functions and operators."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row
from psycopg.sql import Identifier

from vitrina.errors import SourceQueryFailed
from vitrina.sentences import say
from vitrina.store.database import Connection

_SIZE = re.compile(r"\([^)]*\)")


def unsized(kind: str) -> str:
    """Return a type without length or precision: a cast to numeric(4, 2) fails for values that no key has."""
    if kind.startswith("bit"):
        return kind
    bare = _SIZE.sub("", kind)
    return "bpchar" + bare.removeprefix("character") if bare in ("character", "character[]") else bare


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: str
    not_null: bool
    # Neither the log nor an old image contains it.
    generated: bool
    # Equal values have equal texts, so one can replace the other.
    exact: bool


@dataclass(frozen=True, eq=False)
class Table:
    """Represent a relation that a query names."""

    schema: str
    name: str
    oid: int
    kind: str
    # The name under which its changes are logged; a partition's changes belong to its root.
    followed_as: str
    columns: Mapping[str, TableColumn]
    # Columns whose old values the log contains for every partition.
    identity: frozenset[str]
    # The query of a view; None for other relations.
    view: str | None
    readable: bool
    # The table, or its partitions, whose old images lack columns.
    without_identity: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """Describe all functions of one name: what holds for each of them."""

    strict: bool
    volatility: str
    aggregate: bool
    returns_set: bool
    # It may read tables: STABLE, and written in a language that cannot be analysed.
    may_read: bool


_TABLE = """
SELECT c.oid::int8 AS oid, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       coalesce((SELECT format('%%s.%%s', rn.nspname, r.relname) FROM pg_catalog.pg_class r
                 JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
                 WHERE c.relispartition AND r.oid = pg_catalog.pg_partition_root(c.oid)),
                format('%%s.%%s', n.nspname, c.relname)) AS followed_as,
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
           OR NOT c.relispartition AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid)
           AS inherits,
       CASE WHEN c.relkind = 'v' THEN pg_catalog.pg_get_viewdef(c.oid) END AS view,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE')
           AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS readable
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, -1) AS type, a.attnotnull AS not_null,
       a.attgenerated <> '' AS generated,
       (t.typtype = 'e' OR t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND t.typname IN (
           'bool', 'bpchar', 'date', 'int2', 'int4', 'int8', 'name', 'numeric', 'oid', 'text', 'timestamp',
           'timestamptz', 'uuid', 'varchar')) AND (
           a.attcollation = 0 OR (SELECT l.collisdeterministic FROM pg_catalog.pg_collation l
                                  WHERE l.oid = a.attcollation)) AS exact
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Only the leaves of a partitioned table have rows, and each has its own identity.
_IDENTITY = """
WITH part AS (
    SELECT %(oid)s::oid AS oid
    UNION SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s::oid::pg_catalog.regclass) WHERE isleaf
)
SELECT c.oid::pg_catalog.regclass::text AS name, c.relreplident::text AS identity,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
             WHERE i.indrelid = c.oid
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) AS columns
FROM part JOIN pg_catalog.pg_class c ON c.oid = part.oid WHERE c.relkind = 'r' ORDER BY 1
"""
_FUNCTIONS = """
SELECT bool_and(p.proisstrict) AS strict, bool_or(p.prokind = 'a') AS aggregate, bool_or(p.proretset) AS returns_set,
       max(translate(p.provolatile::text, 'isv', 'abc')) AS volatility,
       bool_or(p.provolatile <> 'i' AND l.lanname NOT IN ('c', 'internal')
               AND n.nspname <> 'pg_catalog') AS may_read
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE p.proname = %s AND CASE WHEN %s::text IS NULL THEN n.nspname = ANY(%s) ELSE n.nspname = %s END
"""
_OPERATORS = """
SELECT coalesce(bool_and(p.proisstrict AND p.provolatile <> 'v'), false) AS strict
FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode
WHERE o.oprname = %s
"""
_REFUSED_KINDS = {"m": "a materialized view", "f": "a foreign table", "S": "a sequence", "c": "a type"}


class SourceCatalog:
    """Look up names, each only once. `search_path` is that of the session that reads the query."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tables: dict[tuple[str, str], Table] = {}
        self._functions: dict[tuple[str | None, str], Function] = {}
        self._operators: dict[str, bool] = {}
        self._schemas: list[str] | None = None

    def names(self) -> list[str]:
        """Return the relations that were looked up, as SQL writes them."""
        return [Identifier(*name).as_string(None) for name in self._tables]

    def table(self, schema: str, name: str) -> Table:
        if (schema, name) not in self._tables:
            self._tables[schema, name] = self._find_table(schema, name)
        return self._tables[schema, name]

    def function(self, schema: str | None, name: str) -> Function:
        if (schema, name) not in self._functions:
            found = self._one(_FUNCTIONS, [name, schema, self._searched(), schema])
            volatility = {"a": "i", "b": "s", "c": "v"}.get(found["volatility"] or "c", "v")
            self._functions[schema, name] = Function(
                bool(found["strict"]), volatility, bool(found["aggregate"]), bool(found["returns_set"]),
                bool(found["may_read"]),
            )  # fmt: skip
        return self._functions[schema, name]

    def is_strict_operator(self, name: str) -> bool:
        if name not in self._operators:
            self._operators[name] = bool(self._one(_OPERATORS, [name])["strict"])
        return self._operators[name]

    def _searched(self) -> list[str]:
        if self._schemas is None:
            self._schemas = list(self._one("SELECT pg_catalog.current_schemas(true)::text[] AS names")["names"])
        return self._schemas

    def _find_table(self, schema: str, name: str) -> Table:
        found = self._rows(_TABLE, [schema, name])
        if not found:
            raise SourceQueryFailed(say("derive.no_table", name=f"{schema}.{name}"))
        row = found[0]
        self._refuse(f"{schema}.{name}", schema, row)
        columns = {each["name"]: TableColumn(**each) for each in self._rows(_COLUMNS, [row["oid"]])}
        identity, lacking = self._identity(row, columns)
        return Table(
            schema, name, row["oid"], row["kind"], row["followed_as"], columns, identity, row["view"], row["readable"],
            lacking,
        )  # fmt: skip

    def _refuse(self, name: str, schema: str, row: Mapping[str, Any]) -> None:
        if schema.startswith("pg_") or schema == "information_schema":
            raise SourceQueryFailed(say("derive.refused_relation", name=name, kind="a table of the server itself"))
        if row["kind"] in _REFUSED_KINDS:
            raise SourceQueryFailed(say("derive.refused_relation", name=name, kind=_REFUSED_KINDS[row["kind"]]))
        if row["kind"] in "rp" and row["persistence"] != "p":
            kind = "an unlogged table" if row["persistence"] == "u" else "a temporary table"
            raise SourceQueryFailed(say("derive.refused_relation", name=name, kind=kind))
        if row["inherits"]:
            kind = "a table that inherits or is inherited"
            raise SourceQueryFailed(say("derive.refused_relation", name=name, kind=kind))

    def _identity(
        self, row: Mapping[str, Any], columns: Mapping[str, TableColumn]
    ) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the columns that every partition's old images contain, and the tables whose images lack columns."""
        if row["kind"] not in "rp":
            return frozenset(), ()
        logged = frozenset(name for name, column in columns.items() if not column.generated)
        found, lacking = logged, []
        for part in self._rows(_IDENTITY, {"oid": row["oid"]}):
            if part["identity"] != "f":
                found &= frozenset(part["columns"])
                lacking.append(part["name"])
        return found, tuple(lacking)

    def _one(self, statement: str, values: Any = ()) -> dict[str, Any]:
        return self._rows(statement, values)[0]

    def _rows(self, statement: str, values: Any) -> Sequence[dict[str, Any]]:
        """Query with an empty search_path, so that names and types are written with their schemas."""
        if "current_schemas" in statement:
            return self._connection.cursor(row_factory=dict_row).execute(statement).fetchall()
        with self._connection.transaction(force_rollback=True), self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SET LOCAL search_path = ''")
            return cursor.execute(statement, values).fetchall()
