"""Validate a pipeline's row again before a run, because the row may have been written with psql."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from vitrina import sqlguard, taskplan
from vitrina.definition import Definition, Unfit
from vitrina.errors import FatalError, InvalidQuery, SourceQueryFailed
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery, SqlPolicy
from vitrina.store import pipelines
from vitrina.store.leases import Claim


def definition_of(claim: Claim) -> Definition:
    """Read the definition from the claimed row. Raise an error with the reason when it is invalid."""
    try:
        return pipelines.definition_of(claim.row)
    except ValidationError as exc:
        problems = "; ".join(map(_problem, exc.errors(include_url=False)))
        raise FatalError(say("run.bad_row", problems=problems)) from exc


def _problem(found: Mapping[str, Any]) -> str:
    broken = found.get("ctx", {}).get("error")
    if isinstance(broken, Unfit):
        return f"{broken.field}: {broken}"
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def revalidate(definition: Definition, settings: Settings) -> CheckedQuery | None:
    """Check the definition again before the run, because it may have been written with psql."""
    taskplan.check(definition, settings.target_policy)
    return _judge_query(definition, settings)


def revalidate_reading(definition: Definition, settings: Settings) -> CheckedQuery | None:
    """Check the definition for a caller that only reads, whatever its target."""
    taskplan.check(definition, None)
    return _judge_query(definition, settings)


def _judge_query(definition: Definition, settings: Settings) -> CheckedQuery | None:
    if definition.python_source or not definition.reads_postgres:
        return None
    if definition.query is None:
        raise FatalError(say("run.no_query"))
    try:
        return _judged(definition.query, settings.sql_policy)
    except InvalidQuery as exc:
        raise SourceQueryFailed(exc.message) from exc


@lru_cache(maxsize=64)
def _judged(query: str, policy: SqlPolicy) -> CheckedQuery:
    """Check a text once: the result depends only on the text and the policy."""
    return sqlguard.check(query, policy)
