"""Words of commands are taken as typer takes them, without what it loads for that."""

from typing import Annotated, Any

import pytest
import typer

from vitrina.cli import words
from vitrina.cli.output import Format


def parsed(line: str, *, plainly: bool) -> object:
    """Return what a command is called with, or what is said about its words."""
    seen: list[Any] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def command(  # noqa: PLR0917
        name: Annotated[str | None, typer.Argument()] = None,
        output: Annotated[Format, typer.Option("-o")] = Format.TABLE,
        status: Annotated[list[str] | None, typer.Option()] = None,
        limit: Annotated[int, typer.Option("-n", min=1)] = 20,
        timeout: Annotated[float | None, typer.Option()] = None,
        enabled: Annotated[bool | None, typer.Option("--enabled/--disabled")] = None,
        key: Annotated[str, typer.Option(parser=str.upper)] = "k",
    ) -> None:
        seen.append([(type(value), value) for value in (name, output, status, limit, timeout, enabled, key)])

    made = typer.main.get_command(app)
    if plainly:
        words.take_plainly(made)
    try:
        made(line.split(), prog_name="vitrina", standalone_mode=False)
    except Exception as refused:  # noqa: BLE001
        return type(refused), str(refused)
    return seen


LINES = [
    "", "films -o json", "-o JSON", "-o xml", "-o table --status A --status B", "-n 5", "-n 0", "-n five",
    "--timeout 2", "--timeout x", "--enabled", "--disabled films", "--key abc", "--nothing", "films ratings", "фильмы",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_words_mean_what_typer_takes_them_for(line: str) -> None:
    assert parsed(line, plainly=True) == parsed(line, plainly=False)
