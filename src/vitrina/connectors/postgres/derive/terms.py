"""Convert expressions of a query to terms: SQL over columns of occurrences, or nothing if they cannot be followed."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from psycopg.sql import Identifier, Literal

from vitrina.connectors.postgres.derive import refusals
from vitrina.connectors.postgres.derive.graph import OPAQUE, Term, Value
from vitrina.connectors.postgres.derive.nodes import Node, kind_of, strings
from vitrina.connectors.postgres.derive.tables import SourceCatalog

Resolve = Callable[[Node], Value]
_ODD_CALLS = frozenset(
    "over agg_order agg_filter agg_star agg_distinct agg_within_group func_variadic".split()
)  # a call with one of these is more than a function of its arguments


class Terms:
    """Build terms; `resolve` returns what a column reference means at that place of the query."""

    def __init__(self, catalog: SourceCatalog) -> None:
        self._catalog = catalog

    def value(self, node: Node, resolve: Resolve) -> Value:
        """Return the terms of an expression: several under a UNION, none if it cannot be followed."""
        kind = kind_of(node) if node else ""
        inner = node.get(kind, {})
        if kind == "ColumnRef":
            return resolve(inner)
        if kind == "A_Const":
            return _constant(inner)
        if kind == "TypeCast":
            return self._cast(inner, resolve)
        if kind == "FuncCall":
            return self._call(inner, resolve)
        if kind == "A_Expr" and inner["kind"] == "AEXPR_OP":
            return self._operator(inner, resolve)
        if kind == "CoalesceExpr":
            return self._coalesce(inner, resolve)
        if kind == "MinMaxExpr":
            name = "GREATEST" if inner["op"] == "IS_GREATEST" else "LEAST"
            return self._listed(name, inner["args"], resolve, strict=False)
        if kind == "A_Expr" and inner["kind"] == "AEXPR_NULLIF":
            return self._listed("NULLIF", [inner["lexpr"], inner["rexpr"]], resolve, strict=False)
        return OPAQUE

    def _listed(self, name: str, arguments: Sequence[Node], resolve: Resolve, *, strict: bool) -> Value:
        parts: list[str | int] = [f"{name}("]
        for place in range(len(arguments)):
            parts += [", "] * (place > 0) + [place]
        return self._made([*parts, ")"], arguments, resolve, strict=strict)

    def _cast(self, node: Node, resolve: Resolve) -> Value:
        name = _type(node["typeName"])
        if name is None:
            return OPAQUE
        strict = len(strings(node["typeName"]["names"])) == 1 or strings(node["typeName"]["names"])[0] == "pg_catalog"
        return self._made(["CAST(", 0, f" AS {name})"], [node["arg"]], resolve, strict=strict)

    def _call(self, node: Node, resolve: Resolve) -> Value:
        names, arguments = strings(node["funcname"]), node.get("args", [])
        if any(node.get(odd) for odd in _ODD_CALLS) or len(names) > 2:
            return OPAQUE
        found = self._catalog.function(names[0] if len(names) == 2 else None, names[-1])
        if found.aggregate or found.returns_set or found.volatility == "v" or refusals.tells_time(names, arguments):
            return OPAQUE
        return self._listed(".".join(map(_quoted, names)), arguments, resolve, strict=found.strict)

    def _operator(self, node: Node, resolve: Resolve) -> Value:
        *schema, name = strings(node["name"])
        written = f" OPERATOR({_quoted(schema[0])}.{name}) " if schema else f" {name} "
        strict = self._catalog.is_strict_operator(name)
        if "lexpr" not in node:
            return self._made([f"({written}", 0, ")"], [node["rexpr"]], resolve, strict=strict)
        return self._made(["(", 0, written, 1, ")"], [node["lexpr"], node["rexpr"]], resolve, strict=strict)

    def _coalesce(self, node: Node, resolve: Resolve) -> Value:
        values = [self.value(argument, resolve) for argument in node["args"]]
        if any(len(value) != 1 for value in values):
            return OPAQUE
        choices = tuple(value[0] for value in values)
        parts: list[str | Any] = ["COALESCE("]
        for place, choice in enumerate(choices):
            parts += [", "] * (place > 0) + list(choice.parts)
        return (Term((*parts, ")"), strict=False, branch=_branch(choices), choices=choices),)

    def _made(
        self, template: Sequence[str | int], arguments: Sequence[Node], resolve: Resolve, *, strict: bool
    ) -> Value:
        values = [self.value(argument, resolve) for argument in arguments]
        if sum(len(value) > 1 for value in values) > 1:
            return OPAQUE
        return tuple(_filled(template, chosen, strict=strict) for chosen in itertools.product(*values))


def _filled(template: Sequence[str | int], arguments: Sequence[Term], *, strict: bool) -> Term:
    parts: list[Any] = []
    for piece in template:
        parts += [piece] if isinstance(piece, str) else arguments[piece].parts
    return Term(tuple(parts), strict=strict and all(one.strict for one in arguments), branch=_branch(arguments))


def _branch(terms: Sequence[Term]) -> int | None:
    return next((term.branch for term in terms if term.branch is not None), None)


def _constant(node: Node) -> Value:
    if node.get("isnull"):
        return OPAQUE
    if "sval" in node:
        return (Term((Literal(node["sval"].get("sval", "")).as_string(None),)),)
    if "ival" in node:
        return (Term((str(node["ival"].get("ival", 0)),)),)
    if "fval" in node:
        return (Term((node["fval"]["fval"],)),)
    if "boolval" in node:
        return (Term(("true" if node["boolval"].get("boolval") else "false",)),)
    return OPAQUE


def _type(node: Node) -> str | None:
    """Write a type's name; None for rare forms that are not supported (interval fields, %TYPE)."""
    names, sizes = strings(node.get("names")), node.get("typmods", [])
    if not names or node.get("setof") or node.get("pct_type") or (sizes and names[-1] == "interval"):
        return None
    whole = [size.get("A_Const", {}).get("ival", {}).get("ival", 0) for size in sizes if "A_Const" in size]
    if len(whole) != len(sizes):
        return None
    written = ".".join(map(_quoted, names)) + (f"({', '.join(map(str, whole))})" if whole else "")
    return written + "[]" * len(node.get("arrayBounds", []))


def _quoted(name: str) -> str:
    return Identifier(name).as_string(None)
