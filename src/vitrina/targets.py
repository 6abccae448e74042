"""Where a pipeline may write: parsing a target's name and judging it against the operator's allow-list."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vitrina.errors import ForbiddenTarget
from vitrina.sentences import say

ES_TARGET_PREFIX = "es:"

# Lower-case identifiers only: the name reads the same in SQL with and without quotes, so nobody is surprised.
_TABLE = re.compile(r"(?P<schema>[a-z_][a-z0-9_]{0,62})\.(?P<table>[a-z_][a-z0-9_]{0,62})")
# What Elasticsearch and OpenSearch accept as an index name, minus the dot prefix of system indexes.
_INDEX = re.compile(r"[a-z0-9][a-z0-9_.\-]{0,126}")

# Never a mart, whatever the operator's patterns say.
_RESERVED_SCHEMAS = frozenset({"etl", "etl_stage", "pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True)
class PostgresTarget:
    """A table in a Postgres database."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class SearchTarget:
    """An index in Elasticsearch or OpenSearch."""

    index: str

    def __str__(self) -> str:
        return f"{ES_TARGET_PREFIX}{self.index}"


Target = PostgresTarget | SearchTarget


@dataclass(frozen=True)
class TargetPolicy:
    """The operator's allow-list: `analytics.*`, `analytics.film_dim`, `es:film_dim`, `es:films-*`."""

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "TargetPolicy":
        return cls(tuple(pattern.strip() for pattern in patterns if pattern.strip()))


def is_allowed_target(target: str, policy: TargetPolicy) -> bool:
    """The only judge of where a pipeline may write."""
    parsed = _parse(target)
    if parsed is None or (isinstance(parsed, PostgresTarget) and parsed.schema in _RESERVED_SCHEMAS):
        return False
    return any(_matches(target, pattern) for pattern in policy.patterns)


def parse_target(target: str, policy: TargetPolicy) -> Target:
    """The parsed target, or `ForbiddenTarget` with the reason and what is allowed."""
    parsed = _parse(target)
    if parsed is None:
        raise ForbiddenTarget(say("target.malformed", target=target, prefix=ES_TARGET_PREFIX))
    if not is_allowed_target(target, policy):
        raise ForbiddenTarget(say("target.forbidden", target=target, allowed=", ".join(policy.patterns) or "nothing"))
    return parsed


def _parse(target: str) -> Target | None:
    if target.startswith(ES_TARGET_PREFIX):
        index = target.removeprefix(ES_TARGET_PREFIX)
        return SearchTarget(index) if _INDEX.fullmatch(index) else None
    found = _TABLE.fullmatch(target)
    return PostgresTarget(found["schema"], found["table"]) if found else None


def _matches(target: str, pattern: str) -> bool:
    """`*` stands for any run of characters, but never crosses from the schema into the table."""
    expression = re.escape(pattern).replace(r"\*", "[^.:]*" if not pattern.startswith(ES_TARGET_PREFIX) else ".*")
    return re.fullmatch(expression, target) is not None
