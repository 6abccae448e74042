"""Parse names of targets and check them against the operator's allow-list."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vitrina.errors import ForbiddenTarget
from vitrina.ports import registry
from vitrina.sentences import say

ES_TARGET_PREFIX = "es:"

# Lower-case identifiers only, which mean the same in SQL with and without quotes.
_TABLE = re.compile(r"(?P<schema>[a-z_][a-z0-9_]{0,62})\.(?P<table>[a-z_][a-z0-9_]{0,62})")

# Never a mart, whatever patterns the operator sets.
_RESERVED_SCHEMAS = frozenset({"etl", "etl_stage", "pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True)
class PostgresTarget:
    """Represent a table in a Postgres database."""

    schema: str
    table: str

    @property
    def connector(self) -> str:
        return registry.POSTGRES

    @property
    def name(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class SearchTarget:
    """Represent an index in Elasticsearch or OpenSearch."""

    index: str

    @property
    def connector(self) -> str:
        return registry.SEARCH

    @property
    def name(self) -> str:
        """Return what follows the prefix."""
        return self.index

    def __str__(self) -> str:
        return f"{ES_TARGET_PREFIX}{self.index}"


@dataclass(frozen=True)
class ConnectorTarget:
    """Represent a target of an installed connector: `<prefix>:<name>`. The connector interprets the name."""

    connector: str
    prefix: str
    name: str

    def __str__(self) -> str:
        return f"{self.prefix}:{self.name}"


Target = PostgresTarget | SearchTarget | ConnectorTarget


@dataclass(frozen=True)
class TargetPolicy:
    """Hold the operator's allow-list: `analytics.*`, `analytics.film_dim`, `es:films-*`, `parquet:marts/*`."""

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "TargetPolicy":
        return cls(tuple(pattern.strip() for pattern in patterns if pattern.strip()))


def is_allowed_target(target: str, policy: TargetPolicy) -> bool:
    """Decide whether a pipeline may write there. No other function decides it."""
    parsed = _parse(target)
    if parsed is None or (isinstance(parsed, PostgresTarget) and parsed.schema in _RESERVED_SCHEMAS):
        return False
    return any(_matches(target, pattern) for pattern in policy.patterns)


def parse_target(target: str, policy: TargetPolicy) -> Target:
    """Parse the target. Raise `ForbiddenTarget` with the reason and what is allowed."""
    parsed = _parse(target)
    if parsed is None:
        raise ForbiddenTarget(_malformed(target))
    if not is_allowed_target(target, policy):
        raise ForbiddenTarget(say("target.forbidden", target=target, allowed=", ".join(policy.patterns) or "nothing"))
    return parsed


def connector_of(target: str) -> str | None:
    """Return the name of the connector that a target's name belongs to, whether it is allowed or not."""
    parsed = _parse(target)
    return parsed.connector if parsed else None


def _parse(target: str) -> Target | None:
    prefix, colon, name = target.partition(":")
    if not colon:
        found = _TABLE.fullmatch(target)
        return PostgresTarget(found["schema"], found["table"]) if found else None
    connector = registry.installed().of_prefix(prefix)
    if connector is None or not connector.is_target or not connector.accepts_target(name):
        return None
    return SearchTarget(name) if connector.name == registry.SEARCH else ConnectorTarget(connector.name, prefix, name)


def _malformed(target: str) -> str:
    """Return what to write instead; the most likely mistake is a prefix that no connector has."""
    prefix, colon, _ = target.partition(":")
    known = sorted(found.prefix for found in registry.installed().connectors.values() if found.prefix)
    if colon and prefix not in known:
        return say(
            "target.unknown_prefix",
            target=target,
            prefix=ES_TARGET_PREFIX,
            given=prefix[:40],
            known=", ".join(known),
        )
    return say("target.malformed", target=target, prefix=ES_TARGET_PREFIX)


def _matches(target: str, pattern: str) -> bool:
    """Match a pattern in which `*` is any run of characters, but never crosses from the schema into the table."""
    expression = re.escape(pattern).replace(r"\*", ".*" if ":" in pattern.partition("*")[0] else "[^.:]*")
    return re.fullmatch(expression, target) is not None
