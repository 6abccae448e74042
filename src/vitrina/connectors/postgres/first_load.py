"""Load a mart for the first time: fill a table like it, build its indexes, and put it in the mart's place.

Each row is written once and each index is built in one pass, without blocking other sessions. Only the exchange locks
the mart, for a few statements. This requires an empty mart without dependent objects, except those that a table like it
can be given as well.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import bulk_load
from vitrina.connectors.postgres.catalog import Table
from vitrina.connectors.postgres.stage import Stage
from vitrina.store import database
from vitrina.store.database import Connection

# How long to retry the exchange while other sessions use the mart. No session queues for a lock taken with NOWAIT.
_LOCK_SECONDS = 2.0
_LOCK_PAUSE_SECONDS = 0.05
# Before PostgreSQL 18, an uncommitted GRANT locks no table; the exchange would wait for it with the mart locked.
_LATE_GRANT_TIMEOUT = "200ms"

# Whether a table like it would be equivalent. Otherwise the rows are copied, as into every mart that has rows.
_IS_PLAIN = """
SELECT c.relkind = 'r' AND c.relpersistence = 'p' AND c.reltablespace = 0 AND c.reloftype = 0
   AND c.relowner = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user)
   AND c.relam = (SELECT a.oid FROM pg_catalog.pg_am a
                  WHERE a.amname = pg_catalog.current_setting('default_table_access_method'))
   AND c.reloptions IS NULL AND c.relreplident = 'd'
   AND pg_catalog.current_setting('default_tablespace') = ''
   AND pg_catalog.has_schema_privilege(c.relnamespace, 'CREATE')
   AND NOT (c.relhasrules OR c.relhastriggers OR c.relrowsecurity OR c.relforcerowsecurity)
   AND NOT (c.relhassubclass OR c.relispartition)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_class t WHERE t.oid = c.reltoastrelid AND t.reloptions IS NOT NULL)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_seclabel l WHERE l.objoid = c.oid)
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_constraint k
       WHERE k.confrelid = c.oid OR k.conrelid = c.oid AND k.contype NOT IN ('p', 'u', 'n'))
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_attribute a
       WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         AND (a.attgenerated <> '' OR a.attidentity <> '' OR a.attacl IS NOT NULL OR a.attoptions IS NOT NULL
              OR coalesce(a.attstattarget, -1) <> -1
              -- a NULL that the mart refuses is told as such by the copy
              OR a.attnotnull <> (a.attname = ANY (%(key)s))
              -- its default would be the reader's to compute
              OR a.attname <> ALL (%(given)s)
                 AND (a.atthasdef OR EXISTS (
                     SELECT FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid AND t.typdefault IS NOT NULL))))
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_constraint k
       JOIN pg_catalog.pg_description d
           ON d.classoid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objoid = k.oid
       WHERE k.conrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.typrelid = c.oid AND t.typacl IS NOT NULL)
   -- what only the owner could give back, and what others gave: it would no longer be theirs to revoke
   AND NOT EXISTS (SELECT FROM pg_catalog.aclexplode(c.relacl) g WHERE g.grantor <> c.relowner)
   AND (c.relacl IS NULL
        OR (SELECT count(*) FROM pg_catalog.aclexplode(c.relacl) g WHERE g.grantee = c.relowner)
           = (SELECT count(*) FROM pg_catalog.aclexplode(pg_catalog.acldefault('r', c.relowner))))
   -- subscribers would get the rows as those of the stage, or not at all
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.puballtables)
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_replication_slots s
       WHERE s.slot_type = 'logical' AND s.database = pg_catalog.current_database() AND s.plugin <> 'pgoutput')
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_namespace p WHERE p.pnnspid = c.relnamespace)
   -- the subscription would forget the table, or keep the old one
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel s WHERE s.srrelid = c.oid)
   -- views, functions, publications, statistics, sequences: whatever names the table
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_depend d
       WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = c.oid
         AND d.objid IS DISTINCT FROM c.reltoastrelid
         AND NOT (d.classid = 'pg_catalog.pg_type'::regclass AND d.deptype = 'i')
         AND d.classid <> 'pg_catalog.pg_attrdef'::regclass
         AND NOT (d.classid = 'pg_catalog.pg_constraint'::regclass
                  AND d.objid IN (SELECT k.oid FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid))
         AND NOT (d.classid = 'pg_catalog.pg_class'::regclass
                  AND d.objid IN (SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid)))
   -- columns and functions of its row type
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_depend d
       WHERE d.refclassid = 'pg_catalog.pg_type'::regclass AND d.deptype <> 'i'
         AND d.refobjid IN (SELECT t.oid FROM pg_catalog.pg_type t WHERE t.typrelid = c.oid
                            UNION ALL
                            SELECT t.typarray FROM pg_catalog.pg_type t WHERE t.typrelid = c.oid))
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_depend d
       WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e') AS is_plain,
   (SELECT count(*) FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid) AS indexes
FROM pg_catalog.pg_class c
WHERE c.oid = %(oid)s
"""

# Whether the mart of that name is still the table that the stage was modelled on, with the same columns.
_IS_ALIKE = """
SELECT pg_catalog.to_regclass(%(mart)s) = %(oid)s::oid AND count(*) = 2 AND count(DISTINCT shape) = 1 AS is_alike
FROM (
    SELECT string_agg(
        ROW(a.attname, a.atttypid, a.atttypmod, a.attcollation, a.attnotnull, a.attstorage, a.attcompression,
            pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.col_description(a.attrelid, a.attnum))::text,
        ',' ORDER BY a.attnum) AS shape
    FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid IN (%(oid)s, pg_catalog.to_regclass(%(stage)s)) AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY a.attrelid
) AS described
"""
# Obstacles that cannot be detected before: event triggers, rights on functions of an index, existing names. The rows
# can still be copied.
_REFUSALS = (
    psycopg.errors.DependentObjectsStillExist,
    psycopg.errors.DuplicateTable,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InternalError_,  # "tuple concurrently updated": by such a GRANT, just committed
    psycopg.errors.LockNotAvailable,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.RaiseException,
)


class _InUse(Exception):
    """Signal that the mart cannot be exchanged now. The transaction is rolled back so that the rows can be copied."""


def is_possible(connection: Connection, table: Table, given: Sequence[str], key: Sequence[str]) -> bool:
    """Return whether a table created like this one, and filled with the given columns, is equivalent for all users."""
    values = {"oid": table.oid, "given": list(given), "key": list(key)}
    found = connection.execute(_IS_PLAIN, values).fetchone()
    if found is None or not found["is_plain"]:
        return False
    return bool(found["indexes"] == len(bulk_load.plan_detachment(connection, table).restores))


def creation(stage: Stage, table: Table, *, fillable_by: str | None, readable_by: str | None = None) -> Composed:
    """Build the statements that create the table that will replace the mart, without its indexes.

    Rights on it are revoked before the exchange.
    """
    statements = [
        SQL("DROP TABLE IF EXISTS {}").format(stage.identifier),
        SQL(
            "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING COMPRESSION INCLUDING COMMENTS)"
        ).format(stage.identifier, table.identifier),
    ]
    if readable_by:
        statements.append(SQL("GRANT SELECT ON {} TO {}").format(stage.identifier, Identifier(readable_by)))
    if fillable_by:
        statements.append(SQL("GRANT INSERT ON {} TO {}").format(stage.identifier, Identifier(fillable_by)))
    return SQL("; ").join(statements)


def take_place(connection: Connection, stage: Stage, table: Table, given: Sequence[str], key: Sequence[str]) -> bool:
    """Index the stage and replace the mart with it. Return False and do nothing if that is not possible now."""
    try:
        with connection.transaction():
            _refuse_in_use(connection, table)
            indexes = _indexes_of(connection, stage, table)
            for statement in indexes:
                connection.execute(statement)
            _lock(connection, table)
            if not (_is_empty(connection, table) and is_possible(connection, table, given, key)):
                raise _InUse
            if not _is_alike(connection, stage, table) or indexes != _indexes_of(connection, stage, table):
                raise _InUse
            try:
                _exchange(connection, stage, table)
            except psycopg.OperationalError:
                raise
            except psycopg.DatabaseError as exc:  # an event trigger may refuse with any code
                raise _InUse from exc
    except (_InUse, *_REFUSALS):
        return False
    return True


def copy_in_place(connection: Connection, stage: Stage, table: Table, rows: Composable) -> int | None:
    """Copy rows of a stage to a new table and replace the mart with it. Return their number.

    Several processes of the server may read for CREATE TABLE AS; only one reads for INSERT. Return None and do nothing
    if that is not possible now, or if the result of a query lacks what the mart's columns have.
    """
    given, key = [column.name for column in stage.columns], stage.key
    made = replace(stage, name=f"{stage.name}_m", is_tagged=False)
    try:
        with connection.transaction():
            if not is_possible(connection, table, given, key):
                raise _InUse
            _refuse_in_use(connection, table)
            connection.execute(_copied(made, table, rows, given, SQL("WITH NO DATA")))
            _refuse_null_keys(connection, made, table, key)
            if not _is_alike(connection, made, table):
                raise _InUse
            made.drop(connection)
            count = connection.execute(_copied(made, table, rows, given, SQL("WITH DATA"))).rowcount
            _refuse_null_keys(connection, made, table, key)
            if not take_place(connection, made, table, given, key):
                raise _InUse
    except (_InUse, *_REFUSALS):
        return None
    return count


def _copied(made: Stage, table: Table, rows: Composable, given: Sequence[str], data: SQL) -> Composed:
    columns = SQL(", ").join(
        SQL("{} AS {}").format(
            Identifier(column.name) if column.name in given else SQL("NULL::{}").format(SQL(column.type)),
            Identifier(column.name),
        )
        for column in table.columns
    )
    return SQL("CREATE TABLE {} AS SELECT {} FROM {} AS s {}").format(made.identifier, columns, rows, data)


def _refuse_null_keys(connection: Connection, made: Stage, table: Table, key: Sequence[str]) -> None:
    """Declare the key's columns NOT NULL under the names that the mart's constraints have since PostgreSQL 18."""
    named = connection.execute(
        """
        SELECT k.conname AS name, pg_catalog.pg_get_constraintdef(k.oid) AS definition
        FROM pg_catalog.pg_constraint k WHERE k.conrelid = %s AND k.contype = 'n' ORDER BY k.conkey
        """,
        [table.oid],
    ).fetchall()
    changes = [SQL("ADD CONSTRAINT {} {}").format(Identifier(row["name"]), SQL(row["definition"])) for row in named]
    changes = changes or [SQL("ALTER {} SET NOT NULL").format(Identifier(name)) for name in key]
    connection.execute(SQL("ALTER TABLE {} {}").format(made.identifier, SQL(", ").join(changes)))


def _exchange(connection: Connection, stage: Stage, table: Table) -> None:
    """Replace the mart with the stage without waiting for locks: readers are waiting for this transaction."""
    patience = database.one(connection.execute("SELECT pg_catalog.current_setting('lock_timeout') AS now"))["now"]
    set_timeout = "SELECT pg_catalog.set_config('lock_timeout', %s, true)"
    connection.execute(set_timeout, [_LATE_GRANT_TIMEOUT])
    _take_over_rights(connection, stage, table)
    connection.execute(SQL("DROP TABLE {}").format(table.identifier))
    connection.execute(SQL("ALTER TABLE {} SET SCHEMA {}").format(stage.identifier, Identifier(table.schema)))
    moved = Identifier(table.schema, stage.name)
    connection.execute(SQL("ALTER TABLE {} RENAME TO {}").format(moved, Identifier(table.name)))
    connection.execute(set_timeout, [patience])


def _indexes_of(connection: Connection, stage: Stage, table: Table) -> list[SQL]:
    """Build the mart's indexes for the stage under the same names; the two are in different schemas."""
    here, there = (item.as_string(connection) for item in (table.identifier, stage.identifier))
    of_mart = f" ON {_plainly_quoted(connection, table)} USING "
    statements: list[SQL] = []
    for statement in bulk_load.plan_detachment(connection, table).restores:
        text = statement.as_string(connection)
        if text.startswith(f"ALTER TABLE {here} "):
            statements.append(SQL(text.replace(here, there, 1)))
        else:
            if text.count(of_mart) != 1:
                raise _InUse
            before, _, after = text.partition(of_mart)
            statements.append(SQL(f"{before} ON {there} USING {after}"))
    return statements


def _plainly_quoted(connection: Connection, table: Table) -> str:
    """Write the name as PostgreSQL writes it in definitions: quoted only where necessary."""
    found = connection.execute(
        "SELECT pg_catalog.format('%%I.%%I', %s::text, %s::text) AS name", [table.schema, table.name]
    )
    return str(database.one(found)["name"])


def _refuse_in_use(connection: Connection, table: Table) -> None:
    """Check before the indexes are built whether the mart can be locked; the lock ends with the block."""
    with connection.transaction(force_rollback=True):
        if not _is_locked(connection, table):
            raise _InUse


def _lock(connection: Connection, table: Table) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while not _is_locked(connection, table):
        if time.monotonic() > until:
            raise _InUse
        time.sleep(_LOCK_PAUSE_SECONDS)


def _is_locked(connection: Connection, table: Table) -> bool:
    try:
        with connection.transaction():
            connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(table.identifier))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _is_alike(connection: Connection, stage: Stage, table: Table) -> bool:
    names = {"mart": table.identifier, "stage": stage.identifier}
    values = {name: identifier.as_string(connection) for name, identifier in names.items()}
    return bool(database.one(connection.execute(_IS_ALIKE, values | {"oid": table.oid}))["is_alike"])


def _is_empty(connection: Connection, table: Table) -> bool:
    found = connection.execute(SQL("SELECT NOT EXISTS (SELECT FROM {}) AS empty").format(table.identifier))
    return bool(database.one(found)["empty"])


def _take_over_rights(connection: Connection, stage: Stage, table: Table) -> None:
    """Copy the mart's grants and comment to the stage, and revoke the reader's right to fill it."""
    for row in _grants(connection, stage.identifier):
        connection.execute(SQL("REVOKE ALL ON {} FROM {}").format(stage.identifier, _role(row["grantee"])))
    for row in _grants(connection, table.identifier):
        connection.execute(
            SQL("GRANT {} ON {} TO {}{}").format(
                SQL(row["privilege"]),
                stage.identifier,
                _role(row["grantee"]),
                SQL(" WITH GRANT OPTION" if row["is_grantable"] else ""),
            )
        )
    found = connection.execute("SELECT pg_catalog.obj_description(%s, 'pg_class') AS comment", [table.oid])
    comment = database.one(found)["comment"]
    if comment is not None:
        connection.execute(SQL("COMMENT ON TABLE {} IS {}").format(stage.identifier, Literal(comment)))


def _grants(connection: Connection, name: Identifier) -> list[dict[str, str]]:
    """List the privileges of roles other than the owner; a missing role name means PUBLIC."""
    return connection.execute(
        """
        SELECT r.rolname AS grantee, g.privilege_type AS privilege, g.is_grantable
        FROM pg_catalog.pg_class c CROSS JOIN pg_catalog.aclexplode(c.relacl) g
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.grantee
        WHERE c.oid = %s::regclass AND g.grantee <> c.relowner
        ORDER BY 1, 2
        """,
        [name.as_string(connection)],
    ).fetchall()


def _role(name: str | None) -> Composed | SQL:
    return SQL("PUBLIC") if name is None else SQL("{}").format(Identifier(name))
