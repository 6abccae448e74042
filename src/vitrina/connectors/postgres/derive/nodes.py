"""Walk the tree of a query that PostgreSQL's own parser returns."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrina.errors import ConfigError, SourceQueryFailed
from vitrina.sentences import say

Node = Mapping[str, Any]
# Names that the server gives to these expressions without an explicit alias.
_NAMED_KINDS = {"CoalesceExpr": "coalesce", "CaseExpr": "case", "A_ArrayExpr": "array"}


def parsed(text: str) -> Node:
    """Return the single SELECT of a text that sqlguard accepted, or of a view."""
    try:
        import pgparse
    except ImportError as exc:
        raise ConfigError(say("derive.no_parser")) from exc
    try:
        statements = pgparse.parse(text)
    except pgparse.PGQueryError as exc:
        raise SourceQueryFailed(say("derive.not_parsed", message=str(exc))) from exc
    if len(statements) != 1 or "SelectStmt" not in statements[0]["stmt"]:
        raise SourceQueryFailed(say("derive.not_parsed", message="it is not one SELECT"))
    found: Node = statements[0]["stmt"]["SelectStmt"]
    return found


def kind_of(node: Node) -> str:
    return next(iter(node))


def every(tree: Any, *, into_selects: bool = True) -> Iterator[tuple[str, Node]]:
    """Yield each node of a tree with its kind, from the top down, including sub-selects unless disabled."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, Mapping):
            for kind, inner in value.items():
                if isinstance(inner, Mapping):
                    yield kind, inner
                if into_selects or kind != "subselect":
                    waiting.append(inner)


def sublinks(tree: Any) -> Iterator[Node]:
    """Yield the sub-selects of an expression, without nested ones."""
    return (node for kind, node in every(tree, into_selects=False) if kind == "SubLink")


def strings(names: Any) -> list[str]:
    return [part["String"]["sval"] for part in names or () if "String" in part]


def conjuncts(node: Node | None) -> Iterator[Node]:
    """Yield the conditions of which each must be true."""
    if not node:
        return
    inner = node.get("BoolExpr")
    if inner and inner["boolop"] == "AND_EXPR":
        for each in inner["args"]:
            yield from conjuncts(each)
    else:
        yield node


def equality(node: Node) -> list[tuple[Node, Node]]:
    """Return the pairs that `a = b` or `(a, b) = (c, d)` compares."""
    inner = node.get("A_Expr")
    if not inner or inner["kind"] != "AEXPR_OP" or not is_equals(inner["name"]) or "lexpr" not in inner:
        return []
    return pairs(inner["lexpr"], inner["rexpr"])


def is_equals(names: Any) -> bool:
    return strings(names) in (["="], ["pg_catalog", "="])


def pairs(left: Node, right: Node) -> list[tuple[Node, Node]]:
    rows = left.get("RowExpr"), right.get("RowExpr")
    if rows[0] and rows[1]:
        return list(zip(rows[0]["args"], rows[1]["args"], strict=True))
    return [] if rows[0] or rows[1] else [(left, right)]


def name_of(target: Node) -> str | None:
    """Return the name of an output column; None if the server generates one by rules not implemented here."""
    if "name" in target:
        return str(target["name"])
    return _own_name(target.get("val", {}))


def _own_name(node: Node) -> str | None:
    kind = kind_of(node) if node else ""
    inner = node.get(kind, {})
    if kind == "ColumnRef":
        return strings(inner["fields"])[-1] if "String" in inner["fields"][-1] else None
    if kind == "FuncCall":
        return strings(inner["funcname"])[-1]
    if kind == "TypeCast":
        return _own_name(inner["arg"]) or strings(inner["typeName"].get("names"))[-1]
    return _NAMED_KINDS.get(kind)
