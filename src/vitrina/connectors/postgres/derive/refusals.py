"""Refuse, with the reason, constructs that make a query impossible to follow wherever they occur in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vitrina.connectors.postgres.derive.nodes import Node, every, name_of, strings
from vitrina.connectors.postgres.derive.tables import SourceCatalog
from vitrina.errors import SourceQueryFailed
from vitrina.sentences import say

_SYSTEM_COLUMNS = frozenset("cmax cmin ctid tableoid xmax xmin".split())
_CLOCK_CALLS = frozenset("now transaction_timestamp statement_timestamp clock_timestamp timeofday".split())
_CLOCK_WORDS = frozenset("now today tomorrow yesterday".split())
_CLOCK_VALUES = ("SVFOP_CURRENT_DATE", "SVFOP_CURRENT_TIME", "SVFOP_LOCALTIME")


@dataclass(frozen=True)
class Allowed:
    """List exceptions: columns that only record when a row was made, and the clock if a query is also reloaded."""

    stamps: frozenset[str] = frozenset()
    clock: bool = False


def refuse(tree: Node, catalog: SourceCatalog, allowed: Allowed) -> None:
    """Raise for constructs that are refused in a whole query."""
    if "limitCount" in tree or "limitOffset" in tree:
        raise SourceQueryFailed(say("derive.refused", what="LIMIT or OFFSET of the whole query"))
    refuse_inside({**tree, "targetList": _without(tree.get("targetList", []), allowed.stamps)}, catalog, allowed)


def refuse_inside(tree: Node, catalog: SourceCatalog, allowed: Allowed) -> None:
    """Raise for constructs that are refused in a view as well as in the query."""
    for what in _found(tree, catalog):
        raise SourceQueryFailed(say("derive.refused", what=what))
    for what in () if allowed.clock else _found_clock(tree):
        raise SourceQueryFailed(say("derive.refused", what=what))


def _without(targets: Sequence[Node], stamps: frozenset[str]) -> list[Node]:
    return [target for target in targets if name_of(target["ResTarget"]) not in stamps]


def _found(tree: Node, catalog: SourceCatalog) -> Iterator[str]:
    for kind, node in every({"SelectStmt": tree}):
        if kind == "RangeTableSample":
            yield "TABLESAMPLE"
        elif kind == "ColumnRef" and (strings(node["fields"]) or [""])[-1] in _SYSTEM_COLUMNS:
            yield f"the system column {strings(node['fields'])[-1]}"
        elif kind == "FuncCall":
            yield from _found_in_call(node, catalog)
        elif kind == "withClause" and node.get("recursive"):
            yield "WITH RECURSIVE"


def _found_in_call(node: Node, catalog: SourceCatalog) -> Iterator[str]:
    names = strings(node["funcname"])
    function = catalog.function(names[0] if len(names) == 2 else None, names[-1])
    if function.volatility == "v":
        yield f"the volatile function {'.'.join(names)}()"
    elif function.may_read:
        yield f"the function {'.'.join(names)}(), which is not IMMUTABLE and may read tables"


def _found_clock(tree: Node) -> Iterator[str]:
    """Yield what makes rows change with time alone."""
    for kind, node in every({"SelectStmt": tree}):
        if kind == "SQLValueFunction" and str(node.get("op", "")).startswith(_CLOCK_VALUES):
            yield f"{str(node['op']).removeprefix('SVFOP_').lower()} in a condition or a value"
        elif kind == "A_Const" and _is_clock_word(node):
            yield f"the text {node['sval']['sval']!r}, which may mean another time every day"
        elif kind == "FuncCall" and tells_time(strings(node["funcname"]), node.get("args", [])):
            yield f"{strings(node['funcname'])[-1]}() in a condition or a value"


def tells_time(names: Sequence[str], arguments: Sequence[Any]) -> bool:
    """Return whether a call depends on the clock; `age(x)` counts from today."""
    return names[-1] in _CLOCK_CALLS or (names[-1] == "age" and len(arguments) == 1)


def _is_clock_word(node: Node) -> bool:
    words = str(node.get("sval", {}).get("sval", "")).lower().split()
    return bool(words) and words[0] in _CLOCK_WORDS and len(words) <= 2
