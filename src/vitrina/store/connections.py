"""Check whether a named connection can be used: login, version, pooler, schemas, rights. Each finding has a remedy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg.sql import Identifier

from vitrina.errors import ConfigError, VitrinaError
from vitrina.ports import registry
from vitrina.ports.connector import Connector, Finding
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import database, rights, setup

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"

Check = Callable[[str, Settings], Iterator[Finding]]


# A user waits for the result, and further requests queue up, so no server gets much time to answer.
_LIMITS = {"statement_timeout": "15000", "lock_timeout": "5000", **database.READ_ONLY}


@dataclass(frozen=True)
class ConnectionFinding:
    """Hold one finding, and what to do about it."""

    status: str
    finding: str
    next_step: str = ""


def names(settings: Settings) -> list[str]:
    return [DEFAULT_CONNECTION, *sorted({*settings.connections, *settings.shut_connections})]


def variable(name: str) -> str:
    return "VITRINA_READER_URL" if name == DEFAULT_CONNECTION else f"VITRINA_CONN_{name.upper()}"


def kept_place(name: str) -> str:
    """Name the command that corrects a connection kept in the metastore."""
    return f"its URL (`vitrina connections add {name} --replace`)"


def examine(
    settings: Settings, name: str, *, with_rights: bool = True, place: str | None = None
) -> Iterator[ConnectionFinding]:
    """Log in as pipelines do and check the connection without writing. `with_rights` lists missing grants too.

    `place` says where the URL can be corrected, if not in its variable.
    """
    try:
        url = database.reader_url(settings, name)
    except ConfigError as exc:  # kept in the metastore, and this process cannot decrypt it
        yield ConnectionFinding(PROBLEM, exc.message)
        return
    connector = registry.of_url(url)
    if connector is None or connector.name != registry.POSTGRES:
        yield from _examine_other(connector, url, settings)
        return
    try:
        session = database.connect(
            url, "vitrina:test", connect_timeout_seconds=settings.connect_timeout_seconds, settings=_LIMITS
        )
    except VitrinaError as exc:
        yield ConnectionFinding(PROBLEM, exc.message, _remedy(exc.message, place or variable(name)))
        return
    with session, database.translated(f"looking at connection {name}"):
        major = session.info.server_version // 10_000
        found = [*_server(session), *_login(session, name), *_schemas(session, settings)]
        if with_rights:
            found += _rights(session, settings)
    yield from found
    if all(verdict.status != PROBLEM for verdict in found):
        yield ConnectionFinding(OK, f"{database.describe(url)}, PostgreSQL {major}")


def _examine_other(connector: Connector | None, url: str, settings: Settings) -> Iterator[ConnectionFinding]:
    """Yield what the connector of another system reports about the URL."""
    scheme = registry.scheme_of(url)
    if connector is None:
        known = ", ".join(sorted(registry.installed().connectors))
        left_out = "; ".join(f" ({refused})" for refused in registry.installed().refused)
        install = "install its package where runners and the API run"
        yield ConnectionFinding(
            PROBLEM, f"no connector for {scheme}:// is installed here, only {known}{left_out}", install
        )
        return
    problem = connector.url_problem(url) if connector.url_problem else None
    if problem:
        yield ConnectionFinding(PROBLEM, problem)
    elif connector.check is None:
        yield ConnectionFinding(OK, f"opened by the connector {connector.name}, which has no check of its own")
    else:
        yield from _checked(connector, connector.check, url, settings)


def _checked(connector: Connector, check: Check, url: str, settings: Settings) -> Iterator[ConnectionFinding]:
    """Run the connector's own check. Report only the kind of an unexpected error, because it may quote the URL."""
    try:
        for found in check(url, settings):
            yield ConnectionFinding(found.status, found.finding, found.next_step)
    except VitrinaError as exc:
        yield ConnectionFinding(PROBLEM, exc.message)
    except Exception as exc:  # noqa: BLE001 - a third-party package must not end doctor
        yield ConnectionFinding(
            PROBLEM,
            f"the check of the connector {connector.name} failed: {type(exc).__name__}",
            f"tell the authors of the package {connector.package} {connector.version}",
        )


def _remedy(message: str, place: str) -> str:
    """Choose the advice by the text of the server or libpq, which has been stable for many versions."""
    for words, remedy in {
        "password authentication failed": say("connection.wrong_password", place=place),
        "no password supplied": say("connection.no_password", place=place),
        "no pg_hba.conf entry": say("connection.hba"),
        "transaction mode": say("connection.pooled"),
        "role ": say("connection.no_login", place=place),
        "database ": say("connection.no_database", place=place),
        "could not translate host name": say("connection.no_host", place=place),
        "SSL": say("connection.ssl", place=place),
    }.items():
        if words in message:
            return remedy
    return say("connection.nobody_answers", place=place)


def _server(session: database.Connection) -> Iterator[ConnectionFinding]:
    major = session.info.server_version // 10_000
    if not setup.OLDEST_POSTGRES <= major <= setup.NEWEST_POSTGRES:
        wanted = f"{setup.OLDEST_POSTGRES} to {setup.NEWEST_POSTGRES}"
        yield ConnectionFinding(
            PROBLEM, say("connection.other_version", version=major), say("connection.use_version", versions=wanted)
        )


def _login(session: database.Connection, name: str) -> Iterator[ConnectionFinding]:
    row = database.one(
        session.execute(
            """
        SELECT r.rolname AS login, r.rolsuper AS superuser,
               r.rolsuper OR pg_catalog.pg_has_role('pg_read_all_stats', 'MEMBER') AS sees
        FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
        """
        )
    )
    login = Identifier(row["login"]).as_string()
    if row["superuser"]:
        yield ConnectionFinding(
            WARNING,
            say("connection.superuser", login=row["login"]),
            say("connection.use_reader", login=login),
        )
    if not row["sees"] and name != DEFAULT_CONNECTION:
        yield ConnectionFinding(
            WARNING,
            say("connection.sees_nothing", login=row["login"]),
            f"GRANT pg_read_all_stats TO {login}",
        )


def _schemas(session: database.Connection, settings: Settings) -> Iterator[ConnectionFinding]:
    """Warn if none of the source schemas exists. Which of them are needed depends on the pipelines."""
    row = database.one(
        session.execute(
            "SELECT count(*) AS count FROM pg_catalog.pg_namespace WHERE nspname = ANY(%s)",
            [sorted(settings.source_schemas)],
        )
    )
    if not row["count"]:
        yield ConnectionFinding(
            WARNING,
            say("connection.no_schema", schemas=settings.allowed_source_schemas),
            say("connection.name_schemas"),
        )


def _rights(session: database.Connection, settings: Settings) -> Iterator[ConnectionFinding]:
    for fault in rights.faults_of_reader(session, session.info.user, settings.source_schemas):
        if fault.remedy.startswith("GRANT "):
            yield ConnectionFinding(PROBLEM, fault.finding, fault.remedy)
