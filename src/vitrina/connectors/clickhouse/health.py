"""Check whether a ClickHouse server can be used: address, login and version."""

from collections.abc import Iterator

from vitrina.connectors.clickhouse.client import Session
from vitrina.errors import VitrinaError
from vitrina.ports.connector import Finding

# A user waits for the result, and a running server answers at once.
TIMEOUT_SECONDS = 10.0
# Earlier versions of ReplacingMergeTree have no column for deleted rows.
OLDEST = (23, 8)


def server_of(url: str) -> str | None:
    """Return what identifies the server; None if it does not report it."""
    session = Session(url, timeout_seconds=TIMEOUT_SECONDS)
    try:
        found = str(session.value("SELECT toString(serverUUID())"))
        return found if found.strip("0-") else None
    finally:
        session.close()


def check(url: str) -> Iterator[Finding]:
    """Log in and identify the server; write nothing."""
    try:
        session = Session(url, timeout_seconds=TIMEOUT_SECONDS)
        try:
            version = str(session.value("SELECT version()"))
            [(engine,)] = session.rows(
                "SELECT engine FROM system.databases WHERE name = {name:String}", {"name": session.server.database}
            ) or [("",)]
        finally:
            session.close()
    except VitrinaError as exc:
        advice = "start that server, open its port to this machine, or correct its URL or login"
        yield Finding("PROBLEM", exc.message, advice)
        return
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        yield Finding("PROBLEM", f"ClickHouse {version}", f"upgrade it to {OLDEST[0]}.{OLDEST[1]} or later")
    elif engine not in ("Atomic", "Replicated", "Shared"):
        yield Finding(
            "PROBLEM",
            f"ClickHouse {version}, but the database {session.server.database} is {engine or 'missing'}",
            "name a database with the engine Atomic: others cannot exchange tables in one step",
        )
    else:
        yield Finding("OK", f"ClickHouse {version}")
