"""Warn about values that a keyed query may compute differently than a full load: sums of floats, unordered lists."""

from collections.abc import Iterator

from vitrina.connectors.postgres.derive import nodes
from vitrina.connectors.postgres.derive.graph import Graph
from vitrina.connectors.postgres.derive.nodes import Node
from vitrina.sentences import say

_LISTS = frozenset("array_agg string_agg json_agg jsonb_agg json_object_agg jsonb_object_agg xmlagg".split())
_SUMS = frozenset("sum avg stddev stddev_pop stddev_samp variance var_pop var_samp".split())
_FLOATS = ("double precision", "real")


def of(text: str, graph: Graph) -> list[str]:
    """Return the warnings, each once."""
    calls = [node for kind, node in nodes.every({"SelectStmt": nodes.parsed(text)}) if kind == "FuncCall"]
    return list(dict.fromkeys(warning for call in calls for warning in _of_call(call, graph)))


def _of_call(call: Node, graph: Graph) -> Iterator[str]:
    name = nodes.strings(call["funcname"])[-1]
    if name in _LISTS and "agg_order" not in call:
        yield say("derive.unordered", function=name)
    if name in _SUMS and "over" not in call and _has_floats(call, graph):
        yield say("derive.float_sum", function=name)


def _has_floats(call: Node, graph: Graph) -> bool:
    """Return whether a column in the arguments has the name of a float column anywhere in the query."""
    fields = (nodes.strings(node["fields"]) for kind, node in nodes.every(call) if kind == "ColumnRef")
    names = {each[-1] for each in fields if each}
    tables = (leaf.table for leaf in graph.leaves.values())
    return any(table.columns[name].type in _FLOATS for table in tables for name in names & table.columns.keys())
