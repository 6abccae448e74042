"""Check the rights of an installation's two roles in the live database, and name each fault."""

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg.sql import SQL, Identifier

from vitrina.settings import APP_ROLE
from vitrina.store import database
from vitrina.store.database import Connection

# Schemas on which only the platform itself may hold rights.
_OWN_SCHEMAS = ("etl", "etl_stage", "analytics")


@dataclass(frozen=True)
class Fault:
    """Hold one right that is missing or excessive, and the statement that corrects it."""

    finding: str
    remedy: str


def faults_of_reader(connection: Connection, role: str, source_schemas: frozenset[str]) -> Iterator[Fault]:
    """Find everything about the login of users' SQL that the four layers do not expect in this database."""
    yield from _role_attributes(connection, role)
    yield from _memberships(connection, role)
    yield from _session_defaults(connection, role)
    yield from _schemas(connection, role, source_schemas)
    yield from _tables(connection, role, source_schemas)
    yield from _sequences(connection, role)
    yield from _functions_of_owners(connection, role)
    yield from _casts_and_domains_of_owners(connection, role, sorted(source_schemas))


def faults_of_application(connection: Connection, source_schemas: frozenset[str]) -> Iterator[Fault]:
    """Find what the platform's own role lacks and what it must not be."""
    name = Identifier(APP_ROLE).as_string(connection)
    row = database.one(
        connection.execute(
            """
        SELECT current_user AS login,
               pg_catalog.pg_has_role(current_user, %(app)s, 'MEMBER') AS member,
               pg_catalog.pg_has_role(%(app)s, 'pg_read_all_stats', 'MEMBER') AS sees_transactions,
               pg_catalog.has_schema_privilege(%(app)s, 'analytics', 'CREATE') AS creates_marts,
               (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = %(app)s) AS superuser
        """,
            {"app": APP_ROLE},
        )
    )
    if not row["member"]:
        yield Fault(f"{row['login']} is not a member of {APP_ROLE}", f"GRANT {name} TO {row['login']}")
    if not row["sees_transactions"]:
        yield Fault(f"{APP_ROLE} cannot see other sessions' transactions", f"GRANT pg_read_all_stats TO {name}")
    if not row["creates_marts"]:
        yield Fault(f"{APP_ROLE} may not create marts", f"GRANT USAGE, CREATE ON SCHEMA analytics TO {name}")
    if row["superuser"]:
        yield Fault(f"{APP_ROLE} is a superuser", f"ALTER ROLE {name} NOSUPERUSER")
    for schema in _writable_schemas(connection, APP_ROLE, sorted(source_schemas)):
        yield Fault(
            f"{APP_ROLE} may write to tables of {schema}, a schema that is only read",
            f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA {_quoted(connection, schema)}"
            f" FROM {name}",
        )


def _role_attributes(connection: Connection, role: str) -> Iterator[Fault]:
    row = connection.execute(
        """
        SELECT rolsuper AS superuser, rolcreatedb AS createdb, rolcreaterole AS createrole,
               rolreplication AS replication, rolbypassrls AS bypassrls
        FROM pg_catalog.pg_roles WHERE rolname = %s
        """,
        [role],
    ).fetchone()
    for attribute in sorted(name for name, has in (row or {}).items() if has):
        yield Fault(f"{role} is {attribute.upper()}", f"ALTER ROLE {_quoted(connection, role)} NO{attribute.upper()}")


def _memberships(connection: Connection, role: str) -> Iterator[Fault]:
    """Find roles that the reader may become with SET ROLE or inherits from. Reading statistics does no harm."""
    rows = connection.execute(
        """
        SELECT r.rolname AS name FROM pg_catalog.pg_roles r
        WHERE r.rolname NOT IN (%(role)s, 'pg_read_all_stats', 'pg_monitor')
          AND NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = %(role)s)
          AND pg_catalog.pg_has_role(%(role)s, r.oid, 'MEMBER')
        ORDER BY name
        """,
        {"role": role},
    ).fetchall()
    for row in rows:
        yield Fault(
            f"{role} is a member of {row['name']}",
            f"REVOKE {_quoted(connection, row['name'])} FROM {_quoted(connection, role)}",
        )


def _session_defaults(connection: Connection, role: str) -> Iterator[Fault]:
    """Check that sessions are read-only by default. Vitrina sets it anyway; other users of the login may not."""
    row = connection.execute(
        """
        SELECT coalesce(bool_or(entry = 'default_transaction_read_only=on'), false) AS read_only
        FROM pg_catalog.pg_db_role_setting s
        JOIN pg_catalog.pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS entry
        WHERE r.rolname = %s
        """,
        [role],
    ).fetchone()
    if row is None or not row["read_only"]:
        yield Fault(
            f"sessions of {role} do not begin read-only",
            f"ALTER ROLE {_quoted(connection, role)} SET default_transaction_read_only = on",
        )


def _schemas(connection: Connection, role: str, source_schemas: frozenset[str]) -> Iterator[Fault]:
    rows = connection.execute(
        """
        SELECT nspname AS name, pg_catalog.has_schema_privilege(%(role)s, oid, 'USAGE') AS usable,
               pg_catalog.has_schema_privilege(%(role)s, oid, 'CREATE') AS creatable
        FROM pg_catalog.pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
        ORDER BY nspname
        """,
        {"role": role},
    ).fetchall()
    for row in rows:
        schema, name, to = row["name"], _quoted(connection, row["name"]), _quoted(connection, role)
        if row["creatable"]:
            yield Fault(f"{role} may create objects in {schema}", f"REVOKE CREATE ON SCHEMA {name} FROM {to}, PUBLIC")
        if row["usable"] and schema in ("etl", "analytics") and schema not in source_schemas:
            yield Fault(f"{role} may look into {schema}", f"REVOKE USAGE ON SCHEMA {name} FROM {to}, PUBLIC")
        if not row["usable"] and schema in {*source_schemas, "etl_stage"}:
            yield Fault(f"{role} may not look into {schema}", f"GRANT USAGE ON SCHEMA {name} TO {to}")


def _tables(connection: Connection, role: str, source_schemas: frozenset[str]) -> Iterator[Fault]:
    """Find readable tables that are not sources, writable ones that are not stages, and sources that cannot be read."""
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS name,
               pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
                   AND pg_catalog.has_any_column_privilege(%(role)s, c.oid, 'SELECT') AS readable,
               pg_catalog.has_table_privilege(%(role)s, c.oid, 'UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                   OR pg_catalog.has_any_column_privilege(%(role)s, c.oid, 'UPDATE')
                   OR (n.nspname <> 'etl_stage' AND pg_catalog.has_any_column_privilege(%(role)s, c.oid, 'INSERT'))
                   AS writable
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                          WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
                            AND d.deptype = 'e')  -- views of extensions are theirs to open
        ORDER BY n.nspname, c.relname
        """,
        {"role": role},
    ).fetchall()
    to = _quoted(connection, role)
    for row in rows:
        table = f"{row['schema']}.{row['name']}"
        name = Identifier(row["schema"], row["name"]).as_string(connection)
        if row["writable"]:
            yield Fault(
                f"{role} may write to {table}",
                f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON {name} FROM {to}, PUBLIC",
            )
        if row["readable"] and row["schema"] not in source_schemas:
            remedy = f"REVOKE SELECT ON {name} FROM {to}, PUBLIC"  # noqa: S608 - shown to users, and quoted
            yield Fault(f"{role} may read {table}", remedy)
        if not row["readable"] and row["schema"] in source_schemas:
            yield Fault(f"{role} may not read {table}", f"GRANT SELECT ON {name} TO {to}")


def _sequences(connection: Connection, role: str) -> Iterator[Fault]:
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS name
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname !~ '^pg_'
          -- CASE, because the other order of looking would ask for a table's rights as a sequence.
          AND CASE WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(%s, c.oid, 'USAGE, UPDATE') END
        ORDER BY n.nspname, c.relname
        """,
        [role],
    ).fetchall()
    for row in rows:
        name = Identifier(row["schema"], row["name"]).as_string(connection)
        yield Fault(
            f"{role} may move the sequence {row['schema']}.{row['name']}",
            f"REVOKE USAGE, UPDATE ON SEQUENCE {name} FROM {_quoted(connection, role)}, PUBLIC",
        )


def _functions_of_owners(connection: Connection, role: str) -> Iterator[Fault]:
    """Find SECURITY DEFINER functions: they run with their owner's rights, and PUBLIC may execute them by default."""
    rows = connection.execute(
        """
        SELECT p.oid::pg_catalog.regprocedure::text AS signature
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE p.prosecdef AND n.nspname !~ '^pg_'
          AND pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
          AND pg_catalog.has_function_privilege(%(role)s, p.oid, 'EXECUTE')
        ORDER BY signature
        """,
        {"role": role},
    ).fetchall()
    for row in rows:
        yield Fault(
            f"{role} may call {row['signature']}, which runs with its owner's rights",
            f"REVOKE EXECUTE ON ROUTINE {row['signature']} FROM {_quoted(connection, role)}, PUBLIC",
        )


def _casts_and_domains_of_owners(connection: Connection, role: str, schemas: list[str]) -> Iterator[Fault]:
    """Find casts and domains that call SECURITY DEFINER functions: a query calls these without naming them."""
    rows = connection.execute(
        """
        WITH definers AS (
            SELECT p.oid, p.oid::pg_catalog.regprocedure::text AS signature FROM pg_catalog.pg_proc p
            WHERE p.prosecdef AND pg_catalog.has_function_privilege(%(role)s, p.oid, 'EXECUTE')
        )
        SELECT 'the cast from ' || pg_catalog.format_type(c.castsource, NULL) || ' to '
               || pg_catalog.format_type(c.casttarget, NULL) AS what, d.signature
        FROM pg_catalog.pg_cast c JOIN definers d ON d.oid = c.castfunc
        WHERE EXISTS (SELECT FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
                      WHERE t.oid IN (c.castsource, c.casttarget) AND n.nspname = ANY(%(schemas)s))
        UNION ALL
        SELECT 'the domain ' || pg_catalog.format_type(t.oid, NULL), d.signature
        FROM pg_catalog.pg_type t
        JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace AND n.nspname = ANY(%(schemas)s)
        JOIN pg_catalog.pg_constraint k ON k.contypid = t.oid
        JOIN pg_catalog.pg_depend x ON x.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND x.objid = k.oid
             AND x.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
        JOIN definers d ON d.oid = x.refobjid
        ORDER BY 1, 2
        """,
        {"role": role, "schemas": schemas},
    ).fetchall()
    for row in rows:
        yield Fault(
            f"{row['what']} calls {row['signature']}, which runs with its owner's rights",
            f"REVOKE EXECUTE ON ROUTINE {row['signature']} FROM {_quoted(connection, role)}, PUBLIC",
        )


def _writable_schemas(connection: Connection, role: str, schemas: list[str]) -> list[str]:
    rows = connection.execute(
        """
        SELECT DISTINCT n.nspname AS name
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = ANY(%(schemas)s) AND n.nspname <> ALL(%(own)s) AND c.relkind IN ('r', 'p', 'f')
          AND pg_catalog.has_table_privilege(%(role)s, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
        ORDER BY name
        """,
        {"role": role, "schemas": schemas, "own": list(_OWN_SCHEMAS)},
    ).fetchall()
    return [row["name"] for row in rows]


def _quoted(connection: Connection, name: str) -> str:
    return SQL("{}").format(Identifier(name)).as_string(connection)
