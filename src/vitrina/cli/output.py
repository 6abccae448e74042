"""Print results on standard output: tables for people, JSON or YAML for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to print the result.")]


@dataclass(frozen=True)
class Column:
    """Represent one column of a table: its title, and how to get its value from an item."""

    title: str
    value: Callable[[Any], object]
    # If the terminal is too narrow, the highest number is dropped first; 0 always stays.
    leaves: int = 0
    # Values that users type again are never truncated.
    is_name: bool = False


STATUS_STYLES = {
    "IDLE": "green",
    "SUCCESS": "green",
    "OK": "green",
    "RUNNING": "cyan",
    "RUN_REQUESTED": "cyan",
    "PAUSED": "yellow",
    "PAUSE_REQUESTED": "yellow",
    "CANCELLED": "yellow",
    "WARNING": "yellow",
    "FAILED": "bold red",
    "PROBLEM": "bold red",
}


def show_list(items: Sequence[Any], columns: Sequence[Column], output: Format, *, empty: str) -> None:
    """Show items as rows; when there are none, print `empty` to standard error."""
    if output is not Format.TABLE:
        show_data(items, output)
    elif items:
        show_columns(items, columns)
    else:
        sys.stderr.write(f"{empty}\n")


def show_one(item: Any, fields: Mapping[str, object], output: Format) -> None:
    """Show one thing as `field  value` lines; fields without a value are left out."""
    if output is not Format.TABLE:
        show_data(item, output)
        return
    shown = {name: clean(text(value)) for name, value in fields.items() if value not in (None, "", [], {})}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        first, *rest = value.splitlines() or [""]
        print(f"{name:<{width}}  {first}")
        for line in rest:
            print(f"{'':<{width}}  {line}")


def show_data(data: Any, output: Format) -> None:
    plain = as_plain(data)
    if output is Format.YAML:
        import yaml

        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
    else:
        print(json.dumps(plain, indent=2, ensure_ascii=False, default=str))


def show_columns(items: Sequence[Any], columns: Sequence[Column], *, title: str | None = None) -> None:
    """Show items as rows. A narrow terminal gets the most important columns, with names untruncated."""
    if sys.stdout.isatty():
        columns = fitting(items, columns, console(sys.stdout).width)
    rows = [[column.value(item) for column in columns] for item in items]
    show_table(rows, [c.title for c in columns], title=title, names=[c.is_name for c in columns])


def fitting(items: Sequence[Any], columns: Sequence[Column], room: int) -> list[Column]:
    """Choose the columns that fit when texts that are not names are cut to a few characters."""
    kept = list(columns)
    while sum(_least(items, column) + _GAP + 1 for column in kept) > room:
        leaving = max(kept, key=lambda column: column.leaves)
        if not leaving.leaves:
            break
        kept.remove(leaving)
    return kept


def _least(items: Sequence[Any], column: Column) -> int:
    values = [column.value(item) for item in items]
    longest = max([len(column.title), *(len(_one_line(value)) for value in values)])
    is_whole = column.is_name or all(value is None or _is_number(value) for value in values)
    return longest if is_whole else min(longest, max(len(column.title), _SHORTEST))


def show_table(
    rows: Sequence[Sequence[object]],
    titles: Sequence[str],
    *,
    title: str | None = None,
    are_data: bool = False,
    names: Sequence[bool] = (),
) -> None:
    """Show a table, with the columns `names` kept whole.

    With `are_data`, numbers are values of rows, such as years, and not counts.
    """
    titles = [_one_line(name) for name in titles]
    if are_data:
        rows = [[_as_data(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw_table(rows, titles, title, names or [False] * len(titles))
    else:
        _print_table(rows, titles, title)


@dataclass(frozen=True)
class _Number:
    """Represent a number that is shown unformatted, but right-aligned."""

    shown: str

    def __str__(self) -> str:
        return self.shown


def _as_data(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return _Number(str(value) if isinstance(value, int) else f"{value:.12g}")


def as_plain(data: Any) -> Any:
    """Convert answers of the API to what JSON can hold."""
    if isinstance(data, Mapping):
        return {key: as_plain(value) for key, value in data.items()}
    if hasattr(data, "model_dump"):
        return data.model_dump(mode="json")
    if isinstance(data, str):
        return str(data)  # YAML has no subclasses of str
    if not isinstance(data, Iterable):
        return data
    return [as_plain(item) for item in data]


def text(value: object) -> str:
    """Format a value for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.12g}"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        case list() | tuple():
            return ", ".join(map(text, value))
        case dict():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def clean(shown: str) -> str:
    """Replace control characters but keep lines: data must not control the user's terminal."""
    return "".join(letter if _is_harmless(letter) else "\ufffd" for letter in shown.replace("\r\n", "\n"))


def _is_harmless(letter: str) -> bool:
    # Other spaces, such as the ideographic one, are not printable by name but only take room.
    return letter.isprintable() or letter in "\n\t" or (letter >= "\xa0" and letter.isspace())


def duration(seconds: float | None) -> str:
    """Format `0.42 s`, `75 s`, `12 min`, `30 h`, `2.1 d`: two significant digits."""
    if seconds is None:
        return "-"
    for limit, unit, size, digits in ((10, "s", 1, 2), (120, "s", 1, 0), (7200, "min", 60, 0), (172_800, "h", 3600, 0)):
        if seconds < limit:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def ago(moment: datetime) -> str:
    return f"{duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def console(stream: IO[str] | None = None) -> "Console":
    """Make rich's console, which honours NO_COLOR by itself. `stream` is standard error unless given."""
    from rich.console import Console

    return Console(file=stream or sys.stderr, highlight=False)


def styled(value: object) -> "Text":
    """Make a cell of a drawn table, with statuses in their colour."""
    from rich.text import Text

    shown = _one_line(value)
    return Text(shown, style=STATUS_STYLES.get(shown, ""))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal | _Number) and not isinstance(value, bool)


def _print_table(rows: Sequence[Sequence[object]], titles: Sequence[str], title: str | None) -> None:
    """Print aligned columns with whole values and nothing drawn, for files and pipes."""
    lines = [[_one_line(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    numeric = _numeric_columns(rows, len(titles))
    if title:
        print(title)
    for line in ([name.upper() for name in titles], *lines):
        cells = zip(line, widths, numeric, strict=True)
        print("  ".join(f"{cell:>{width}}" if right else f"{cell:<{width}}" for cell, width, right in cells).rstrip())


def _draw_table(
    rows: Sequence[Sequence[object]], titles: Sequence[str], title: str | None, names: Sequence[bool]
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console(sys.stdout)
    lines = [[styled(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    if title:
        screen.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP, 0, 0), pad_edge=False)
    numeric = _numeric_columns(rows, len(titles))
    whole = [is_name or right for is_name, right in zip(names, numeric, strict=True)]
    fitted = fit(widths, screen.width - (_GAP + 1) * len(titles), whole)
    for name, right, width, is_name in zip(titles, numeric, fitted, names, strict=True):
        # A name longer than the terminal wraps to the next line, so that it can still be read.
        overflow: Literal["fold", "ellipsis"] = "fold" if is_name else "ellipsis"
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=justify, width=width, overflow=overflow, no_wrap=not is_name)
    for line in lines:
        table.add_row(*line)
    screen.print(table)


_GAP = 1
# Fewest characters of a truncated text that are still useful.
_SHORTEST = 10


def fit(widths: Sequence[int], room: int, whole: Sequence[bool] = ()) -> list[int]:
    """Reduce widths until they fit: the widest columns first, those that should stay whole last."""
    fitted = list(widths)
    for kept, least in ((whole, _SHORTEST), ((), 1)):
        while sum(fitted) > room:
            width, place = max((w if not any(kept[i : i + 1]) else 0, -i) for i, w in enumerate(fitted))
            if width <= least:
                break
            fitted[-place] -= 1
    return fitted


def _numeric_columns(rows: Sequence[Sequence[object]], count: int) -> list[bool]:
    columns = [[row[index] for row in rows if row[index] is not None] for index in range(count)]
    return [bool(column) and all(map(_is_number, column)) for column in columns]


def _one_line(value: object) -> str:
    """Remove line breaks and control characters."""
    return clean(" ".join(text(value).split()))
