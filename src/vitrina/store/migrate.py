"""Migrate a database: roles, schemas, tables, grants. Running it again, or from two processes at once, is safe."""

from collections.abc import Iterable
from functools import cache
from importlib import resources

import psycopg
from psycopg import sql
from pydantic import SecretStr

from vitrina.errors import CannotConnect, ConfigError, OtherVersion
from vitrina.settings import APP_ROLE, READER_ROLE, Settings
from vitrina.store import database

# Processes that migrate the same database wait for this lock.
_LOCK = 0x5649_5452_494E_41

_SCRIPTS = resources.files("vitrina.store") / "migrations"


def migrate(settings: Settings) -> str:
    """Update the metastore's database to the newest version, and return that version."""
    url = settings.admin_url.get_secret_value() if settings.admin_url else settings.require_database_url()
    with database.connect(url, "vitrina:migrate") as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        found = current_version(connection)
        if is_newer(found):
            raise ConfigError(
                f"this metastore is of version {found}, upgrade Vitrina: this program knows versions up to"
                f" {newest_version()}, and nothing was changed"
            )
        _create_roles(connection, settings)
        _create_schemas(connection)
        _refuse_foreign_schema(connection)
        version = _upgrade(url)
        _grant(connection, settings.source_schemas)
    return version


def current_version(connection: database.Connection) -> str | None:
    """Return the version of this database, or None if it was never migrated."""
    try:
        row = connection.execute("SELECT version_num FROM etl.alembic_version").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return row["version_num"] if row else None


@cache
def newest_version() -> str:
    """Read the newest version from the file names. Every process needs it at start, and importing Alembic is slow.

    They are read once, because an upgrade may replace the files while the program is running.
    """
    names = (file.name for file in (_SCRIPTS / "versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[0].isdigit())


def require_current(connection: database.Connection) -> None:
    """Refuse to work on a metastore of another version: errors there say nothing about a row or a run."""
    require(current_version(connection))


def require(found: str | None) -> None:
    """Refuse a metastore of this version, unless it is the version of this program."""
    wanted = newest_version()
    if found != wanted:
        raise OtherVersion(
            f"the metastore is at version {found or 'none'}, this program needs {wanted}: {advice(found)}"
        )


def advice(found: str | None) -> str:
    """Explain what to do about a metastore of another version than this program's."""
    if is_newer(found):
        return f"this metastore is of version {found}, upgrade Vitrina"
    return "run `vitrina migrate`"


def is_newer(found: str | None) -> bool:
    return found is not None and found > newest_version()


def _upgrade(url: str) -> str:
    """Run Alembic on one SQLAlchemy connection that already has the role which will own the tables."""
    # Imported here: API and runner never migrate, and the two would be a quarter of their imports.
    import sqlalchemy
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, application_name="vitrina:migrate")
    )
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL ROLE {APP_ROLE}")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except sqlalchemy.exc.OperationalError as exc:
        raise CannotConnect(f"cannot migrate {database.describe(url)}: {database.reason(exc, url)}") from None
    finally:
        engine.dispose()
    return newest_version()


def _refuse_foreign_schema(connection: database.Connection) -> None:
    """Refuse a schema `etl` that is not Vitrina's: creating tables in it would fail or collide."""
    if current_version(connection) is not None:
        return
    row = connection.execute(
        """
        SELECT pg_catalog.pg_get_userbyid(n.nspowner) AS owner,
               pg_catalog.pg_has_role(%(app)s, n.nspowner, 'USAGE') AS ours,
               (SELECT pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname) FROM (
                    SELECT relname FROM pg_catalog.pg_class
                    WHERE relnamespace = n.oid AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S') ORDER BY relname LIMIT 5
                ) AS c) AS relations
        FROM pg_catalog.pg_namespace n WHERE n.nspname = 'etl'
        """,
        {"app": APP_ROLE},
    ).fetchone()
    if row is not None and (not row["ours"] or row["relations"]):
        holds = f" and holds {row['relations']}" if row["relations"] else ""
        raise ConfigError(
            f"the database has a schema etl that is not Vitrina's: it belongs to {row['owner']}{holds}. Rename it"
            " (ALTER SCHEMA etl RENAME TO ...), or give Vitrina a database of its own with VITRINA_DATABASE_URL"
        )


def _create_roles(connection: database.Connection, settings: Settings) -> None:
    """Create both roles with the configured passwords. If the login lacks the right, raise an error with the SQL."""
    statements = [
        *_role(connection, APP_ROLE, settings.app_password),
        *_role(connection, READER_ROLE, settings.reader_password),
        *_role_defaults(connection),
    ]
    with connection.transaction():
        try:
            for statement in statements:
                connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as exc:
            raise _ask_administrator(connection, statements) from exc


def _role(connection: database.Connection, role: str, password: SecretStr | None) -> Iterable[sql.Composed]:
    exists = connection.execute("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", [role]).fetchone()
    name = sql.Identifier(role)
    if not exists:
        yield sql.SQL("CREATE ROLE {} LOGIN").format(name)
    if password:
        yield sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(password.get_secret_value()))


def _role_defaults(connection: database.Connection) -> Iterable[sql.Composed]:
    """Yield the statements for what the roles still lack, so that a plain owner can migrate again."""
    defaults = READER_DEFAULTS | (RESERVED_READER_DEFAULTS if _is_superuser(connection) else {})
    missing = missing_reader_defaults(connection, defaults)
    for name, value in defaults.items():
        if name in missing:
            yield sql.SQL("ALTER ROLE {} SET {} = {}").format(
                sql.Identifier(READER_ROLE), sql.Identifier(name), sql.Literal(value)
            )
    if not is_member(connection, APP_ROLE, "pg_read_all_stats"):
        # The held-back cursor must see when other sessions' transactions began.
        yield sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(APP_ROLE))
    if not is_member(connection, connection.info.user, APP_ROLE):
        yield sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(APP_ROLE))


def missing_reader_defaults(connection: database.Connection, wanted: Iterable[str] | None = None) -> frozenset[str]:
    """List the settings that the reader's role does not have yet."""
    configured = connection.execute(
        """
        SELECT entry FROM pg_catalog.pg_db_role_setting s
        JOIN pg_catalog.pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS entry
        WHERE s.setdatabase = 0 AND r.rolname = %s
        """,
        [READER_ROLE],
    ).fetchall()
    return frozenset(wanted or READER_DEFAULTS) - {row["entry"].partition("=")[0] for row in configured}


READER_DEFAULTS = {
    "default_transaction_read_only": "on",
    "search_path": "",
    "statement_timeout": "1h",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10min",
}

# Only a superuser may set it, and other roles cannot lift it then.
RESERVED_READER_DEFAULTS = {"temp_file_limit": "20GB"}


def _is_superuser(connection: database.Connection) -> bool:
    row = connection.execute("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row["rolsuper"])


def is_member(connection: database.Connection, member: str, role: str) -> bool:
    row = connection.execute(
        """
        SELECT pg_catalog.pg_has_role(m.oid, r.oid, 'MEMBER') AS member
        FROM pg_catalog.pg_roles m, pg_catalog.pg_roles r WHERE m.rolname = %s AND r.rolname = %s
        """,
        [member, role],
    ).fetchone()
    return bool(row and row["member"])


def _create_schemas(connection: database.Connection) -> None:
    statements = [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(
            sql.Identifier(name), sql.Identifier(APP_ROLE)
        )
        for name in ("etl", "etl_stage", "analytics")
        if not connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", [name]).fetchone()
    ]
    try:
        for statement in statements:
            connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as exc:
        raise _ask_administrator(connection, statements) from exc


def _grant(connection: database.Connection, source_schemas: Iterable[str]) -> None:
    """Let the reader read the source schemas and use its stages, and let the application write the marts."""
    app, reader = sql.Identifier(APP_ROLE), sql.Identifier(READER_ROLE)
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA etl_stage TO {}").format(reader))
    for schema in sorted(source_schemas):
        if not connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", [schema]).fetchone():
            continue
        name = sql.Identifier(schema)
        statements = [
            sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(name, reader),
            sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(name, reader),
            sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA {} GRANT SELECT ON TABLES TO {}").format(name, reader),
        ]
        try:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as exc:
            if not reads_everything(connection, schema):  # an administrator has granted it already
                raise _ask_administrator(connection, statements) from exc
    owner = connection.execute(
        "SELECT pg_catalog.pg_get_userbyid(nspowner) AS owner FROM pg_catalog.pg_namespace WHERE nspname = 'analytics'"
    ).fetchone()
    if owner and owner["owner"] != APP_ROLE:
        connection.execute(sql.SQL("GRANT USAGE, CREATE ON SCHEMA analytics TO {}").format(app))


def reads_everything(connection: database.Connection, schema: str) -> bool:
    """Return whether the reader may read each table that the schema has now."""
    row = connection.execute(
        """
        SELECT pg_catalog.has_schema_privilege(%(reader)s, n.oid, 'USAGE') AND NOT EXISTS (
                   SELECT FROM pg_catalog.pg_class c
                   WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v', 'm', 'p', 'f')
                     AND NOT pg_catalog.has_table_privilege(%(reader)s, c.oid, 'SELECT')) AS readable
        FROM pg_catalog.pg_namespace n WHERE n.nspname = %(schema)s
        """,
        {"reader": READER_ROLE, "schema": schema},
    ).fetchone()
    return bool(row and row["readable"])


def _ask_administrator(connection: database.Connection, statements: Iterable[sql.Composable]) -> ConfigError:
    """Build an error with the exact statements for an administrator, who fills in the passwords."""
    script = "\n".join(f"  {_without_password(statement.as_string(connection))};" for statement in statements)
    return ConfigError(
        f"{connection.info.user} may not prepare the database {connection.info.dbname}; set VITRINA_ADMIN_URL to a"
        f" login that may, or have an administrator run:\n{script}"
    )


def _without_password(statement: str) -> str:
    head, found, _ = statement.partition(" PASSWORD ")
    return f"{head}{found}'...'" if found else statement
