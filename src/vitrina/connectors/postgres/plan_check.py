"""Check what a query would read and call, according to the server, against the operator's allow-lists before it runs.

The catalog decides: where views, partitions and SQL functions may lead does not depend on the values of a run. The plan
of the statement with its actual bounds is checked as well, and gives the estimated cost.
"""

from dataclasses import dataclass
from typing import Any

from psycopg.sql import SQL, Composed

from vitrina import explain
from vitrina.connectors.postgres import operators
from vitrina.connectors.postgres.reach import Name, Reach, reach
from vitrina.connectors.postgres.source import Bounds, Explained, Query, SqlReader
from vitrina.errors import SourceQueryFailed
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.sqlguard import vocabulary

Plan = list[dict[str, Any]]
SOURCE_QUERY = say("run.the_query")


@dataclass(frozen=True)
class Admitted:
    """Represent a statement that may run: its plan, what the server opened for it, and everything it may call."""

    plan: Plan
    opened: frozenset[int]
    reach: Reach

    @property
    def functions_of_unknown_effect(self) -> set[str]:
        """Return the called functions that may do more than compute; a query with such functions runs read-only."""
        reached = {".".join(name) for name in self.reach.functions} | (
            self.reach.volatile_of_catalog - vocabulary.FUNCTIONS
        )
        return functions_of_unknown_effect(self.plan) | reached


def admit(
    reader: SqlReader,
    query: Query,
    settings: Settings,
    what: str = SOURCE_QUERY,
    *,
    statement: Composed | None = None,
    max_cost: float | None = None,
    own: frozenset[Name] = frozenset(),
    explained: Explained | None = None,
    known: Admitted | None = None,
) -> Admitted:
    """Explain a query, or a statement built from it, and check it.

    Raise `SourceQueryFailed` that names what it must not read or call, or its cost. `own`: relations that the run
    itself shows to the query. `explained`: its plan, if the caller has it. `known`: the same query with other bounds,
    as it was admitted.
    """
    found = explained or reader.explain(statement or query.select([SQL("q.*")], Bounds()))
    functions = _functions(query, found.plan)
    is_fixed = reader.connection.info.server_version >= _TABLES_STAY_TABLES
    if known and is_fixed and _reaches_no_more(known, found, functions):
        reached = known.reach
    else:
        reached = reach(
            reader.connection,
            opened=found.opened,
            tables=query.judged.tables,
            functions=functions,
            trusted_extensions=settings.extensions,
        )
    _refuse_strangers(found.plan, reached, settings, what, own)
    _refuse_effects(found.plan, reached, reader, settings, what)
    if reached.has_foreign_types:
        operators.refuse_hidden(reader.connection, query.judged.text, found.plan, reached.relations)
    _refuse_cost(found.plan, max_cost, what)
    admitted = Admitted(found.plan, found.opened, reached)
    # A reset may not remove what such functions leave in a session, so other runs do not reuse it.
    reader.ends_with_run = reader.ends_with_run or bool(admitted.functions_of_unknown_effect)
    return admitted


# Before it, a rule turns an empty table into a view of the same oid.
_TABLES_STAY_TABLES = 160_000


def _reaches_no_more(known: Admitted, found: Explained, functions: set[Name]) -> bool:
    """Return whether a query can reach only what it could when it was admitted, so that the catalog need not be asked.

    A table leads nowhere. A view or function of the same oid may have been replaced since, and another table of the
    same name, a new partition or what a new rule reads has an oid that was not opened before.
    """
    return known.reach.is_plain and not functions and found.opened <= known.opened


def functions_of_unknown_effect(plan: Plan) -> set[str]:
    """Find the functions of unknown effect that the plan shows."""
    found = explain.explain_functions_outside_catalog(plan) | (
        explain.explain_functions_of_catalog(plan) - vocabulary.FUNCTIONS
    )
    if explain.touches_rows(plan):
        found.add("FOR UPDATE")
    if explain.hides_expressions(plan):
        found.add("what EXPLAIN does not show (VALUES, LIMIT)")
    return found


def _functions(query: Query, plan: Plan) -> set[Name]:
    """Collect functions with a schema, as the guard found them in the text and as the plan names them."""
    called = query.judged.functions | {
        name.replace('"', "") for name in explain.explain_functions_outside_catalog(plan)
    }
    pairs = (name.partition(".") for name in called if name.count(".") == 1)
    return {(schema, name) for schema, _, name in pairs}


def _refuse_strangers(plan: Plan, reached: Reach, settings: Settings, what: str, own: frozenset[Name]) -> None:
    """Refuse relations outside the allowed schemas; a view may lead where the query's text does not."""
    strangers = sorted(
        name
        for name in (explain.explain_relations(plan) | reached.relations) - own
        if not settings.may_be_reached(*name)
    )
    if strangers:
        raise SourceQueryFailed(
            say(
                "run.query_reads",
                what=what,
                name=".".join(strangers[0]),
                way=reached.way_to(strangers[0]),
                schemas=sorted(settings.source_schemas),
                remedy=_remedy(strangers[0]),
            )
        )


def _remedy(name: Name) -> str:
    if Settings.is_never_reached(name[0]):
        return say("run.never_reached")
    return say("run.allow_relation", name=".".join(name))


def _refuse_effects(plan: Plan, reached: Reach, reader: SqlReader, settings: Settings, what: str) -> None:
    """Refuse server functions that do more than compute: those for files, locks, settings, or tables given by name."""
    if explain.touches_rows(plan):
        raise SourceQueryFailed(say("run.query_changes", what=what))
    known = vocabulary.FUNCTIONS | settings.extra_functions
    called = explain.explain_functions_of_catalog(plan) - known
    refused = (explain.explain_from_functions(plan) - known) | {name for name in called if "_to_xml" in name}
    refused |= reader.volatile_functions_of_catalog(called) if called else set()
    refused |= reached.volatile_of_catalog - known
    if refused:
        name = min(refused)
        raise SourceQueryFailed(say("run.query_calls", what=what, name=name, way=reached.way_to(("pg_catalog", name))))


def _refuse_cost(plan: Plan, max_cost: float | None, what: str) -> None:
    cost = plan[0]["Plan"]["Total Cost"]
    if max_cost is not None and cost > max_cost:
        raise SourceQueryFailed(say("run.too_costly", what=what, cost=cost, most=max_cost))
