"""`vitrina connections`: the databases that pipelines may name, and whether they can be used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import doctor, local, opened, tokens
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format, Output, show_data, show_list
from vitrina.errors import CannotConnect, ConfigError, NotFound

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.database import Connection

group = typer.Typer(help="Places that pipelines may name.", no_args_is_help=True, rich_markup_mode=None)

LIST_COLUMNS = [
    Column("name", lambda row: row["name"], is_name=True),
    Column("database", lambda row: row["database"]),
    Column("set by", lambda row: row["set_by"], leaves=1),
]
# A little longer than a runner may take to log in and check a connection.
RUNNER_SECONDS = 60.0

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name for use in pipelines: lower-case letters, digits and _.")
]


@group.command(name="list")
def list_connections(output: Output = Format.TABLE) -> None:
    """Show connections and where they lead. Passwords are left out."""
    from vitrina.store import connections

    with _metastore() as (settings, metastore):
        kept = _kept(settings, metastore)
        rows = [
            {
                "name": name,
                "database": "sealed" if name in settings.shut_connections else _place(settings, name),
                "set_by": f"metastore, by {kept[name]}" if name in kept else connections.variable(name),
            }
            for name in connections.names(settings)
        ]
    show_list(rows, LIST_COLUMNS, output, empty="no connections")


def _place(settings: "Settings", name: str) -> str:
    """Describe the address without the password; for systems other than Postgres, without the login."""
    from urllib.parse import urlsplit

    from vitrina.store import database

    url = database.reader_url(settings, name)
    if settings.connector_of(name) == "postgres":
        return database.describe(url)
    scheme, _, rest = url.partition("://")
    place = urlsplit(f"//{rest.rpartition('@')[2]}")
    return f"{scheme}://{place.netloc}{place.path}"


@group.command()
def add(
    name: Name,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the URL of a stored connection.")] = False,
) -> None:
    """Store a connection in the metastore, sealed.

    Asks for its URL, postgresql://LOGIN:PASSWORD@HOST:5432/DATABASE, or reads it from standard input. It is never shown
    again; runners use it without a restart.
    """
    from vitrina.services import connections

    url = _read_url(name)
    with _metastore() as (settings, metastore):
        keep = connections.replace if replace else connections.add
        session = _required(metastore)
        keep(session, _environment_only(settings), tokens.caller(), name, url, key=_sealing_key(session, settings))
    local.say(f"connection {name} is {'replaced' if replace else 'kept'}; `vitrina connections test {name}` tries it")


@group.command()
def remove(name: Name) -> None:
    """Delete a connection from the metastore.

    Refused while pipelines use it.
    """
    from vitrina.services import connections

    with _metastore() as (settings, metastore):
        connections.remove(_required(metastore), _environment_only(settings), tokens.caller(), name.lower())
    local.say(f"connection {name} is deleted")


@group.command()
def rotate() -> None:
    """Seal stored connections again with the newest key.

    That is the first key of VITRINA_SECRET_KEY; its other keys only open connections.
    """
    from vitrina import sealing
    from vitrina.services import audit
    from vitrina.store import kept_connections
    from vitrina.unsealing import Keyring

    with _metastore() as (settings, session):
        metastore = _required(session)
        keyring = Keyring(settings.secret_keys)
        if not keyring.public_keys:
            raise ConfigError("VITRINA_SECRET_KEY is not set: run this where a runner's key is, the new key first")
        current = sealing.key_id(keyring.public_keys[0])
        found = kept_connections.list_sealed(metastore)
        urls = {name: keyring.open(name, box) for name, box in found.items() if box.key_id != current}
        with metastore.transaction():
            for name, url in urls.items():
                anew = sealing.seal(keyring.public_keys[0], name, url)
                if kept_connections.reseal(metastore, name, found[name], anew):
                    after = {"key_id": anew.key_id}
                    audit.record(metastore, tokens.caller(), "rotate_connection", f"connection:{name}", after=after)
    local.say(f"{len(urls)} of {len(found)} connections sealed again with the key {current}")


@group.command(name="test")
def try_connections(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of connections. [default: all]")
    ] = None,
    by_runner: Annotated[bool, typer.Option("--by-runner", help="Let a runner test it, from its own machine.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Log in and report what is wrong, with the statement that corrects it.

    From this machine, with its settings, unless --by-runner is given or the key of a stored connection is missing here.
    Exit code 1 if a connection cannot be used.
    """
    from vitrina.store import connections

    with _metastore() as (settings, metastore):
        known = connections.names(settings)
        wanted = [name.lower() for name in names] if names else known
        for name in wanted:
            if name not in known:
                raise NotFound(
                    f"there is no connection {name!r} (known: {', '.join(known)}); add it with"
                    f" `vitrina connections add {name}`, or set VITRINA_CONN_{name.upper()}"
                )
        findings = [found for name in wanted for found in _try(settings, metastore, name, by_runner=by_runner)]
    if output is Format.TABLE:
        doctor.print_findings(findings)
    else:
        show_data([asdict(found) for found in findings], output)
    if doctor.problems(findings):
        raise typer.Exit(ExitCode.FAILED)


def _try(
    settings: "Settings", metastore: "Connection | None", name: str, *, by_runner: bool
) -> Iterator[doctor.Finding]:
    from vitrina.store import connections

    kept = name in _kept(settings, metastore)
    if by_runner or name in settings.shut_connections:
        for found in _ask_runner(settings, _required(metastore), name):
            yield doctor.Finding(name, found["status"], found["finding"], found["next_step"])
        return
    for verdict in connections.examine(settings, name, place=connections.kept_place(name) if kept else None):
        yield doctor.told(name, verdict, settings)


def _ask_runner(settings: "Settings", metastore: "Connection", name: str) -> list[dict[str, Any]]:
    from contextlib import nullcontext

    from vitrina.services import requests

    if not requests.somebody_works(metastore, settings):
        raise CannotConnect(
            f"connection {name!r} has to be tested by a runner, and none is alive: start `vitrina runner`"
        )
    asked = requests.ask_to_try(metastore, tokens.caller(), name)
    asked = requests.wait_for(lambda: nullcontext(metastore), asked, seconds=RUNNER_SECONDS)
    if asked["error"] is not None:
        return [{"status": "PROBLEM", "finding": asked["error"]["message"], "next_step": ""}]
    if asked["result"] is None:
        raise CannotConnect(f"no runner tried connection {name!r} within {RUNNER_SECONDS:.0f} s; look at their logs")
    findings: list[dict[str, Any]] = asked["result"]["findings"]
    return findings


@contextmanager
def _metastore() -> Iterator[tuple["Settings", "Connection | None"]]:
    """Yield settings that include stored connections, and the metastore, which is None if it cannot be used yet."""
    from vitrina.store import database, migrate

    with local.database(local.load_settings(), migrated=False) as settings:
        try:
            session = database.connect(settings.require_database_url(), "vitrina:connections")
        except CannotConnect:
            yield settings, None  # in that case the connection `default` has to be tested
            return
        with session, database.translated("working on the metastore"):
            if migrate.current_version(session) != migrate.newest_version():
                yield settings, None
            else:
                yield opened.with_kept(settings, session), session


def _kept(settings: "Settings", metastore: "Connection | None") -> dict[str, str]:
    """List connections that only the metastore has, with the name of the user who set each."""
    from vitrina.store import kept_connections

    if metastore is None:
        return {}
    own = _environment_only(settings).connections
    return {row["name"]: row["updated_by"] for row in kept_connections.list_all(metastore) if row["name"] not in own}


def _required(metastore: "Connection | None") -> "Connection":
    if metastore is None:
        raise ConfigError("the metastore cannot be used yet: `vitrina doctor` says why (`vitrina migrate` creates it)")
    return metastore


def _environment_only(settings: "Settings") -> "Settings":
    """Load the settings without stored connections, because services distinguish the two."""
    return local.load_settings(database_url=settings.database_url)


def _sealing_key(metastore: "Connection", settings: "Settings") -> bytes | None:
    """Return the key of this machine, if it has one, or None while a live runner's key can be used."""
    from vitrina.store import runners
    from vitrina.unsealing import Keyring

    alive = runners.list_sealing_keys(metastore, stale_after_seconds=settings.lease_ttl_seconds)
    if any(alive) or not settings.secret_keys:
        return None
    return Keyring(settings.secret_keys).public_keys[0]


def _read_url(name: str) -> str:
    """Read the URL from the terminal or standard input. Every user of the machine could read an argument."""
    if sys.stdin.isatty():
        return str(typer.prompt(f"URL of {name}", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
