"""`vitrina tokens`: manage API tokens, directly in the database, so that the first token needs no API."""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import local
from vitrina.cli.output import Column, Format, Output, show_data, show_list

if TYPE_CHECKING:
    from vitrina.services.callers import Caller
    from vitrina.store.database import Connection

group = typer.Typer(
    help="Create, list and revoke API tokens, in the database.", no_args_is_help=True, rich_markup_mode=None
)


class RoleName(StrEnum):
    """Mirror the roles of `vitrina.services.callers`, which is too slow to import for a help page."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


COLUMNS = [
    Column("name", lambda token: token.name),
    Column("role", lambda token: token.role),
    Column("created", lambda token: token.created_at),
    Column("expires", lambda token: token.expires_at),
    Column("last used", lambda token: token.last_used_at),
    Column("revoked", lambda token: token.revoked_at),
]

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="User or program that the token is for.")]


@group.command()
def create(
    name: TokenName,
    role: Annotated[RoleName, typer.Option(help="Role of the token; each role includes the ones before it.")],
    expires_in_days: Annotated[int | None, typer.Option(help="Days until it expires. [default: never]")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a token and print it. It is shown only once."""
    from vitrina import schemas
    from vitrina.services import tokens
    from vitrina.services.callers import Role

    with _metastore() as connection:
        row, secret = tokens.create(connection, caller(), name=name, role=Role(role), expires_in_days=expires_in_days)
    if output is Format.TABLE:
        # Nothing else on standard output: TOKEN=$(vitrina tokens create ci --role operator)
        print(secret)
        local.say(f"token {name} ({role}): put it into VITRINA_TOKEN now, it cannot be shown again")
    else:
        show_data(schemas.NewToken(**_public(row), token=secret), output)


@group.command(name="list")
def list_tokens(output: Output = Format.TABLE) -> None:
    """Show all tokens, without their secrets."""
    from vitrina import schemas
    from vitrina.store import tokens

    with _metastore() as connection:
        found = [schemas.Token(**_public(row)) for row in tokens.list_all(connection)]
    show_list(found, COLUMNS, output, empty="no tokens: create one with `vitrina tokens create NAME --role admin`")


@group.command()
def revoke(name: TokenName) -> None:
    """Revoke a token, effective at once."""
    from vitrina.services import tokens

    with _metastore() as connection:
        tokens.revoke(connection, caller(), name)
    local.say(f"token {name} is revoked")


@contextmanager
def _metastore() -> Iterator["Connection"]:
    from vitrina.store import database, migrate

    with (
        local.database(local.load_settings()) as settings,
        database.connect(settings.require_database_url(), "vitrina:tokens") as connection,
        database.translated("working on the metastore"),
    ):
        migrate.require_current(connection)
        yield connection


def caller() -> "Caller":
    """Return the shell's user as an admin: with this database login, they may do everything there anyway."""
    from vitrina.services.callers import Caller, Role

    return Caller(f"shell:{getpass.getuser()}", Role.ADMIN)


def _public(row: dict[str, Any]) -> dict[str, Any]:
    from vitrina import schemas

    return {name: row[name] for name in schemas.Token.model_fields}
