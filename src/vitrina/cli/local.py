"""Provide settings to commands on this machine, with the embedded PostgreSQL if no database is configured."""

import base64
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrina.embedded.postgres import EmbeddedPostgres
    from vitrina.settings import Settings

HOME = Path(".vitrina")


def say(message: str) -> None:
    """Write to standard error: standard output is for data. A closed terminal must not prevent the clean-up."""
    with suppress(OSError):
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


def load_settings(**overrides: Any) -> "Settings":
    from vitrina import settings

    return settings.load(**overrides)


@contextmanager
def database(settings: "Settings", *, migrated: bool = True) -> Iterator["Settings"]:
    """Yield settings with a database: the configured one unchanged, or the embedded one of this directory."""
    if settings.database_url is not None:
        yield settings
        return
    with embedded(settings) as (_, found):
        if migrated:
            from vitrina.store import migrate

            migrate.migrate(found)
        yield found


@contextmanager
def embedded(settings: "Settings") -> Iterator[tuple["EmbeddedPostgres", "Settings"]]:
    """Start the embedded server of this directory, or share it with other commands there. It is not migrated."""
    from pydantic import SecretStr

    from vitrina.embedded.postgres import EmbeddedPostgres

    settings = opened_to_the_cinema(settings)
    server = EmbeddedPostgres(HOME, say=say)
    with server:
        urls = server.urls
        say(
            f"database: the embedded PostgreSQL of {HOME}/ on 127.0.0.1:{server.port} (VITRINA_DATABASE_URL is not set)"
        )
        logins = {
            "database_url": urls.app,
            "admin_url": urls.admin,
            "reader_url": urls.reader,
            "app_password": urls.app_password,
            "reader_password": urls.reader_password,
        }
        if settings.feed_url is None:
            logins["feed_url"] = urls.admin
        if settings.secret_key is None:
            logins["secret_key"] = _own_secret_key()
        yield server, settings.model_copy(update={name: SecretStr(value) for name, value in logins.items()})


def new_secret_key() -> str:
    """Generate a key as `openssl rand -base64 32` does."""
    return base64.b64encode(os.urandom(32)).decode()


def _own_secret_key() -> str:
    """Read the key of this directory's stored connections. It is generated once, and only its owner can read it."""
    path = HOME / "secret-key"
    if not path.exists():
        made = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_secret_key())
        with suppress(FileExistsError):  # another command was faster
            path.hardlink_to(made)
        made.unlink()
    return path.read_text().strip()


def key_environment(settings: "Settings") -> dict[str, str]:
    """Return the key that opens connections, as an environment for a runner only."""
    return {"VITRINA_SECRET_KEY": settings.secret_key.get_secret_value()} if settings.secret_key else {}


def opened_to_the_cinema(settings: "Settings") -> "Settings":
    """Allow queries to read the demo's schemas on the embedded server, unless the user has named other schemas."""
    from vitrina.embedded import cinema

    if "allowed_source_schemas" in settings.model_fields_set:
        return settings
    return settings.model_copy(
        update={"allowed_source_schemas": cinema.SCHEMAS}
    )  # generated accounts, not of real people


def database_environment(settings: "Settings") -> dict[str, str]:
    """Pass the database to a child process in variables: every user of the machine can read arguments."""
    names = ("database_url", "admin_url", "reader_url", "feed_url", "app_password", "reader_password")
    values = {f"VITRINA_{name.upper()}": getattr(settings, name) for name in names}
    return {variable: value.get_secret_value() for variable, value in values.items() if value is not None} | {
        "VITRINA_ALLOWED_SOURCE_SCHEMAS": settings.allowed_source_schemas
    }


def psql_command(server: "EmbeddedPostgres") -> str:
    """Build the command that opens the embedded database. The password is in a file, not on the screen."""
    from vitrina.embedded.cluster import DATABASE
    from vitrina.settings import APP_ROLE

    password_file = server.home / "pgpass"
    password_file.touch(mode=0o600)
    password_file.write_text(f"127.0.0.1:*:*:{APP_ROLE}:{server.urls.app_password}\n")
    program = "psql" if shutil.which("psql") else os.path.relpath(server.cluster.bindir / "psql")
    words = [program, "-h", "127.0.0.1", "-p", str(server.port), "-U", APP_ROLE, DATABASE]
    return f"PGPASSFILE={shlex.quote(os.path.relpath(password_file))} {shlex.join(words)}"
