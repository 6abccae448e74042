"""`vitrina new`: write the definition of a pipeline that copies a table, with the reasons for its settings."""

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import local, opened
from vitrina.cli.files import STDIN
from vitrina.errors import ConfigError

if TYPE_CHECKING:
    from vitrina.services.suggestions import Preferences, Suggestion
    from vitrina.settings import Settings

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')

Key = Annotated[list[str] | None, typer.Option("--key", help="A column of the key; may be repeated.")]
Cursor = Annotated[str | None, typer.Option(help="The column that shows which rows are new.")]
Mode = Annotated[str | None, typer.Option(help="full, incremental or live.")]
Schedule = Annotated[str | None, typer.Option(help="How often: 5m, 1h, PT15M, cron.")]


def new(
    source: Annotated[str, typer.Option("--from", metavar="TABLE", help="[CONNECTION.]SCHEMA.TABLE to copy.")],
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="TARGET", help="Target, such as analytics.orders. [default: as --from]"),
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline. [default: that of the target]")] = None,
    key: Key = None,
    cursor: Cursor = None,
    mode: Mode = None,
    schedule: Schedule = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="PATH", help="File to write. [default: NAME.yaml; -: standard output]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Write the definition of a pipeline that copies a table.

    Key, cursor, mode and guarantee follow from the primary key, indexes, triggers and names of columns; the reasons
    are in the file. Nothing is created before `vitrina apply -f FILE`.
    """
    from vitrina.services.suggestions import Preferences

    check_mode(mode)
    preferences = Preferences(name, tuple(key or ()), cursor, mode, schedule)
    settings = local.load_settings()
    with local.database(settings) as found:
        made = propose(found, source, target, preferences)
    _write(made, file, force)


def check_mode(mode: str | None) -> None:
    if mode not in (None, "full", "incremental", "live"):
        raise typer.BadParameter(f"{mode!r} is neither full nor incremental nor live", param_hint="--mode")


def propose(settings: "Settings", source: str, target: str | None, preferences: "Preferences") -> "Suggestion":
    """Suggest the pipeline that copies the table, accepted by this installation's rules."""
    from vitrina.services import suggestions
    from vitrina.store import database

    connection, schema, table = parse_source(source)
    settings = opened.for_name(settings, connection)
    url = database.reader_url(settings, connection)
    with (
        database.connect(url, "vitrina:new", connect_timeout_seconds=settings.connect_timeout_seconds) as session,
        database.translated(f"looking at {source}"),
    ):
        return suggestions.propose(session, settings, (connection, schema, table), target, preferences)


def parse_source(text: str) -> tuple[str, str, str]:
    """Parse `[connection.]schema.table`; a part with a dot is in double quotes."""
    parts = [quoted.replace('""', '"') or plain for quoted, plain in _PART.findall(text)]
    if len(parts) not in (2, 3) or _PART.sub("", text) != "." * (len(parts) - 1):
        raise ConfigError(f'{text!r} is not a table: write SCHEMA.TABLE or CONNECTION.SCHEMA.TABLE, parts as "a.b"')
    from vitrina.settings import DEFAULT_CONNECTION

    connection, schema, table = parts if len(parts) == 3 else (DEFAULT_CONNECTION, *parts)
    return connection.lower(), schema, table


def told(made: "Suggestion") -> list[str]:
    """Explain the suggestion, one reason a line."""
    every = made.definition["schedule_interval"]
    return [*made.reasons, *([f"every {every}: schedule_interval"] if every else [])]


def _write(made: "Suggestion", file: str | None, force: bool) -> None:
    from vitrina.services import manifest_files

    comment = "".join(
        f"{line}\n"
        for reason in made.reasons
        for line in textwrap.wrap(reason, 110, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False)
    )
    text = comment + manifest_files.write([made.document])
    if file == STDIN:
        print(text, end="")
        return
    path = Path(file or f"{made.definition['name']}.yaml")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists: --force replaces it, -f names another file") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc
    for reason in told(made):
        local.say(f"  {reason}")
    print(path)
    local.say(f"create it with `vitrina apply -f {path}`")
