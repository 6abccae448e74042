"""Analyse one SELECT: which of its columns can be followed, and what influenced rows have in common."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from vitrina.connectors.postgres.derive import nodes, rules
from vitrina.connectors.postgres.derive.graph import OPAQUE, Block, Graph, Term, Value
from vitrina.connectors.postgres.derive.nodes import Node
from vitrina.connectors.postgres.derive.scopes import Column, Columns, Scope
from vitrina.connectors.postgres.derive.tables import SourceCatalog
from vitrina.connectors.postgres.derive.terms import Terms

_EXPRESSIONS = (
    "targetList groupClause havingClause windowClause distinctClause sortClause limitCount limitOffset"
).split()


def other_expressions(tree: Node) -> list[Any]:
    """Return all expressions of a SELECT except its FROM and WHERE."""
    return [tree[name] for name in _EXPRESSIONS if name in tree]


def around_set_operation(tree: Node) -> list[Any]:
    return [tree[name] for name in ("sortClause", "limitCount", "limitOffset") if name in tree]


def is_limited(tree: Node) -> bool:
    return "limitCount" in tree or "limitOffset" in tree


def tagged(value: Value, branch: int) -> Value:
    """Record the branch of a UNION that returns these terms; an inner branch is more specific."""
    return tuple(replace(term, branch=branch) if term.branch is None else term for term in value)


def is_in(node: Node) -> bool:
    return bool(node["subLinkType"] == "ANY_SUBLINK")


def is_membership(node: Node) -> bool:
    """Return whether a sub-select is compared for equality: `x IN (...)`, `= ANY`, `<> ALL`."""
    written = nodes.strings(node.get("operName"))
    if is_in(node):
        return not written or nodes.is_equals(node["operName"])
    return bool(node["subLinkType"] == "ALL_SUBLINK") and written in (["<>"], ["!="])


def tested(node: Node) -> Sequence[Node]:
    test = node["testexpr"]
    return test["RowExpr"]["args"] if "RowExpr" in test else [test]


class Shape:
    """Analyse grouping, windows, DISTINCT ON and LIMIT of one SELECT."""

    def __init__(self, tree: Node, scope: Scope, outputs: Columns, terms: Terms, catalog: SourceCatalog) -> None:
        self._tree = tree
        self._scope = scope
        self._outputs = outputs
        self._terms = terms
        self._catalog = catalog
        self._groups = self._find_groups()

    def columns(self) -> Columns:
        """Return the columns; in a grouped query only those that it groups by."""
        if self._groups is None:
            return self._outputs
        groups = self._groups
        kept = (Column(name, tuple(term for term in value if term in groups)) for name, value in self._outputs.known)
        return Columns(tuple(kept), self._outputs.complete)

    def stable(self, graph: Graph, block: Block) -> list[Term] | None:
        """Return what every influenced row has in common with the changed row; None: all columns."""
        if is_limited(self._tree):
            return []
        shared: list[Term] | None = None
        for terms in self._unions_of_rows():
            fit = [term for term in terms if rules.may_identify_group(graph, block, term)]
            shared = fit if shared is None else [term for term in shared if term in fit]
        return shared

    def _unions_of_rows(self) -> Iterator[list[Term]]:
        """Yield, for every clause that makes rows depend on each other, what such rows have in common."""
        if self._groups is not None:
            yield self._groups
        yield from rules.partitions(self._windows())
        distinct = self._tree.get("distinctClause")
        if distinct and distinct != [{}]:
            yield list(self._listed(distinct, names_first=True))

    # --- grouping ----------------------------------------------------------------------------------------------------

    def _find_groups(self) -> list[Term] | None:
        """Return the terms that are constant within each row of the result; None if it is not grouped."""
        clause = self._tree.get("groupClause", [])
        if not clause:
            return [] if "havingClause" in self._tree or self._has_aggregate() else None
        plain = [item for item in clause if "GroupingSet" not in item]
        sets = [self._in_every_set(item["GroupingSet"]) for item in clause if "GroupingSet" in item]
        return [*self._listed(plain, names_first=False), *(term for found in sets for term in found)]

    def _in_every_set(self, node: Node) -> list[Term]:
        """Return the terms that no grouping set omits."""
        kind, content = node["kind"], node.get("content", [])
        if kind == "GROUPING_SET_SIMPLE":
            return list(self._listed(content, names_first=False))
        if kind != "GROUPING_SET_SETS":
            return []
        members = [self._of_set(member) for member in content]
        return [term for term in members[0] if all(term in other for other in members)] if members else []

    def _of_set(self, member: Node) -> list[Term]:
        if "GroupingSet" in member:
            return self._in_every_set(member["GroupingSet"])
        inner = member["RowExpr"]["args"] if "RowExpr" in member else [member]
        return list(self._listed(inner, names_first=False))

    def _has_aggregate(self) -> bool:
        looked_at = [self._tree[name] for name in ("targetList", "sortClause") if name in self._tree]
        return any(self._is_aggregate(kind, node) for kind, node in nodes.every(looked_at, into_selects=False))

    def _is_aggregate(self, kind: str, node: Node) -> bool:
        """Return whether a node aggregates rows; the aggregates of SQL/JSON are not function calls."""
        if kind != "FuncCall" or "over" in node:
            return kind in ("JsonArrayAgg", "JsonObjectAgg")
        names = nodes.strings(node["funcname"])
        return self._catalog.function(names[0] if len(names) == 2 else None, names[-1]).aggregate

    # --- windows -----------------------------------------------------------------------------------------------------

    def _windows(self) -> list[list[Term]]:
        """Return the PARTITION BY of each window that a function is called over."""
        looked_at = [self._tree[name] for name in ("targetList", "sortClause", "distinctClause") if name in self._tree]
        found = [node for kind, node in nodes.every(looked_at, into_selects=False) if kind == "over"]
        return [list(self._listed(self._partition(over), names_first=None)) for over in found]

    def _partition(self, over: Node) -> Sequence[Node]:
        """Return the PARTITION BY of a window, which may be inherited from another window."""
        base = over.get("refname") or (over.get("name") if not over.get("partitionClause") else None)
        own: Sequence[Node] = over.get("partitionClause", [])
        if own or not base:
            return own
        defined = (each["WindowDef"] for each in self._tree.get("windowClause", []))
        named = next((each for each in defined if each.get("name") == base), None)
        return (
            self._partition({key: named[key] for key in ("partitionClause", "refname") if key in named})
            if named
            else []
        )

    # --- names and numbers in these clauses --------------------------------------------------------------------------

    def _listed(self, items: Iterable[Node], *, names_first: bool | None) -> Iterator[Term]:
        """Yield the terms of a clause; None: the clause cannot refer to output columns by name or number."""
        for item in items:
            value = self._output_meant(item, names_first=names_first)
            if value is None:
                value = self._terms.value(item, self._scope.resolve)
            yield from value if len(value) == 1 else OPAQUE

    def _output_meant(self, item: Node, *, names_first: bool | None) -> Value | None:
        if names_first is None:
            return None
        number = item.get("A_Const", {}).get("ival", {}).get("ival")
        if number is not None:
            return self._numbered(number)
        fields = item.get("ColumnRef", {}).get("fields", [])
        name = nodes.strings(fields)[0] if len(fields) == 1 and nodes.strings(fields) else None
        found = self._outputs.find(name) if name else None
        if found is None or (not names_first and self._is_input(name)):
            return None
        return found

    def _numbered(self, number: int) -> Value:
        if not self._outputs.complete or not 0 < number <= len(self._outputs.known):
            return OPAQUE
        return self._outputs.known[number - 1].value

    def _is_input(self, name: str | None) -> bool:
        """Return whether GROUP BY finds the name among the columns of FROM, which take precedence there."""
        return name is not None and any(columns.find(name) is not None for columns in self._scope.visible)
