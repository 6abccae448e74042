"""The corpus: queries that must be refused, each with the construct at fault, and queries that must run."""

from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = Path(__file__).parent
_SEPARATOR = "--## "


@dataclass(frozen=True)
class Query:
    title: str  # hostile: the construct that is refused; legitimate: what the query shows
    sql: str


def hostile() -> list[Query]:
    return _read("hostile.sql")


def legitimate() -> list[Query]:
    """Of every construct that is accepted, and of the kind that analysts write."""
    return _read("legitimate.sql") + _read("analysts.sql")


def followed() -> list[Query]:
    """Over several tables, of which live mode has to know what a change means for them."""
    return _read("followed.sql")


def schema() -> str:
    """Small tables `content.*` and `ugc.*` for the legitimate queries, and others that no query may touch."""
    return (_DIRECTORY / "schema.sql").read_text(encoding="utf-8")


def _read(name: str) -> list[Query]:
    text = (_DIRECTORY / name).read_text(encoding="utf-8")
    before, *entries = ("\n" + text).split("\n" + _SEPARATOR)
    if before.strip():
        raise ValueError(f"{name} has text before the first {_SEPARATOR.strip()} line")
    return [Query(*entry.split("\n", 1)) for entry in entries]
