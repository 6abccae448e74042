"""What the server itself says a query would read and call, held against the operator's allow-lists before it runs."""

from typing import Any

from psycopg.sql import Composed

from vitrina import explain
from vitrina.adapters.readers.sql import SqlReader
from vitrina.errors import SourceQueryFailed
from vitrina.settings import Settings
from vitrina.sqlguard import vocabulary

Plan = list[dict[str, Any]]


def admit(
    reader: SqlReader, statement: Composed, settings: Settings, what: str, *, max_cost: float | None = None
) -> Plan:
    """The plan of a statement that may run; `SourceQueryFailed` names what it must not read, call or cost."""
    plan = reader.explain(statement)
    _refuse_strangers(plan, settings, what)
    _refuse_effects(plan, reader, settings, what)
    _refuse_cost(plan, max_cost, what)
    return plan


def functions_of_unknown_effect(plan: Plan) -> set[str]:
    """What a plan calls beyond the functions known to compute and nothing else: such a query runs read-only."""
    found = explain.explain_functions_outside_catalog(plan) | (
        explain.explain_functions_of_catalog(plan) - vocabulary.FUNCTIONS
    )
    if explain.touches_rows(plan):
        found.add("FOR UPDATE")
    if explain.hides_expressions(plan):
        found.add("what EXPLAIN does not show (VALUES, LIMIT)")
    return found


def _refuse_strangers(plan: Plan, settings: Settings, what: str) -> None:
    """A view may lead where its text does not."""
    relations = explain.explain_relations(plan)
    strangers = sorted(f"{schema}.{table}" for schema, table in relations if schema not in settings.source_schemas)
    if strangers:
        raise SourceQueryFailed(
            f"{what} reads {strangers[0]}, outside the allowed schemas ({', '.join(sorted(settings.source_schemas))})"
        )


def _refuse_effects(plan: Plan, reader: SqlReader, settings: Settings, what: str) -> None:
    """Functions of the server that do more than compute: files, locks, settings, tables read by their name."""
    if explain.touches_rows(plan):
        raise SourceQueryFailed(f"{what} locks or changes rows: a pipeline only reads its source")
    known = vocabulary.FUNCTIONS | settings.extra_functions
    called = explain.explain_functions_of_catalog(plan) - known
    refused = (explain.explain_from_functions(plan) - known) | {name for name in called if "_to_xml" in name}
    refused |= reader.volatile_functions_of_catalog(called) if called else set()
    if refused:
        raise SourceQueryFailed(
            f"{what} calls {min(refused)}, a function of the server that does more than compute; leave it out, or have"
            " the operator add it to VITRINA_ALLOWED_FUNCTIONS"
        )


def _refuse_cost(plan: Plan, max_cost: float | None, what: str) -> None:
    cost = plan[0]["Plan"]["Total Cost"]
    if max_cost is not None and cost > max_cost:
        raise SourceQueryFailed(f"{what} costs {cost:.0f} by EXPLAIN, more than options.max_cost {max_cost:.0f}")
