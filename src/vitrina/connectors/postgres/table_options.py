"""Apply `options.table`: partitions, indexes, comments and grants of a new mart, and warnings about an existing one."""

from collections.abc import Iterator, Sequence

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import ranges
from vitrina.connectors.postgres.catalog import Table
from vitrina.errors import TargetMismatch
from vitrina.mart_options import Grant, Index, TableOptions
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# The longest name of a partition: PostgreSQL truncates longer names, and two might become the same.
_LONGEST_NAME = 63


def partitioning(options: TableOptions | None) -> Composable:
    """Build what follows the columns in CREATE TABLE."""
    if options is None or options.partition_by is None:
        return SQL("")
    cut = options.partition_by
    return SQL(" PARTITION BY {} ({})").format(SQL("HASH" if cut.hash else "RANGE"), Identifier(cut.column))


def refuse_key(
    target: PostgresTarget, options: TableOptions | None, key: Sequence[str], result: Sequence[Column]
) -> None:
    """Refuse to partition by a column that may differ between two rows of one key, or that has no time spans."""
    cut = options.partition_by if options else None
    if cut is None:
        return
    if cut.column not in key:
        raise TargetMismatch(say("run.partition_key", column=cut.column, key=", ".join(key), target=target))
    if cut.range:
        kinds = {column.name: column.type for column in result}
        ranges.refuse(target, cut.range, kinds.get(cut.range), cut.every)


def create_partitions(connection: Connection, target: PostgresTarget, options: TableOptions) -> None:
    """Create the partitions by hash; those by time span are created as rows arrive."""
    if options.partition_by is None or options.partition_by.hash is None:
        return
    count = options.partition_by.partitions
    for number in range(count):
        name = f"{target.table}_p{number}"
        if len(name.encode()) > _LONGEST_NAME:
            raise TargetMismatch(say("run.partition_name", name=name))
        connection.execute(
            SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES WITH (MODULUS {}, REMAINDER {})").format(
                Identifier(target.schema, name),
                Identifier(target.schema, target.table),
                Literal(count),
                Literal(number),
            )
        )


def missing(connection: Connection, table: Table, options: TableOptions) -> list[Composed]:
    """Build the statements that add what the options request and the table lacks; extra objects are ignored."""
    return [
        *_missing_indexes(connection, table, options.indexes),
        *_missing_comments(connection, table, options),
        *_missing_grants(connection, table, options.grants),
    ]


def drift(connection: Connection, table: Table, options: TableOptions) -> Iterator[str]:
    """Yield warnings about what an existing table lacks; changing it is left to its owner."""
    target = PostgresTarget(table.schema, table.name)
    cut = options.partition_by
    if cut and not ranges.is_cut_so(connection, table, cut):
        said = "warning.table_not_partitioned" if cut.hash else "warning.table_not_in_ranges"
        yield say(said, target=target, column=cut.column)
    for statement in missing(connection, table, options):
        yield say("warning.table_drift", target=target, statement=statement.as_string(connection))


def _missing_indexes(connection: Connection, table: Table, wanted: Sequence[Index]) -> Iterator[Composed]:
    rows = connection.execute(
        """
        SELECT m.amname AS method, i.indisunique AS is_unique, i.indpred IS NOT NULL AS is_partial,
               (SELECT array_agg(a.attname::text ORDER BY k.position)
                FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, position)
                JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) AS columns
        FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = c.relam
        WHERE i.indrelid = %s AND i.indisvalid AND i.indexprs IS NULL
        """,
        [table.oid],
    ).fetchall()
    found = {(row["method"], row["is_unique"], tuple(row["columns"])) for row in rows if not row["is_partial"]}
    for index in wanted:
        if (index.method, index.unique, tuple(index.columns)) not in found:
            yield SQL("CREATE {}INDEX ON {} USING {} ({})").format(
                SQL("UNIQUE " if index.unique else ""),
                table.identifier,
                SQL(index.method),
                SQL(", ").join(map(Identifier, index.columns)),
            )


def _missing_comments(connection: Connection, table: Table, options: TableOptions) -> Iterator[Composed]:
    rows = connection.execute(
        """
        SELECT a.attname AS name, pg_catalog.col_description(a.attrelid, a.attnum) AS text
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT NULL, pg_catalog.obj_description(%(table)s, 'pg_class')
        """,
        {"table": table.oid},
    ).fetchall()
    found = {row["name"]: row["text"] for row in rows}
    if options.comment is not None and found[None] != options.comment:
        yield SQL("COMMENT ON TABLE {} IS {}").format(table.identifier, Literal(options.comment))
    for name, text in options.comments.items():
        if found.get(name) != text:
            column = Identifier(table.schema, table.name, name)
            yield SQL("COMMENT ON COLUMN {} IS {}").format(column, Literal(text))


def _missing_grants(connection: Connection, table: Table, grants: Sequence[Grant]) -> Iterator[Composed]:
    for grant in grants:
        for privilege in grant.privileges:
            row = connection.execute(
                """
                SELECT pg_catalog.has_table_privilege(r.rolname, %s::oid, %s) AS given
                FROM pg_catalog.pg_roles r WHERE r.rolname = %s
                """,
                [table.oid, privilege, grant.role],
            ).fetchone()
            if row is None or not row["given"]:
                yield SQL("GRANT {} ON {} TO {}").format(SQL(privilege), table.identifier, Identifier(grant.role))
