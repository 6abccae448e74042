"""`vitrina doctor`: check an installation and report each problem with the next step."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from vitrina.cli import local
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Format, Output, console, show_data, styled
from vitrina.errors import ConfigError, VitrinaError

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.connections import ConnectionFinding
    from vitrina.store.database import Connection
    from vitrina.store.rights import Fault

OLDEST_POSTGRES, NEWEST_POSTGRES = 15, 18
CLOCK_TOLERANCE_SECONDS = 2.0
# A request that no runner takes for this long is stuck.
PATIENCE_SECONDS = 60.0
SHOWN_FAULTS = 20


@dataclass(frozen=True)
class Finding:
    """Represent the finding of one check, with the next step if it is a problem."""

    check: str
    status: str
    finding: str
    next_step: str = ""


def doctor(output: Output = Format.TABLE) -> None:
    """Check settings, database, roles, clock, runners, pipelines."""
    findings = list(examine())
    if output is Format.TABLE:
        print_findings(findings)
    else:
        show_data([asdict(found) for found in findings], output)
    if problems(findings):
        raise typer.Exit(ExitCode.FAILED)


def problems(findings: list[Finding]) -> int:
    """Count what has to be corrected; a warning may be intended."""
    return sum(found.status == "PROBLEM" for found in findings)


def examine() -> Iterator[Finding]:
    """Run the checks in order. Checks that an earlier problem makes impossible are left out."""
    try:
        settings = local.load_settings()
    except ConfigError as exc:
        yield problem("settings", exc.message, "correct the variable or the line in .env")
        return
    used = local.opened_to_the_cinema(settings) if settings.database_url is None else settings
    yield ok("settings", f"targets {used.allowed_targets}; sources {used.allowed_source_schemas}")
    yield from _check_connectors()
    if "api_url" in settings.model_fields_set:
        yield _check_api(settings)
    if settings.database_url is None and not local.HOME.exists():
        yield problem(
            "database",
            "VITRINA_DATABASE_URL is not set, and there is no embedded PostgreSQL here",
            "set VITRINA_DATABASE_URL, or start `vitrina dev`",
        )
        return
    with local.database(settings, migrated=False) as found:
        yield from _check_database(found)


def ok(check: str, finding: str) -> Finding:
    return Finding(check, "OK", finding)


def problem(check: str, finding: str, next_step: str) -> Finding:
    return Finding(check, "PROBLEM", finding, next_step)


def warning(check: str, finding: str, next_step: str) -> Finding:
    return Finding(check, "WARNING", finding, next_step)


def print_findings(findings: list[Finding]) -> None:
    """Print lines instead of a table, because findings are sentences."""
    from rich.text import Text

    screen = console(sys.stdout)
    width = max(len(found.check) for found in findings)
    for found in findings:
        line = Text.assemble(
            styled(found.status), " " * (9 - len(found.status)), found.check.ljust(width + 2), found.finding
        )
        screen.print(line, soft_wrap=True)
        if found.next_step:
            screen.print(Text(f"{'':<{width + 11}}next step: {found.next_step}"), soft_wrap=True)


def _check_api(settings: "Settings") -> Finding:
    from vitrina.calls import without_login
    from vitrina.client import Client

    try:
        with Client.from_settings(settings) as client:
            health = client.health()
    except VitrinaError as exc:
        return problem("api", exc.message, "start it with `vitrina api`, or correct VITRINA_API_URL")
    address = without_login(settings.api_url)
    if health.status != "ok":
        return problem("api", f"{address} says {health.status}, database {health.database}", "see its logs")
    return ok("api", f"{address} runs {health.version}")


def _check_database(settings: "Settings") -> Iterator[Finding]:
    from vitrina.store import database

    url = settings.require_database_url()
    try:
        connection = database.connect(url, "vitrina:doctor", connect_timeout_seconds=5)
    except VitrinaError as exc:
        yield problem("database", exc.message, "start PostgreSQL, or correct VITRINA_DATABASE_URL")
        return
    with connection:
        yield _check_server(connection, database.describe(url))
        migrations = _check_migrations(connection)
        yield migrations
        yield _check_clock(connection)
        yield _check_log(connection)
        if migrations.status != "OK":
            return
        from vitrina.cli import opened

        settings = opened.with_kept(settings, connection)
        yield from _check_application_role(connection, settings)
        yield from _check_readers(connection, settings)
        yield from _check_targets(connection, settings)
        yield from _check_connections(connection, settings)
        yield from _check_source_schemas(connection, settings)
        yield from _check_feeds(connection, settings)
        yield _check_runners(connection, settings)
        yield from _check_pipelines(connection, settings)
        yield _check_stages(connection)


def _check_server(connection: "Connection", where: str) -> Finding:
    major = connection.info.server_version // 10_000
    if not OLDEST_POSTGRES <= major <= NEWEST_POSTGRES:
        wanted = f"{OLDEST_POSTGRES} to {NEWEST_POSTGRES}"
        return problem("database", f"{where} is PostgreSQL {major}", f"use PostgreSQL {wanted}")
    return ok("database", f"{where}, PostgreSQL {major}")


def _check_migrations(connection: "Connection") -> Finding:
    from vitrina.store import migrate

    found, wanted = migrate.current_version(connection), migrate.newest_version()
    if found != wanted:
        return problem("migrations", f"version {found or 'none'}, this program needs {wanted}", migrate.advice(found))
    return ok("migrations", f"version {found}")


def _check_clock(connection: "Connection") -> Finding:
    before = time.time()
    row = _one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8 AS at")
    # Half of the round trip is the best estimate of when the server read its clock.
    apart = row["at"] - (before + time.time()) / 2
    if abs(apart) > CLOCK_TOLERANCE_SECONDS:
        return problem(
            "clock", f"the database's clock is {apart:+.1f} s from this machine's", "set both by NTP (chrony, systemd)"
        )
    return ok("clock", f"{abs(apart) * 1000:.0f} ms from the database's")


def _check_log(connection: "Connection") -> Finding:
    """Check the settings of the write-ahead log that preserve a commit in a crash. Feeds are checked separately."""
    names = ("wal_level", *_DURABLE)
    found = {name: _one(connection, f"SHOW {name}")[name] for name in names}
    weak = [f"{name} is {found[name]}" for name in _DURABLE if found[name] == "off"]
    if weak:
        return problem(
            "write-ahead log",
            f"{', '.join(weak)}: a crash may lose committed transactions, of marts and checkpoints alike",
            f"set {' and '.join(f'{name} = on' for name in _DURABLE if found[name] == 'off')} on the server",
        )
    if found["wal_level"] == "minimal":
        return problem(
            "write-ahead log",
            "wal_level is minimal: enough for runs, but neither a standby nor a restore to a point in time is possible",
            "set wal_level = replica and restart the server",
        )
    return ok(
        "write-ahead log",
        f"wal_level is {found['wal_level']}: runs need no more than minimal, standbys and backups need replica, live"
        " pipelines need logical",
    )


# Exactly-once depends on these: docs/reliability.md, "What is taken for granted".
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


def _check_application_role(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    from vitrina.store import rights

    found = list(rights.faults_of_application(connection, settings.source_schemas))
    if _one(connection, "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")["rolsuper"]:
        yield warning(
            "application role",
            f"VITRINA_DATABASE_URL logs in as {connection.info.user}, a superuser",
            "use the role vitrina_app: API and runners need no more",
        )
    yield from _rights_findings("application role", found)
    if not found:
        yield ok("application role", "owns the metastore, may create marts, writes to no source")


def _check_readers(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    """Check the reader of the metastore's own database and those of the databases that pipelines read from."""
    from vitrina.settings import DEFAULT_CONNECTION
    from vitrina.store import pipelines

    yield from _check_reader(settings, DEFAULT_CONNECTION, "reader role")
    for name in pipelines.source_connections(connection):
        if name != DEFAULT_CONNECTION and _is_postgres(settings, name):
            yield from _check_reader(settings, name, f"reader of {name}")


def _is_postgres(settings: "Settings", name: str) -> bool:
    """Return whether a connection is checked here as Postgres; connectors check the others.

    One that is not configured counts as Postgres, so that its check reports it.
    """
    try:
        return settings.connector_of(name) in ("postgres", None)
    except ConfigError:
        return True


def _check_connectors() -> Iterator[Finding]:
    """Report which connectors are installed, and which of them are not used."""
    from vitrina.definition import Options
    from vitrina.ports import registry

    found = registry.installed()
    for refused in found.refused:
        yield problem("connectors", str(refused), "correct or remove that package")
    for connector in found.connectors.values():
        if connector.options and connector.name in Options.model_fields:
            message = (
                f"options.{connector.name} is an option of Vitrina itself, so options of the connector cannot be set"
            )
            yield problem("connectors", message, f"ask the authors of {connector.package} to rename its connector")
    yield ok("connectors", ", ".join(sorted(found.connectors)))


def _check_reader(settings: "Settings", name: str, check: str) -> Iterator[Finding]:
    from vitrina.settings import DEFAULT_CONNECTION
    from vitrina.store import database, rights

    try:
        url = database.reader_url(settings, name)
        with database.connect(url, "vitrina:doctor", connect_timeout_seconds=5) as reader:
            found = list(rights.faults_of_reader(reader, reader.info.user, settings.source_schemas))
    except VitrinaError as exc:
        advice = f"correct VITRINA_CONN_{name.upper()}"
        if name == DEFAULT_CONNECTION:
            advice = "set VITRINA_READER_PASSWORD and run `vitrina migrate`"
        yield problem(check, exc.message, advice)
        return
    yield from _rights_findings(check, found)
    if not found:
        yield ok(check, f"reads {', '.join(sorted(settings.source_schemas))} and nothing else")


def _check_targets(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    """Check the other databases that pipelines write to."""
    from vitrina.settings import DEFAULT_CONNECTION
    from vitrina.store import stages

    for name in stages.list_target_connections(connection):
        if name != DEFAULT_CONNECTION and _is_postgres(settings, name):
            yield from _check_target(settings, name)


def _check_target(settings: "Settings", name: str) -> Iterator[Finding]:
    from vitrina.store import database, target_schema

    check = f"target {name}"
    try:
        url = settings.connection_url(name)
        with database.connect(url, "vitrina:doctor", connect_timeout_seconds=5) as target:
            version = target_schema.find_version(target)
            is_current = version is not None and version >= target_schema.VERSION
            missing = [] if is_current else list(target_schema.missing_rights(target))
    except VitrinaError as exc:
        yield problem(check, exc.message, f"correct VITRINA_CONN_{name.upper()}")
        return
    for statement in missing:
        yield problem(check, "its login may not create the table of checkpoints there", statement)
    if not missing:
        made = (
            f"its table of checkpoints is at version {version}"
            if is_current
            else ("the next run creates its table of checkpoints")
        )
        yield ok(check, made)


def _check_connections(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    """Check all configured connections, also unused ones. Rights of those in use have been checked already."""
    from vitrina.store import connections, kept_connections, pipelines, stages

    used = {*pipelines.source_connections(connection), *stages.list_target_connections(connection)}
    kept = kept_connections.list_names(connection)
    for name in sorted({*settings.connections, *settings.shut_connections}):
        place = connections.kept_place(name) if name in kept else None
        try:
            found = list(connections.examine(settings, name, with_rights=name not in used, place=place))
        except VitrinaError as exc:
            yield problem(f"connection {name}", exc.message, f"`vitrina connections test {name}`")
            continue
        for verdict in found:
            yield told(f"connection {name}", verdict, settings)


def told(check: str, verdict: "ConnectionFinding", settings: "Settings") -> Finding:
    """Convert a connector's finding to a line. It may quote its URL, so secrets are masked."""
    from vitrina.observe import logs

    finding, next_step = (logs.masked(text, settings) for text in (verdict.finding, verdict.next_step))
    return Finding(check, verdict.status, finding, next_step)


def _check_feeds(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    """Check the databases that live pipelines follow, and the state of their feeds."""
    from vitrina.ports import registry
    from vitrina.store import feed_reports

    for name in settings.feed_connections:
        url = settings.find_feed_url(name)
        for found in registry.feeds().check(url, settings) if url else ():
            yield Finding(f"feed login of {name}", found.status, found.finding, found.next_step)
    for feed in feed_reports.list_all(connection):
        yield from _feed_findings(feed, settings)


def _feed_findings(feed: dict[str, Any], settings: "Settings") -> Iterator[Finding]:
    from vitrina.settings import feed_variable

    check = f"feed {feed['connection']}"
    if feed["problem"]:
        yield problem(
            check,
            feed["problem"],
            "run the statement that is shown; `vitrina feeds list` shows when the problem is solved",
        )
    elif not feed["is_owned"]:
        variable = feed_variable(feed["connection"])
        yield problem(check, "no runner reads it, and its source keeps its log", f"set {variable} where a runner is")
    elif feed["wal_status"] not in (None, "reserved", "extended"):
        yield problem(
            check, f"its slot is {feed['wal_status']}: the source is about to drop it", "see why its runner is slow"
        )
    else:
        yield ok(check, f"{feed['lag_seconds'] or 0:.0f} s behind, {len(feed['followers'])} pipelines follow")
    for follower in feed["followers"]:
        reason = follower["problem"] or follower["must_reload"]
        if reason:
            yield warning(f"pipeline {follower['pipeline']}", reason, "it is followed once that is corrected")


def _check_source_schemas(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    """Warn of an allowed schema that exists nowhere: it is a typing error or the default of the demo."""
    if settings.connections or settings.shut_connections:
        return  # it may exist there
    from vitrina.store import tables

    missing = sorted(settings.source_schemas - set(tables.list_schemas(connection)))
    if missing:
        yield warning(
            "source schemas",
            f"VITRINA_ALLOWED_SOURCE_SCHEMAS names {', '.join(missing)}, which the database does not have",
            "correct it, or ignore this if the schema will be created later",
        )


def _rights_findings(check: str, faults: "list[Fault]") -> Iterator[Finding]:
    """Name each fault up to a limit, so that many excess privileges do not fill the screen."""
    for fault in faults[:SHOWN_FAULTS]:
        yield problem(check, fault.finding, fault.remedy)
    if len(faults) > SHOWN_FAULTS:
        yield problem(
            check, f"and {len(faults) - SHOWN_FAULTS} more privileges", "correct these first, then run it again"
        )


def _check_runners(connection: "Connection", settings: "Settings") -> Finding:
    from vitrina.store import runners

    found = runners.list_all(connection, stale_after_seconds=settings.lease_ttl_seconds)
    alive = [runner for runner in found if runner["alive"]]
    if not alive:
        silent = f"{len(found)} silent" if found else "none"
        return problem("runners", f"no runner is alive to run pipelines ({silent})", "start one with `vitrina runner`")
    places = ", ".join(sorted({runner["host"] for runner in alive}))
    return ok("runners", f"{len(alive)} alive on {places}, {sum(runner['running'] for runner in alive)} current runs")


def _check_pipelines(connection: "Connection", settings: "Settings") -> Iterator[Finding]:
    from vitrina.services import connectors
    from vitrina.status import Status
    from vitrina.store import pipelines

    watched = [Status.FAILED, Status.RUN_REQUESTED, Status.RUNNING, Status.PAUSE_REQUESTED]
    rows = pipelines.list_page(connection, pipelines.Filter(status=watched), limit=10_000)
    now = _one(connection, "SELECT clock_timestamp() AS at")["at"]
    waiting = connectors.waiting(connection, settings)
    found = [stuck for row in rows if (stuck := _stuck(row, now, settings.lease_ttl_seconds, waiting.get(row["id"])))]
    yield from found
    if not found:
        yield ok("pipelines", "none has failed, none is stuck")


def _stuck(row: dict[str, Any], now: Any, lease_ttl_seconds: float, waiting: str | None) -> Finding | None:
    from vitrina.status import ACTIVE, Status

    name, waited = row["name"], (now - row["status_since"]).total_seconds()
    if row["status"] == Status.FAILED:
        error = row["last_error"] or "no error was stored"
        return problem(f"pipeline {name}", f"FAILED: {error}", f"correct it, then `vitrina run {name}`")
    if (
        row["status"] in ACTIVE
        and row["lease_until"]
        and (now - row["lease_until"]).total_seconds() > lease_ttl_seconds
    ):
        return problem(
            f"pipeline {name}",
            f"{row['status']}, but its runner no longer sends heartbeats",
            "start a runner: it recovers the pipeline",
        )
    if waiting:
        return problem(f"pipeline {name}", waiting, "install that on the machine of a runner, and restart it")
    if row["status"] in (Status.RUN_REQUESTED, Status.PAUSE_REQUESTED) and waited > PATIENCE_SECONDS:
        return problem(
            f"pipeline {name}",
            f"{row['status']} for {waited:.0f} s, and no runner has taken it",
            "look at the runners above; another pipeline may hold the target, or its connection may be at its limit",
        )
    return None


def _check_stages(connection: "Connection") -> Finding:
    from vitrina.store import stages

    orphans = stages.list_orphans(connection)
    if orphans:
        return problem(
            "stages",
            f"{len(orphans)} in etl_stage that no load needs, for example {orphans[0]}",
            "a runner drops them within a minute or two; is one alive?",
        )
    return ok("stages", "every stage belongs to a current load")


def _one(connection: "Connection", query: str, parameters: dict[str, object] | None = None) -> dict[str, Any]:
    row = connection.execute(query.encode(), parameters).fetchone()
    return row or {}
