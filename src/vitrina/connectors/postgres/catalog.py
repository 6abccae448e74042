"""Read tables from PostgreSQL's catalog and check whether a query's result fits into them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from vitrina.errors import TargetMismatch
from vitrina.ports.schema import Column
from vitrina.ports.types import fits
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement
from vitrina.targets import PostgresTarget


@dataclass(frozen=True)
class TableColumn(Column):
    """Describe a column of a table. For a domain, `base_type` is its base type, which queries return."""

    base_type: str = ""
    not_null: bool = False
    default: str | None = None
    generated: bool = False
    identity: bool = False
    always_identity: bool = False  # an UPDATE may not set it
    # The operator by which its values are equal, written so that an empty search_path does not hide it.
    equal: str = "="
    # The collation by which texts that differ may be equal, if it has one that this session may name.
    collation: str | None = None


@dataclass(frozen=True)
class Table:
    """Describe a target table as the catalog shows it."""

    schema: str
    name: str
    oid: int
    kind: str
    owned: bool
    has_policies: bool  # which apply to our role
    # A plain table that stores every row it is given: no trigger or rule skips one.
    takes_every_row: bool
    # The number of unique indexes and exclusion constraints.
    ways_to_differ: int
    # The number of exclusion constraints among them.
    exclusions: int
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    # Columns of these keys in which equal values may differ: 1.0 and 1.00, 0 and -0.
    loosely_equal: frozenset[str]
    cascading: tuple[str, ...]
    # The files that hold its rows, including those of partitions. They change when the table is truncated or rewritten.
    files: str = ""
    # Whether other tables inherit from it, or have: then its rows include theirs.
    has_children: bool = False
    # Whether its unique indexes refuse a repeated key at once, and by the equality of the columns.
    refuses_repeats: bool = True
    # Those of its unique keys in which NULL equals NULL (NULLS NOT DISTINCT).
    keys_with_nulls: tuple[tuple[str, ...], ...] = ()

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def has_one_key(self) -> bool:
        """Return whether the key is the only unique constraint; if so, rows may be written in any order."""
        return self.takes_every_row and self.ways_to_differ == 1

    def column(self, name: str) -> TableColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def same(self, name: str, left: str, right: str) -> sql.Composed:
        """Build the condition that rows of two aliases have the same value in a column, by its type's own operator."""
        column = self.column(name)
        return sql.SQL("{0}.{2} {3} {1}.{2}").format(
            sql.SQL(left), sql.SQL(right), sql.Identifier(name), sql.SQL(column.equal if column else "=")
        )


_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "c": "a type"}


def find_table(connection: Connection, target: PostgresTarget) -> Table | None:
    """Return the table, or None if no table has that name."""
    found = _FIND_TABLE.fetch_one(connection, [target.schema, target.table])
    if found is None:
        return None
    keys, columns = found.pop("keys"), found.pop("columns")
    own = equalities(connection, [column["base_type"] for column in columns])
    return Table(
        schema=target.schema,
        name=target.table,
        columns=tuple(TableColumn(**column, equal=own.get(column["base_type"], "=")) for column in columns),
        primary_key=next((tuple(key["columns"]) for key in keys if key["primary"]), ()),
        unique_keys=tuple(tuple(key["columns"]) for key in keys),
        keys_with_nulls=tuple(tuple(key["columns"]) for key in keys if key["with_nulls"]),
        loosely_equal=frozenset(found.pop("loosely_equal")),
        cascading=tuple(found.pop("cascading")),
        **found,
    )


_FILES = b"""
    concat_ws(',', c.oid, pg_catalog.pg_relation_filenode(c.oid), (
        SELECT string_agg(pg_catalog.pg_relation_filenode(t.relid)::text, ',' ORDER BY t.relid)
        FROM pg_catalog.pg_partition_tree(c.oid) t WHERE c.relkind = 'p')) AS files
"""
_NAMED = b"""
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s::text AND c.relname = %s::text
"""
# One statement reads everything: each additional one costs a run of few rows as much as its rows.
_FIND_TABLE = Statement(
    b"""
    SELECT c.oid, c.relkind::text AS kind, c.relhassubclass AS has_children,
           pg_catalog.row_security_active(c.oid) AS has_policies,
           pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
           c.relkind = 'r' AND NOT c.relhasrules AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_trigger t -- BEFORE ROW: it may leave a row out without a word
               WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3
           ) AS takes_every_row,
           (SELECT count(*) FROM pg_catalog.pg_index i
            WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)) AS ways_to_differ,
           (SELECT count(*) FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisexclusion) AS exclusions,
           NOT EXISTS (
               SELECT FROM pg_catalog.pg_index i
               CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
                   AS k(attnum, opclass, ordered_by)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
               JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
               JOIN pg_catalog.pg_type p ON p.oid = o.opcintype
               WHERE i.indrelid = c.oid AND i.indisunique
                 AND (NOT i.indimmediate OR k.ordered_by <> a.attcollation
                      -- An index of citext may tell texts apart that the type holds for equal.
                      OR p.typtype <> 'p' AND p.oid <> t.oid AND t.typtype <> 'd'
                         AND t.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace)) AS refuses_repeats,
           -- Unique keys on plain columns, without a predicate; a row can be found by each of them.
           (SELECT coalesce(json_agg(json_build_object('primary', i.indisprimary,
                                                       'with_nulls', i.indnullsnotdistinct, 'columns', (
                       SELECT json_agg(a.attname ORDER BY k.position)
                       FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, position)
                       JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum))
                   ORDER BY i.indisprimary DESC, i.indexrelid), '[]')
            FROM pg_catalog.pg_index i
            WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
              AND i.indisvalid) AS keys,
           -- Columns of unique keys that may be equal in value and differ in text. Postgres records this for each type
           -- and collation, because deduplication of index entries needs it.
           ARRAY(SELECT a.attname::text
                 FROM pg_catalog.pg_index i
                 CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
                     AS k(attnum, opclass, ordered_by)
                 JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
                 LEFT JOIN pg_catalog.pg_amproc p
                     ON p.amprocfamily = o.opcfamily AND p.amproclefttype = o.opcintype AND p.amprocnum = 4
                 LEFT JOIN pg_catalog.pg_collation l ON l.oid = k.ordered_by
                 WHERE i.indrelid = c.oid AND i.indisunique
                   AND (p.oid IS NULL OR NOT coalesce(l.collisdeterministic, true))) AS loosely_equal,
           -- Foreign keys of other tables that would delete or blank their rows when the mart's rows are deleted.
           ARRAY(SELECT format('%%s on %%s', f.conname, f.conrelid::regclass) FROM pg_catalog.pg_constraint f
                 WHERE f.confrelid = c.oid AND f.contype = 'f' AND f.confdeltype IN ('c', 'n', 'd')) AS cascading,
           (SELECT coalesce(json_agg(json_build_object(
                       'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
                       'not_null', a.attnotnull,
                       'base_type', (
                           WITH RECURSIVE base (oid, typmod) AS ( -- a domain may be made of a domain
                               SELECT a.atttypid, a.atttypmod
                               UNION ALL
                               SELECT d.typbasetype, d.typtypmod
                               FROM base JOIN pg_catalog.pg_type d ON d.oid = base.oid AND d.typtype = 'd')
                           SELECT pg_catalog.format_type(base.oid, base.typmod)
                           FROM base JOIN pg_catalog.pg_type t ON t.oid = base.oid AND t.typtype <> 'd'),
                       'default', CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
                       'generated', a.attgenerated <> '', 'identity', a.attidentity <> '',
                       'always_identity', a.attidentity = 'a',
                       'collation', (
                           SELECT pg_catalog.format('%%I.%%I', n.nspname, l.collname)
                           FROM pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                           WHERE l.oid = a.attcollation AND NOT l.collisdeterministic
                             AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')))
                   ORDER BY a.attnum), '[]')
            FROM pg_catalog.pg_attribute a
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
    """
    + _FILES
    + _NAMED
)


# The bit of pg_trigger.tgtype and the value of pg_rewrite.ev_type of each event.
_EVENTS = {"INSERT": (4, "3"), "DELETE": (8, "4"), "UPDATE": (16, "2")}


def skippers(connection: Connection, table: Table, event: str) -> list[str]:
    """List the triggers and rules of a table or of its partitions that may skip rows."""
    trigger_bit, rule_type = _EVENTS[event]
    rows = connection.execute(
        """
        WITH part AS (
            SELECT %(oid)s::oid AS oid UNION
            SELECT relid FROM pg_catalog.pg_partition_tree(%(oid)s::oid::pg_catalog.regclass)
        )
        SELECT DISTINCT format('trigger %%I', t.tgname) AS name
        FROM pg_catalog.pg_trigger t JOIN part ON part.oid = t.tgrelid
        WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 3 = 3 AND t.tgtype & %(bit)s <> 0
        UNION ALL
        SELECT DISTINCT format('rule %%I', r.rulename)
        FROM pg_catalog.pg_rewrite r JOIN part ON part.oid = r.ev_class
        WHERE r.is_instead AND r.ev_enabled <> 'D' AND r.ev_type::text = %(type)s
        ORDER BY name
        """,
        {"oid": table.oid, "bit": trigger_bit, "type": rule_type},
    ).fetchall()
    return [row["name"] for row in rows]


def files_of(connection: Connection, target: PostgresTarget) -> str:
    """Return the names of the files that hold the rows of a table; empty if the table does not exist."""
    row = _FIND_FILES.fetch_one(connection, [target.schema, target.table])
    return str(row["files"]) if row else ""


_FIND_FILES = Statement(b"SELECT " + _FILES + _NAMED)


def equalities(connection: Connection, kinds: Iterable[str]) -> dict[str, str]:
    """Find the equality operators of types that do not belong to pg_catalog.

    Sessions have an empty search_path, so a bare `=` would resolve to the operator of text, or to none. Types of
    pg_catalog are written without a schema and need no lookup.
    """
    foreign = sorted({kind for kind in kinds if "." in kind})
    if not foreign:
        return {}
    rows = connection.execute(
        """
        SELECT k.kind, pg_catalog.format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) AS operator
        FROM unnest(%s::text[]) AS k(kind)
        JOIN pg_catalog.pg_opclass c ON c.opcintype = pg_catalog.to_regtype(k.kind) AND c.opcdefault
        JOIN pg_catalog.pg_am a ON a.oid = c.opcmethod AND a.amname = 'btree'
        JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
         AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
        JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
        JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace AND n.nspname <> 'pg_catalog'
        """,
        [foreign],
    ).fetchall()
    return {row["kind"]: row["operator"] for row in rows}


def columns_of(connection: Connection, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[Column]]:
    """List the columns of tables or views by schema and name, as far as this session may see them."""
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS table, a.attname AS name,
               pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
        FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
        JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY c.oid, a.attnum
        """,
        [[schema for schema, _ in tables], [name for _, name in tables]],
    ).fetchall()
    found: dict[tuple[str, str], list[Column]] = {}
    for row in rows:
        found.setdefault((row["schema"], row["table"]), []).append(Column(row["name"], row["type"]))
    return found


def schemas_of_extensions(connection: Connection, names: Iterable[str]) -> list[str]:
    """Find the schemas of these extensions, except those in which every role may create objects."""
    rows = connection.execute(
        """
        SELECT DISTINCT n.nspname AS schema
        FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = ANY(%s) AND NOT pg_catalog.has_schema_privilege('public', n.oid, 'CREATE')
          AND n.nspname <> 'pg_catalog'
        ORDER BY schema
        """,
        [list(names)],
    ).fetchall()
    return [row["schema"] for row in rows]


def list_readable(connection: Connection, schemas: Sequence[str], *, limit: int) -> list[dict[str, Any]]:
    """List tables and views of these schemas that the session's role may select from, with the columns it may read.

    Partitions are omitted: queries name the partitioned table.
    """
    with database.translated("listing tables"):
        return connection.execute(
            """
            SELECT n.nspname AS schema, c.relname AS name,
                   (SELECT json_agg(json_build_object('name', a.attname,
                                                      'type', pg_catalog.format_type(a.atttypid, a.atttypmod))
                                    ORDER BY a.attnum)
                    FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                      AND pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT')) AS columns
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = ANY(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
              AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
              AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT')
            ORDER BY n.nspname, c.relname LIMIT %s
            """,
            [list(schemas), limit],
        ).fetchall()


def refuse_unusable(table: Table) -> None:
    """Refuse a relation that has the right name but cannot be merged into."""
    if table.kind in _KINDS:
        raise TargetMismatch(
            say("run.target_is_no_table", schema=table.schema, table=table.name, kind=_KINDS[table.kind])
        )
    if table.has_policies:
        raise TargetMismatch(say("run.target_has_rls", schema=table.schema, table=table.name))


def choose_key(table: Table | None, wanted: Sequence[str] | None, result: Sequence[Column]) -> tuple[str, ...]:
    """Choose the key by which rows are matched: the pipeline's `target_key`, or else the table's primary key."""
    names = [column.name for column in result]
    if wanted:
        missing = [name for name in wanted if name not in names]
        if missing:
            raise TargetMismatch(say("run.key_column_missing", column=missing[0], columns=", ".join(names)))
        if table is not None and not any(set(key) == set(wanted) for key in table.unique_keys):
            raise TargetMismatch(
                say("run.key_is_not_unique", columns=", ".join(wanted), schema=table.schema, table=table.name)
            )
        return tuple(wanted)
    if table is None:
        raise TargetMismatch(say("run.needs_key"))
    if not table.primary_key:
        raise TargetMismatch(say("run.no_primary_key", schema=table.schema, table=table.name))
    missing = [name for name in table.primary_key if name not in names]
    if missing:
        raise TargetMismatch(
            say(
                "run.key_not_in_result",
                column=missing[0],
                schema=table.schema,
                table=table.name,
                columns=", ".join(names),
            )
        )
    return table.primary_key


def compare(table: Table, result: Sequence[Column], *, key: Sequence[str], ignorable: frozenset[str]) -> list[Column]:
    """Check every result column against the table; return the columns that the table lacks.

    `ignorable` columns (cursors) may be missing from the table.
    """
    problems, missing = [], []
    for column in result:
        found = table.column(column.name)
        if found is None:
            if column.name not in ignorable:
                missing.append(column)
        elif found.generated:
            problems.append(f"{column.name} is generated in the table and cannot be written")
        elif found.always_identity and column.name not in key:
            problems.append(
                f"{column.name} is GENERATED ALWAYS AS IDENTITY in the table and could not be updated (BY DEFAULT can)"
            )
        elif not fits(column.type, found.base_type):
            problems.append(f"{column.name} is {found.type} in the table, {column.type} in the query")
    names = {column.name for column in result}
    for needed in table.columns:
        writable = needed.default is not None or needed.generated or needed.identity or not needed.not_null
        if needed.name not in names and not writable:
            problems.append(f"{needed.name} is NOT NULL without a default in the table, but the query does not give it")
    if problems:
        raise TargetMismatch(
            say("run.query_does_not_fit", schema=table.schema, table=table.name, problems="; ".join(problems))
        )
    return missing


def lacking(table: Table, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns that a table lacks and that the run itself writes; refuse existing ones of another type."""
    for column in wanted:
        found = table.column(column.name)
        if found is not None and (found.type != column.type or found.not_null):
            problem = f"{column.name} is {found.type} in the table, not {column.type} that may be NULL"
            raise TargetMismatch(say("run.query_does_not_fit", schema=table.schema, table=table.name, problems=problem))
    return [column for column in wanted if table.column(column.name) is None]


def create_table(
    connection: Connection,
    target: PostgresTarget,
    result: Sequence[Column],
    key: Sequence[str],
    partitioning: sql.Composable,
) -> None:
    """Create a mart from the types of the query's result, with the key as its primary key."""
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(storable(column)),
            sql.SQL(" NOT NULL" if column.name in key else ""),
        )
        for column in result
    )
    connection.execute(
        sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({})){}").format(
            sql.Identifier(target.schema, target.table),
            columns,
            sql.SQL(", ").join(map(sql.Identifier, key)),
            partitioning,
        )
    )


def with_columns(
    connection: Connection,
    table: Table | None,
    target: PostgresTarget,
    key: tuple[str, ...],
    columns: Sequence[Column],
) -> Table:
    """Describe the table as it will be after adding these columns or after creation, without changing anything."""
    own = equalities(connection, [one.type for one in columns])
    new = tuple(
        TableColumn(
            one.name,
            storable(one),
            base_type=storable(one),
            not_null=one.name in key,
            equal=own.get(one.type, "="),
        )
        for one in columns
    )
    if table is not None:
        return replace(table, columns=(*table.columns, *new))
    return Table(
        schema=target.schema,
        name=target.table,
        oid=0,
        kind="r",
        owned=True,
        has_policies=False,
        takes_every_row=True,
        ways_to_differ=1,
        exclusions=0,
        columns=new,
        primary_key=key,
        unique_keys=(key,),
        loosely_equal=frozenset(),
        cascading=(),
    )


def rows_with_columns(table: Table | None, columns: Sequence[Column], condition: sql.Composable) -> sql.Composed:
    """Build a FROM item with the rows of a table and NULL for columns that it lacks; without a table, no rows."""
    lacking = [sql.SQL("NULL::{} AS {}").format(sql.SQL(storable(one)), sql.Identifier(one.name)) for one in columns]
    if table is None:
        given = [sql.SQL("NULL::tid AS ctid"), sql.SQL("NULL::oid AS tableoid")]
        return sql.SQL("(SELECT {} WHERE false)").format(sql.SQL(", ").join([*given, *lacking]))
    given = [sql.SQL("m.ctid"), sql.SQL("m.tableoid"), sql.SQL("m.*")]
    return sql.SQL("(SELECT {} FROM {} AS m WHERE {})").format(
        sql.SQL(", ").join([*given, *lacking]), table.identifier, condition
    )


def add_columns(connection: Connection, table: Table, missing: Sequence[Column]) -> None:
    for column in missing:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                table.identifier,
                sql.Identifier(column.name),
                sql.SQL(storable(column)),
            )
        )


def storable(column: Column) -> str:
    """Return the type for a new column. Pseudo-types of a result (an untyped NULL or literal) become text."""
    return "text" if column.type in ("unknown", '"unknown"') else column.type
