"""Find the installed connectors: every package with an entry point in the group `vitrina.connectors`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

from vitrina.errors import ConfigError
from vitrina.ports.connector import Connector

if TYPE_CHECKING:
    from importlib import metadata

    from vitrina.ports.live import Feeds

GROUP = "vitrina.connectors"
OWN_PACKAGE = "vitrina"
POSTGRES, SEARCH, PYTHON = "postgres", "search", "python"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.\-]{0,30}")
# These have another meaning: a Python source, a web address, a file of the machine.
_RESERVED = frozenset({"python", "http", "https", "file", "default"})


class EntryPoint(Protocol):
    """Define the part of `importlib.metadata.EntryPoint` that is used here."""

    @property
    def name(self) -> str: ...
    @property
    def dist(self) -> "metadata.Distribution | None": ...
    def load(self) -> object: ...


@dataclass(frozen=True)
class Refused:
    """Describe a connector that is not used, and why."""

    entry: str
    package: str
    reason: str

    def __str__(self) -> str:
        return f"the connector {self.entry!r} of the package {self.package} is left out: {self.reason}"


@dataclass(frozen=True)
class Installed:
    """Hold the connectors by name, and those that are not used."""

    connectors: dict[str, Connector]
    refused: tuple[Refused, ...] = ()

    def of_prefix(self, prefix: str) -> Connector | None:
        return next((found for found in self.connectors.values() if found.prefix == prefix), None)

    def of_scheme(self, scheme: str) -> Connector | None:
        return next((found for found in self.connectors.values() if scheme in found.schemes), None)


def get(name: str) -> Connector:
    """Return the installed connector of that name. Raise `ConfigError` with the installed ones if there is none."""
    found = installed().connectors.get(name)
    if found is None:
        left_out = next((f"; {refused}" for refused in installed().refused if refused.entry == name), "")
        known = ", ".join(sorted(installed().connectors)) or "none"
        raise ConfigError(f"no connector {name!r} is installed here (installed: {known}){left_out}")
    return found


def feeds() -> "Feeds":
    """Return the feeds of the PostgreSQL connector, which follow the logs of source databases."""
    found = get(POSTGRES).feeds
    if found is None:
        raise ConfigError("the connector for PostgreSQL follows no log")
    opened: Feeds = found()
    return opened


def of_url(url: str) -> Connector | None:
    """Return the connector that opens this URL. A URL without a scheme is libpq's `name=value` form."""
    scheme, separator, _ = url.partition("://")
    return installed().of_scheme(scheme.lower()) if separator else installed().connectors.get(POSTGRES)


def scheme_of(url: str) -> str:
    """Return the text before `://`, the only part of a URL that cannot hold a secret."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and _SCHEME.fullmatch(scheme.lower()) else "postgresql"


@cache
def installed() -> Installed:
    """Find the connectors once per process. A connector that cannot be used is left out, with the reason."""
    from importlib import metadata  # slow to import, and most commands parse no target

    return collect(metadata.entry_points(group=GROUP))


def collect(entries: Iterable[EntryPoint]) -> Installed:
    """Load the entry points, Vitrina's own first, so that no other package can take its names."""
    taken: dict[str, Connector] = {}
    refused: list[Refused] = []
    for entry in sorted(entries, key=lambda each: (_package(each) != OWN_PACKAGE, each.name, _package(each))):
        try:
            found = _load(entry)
            problem = next(_problems(found, taken, own=_package(entry) == OWN_PACKAGE), None)
        except Exception as exc:  # noqa: BLE001 - a third-party package must not end this process
            refused.append(Refused(entry.name, _package(entry), f"{type(exc).__name__}: {exc}"[:500]))
            continue
        if problem:
            refused.append(Refused(entry.name, _package(entry), problem))
        else:
            taken[found.name] = found
    return Installed(taken, tuple(refused))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def _load(entry: EntryPoint) -> Connector:
    found = entry.load()
    if not isinstance(found, Connector):
        raise TypeError(f"its entry point is {type(found).__name__}, not a vitrina.ports.connector.Connector")
    return replace(found, package=_package(entry), version=entry.dist.version if entry.dist else "")


def _problems(found: Connector, taken: dict[str, Connector], *, own: bool) -> Iterator[str]:
    yield from _wrong_names(found, own=own)
    yield from _taken_names(found, taken)
    if not found.is_source and not found.is_target and not found.is_engine:
        yield "it opens neither a source nor a target nor an engine"
    if found.is_target and found.prefix is None and not own:
        yield "it opens targets but names no prefix for them"
    re.compile(found.target_name)
    _ = found.options_schema  # raises where a field has no JSON Schema


def _wrong_names(found: Connector, *, own: bool) -> Iterator[str]:
    for what, name, pattern in (
        ("name", found.name, _NAME),
        *(("scheme", scheme, _SCHEME) for scheme in found.schemes),
        *(("prefix", prefix, _NAME) for prefix in (found.prefix,) if prefix is not None),
    ):
        if not pattern.fullmatch(name):
            yield f"its {what} {name!r} is not lower-case letters, digits and underscores that begin with a letter"
        if name in _RESERVED and not own:
            yield f"its {what} {name!r} is reserved"


def _taken_names(found: Connector, taken: dict[str, Connector]) -> Iterator[str]:
    for other in taken.values():
        if found.name == other.name:
            yield f"its name {found.name!r} is that of a connector of the package {other.package}"
        if found.prefix is not None and found.prefix == other.prefix:
            yield f"its prefix {found.prefix!r} belongs to the connector {other.name!r}"
        for scheme in found.schemes:
            if scheme in other.schemes:
                yield f"its scheme {scheme!r} belongs to the connector {other.name!r}"
