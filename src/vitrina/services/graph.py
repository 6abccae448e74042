"""Build the graph of pipelines: the tables they read, the targets they fill, and which runs after which."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from vitrina.definition import Definition
from vitrina.schemas import Graph, GraphEdge, GraphNode
from vitrina.services import table_use
from vitrina.services.table_use import Place, Use
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import databases, run_after, runs
from vitrina.store import graph as lines
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def graph(connection: Connection, settings: Settings, found: Sequence[Row]) -> Graph:
    """Show pipelines of `store.graph.list_lines` with their tables. A mart that another one reads is one node.

    With each pipeline come the edges that end at it and the one to its target, so parts of a list add up to the whole.
    """
    drawing = _Drawing(connection)
    uses = table_use.of_rows(connection, settings.sql_policy, found)
    for row in found:
        drawing.add_pipeline(row["name"], row["status"], enabled=row["enabled"])
        # A row that was deleted meanwhile is shown as it was.
        drawing.add_use(_id_of(row["name"]), uses.get(row["id"], Use((), None)))
    names: dict[UUID, str] = {row["id"]: row["name"] for row in found}
    for edge in run_after.list_edges_of(connection, list(names)):
        upstream = names.setdefault(edge["upstream_id"], edge["upstream"])
        drawing.add_pipeline(upstream, edge["upstream_status"], enabled=edge["upstream_enabled"])
        drawing.add_wait(upstream, names[edge["downstream_id"]], edge)
    for pipeline_id, fresh in runs.list_data_as_of(connection, list(names)).items():
        drawing.nodes[_id_of(names[pipeline_id])].data_as_of = fresh
    return Graph(nodes=list(drawing.nodes.values()), edges=drawing.edges)


def downstream(connection: Connection, settings: Settings, definition: Definition) -> dict[str, list[str]]:
    """Name the pipelines and targets that depend on a pipeline as it would be defined, or on its target."""
    others = [row for row in lines.list_lines(connection) if row["name"] != definition.name]
    uses = table_use.of_rows(connection, settings.sql_policy, others)
    # Of the pipeline itself, only the target is needed: what it reads does not depend on it.
    own = table_use.target_of(definition)
    places = _Places(connection)
    start, target = _id_of(definition.name), places.node_of(own)
    leads_to: dict[str, list[str]] = {start: [target]}
    names = {target: own.name}
    for row in others:
        if row["id"] not in uses:
            continue  # deleted meanwhile
        use, node = uses[row["id"]], _id_of(row["name"])
        for source in use.sources:
            leads_to.setdefault(places.node_of(source), []).append(node)
        if use.target:
            filled = places.node_of(use.target)
            names[filled] = use.target.name
            leads_to.setdefault(node, []).append(filled)
    for after in run_after.list_edges(connection):
        leads_to.setdefault(_id_of(after["upstream"]), []).append(_id_of(after["downstream"]))
    found = _reached(start, leads_to) - {start, target}
    pipelines = {_id_of(row["name"]): row["name"] for row in others}
    return {
        "pipelines": sorted(pipelines[node] for node in found & pipelines.keys()),
        "targets": sorted(names[node] for node in found & names.keys()),
    }


def _reached(start: str, leads_to: Mapping[str, Sequence[str]]) -> set[str]:
    reached, left = {start}, [start]
    while left:
        further = [node for node in leads_to.get(left.pop(), ()) if node not in reached]
        reached.update(further)
        left += further
    return reached


class _Places:
    """Name the nodes of places. Connections that lead to one database are one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._databases: dict[str, str] = {}

    def node_of(self, place: Place) -> str:
        if place.kind == "table":
            return f"table:{self.connection_of(place)}:{place.name}"
        if place.kind == "index":
            index = place.name.partition(":")[2]
            return f"index:{f'{place.connection}:' if place.connection else ''}{index}"
        return f"python:{place.name}"

    def connection_of(self, place: Place) -> str | None:
        return self._database(place.connection or DEFAULT_CONNECTION) if place.kind == "table" else place.connection

    def _database(self, name: str) -> str:
        if name not in self._databases:
            self._databases[name] = databases.resolve(self._connection, name)
        return self._databases[name]


class _Drawing:
    """Collect nodes and edges as they are found."""

    def __init__(self, connection: Connection) -> None:
        self._places = _Places(connection)
        self.nodes: dict[str, GraphNode] = {}
        self.edges: list[GraphEdge] = []

    def add_pipeline(self, name: str, status: str, *, enabled: bool) -> None:
        node = _id_of(name)
        if node not in self.nodes:
            said = {"id": node, "kind": "pipeline", "name": name, "status": status, "enabled": enabled}
            self.nodes[node] = GraphNode.model_validate(said)

    def add_use(self, node: str, use: Use) -> None:
        for source in use.sources:
            self.edges.append(GraphEdge(source=self._add(source), target=node, kind="reads"))
        if use.target:
            self.edges.append(GraphEdge(source=node, target=self._add(use.target), kind="writes"))

    def add_wait(self, upstream: str, downstream: str, edge: Row) -> None:
        self.edges.append(
            GraphEdge(
                source=_id_of(upstream),
                target=_id_of(downstream),
                kind="run_after",
                arrived=edge["arrived"],
                only_if_changed=edge["only_if_changed"],
            )
        )

    def _add(self, place: Place) -> str:
        node = self._places.node_of(place)
        if node not in self.nodes:
            connection = self._places.connection_of(place)
            self.nodes[node] = GraphNode(id=node, kind=place.kind, name=place.name, connection=connection)
        return node


def _id_of(pipeline: str) -> str:
    return f"pipeline:{pipeline}"
