"""`vitrina graph`: print the graph of tables, pipelines and targets as text, Mermaid or DOT."""

import json
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import remote
from vitrina.cli.output import Format, show_data

if TYPE_CHECKING:
    from vitrina.schemas import Graph, GraphEdge, GraphNode


class Drawing(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


# Fill and border by status: readable on light and dark pages.
COLOURS = {
    "IDLE": ("#e6f4ea", "#1e7e34"),
    "RUN_REQUESTED": ("#e3f2fd", "#1565c0"),
    "RUNNING": ("#e3f2fd", "#1565c0"),
    "PAUSE_REQUESTED": ("#fff8e1", "#8d6e00"),
    "PAUSED": ("#fff8e1", "#8d6e00"),
    "FAILED": ("#fdecea", "#b71c1c"),
}


def graph(
    drawing: Annotated[Drawing, typer.Option("--format", "-f", help="How to draw it.")] = Drawing.TEXT,
) -> None:
    """Show pipelines with their tables, targets and order."""
    with remote.api() as client:
        found = client.graph()
    if drawing is Drawing.JSON:
        show_data(found, Format.JSON)
        return
    lines = {Drawing.TEXT: text, Drawing.MERMAID: mermaid, Drawing.DOT: dot}[drawing](found)
    for line in lines:
        typer.echo(line)


def text(found: "Graph") -> Iterator[str]:
    """Write a line for each pipeline, followed by what it reads, writes and waits for."""
    names = {node.id: _full_name(node) for node in found.nodes}
    reads, writes, after = (_ends(found, kind) for kind in ("reads", "writes", "run_after"))
    pipelines = sorted((node for node in found.nodes if node.kind == "pipeline"), key=lambda node: node.name)
    if not pipelines:
        yield "no pipelines"
    for node in pipelines:
        state = node.status if node.enabled else f"{node.status}, disabled"
        yield f"{node.name}  [{state}]" + (
            f"  data as of {node.data_as_of:%Y-%m-%d %H:%M:%S%z}" if node.data_as_of else ""
        )
        yield f"  reads   {', '.join(names[edge.source] for edge in reads[node.id]) or 'no table'}"
        yield f"  writes  {', '.join(names[edge.target] for edge in writes[node.id])}"
        if after[node.id]:
            yield f"  after   {', '.join(_upstream(names[edge.source], edge) for edge in after[node.id])}"


def mermaid(found: "Graph") -> Iterator[str]:
    ids = {node.id: f"n{place}" for place, node in enumerate(found.nodes)}
    yield "flowchart LR"
    for node in found.nodes:
        label = _full_name(node).replace('"', "#quot;")
        if node.kind == "pipeline":
            yield f'  {ids[node.id]}(["{label}"]):::{node.status}'
        else:
            yield f'  {ids[node.id]}[("{label}")]'
    for edge in found.edges:
        arrow = "-. after .->" if edge.kind == "run_after" else "-->"
        yield f"  {ids[edge.source]} {arrow} {ids[edge.target]}"
    for status, (fill, stroke) in COLOURS.items():
        yield f"  classDef {status} fill:{fill},stroke:{stroke},color:#111111"


def dot(found: "Graph") -> Iterator[str]:
    yield "digraph vitrina {"
    yield '  rankdir=LR; node [fontname="sans-serif", style=filled, fillcolor="#ffffff"];'
    for node in found.nodes:
        looks = "shape=cylinder"
        if node.kind == "pipeline":
            fill, stroke = COLOURS.get(str(node.status), COLOURS["IDLE"])
            looks = f'shape=box, style="rounded,filled", fillcolor="{fill}", color="{stroke}"'
        # JSON quotes everything that DOT quotes, in the same way.
        yield f"  {json.dumps(node.id)} [label={json.dumps(_full_name(node), ensure_ascii=False)}, {looks}];"
    for edge in found.edges:
        looks = ' [style=dashed, label="after"]' if edge.kind == "run_after" else ""
        yield f"  {json.dumps(edge.source)} -> {json.dumps(edge.target)}{looks};"
    yield "}"


def _ends(found: "Graph", kind: str) -> "dict[str, list[GraphEdge]]":
    """Group edges by the pipeline that they belong to."""
    ends: dict[str, list[GraphEdge]] = defaultdict(list)
    for edge in found.edges:
        if edge.kind == kind:
            ends[edge.source if kind == "writes" else edge.target].append(edge)
    return ends


def _full_name(node: "GraphNode") -> str:
    elsewhere = node.kind == "table" and node.connection not in (None, "default")
    return f"{node.connection}: {node.name}" if elsewhere else node.name


def _upstream(name: str, edge: "GraphEdge") -> str:
    said = [*(["if changed"] if edge.only_if_changed else []), "has arrived" if edge.arrived else "is waited for"]
    return f"{name.removeprefix('pipeline:')} ({', '.join(said)})"
