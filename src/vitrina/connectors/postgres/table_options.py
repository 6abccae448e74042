"""Apply `options.table`: partitions, indexes, comments and grants of a new mart, and warnings about an existing one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import ranges
from vitrina.connectors.postgres.catalog import Table
from vitrina.errors import TargetMismatch
from vitrina.mart_options import Grant, Index, TableOptions
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.store import database
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


class Lack(NamedTuple):
    """Hold an option that a table lacks, and the statement that adds it."""

    option: str
    statement: Composed


def add_missing(connection: Connection, table: Table, options: TableOptions) -> None:
    """Add to a new table what the options request. Raise TargetMismatch, naming the option, if the server refuses."""
    for problem in unknown(connection, table, options):
        raise TargetMismatch(problem)
    for lack in missing(connection, table, options):
        try:
            connection.execute(lack.statement)
        except psycopg.Error as exc:
            if database.is_disconnect(exc) or database.is_transient(exc):
                raise
            raise TargetMismatch(
                say(
                    "run.table_option",
                    option=lack.option,
                    target=PostgresTarget(table.schema, table.name),
                    statement=lack.statement.as_string(connection),
                    message=database.sql_message(exc),
                )
            ) from exc


def unknown(connection: Connection, table: Table, options: TableOptions) -> Iterator[str]:
    """Yield a message for each column or role in the options that does not exist."""
    target, names = PostgresTarget(table.schema, table.name), [column.name for column in table.columns]
    named = [
        (f"indexes.{place}.columns", column) for place, index in enumerate(options.indexes) for column in index.columns
    ]
    named += [("comments", column) for column in options.comments]
    for option, column in named:
        if column not in names:
            yield say("run.table_column", option=option, column=column, target=target, columns=", ".join(names))
    roles = _roles(connection, options.grants)
    for place, grant in enumerate(options.grants):
        if grant.role not in roles:
            yield say("run.table_role", option=f"grants.{place}.role", role=grant.role, target=target)


def missing(connection: Connection, table: Table, options: TableOptions) -> list[Lack]:
    """Build the statements that add what the options request and the table lacks; extra objects are ignored."""
    return [
        *_missing_indexes(connection, table, options.indexes),
        *_missing_comments(connection, table, options),
        *_missing_grants(connection, table, options.grants),
    ]


def drift(connection: Connection, table: Table, options: TableOptions, view: str | None = None) -> Iterator[str]:
    """Yield warnings about what an existing table, or its view of current rows, lacks; its owner may add it."""
    target = PostgresTarget(table.schema, table.name)
    cut = options.partition_by
    if cut and not ranges.is_cut_so(connection, table, cut):
        said = "warning.table_not_partitioned" if cut.hash else "warning.table_not_in_ranges"
        yield say(said, target=target, column=cut.column)
    yield from unknown(connection, table, options)
    for lack in missing(connection, table, options):
        yield say("warning.table_drift", target=target, statement=lack.statement.as_string(connection))
    if view:
        of_view = PostgresTarget(table.schema, view)
        for statement in grants_of_view(connection, table.schema, view, options.grants):
            yield say("warning.table_drift", target=of_view, statement=statement.as_string(connection))


def grants_of_view(connection: Connection, schema: str, name: str, grants: Sequence[Grant]) -> list[Composed]:
    """Give the statements that would let roles that may read a mart read its view of current rows, too."""
    row = connection.execute(
        """
        SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s
        """,
        [schema, name],
    ).fetchone()
    if row is None:
        return []
    readers = [Grant(role=grant.role) for grant in grants if "SELECT" in grant.privileges]
    found = _missing_privileges(connection, row["oid"], Identifier(schema, name), readers)
    return [lack.statement for lack in found]


def _missing_indexes(connection: Connection, table: Table, wanted: Sequence[Index]) -> Iterator[Lack]:
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
    for place, index in enumerate(wanted):
        if (index.method, index.unique, tuple(index.columns)) in found or _lacks_column(table, index.columns):
            continue
        statement = SQL("CREATE {}INDEX ON {} USING {} ({})").format(
            SQL("UNIQUE " if index.unique else ""),
            table.identifier,
            SQL(index.method),
            SQL(", ").join(map(Identifier, index.columns)),
        )
        yield Lack(f"indexes.{place}", statement)


def _lacks_column(table: Table, names: Iterable[str]) -> bool:
    return any(table.column(name) is None for name in names)


def _missing_comments(connection: Connection, table: Table, options: TableOptions) -> Iterator[Lack]:
    rows = connection.execute(
        """
        SELECT a.attname AS name, pg_catalog.col_description(a.attrelid, a.attnum) AS text
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT NULL, pg_catalog.obj_description(%(table)s, 'pg_class')
        """,
        {"table": table.oid},
    ).fetchall()
    # For Postgres a comment without text is none.
    found = {row["name"]: row["text"] or "" for row in rows}
    if options.comment is not None and found[None] != options.comment:
        statement = SQL("COMMENT ON TABLE {} IS {}").format(table.identifier, Literal(options.comment))
        yield Lack("comment", statement)
    for name, text in options.comments.items():
        if not _lacks_column(table, [name]) and found[name] != text:
            column = Identifier(table.schema, table.name, name)
            yield Lack("comments", SQL("COMMENT ON COLUMN {} IS {}").format(column, Literal(text)))


def _missing_grants(connection: Connection, table: Table, grants: Sequence[Grant]) -> Iterator[Lack]:
    return _missing_privileges(connection, table.oid, table.identifier, grants)


def _missing_privileges(
    connection: Connection, oid: int, identifier: Identifier, grants: Sequence[Grant]
) -> Iterator[Lack]:
    roles = _roles(connection, grants)
    for place, grant in enumerate(grants):
        for privilege in grant.privileges:
            if grant.role in roles and not _may(connection, grant.role, oid, privilege):
                statement = SQL("GRANT {} ON {} TO {}").format(SQL(privilege), identifier, Identifier(grant.role))
                yield Lack(f"grants.{place}", statement)


def _roles(connection: Connection, grants: Sequence[Grant]) -> frozenset[str]:
    """Find which roles there are; `public`, which stands for all of them, is not listed in the catalog."""
    names = [grant.role for grant in grants]
    rows = connection.execute(
        "SELECT r.rolname::text AS name FROM pg_catalog.pg_roles r WHERE r.rolname::text = ANY(%s)", [names]
    ).fetchall()
    return frozenset(row["name"] for row in rows) | {"public"}


def _may(connection: Connection, role: str, oid: int, privilege: str) -> bool:
    row = connection.execute(
        "SELECT pg_catalog.has_table_privilege(%s::name, %s::oid, %s) AS given", [role, oid, privilege]
    ).fetchone()
    return row is not None and bool(row["given"])
