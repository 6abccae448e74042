"""Prepare an existing database for Vitrina once, as its administrator: roles, schemas, grants.

The same statements are run, or printed for an administrator with more rights. Those without an effect are left out.
"""

import base64
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from vitrina.errors import ConfigError
from vitrina.settings import APP_ROLE, READER_ROLE, Settings
from vitrina.store import database, migrate, pooling, tables

OLDEST_POSTGRES, NEWEST_POSTGRES = 15, 18
_ITERATIONS = 4096


@dataclass(frozen=True)
class Plan:
    """Hold what the installation shall look like."""

    source_schemas: tuple[str, ...]
    target_schema: str
    app_password: str = field(repr=False)
    reader_password: str = field(repr=False)
    # Set the passwords of existing roles, too. Other users of these logins are locked out then.
    resets_passwords: bool = False

    @property
    def own_schemas(self) -> tuple[str, ...]:
        """List the schemas of Vitrina. `migrate` needs analytics even if marts go elsewhere."""
        return tuple(dict.fromkeys(("etl", "etl_stage", "analytics", self.target_schema)))


@dataclass(frozen=True)
class Found:
    """Hold what exists already, as far as it decides what is left to do."""

    database: str
    login: str
    is_superuser: bool
    may_create_roles: bool
    may_create_schemas: bool
    may_grant_statistics: bool
    roles: frozenset[str]
    schemas: frozenset[str]
    missing_defaults: frozenset[str]
    sees_statistics: bool
    is_member: bool
    # Source schemas that the reader cannot read completely, and owners whose new tables it would not read.
    unreadable: frozenset[str] = frozenset()
    unprepared_owners: tuple[tuple[str, str], ...] = ()


def connect(url: str) -> database.Connection:
    """Open the administrator's session on the server itself."""
    connection = database.connect(url, "vitrina:init")
    try:
        _refuse_unusable(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_unusable(connection: database.Connection) -> None:
    where = f"{connection.info.host}:{connection.info.port}"
    major = connection.info.server_version // 10_000
    if not OLDEST_POSTGRES <= major <= NEWEST_POSTGRES:
        raise ConfigError(f"{where} is PostgreSQL {major}: use {OLDEST_POSTGRES} to {NEWEST_POSTGRES}")
    if pooling.is_pooled(connection):
        raise ConfigError(
            f"{where} is a connection pooler such as pgbouncer, which would not know the new logins: give"
            " the server's own address with --admin-url and --database-url"
        )
    row = database.one(
        connection.execute(
            "SELECT pg_catalog.pg_is_in_recovery() AS standby,"
            " pg_catalog.current_setting('transaction_read_only') AS only"
        )
    )
    if row["standby"]:
        raise ConfigError(f"{where} is a standby, where nothing can be created: give the address of its primary")
    if row["only"] == "on":
        raise ConfigError(
            f"sessions of {connection.info.user} are read-only (default_transaction_read_only is on for the login, the"
            " database or the server): use another login with --admin-url, or --print-sql for an administrator"
        )


def inspect(connection: database.Connection, plan: Plan) -> Found:
    """Inspect the database, and refuse what no statement of ours can correct."""
    _refuse_missing_schemas(connection, plan)
    row = database.one(
        connection.execute(
            """
        SELECT current_database() AS database, current_user AS login, r.rolsuper AS is_superuser,
               r.rolsuper OR r.rolcreaterole AS may_create_roles,
               has_database_privilege(current_database(), 'CREATE') AS may_create_schemas,
               r.rolsuper OR pg_has_role('pg_read_all_stats', 'MEMBER WITH ADMIN OPTION')
                   OR (r.rolcreaterole AND current_setting('server_version_num')::int < 160000) AS may_grant_statistics,
               ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname IN (%(app)s, %(reader)s)) AS roles,
               ARRAY(SELECT nspname::text FROM pg_namespace) AS schemas
        FROM pg_roles r WHERE r.rolname = current_user
        """,
            {"app": APP_ROLE, "reader": READER_ROLE},
        )
    )
    roles = frozenset(row.pop("roles"))
    return Found(
        **row | {"schemas": frozenset(row["schemas"])},
        roles=roles,
        missing_defaults=migrate.missing_reader_defaults(connection) if READER_ROLE in roles else frozenset(),
        sees_statistics=APP_ROLE in roles and migrate.is_member(connection, APP_ROLE, "pg_read_all_stats"),
        is_member=APP_ROLE in roles and migrate.is_member(connection, connection.info.user, APP_ROLE),
        unreadable=frozenset(_unreadable(connection, plan.source_schemas, roles)),
        unprepared_owners=tuple(_unprepared_owners(connection, plan.source_schemas)),
    )


def _refuse_missing_schemas(connection: database.Connection, plan: Plan) -> None:
    there = tables.list_schemas(connection)
    for schema in plan.source_schemas:
        if schema not in there:
            listed = ", ".join(name for name in there if name != plan.target_schema)
            raise ConfigError(
                f"{connection.info.dbname} has no schema {schema!r} to read from; it has: {listed or 'none'}"
            )


def _unreadable(connection: database.Connection, schemas: Sequence[str], roles: frozenset[str]) -> Iterator[str]:
    for schema in schemas:
        if READER_ROLE not in roles or not migrate.reads_everything(connection, schema):
            yield schema


def _unprepared_owners(connection: database.Connection, schemas: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield schema and owner of tables there, if we may act for the owner and have not done so yet."""
    rows = connection.execute(
        """
        SELECT DISTINCT n.nspname AS schema, r.rolname AS owner
        FROM pg_catalog.pg_namespace n
        LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
        JOIN pg_catalog.pg_roles r ON r.oid = c.relowner OR (n.nspowner = r.oid AND r.rolname !~ '^pg_')
        WHERE n.nspname = ANY(%(schemas)s) AND pg_catalog.pg_has_role(r.oid, 'MEMBER')
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_default_acl a, pg_catalog.aclexplode(a.defaclacl) AS e
              JOIN pg_catalog.pg_roles g ON g.oid = e.grantee
              WHERE a.defaclrole = r.oid AND a.defaclnamespace = n.oid AND a.defaclobjtype = 'r'
                AND e.privilege_type = 'SELECT' AND g.rolname = %(reader)s)
        ORDER BY 1, 2
        """,
        {"schemas": list(schemas), "reader": READER_ROLE},
    ).fetchall()
    return ((row["schema"], row["owner"]) for row in rows)


def statements(plan: Plan, found: Found | None = None) -> list[Composed]:
    """List the statements that are left to run, or all of them if the database was not inspected."""
    app, reader = Identifier(APP_ROLE), Identifier(READER_ROLE)
    return [
        *_roles(plan, found),
        *_defaults(found),
        *([] if found and found.sees_statistics else [SQL("GRANT pg_read_all_stats TO {}").format(app)]),
        *([] if found and found.is_member else [SQL("GRANT {} TO CURRENT_USER").format(app)]),
        *(
            SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(Identifier(schema), app)
            for schema in plan.own_schemas
            if not found or schema not in found.schemas
        ),
        *_grants(plan, found, reader),
    ]


def _roles(plan: Plan, found: Found | None) -> Iterator[Composed]:
    for role, password in ((APP_ROLE, plan.app_password), (READER_ROLE, plan.reader_password)):
        exists = found is not None and role in found.roles
        if not exists or plan.resets_passwords:
            word = SQL("ALTER ROLE" if exists else "CREATE ROLE")
            yield SQL("{} {} LOGIN PASSWORD {}").format(word, Identifier(role), Literal(verifier(password)))


def _defaults(found: Found | None) -> Iterator[Composed]:
    is_new = found is None or READER_ROLE not in found.roles
    reserved = migrate.RESERVED_READER_DEFAULTS if is_new and found and found.is_superuser else {}
    for name, value in (migrate.READER_DEFAULTS | reserved).items():
        if is_new or (found and name in found.missing_defaults):
            yield SQL("ALTER ROLE {} SET {} = {}").format(Identifier(READER_ROLE), Identifier(name), Literal(value))


def _grants(plan: Plan, found: Found | None, reader: Identifier) -> Iterator[Composed]:
    for schema in plan.source_schemas:
        name = Identifier(schema)
        if not found or schema in found.unreadable:
            yield SQL("GRANT USAGE ON SCHEMA {} TO {}").format(name, reader)
            yield SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(name, reader)
        if not found:
            yield SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA {} GRANT SELECT ON TABLES TO {}").format(name, reader)
    for schema, owner in found.unprepared_owners if found else ():
        yield SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA {} GRANT SELECT ON TABLES TO {}").format(
            Identifier(owner), Identifier(schema), reader
        )


def missing_rights(plan: Plan, found: Found) -> list[str]:
    """Describe the rights that the login lacks for the statements."""
    makes_roles = found.roles < {APP_ROLE, READER_ROLE} or plan.resets_passwords
    makes_schemas = not found.schemas.issuperset(plan.own_schemas)
    return [
        right
        for right, is_missing in {
            "create roles (CREATEROLE)": makes_roles and not found.may_create_roles,
            f"create schemas (CREATE ON DATABASE {found.database})": makes_schemas and not found.may_create_schemas,
            "grant pg_read_all_stats": not found.sees_statistics and not found.may_grant_statistics,
        }.items()
        if is_missing
    ]


def perform(connection: database.Connection, wanted: Sequence[Composed]) -> None:
    """Run all of the statements or none."""
    statement = SQL("").format()
    try:
        with connection.transaction():
            for statement in wanted:
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as exc:
        raise ConfigError(
            f"{connection.info.user} may not `{shown(statement)}`: {database.sql_message(exc)}. Nothing was changed;"
            " use another login with --admin-url, or have an administrator run what --print-sql prints"
        ) from exc
    except psycopg.Error as exc:
        raise ConfigError(
            f"`{shown(statement)}` failed: {database.sql_message(exc)}. Nothing was changed; correct it and try again"
        ) from exc


def shown(statement: Composed) -> str:
    """Format a statement for display, without the digest of a password."""
    head, found, _ = statement.as_string().partition(" PASSWORD ")
    return f"{head}{found}'...'" if found else head


def verifier(password: str) -> str:
    """Compute the server's verifier of a password, so that the password itself is never in a statement or a log."""
    salt = secrets.token_bytes(16)
    prepared = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, _ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    parts = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return "SCRAM-SHA-256${}:{}${}:{}".format(_ITERATIONS, *parts)


def check_logins(settings: Settings) -> None:
    """Check that both logins work with the passwords that were written down."""
    for url in (settings.require_database_url(), database.reader_url(settings, None)):
        database.connect(url, "vitrina:init", connect_timeout_seconds=settings.connect_timeout_seconds).close()
