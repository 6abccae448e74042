"""Analyse plans of EXPLAIN (VERBOSE, FORMAT JSON): relations read, functions called, whether rows keep their order.

Plans name functions and types with their schema only where search_path does not find them: run EXPLAIN with an empty
search_path.
"""

import re
from collections.abc import Iterator, Mapping

Node = Mapping[str, object]

# Nodes that pass rows on one by one. Nodes that sort, group, count or store rows read all of them first.
_STREAMING_NODES = frozenset({
    "Append", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr", "Foreign Scan", "Function Scan",
    "Gather", "Gather Merge", "Hash", "Hash Join", "Index Only Scan", "Index Scan", "Materialize", "Memoize",
    "Merge Append", "Merge Join", "Nested Loop", "ProjectSet", "Result", "Seq Scan", "Subquery Scan",
    "Table Function Scan", "Tid Range Scan", "Tid Scan", "Values Scan",
})  # fmt: skip

_NAME = r'(?:"(?:[^"]|"")+"|[a-z_\u0080-\U0010ffff][a-z0-9_$\u0080-\U0010ffff]*)'
_STRING = r"'(?:[^']|'')*+'"
_OUTSIDE = re.compile(
    rf"{_STRING}"
    rf"|(?P<function>{_NAME}\.{_NAME})(?=\()"
    rf"|OPERATOR\((?P<operator>{_NAME}\.[^)\s]+)\)"
    rf"|::(?P<type>{_NAME}\.{_NAME})"
    r"|::[a-z][a-z0-9_ ]*"
    rf"|(?P<call>{_NAME})(?=\()"
    rf"|{_NAME}"
)
_JOINED_RELATION = re.compile(rf"\((?P<schema>{_NAME})\.(?P<table>{_NAME})(?: {_NAME})?\)")

# Values that are names or another server's SQL, not expressions of this one.
_NOT_EXPRESSIONS = frozenset({
    "Alias", "CTE Name", "Function Name", "Index Name", "Join Type", "Node Type", "Parent Relationship",
    "Relation Name", "Relations", "Remote SQL", "Scan Direction", "Schema", "Strategy", "Subplan Name",
    "Table Function Name", "Tuplestore Name",
})  # fmt: skip


def explain_relations(plan: object) -> set[tuple[str, str]]:
    """List (schema, name) of every relation that the plan reads or writes; views appear as the tables they read."""
    found: set[tuple[str, str]] = set()
    for node in _nodes(plan):
        if "Relation Name" in node:
            found.add((str(node.get("Schema", "")), str(node["Relation Name"])))
        elif "Relations" in node:
            found |= _pushed_down_relations(str(node["Relations"]))
    return found


def explain_functions_outside_catalog(plan: object) -> set[str]:
    """List `schema.name` of functions, operators and cast types outside of pg_catalog.

    Types count because a cast may call a function that the plan does not show. An implicit cast of a user-defined type
    shows nothing at all.
    """
    found: set[str] = set()
    for node in _nodes(plan):
        for expression in _expressions(node):
            for match in _OUTSIDE.finditer(expression):
                name = match["function"] or match["operator"] or match["type"]
                if name and not name.startswith("pg_catalog."):
                    found.add(name)
        if "Function Name" in node and node.get("Schema", "pg_catalog") != "pg_catalog":
            found.add(f"{node['Schema']}.{node['Function Name']}")
    return found


def explain_functions_of_catalog(plan: object) -> set[str]:
    """List names without a schema that the plan calls: functions of pg_catalog, as long as search_path is empty."""
    found: set[str] = set()
    for node in _nodes(plan):
        for expression in _expressions(node):
            found |= {_unquoted(match["call"]) for match in _OUTSIDE.finditer(expression) if match["call"]}
        if "Function Name" in node and node.get("Schema", "pg_catalog") == "pg_catalog":
            found.add(str(node["Function Name"]))
    return found


def explain_from_functions(plan: object) -> set[str]:
    """List functions of pg_catalog in FROM, including those that its views call."""
    return {
        str(node["Function Name"])
        for node in _nodes(plan)
        if "Function Name" in node and node.get("Schema", "pg_catalog") == "pg_catalog"
    }


def expressions(plan: object) -> Iterator[str]:
    """Yield whatever the plan computes or compares, as the server writes it."""
    for node in _nodes(plan):
        yield from _expressions(node)


def hides_expressions(plan: object) -> bool:
    """Return whether EXPLAIN hides some expressions: in VALUES, LIMIT, OFFSET, and before 18 in window frames."""
    return any(
        node.get("Node Type") in ("Values Scan", "Limit")
        or (node.get("Node Type") == "WindowAgg" and "Window" not in node)
        for node in _nodes(plan)
    )


def touches_rows(plan: object) -> bool:
    """Return whether the plan locks, inserts, changes or deletes rows."""
    return any(node.get("Node Type") in ("LockRows", "ModifyTable") for node in _nodes(plan))


def outline(plan: object, *, limit: int = 100) -> dict[str, object]:
    """Summarise a plan: its cost, its number of rows, and its nodes from the top."""
    steps = [_step(node, depth) for node, depth in _deep_nodes(plan)]
    first = steps[0]
    return {"cost": first["cost"], "rows": first["rows"], "steps": steps[:limit], "complete": len(steps) <= limit}


def _step(node: Node, depth: int) -> dict[str, object]:
    schema, relation = node.get("Schema"), node.get("Relation Name")
    return {
        "depth": depth,
        "node": str(node.get("Node Type", "")),
        "relation": f"{schema}.{relation}" if schema and relation else relation,
        "index": node.get("Index Name"),
        "rows": node.get("Plan Rows"),
        "cost": node.get("Total Cost"),
    }


def _deep_nodes(plan: object) -> Iterator[tuple[Node, int]]:
    """Yield all nodes from the top down, in the order in which EXPLAIN prints them, and their depth."""
    waiting = [(next(_nodes(plan)), 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        children = node.get("Plans", [])
        if isinstance(children, list):
            waiting.extend((child, depth + 1) for child in reversed(children))


def is_pageable(plan: object) -> bool:
    """Return whether a page of rows costs about as much as its rows alone, because no node reads all rows first.

    Subqueries that are computed per row, or once, do not count.
    """
    return all(
        node.get("Node Type") in _STREAMING_NODES and node.get("Operation") is None and node.get("Command") is None
        for node in _nodes(plan, with_subplans=False)
    )


def _nodes(plan: object, *, with_subplans: bool = True) -> Iterator[Node]:
    """Yield all nodes of the plan from the top down."""
    if isinstance(plan, list) and len(plan) == 1:
        plan = plan[0]
    if not (isinstance(plan, Mapping) and isinstance(plan.get("Plan"), Mapping)):
        raise ValueError("not the output of EXPLAIN (FORMAT JSON): expected a list of one object with a Plan")
    waiting: list[Node] = [plan["Plan"]]
    while waiting:
        node = waiting.pop()
        if not with_subplans and node.get("Parent Relationship") in ("InitPlan", "SubPlan"):
            continue
        yield node
        children = node.get("Plans", [])
        if isinstance(children, list):
            waiting.extend(children)


def _expressions(node: Node) -> Iterator[str]:
    for key, value in node.items():
        if key in _NOT_EXPRESSIONS or key == "Plans":
            continue
        yield from _strings(value)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _pushed_down_relations(description: str) -> set[tuple[str, str]]:
    """Parse a join done by another server: `(public.a x) INNER JOIN (public.b y)`."""
    found = {
        (_unquoted(match["schema"]), _unquoted(match["table"])) for match in _JOINED_RELATION.finditer(description)
    }
    return found or {("", description)}  # a name that no allow-list has


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
