"""Load a table that the run created: drop its indexes, load the rows and rebuild the indexes in one transaction."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from vitrina.connectors.postgres.catalog import Table
from vitrina.store.database import Connection

# With fewer rows, dropping and rebuilding indexes costs more than it saves.
WORTHWHILE_ROWS = 20_000


@dataclass(frozen=True)
class DetachedIndexes:
    """Drop the indexes of a table and restore them exactly as they were."""

    table: Table
    drops: tuple[Composed, ...]
    restores: tuple[Composed, ...]

    def detach(self, connection: Connection) -> bool:
        """Drop the indexes. Return False and do nothing if another session uses the table.

        Waiting for the lock would make all later sessions wait too.
        """
        if not self.drops:
            return False
        try:
            with connection.transaction():
                connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(self.table.identifier))
                for statement in self.drops:
                    connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def restore(self, connection: Connection) -> None:
        if self.restores:
            # A table with pending deferred checks cannot be altered.
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for statement in self.restores:
            connection.execute(statement)


def plan_detachment(connection: Connection, table: Table) -> DetachedIndexes:
    """Plan to drop only indexes that nothing else depends on and that their definition describes in full."""
    if not table.owned or table.kind != "r":
        return DetachedIndexes(table, (), ())
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, ic.relname AS name, con.conname AS constraint,
               pg_catalog.pg_get_indexdef(i.indexrelid) AS index_definition,
               -- what the definition of a constraint leaves out
               CASE WHEN ic.reloptions IS NOT NULL AND NOT con.condeferrable AND con.contype IN ('p', 'u')
                    THEN CASE con.contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'UNIQUE' END END AS with_options,
               pg_catalog.pg_get_constraintdef(con.oid) AS constraint_definition
        FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = ic.relnamespace
        LEFT JOIN pg_catalog.pg_constraint con ON con.conindid = i.indexrelid AND con.contype IN ('p', 'u', 'x')
        WHERE i.indrelid = %s AND i.indisvalid AND i.indislive
          -- marks that a definition does not carry
          AND NOT i.indisclustered AND NOT i.indisreplident AND ic.reltablespace = 0
          AND pg_catalog.obj_description(i.indexrelid, 'pg_class') IS NULL
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = i.indexrelid AND coalesce(a.attstattarget, -1) <> -1)
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_depend d
              WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid AND d.deptype = 'x')
          AND (con.oid IS NULL OR ic.reloptions IS NULL OR NOT con.condeferrable AND con.contype IN ('p', 'u'))
          AND (con.oid IS NULL OR pg_catalog.obj_description(con.oid, 'pg_constraint') IS NULL)
          -- foreign keys elsewhere, partitions and views grouped by the key hold on to it
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid)
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_depend d
              WHERE (d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = i.indexrelid
                     OR d.refclassid = 'pg_catalog.pg_constraint'::regclass AND d.refobjid = con.oid)
                AND d.deptype = 'n')
        ORDER BY i.indisprimary DESC, i.indexrelid
        """,
        [table.oid],
    ).fetchall()
    drops, restores = [], []
    for row in rows:
        if row["constraint"]:
            name = Identifier(row["constraint"])
            drops.append(SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table.identifier, name))
            restores += _restored_constraint(table, name, row)
        else:
            drops.append(SQL("DROP INDEX {}").format(Identifier(row["schema"], row["name"])))
            restores.append(Composed([SQL(row["index_definition"])]))
    return DetachedIndexes(table, tuple(drops), tuple(restores))


def _restored_constraint(table: Table, name: Identifier, row: dict[str, Any]) -> list[Composed]:
    add = SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
    if not row["with_options"]:
        return [add.format(table.identifier, name, SQL(row["constraint_definition"]))]
    using = SQL("{} USING INDEX {}").format(SQL(row["with_options"]), Identifier(row["name"]))
    return [Composed([SQL(row["index_definition"])]), add.format(table.identifier, name, using)]
