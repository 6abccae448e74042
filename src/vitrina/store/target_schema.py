"""Prepare a target database that is not the metastore's: it holds the ledger of checkpoints next to its marts."""

from collections.abc import Iterator

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from vitrina.errors import FatalError
from vitrina.store import database
from vitrina.store.database import Connection

SCHEMA = "etl_stage"
# Increased with every change below. Newer versions only ever add, so that older runners keep working.
VERSION = 1

# Each is idempotent: another metastore, or one in this very database, may have run it first.
STATEMENTS = (
    """
    CREATE TABLE IF NOT EXISTS etl_stage.ledger (
        pipeline_id        uuid PRIMARY KEY,
        last_processed_key text,
        last_processed_id  text,
        safe_upto          text,
        held_upto          text,
        epoch              bigint NOT NULL DEFAULT 0,
        claim_id           uuid,
        batch_no           bigint NOT NULL DEFAULT 0,
        segments           jsonb NOT NULL DEFAULT '{}',
        rows               bigint NOT NULL DEFAULT 0,
        stage              text,
        fingerprint        text,
        load_started_at    timestamptz,
        run_id             uuid,
        updated_at         timestamptz NOT NULL DEFAULT now()
    )
    """,
    "ALTER TABLE etl_stage.ledger ADD COLUMN IF NOT EXISTS identity jsonb NOT NULL DEFAULT '{}'",
    "CREATE TABLE IF NOT EXISTS etl_stage.ledger_version (version integer NOT NULL)",
)

# Two runs may be the first at the same time.
_LOCK = 0x5649_5452_4C45_44


def prepare(connection: Connection) -> None:
    """Create the ledger or update it. If rights are missing, the error has the statements that grant them."""
    if (find_version(connection) or 0) >= VERSION:
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [_LOCK])
            for statement in _statements(connection):
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        refuse_unprepared(connection)
        raise


def _statements(connection: Connection) -> Iterator[Composed]:
    if not _exists(connection):
        yield SQL("CREATE SCHEMA {}").format(Identifier(SCHEMA))
    for statement in STATEMENTS:
        yield Composed([SQL(statement)])
    yield Composed([SQL("DELETE FROM etl_stage.ledger_version")])
    yield SQL("INSERT INTO etl_stage.ledger_version VALUES ({})").format(VERSION)


def find_version(connection: Connection) -> int | None:
    """Find the version of the ledger. Return None if there is none yet, or one from before versions were counted."""
    try:
        row = connection.execute("SELECT max(version) AS version FROM etl_stage.ledger_version").fetchone()
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.InsufficientPrivilege,
    ):
        return None
    return row["version"] if row else None


def missing_rights(connection: Connection) -> Iterator[str]:
    """Yield the statements that an administrator of that database must run before this login can prepare it."""
    login = Identifier(connection.info.user).as_string(connection)
    row = database.one(
        connection.execute(
            """
        SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS creates,
               (SELECT array_agg(DISTINCT pg_catalog.pg_get_userbyid(owner)::text)
                FROM (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s
                      UNION ALL
                      SELECT c.relowner FROM pg_catalog.pg_class c
                      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                      WHERE n.nspname = %(schema)s AND c.relname IN ('ledger', 'ledger_version')) AS o (owner)
                WHERE NOT pg_catalog.pg_has_role(owner, 'USAGE')) AS owners
        """,
            {"schema": SCHEMA},
        )
    )
    if not _exists(connection) and not row["creates"]:
        yield f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {login}"
    # Another installation created them, and will have to change them some day.
    for owner in row["owners"] or ():
        yield f"GRANT {Identifier(owner).as_string(connection)} TO {login}"


def refuse_unprepared(connection: Connection) -> None:
    """Raise `FatalError` with the rights that a run would lack. A run creates everything else itself."""
    statements = list(missing_rights(connection)) if (find_version(connection) or 0) < VERSION else []
    if statements:
        raise FatalError(
            f"{connection.info.user} may not create the ledger of checkpoints (schema {SCHEMA}) in the target's"
            f" database; have its administrator run there: {'; '.join(statements)}"
        )


def _exists(connection: Connection) -> bool:
    found = connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", [SCHEMA]).fetchone()
    return found is not None
