"""Estimate the cost of a changed row: how many keys it affects, and whether indexes find them.

Both come from the planner, whose statistics may be outdated; no rows are read.
"""

import re
from collections.abc import Mapping
from typing import Any

from psycopg.sql import SQL, Composed

from vitrina.connectors.postgres.derive.images import parameter
from vitrina.connectors.postgres.derive.statements import Estimate, Statement
from vitrina.connectors.postgres.keyed import SHOW_SCANS, Sizes, is_scan, nodes
from vitrina.connectors.postgres.source import SqlReader
from vitrina.store import database


def estimate(reader: SqlReader, statement: Statement, relation: str) -> Estimate:
    """Ask the planner how many keys the look-ups for changed rows of one table return."""
    if not statement.reads:  # the key is in the row
        return Estimate(1)
    text = Composed([SQL(statement.text % _images(statement, relation))])
    keys = _found(reader.explain(text).plan[0]["Plan"])
    with reader.reading(SHOW_SCANS):
        forced = reader.explain(text).plan[0]["Plan"]
    return Estimate(max(1, round(keys)), _scanned(forced, Sizes(reader.connection)))


def _images(statement: Statement, relation: str) -> dict[str, str]:
    """Build placeholder images of one changed row; the planner does not see its values."""
    changed: list[str | None] = [None]
    return {
        parameter(age, name, column): f"'{database.text_array(changed if (age, name) == ('new', relation) else [])}'"
        for name, columns in statement.images.items()
        for column in columns
        for age in ("old", "new")
    }


def _found(plan: Mapping[str, Any]) -> float:
    """Return the rows that the last look-up finds per changed row, before deduplication, which has no estimate."""
    stages = {
        int(found[1]): node
        for node in nodes(plan)
        if (found := re.fullmatch(r"CTE s(\d+)", str(node.get("Subplan Name"))))
    }
    last = stages[max(stages)]
    united = next((node for node in nodes(last) if node["Node Type"] == "Append"), last)
    # The planner estimates at least one row for everything, even for old images that do not exist.
    return float(united["Plan Rows"]) / float(stages[0]["Plan Rows"])


def _scanned(plan: Mapping[str, Any], sizes: Sizes) -> tuple[str, ...]:
    scans = [node for node in nodes(plan) if is_scan(node) and "Relation Name" in node]
    found = dict.fromkeys((node["Schema"], node["Relation Name"]) for node in scans)
    return tuple(f"{schema}.{name}" for schema, name in found if not sizes.is_small(schema, name))
