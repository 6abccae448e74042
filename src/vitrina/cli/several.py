"""Run one command on several pipelines, selected by name, by label, or both."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from vitrina.cli import exits, local, remote
from vitrina.cli.output import Column, Format, clean, show_data, show_list
from vitrina.errors import NotFound, VitrinaError

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import Accepted

T = TypeVar("T")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Names or ids of pipelines.",
        autocompletion=remote.complete_pipeline,
        show_default=False,
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", "-l", metavar="KEY=VALUE", help="Also pipelines with this label; if repeated, with all of them."
    ),
]

ACCEPTED_COLUMNS = [
    Column("pipeline", lambda accepted: accepted.pipeline, is_name=True),
    Column("status", lambda accepted: accepted.status),
    Column("next", lambda accepted: accepted.message),
]


def chosen(client: "Client", names: Sequence[str] | None, labels: Sequence[str] | None) -> list[str]:
    """List names as they were given, then those that have every label."""
    if not names and not labels:
        raise typer.BadParameter("name a pipeline, or a label with -l", param_hint="NAME")
    wanted = dict(_pair(label) for label in labels or ())
    found = [p.name for p in client.list_pipelines() if wanted.items() <= p.labels.items()] if wanted else []
    if wanted and not found:
        raise NotFound(f"no pipeline has the label {', '.join(labels or ())}; labels are set in files: metadata.labels")
    return list(dict.fromkeys([*(names or ()), *found]))


def _pair(label: str) -> tuple[str, str]:
    key, equals, value = label.partition("=")
    if not key or not equals:
        raise typer.BadParameter(f"{label!r} is not KEY=VALUE", param_hint="--label")
    return key, value


class Attempts:
    """Try each pipeline. A single one fails with its own error; with several, each failure is reported in a line."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._first: VitrinaError | None = None

    def of(self, verb: Callable[[str], T]) -> list[T]:
        return [done for name in self.names for done in self._try(verb, name)]

    def _try(self, verb: Callable[[str], T], name: str) -> list[T]:
        try:
            return [verb(name)]
        except VitrinaError as exc:
            if len(self.names) == 1:
                raise
            local.say(clean(f"error: {name}: {exc.message}"))
            self._first = self._first or exc
            return []

    def end(self) -> None:
        """End with the exit code of the first that failed, once all were tried."""
        if self._first is not None:
            raise typer.Exit(exits.code_of(self._first))


def show(
    accepted: "Sequence[Accepted]", names: Sequence[str], output: Format, show_one: "Callable[[Accepted, Format], None]"
) -> None:
    """Show one result in full, several as a list."""
    if len(names) == 1:
        show_one(accepted[0], output)
    elif output is not Format.TABLE:
        show_data(accepted, output)
    elif accepted:
        show_list(accepted, ACCEPTED_COLUMNS, output, empty="")


def ask(
    names: Sequence[str] | None,
    labels: Sequence[str] | None,
    verb: "Callable[[Client, str], Accepted]",
    output: Format,
    show_one: "Callable[[Accepted, Format], None]",
) -> None:
    """Send the same request for each of them."""
    with remote.api() as client:
        attempts = Attempts(chosen(client, names, labels))
        accepted = attempts.of(lambda name: verb(client, name))
    show(accepted, attempts.names, output, show_one)
    attempts.end()
