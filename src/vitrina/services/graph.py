"""Build the graph of pipelines: the tables they read, the targets they fill, and which runs after which."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from pydantic import ValidationError

from vitrina import sqlguard, targets
from vitrina.definition import Definition
from vitrina.errors import InvalidQuery
from vitrina.ports import registry
from vitrina.schemas import Graph, GraphEdge, GraphNode
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard import SqlPolicy
from vitrina.store import databases, pipelines, run_after, runs
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def graph(connection: Connection, settings: Settings) -> Graph:
    """Show every pipeline with its tables. A mart that another pipeline reads is one node, which joins the two."""
    found = pipelines.list_by_name(connection, None)
    fresh = runs.list_data_as_of(connection)
    drawing = _Drawing(connection, settings)
    for row in found:
        drawing.add_pipeline(row)
        drawing.nodes[_id_of(row["name"])].data_as_of = fresh.get(row["id"])
    for edge in run_after.list_edges(connection):
        drawing.edges.append(
            GraphEdge(
                source=_id_of(edge["upstream"]),
                target=_id_of(edge["downstream"]),
                kind="run_after",
                arrived=edge["arrived"],
                only_if_changed=edge["only_if_changed"],
            )
        )
    return Graph(nodes=list(drawing.nodes.values()), edges=drawing.edges)


def downstream(connection: Connection, settings: Settings, definition: Definition) -> dict[str, list[str]]:
    """Name the pipelines and targets that depend on a pipeline as it would be defined, or on its target."""
    drawing = _Drawing(connection, settings)
    for row in pipelines.list_by_name(connection, None):
        if row["name"] != definition.name:
            drawing.add_pipeline(row)
    start = _id_of(definition.name)
    drawing.nodes[start] = GraphNode(id=start, kind="pipeline", name=definition.name)
    target = drawing.add_edges(start, definition)
    leads_to: dict[str, list[str]] = {}
    for edge in drawing.edges:
        leads_to.setdefault(edge.source, []).append(edge.target)
    for after in run_after.list_edges(connection):
        leads_to.setdefault(_id_of(after["upstream"]), []).append(_id_of(after["downstream"]))
    found = _reached(start, leads_to) - {start, target}
    nodes = [drawing.nodes[node] for node in found if node in drawing.nodes]
    return {
        "pipelines": sorted(node.name for node in nodes if node.kind == "pipeline"),
        "targets": sorted(node.name for node in nodes if node.kind != "pipeline"),
    }


def _reached(start: str, leads_to: Mapping[str, Sequence[str]]) -> set[str]:
    reached, left = {start}, [start]
    while left:
        further = [node for node in leads_to.get(left.pop(), ()) if node not in reached]
        reached.update(further)
        left += further
    return reached


class _Drawing:
    """Collect nodes and edges as they are found."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._databases: dict[str, str] = {}
        self.nodes: dict[str, GraphNode] = {}
        self.edges: list[GraphEdge] = []

    def add_pipeline(self, row: Row) -> None:
        node = _id_of(row["name"])
        self.nodes[node] = GraphNode(
            id=node, kind="pipeline", name=row["name"], status=row["status"], enabled=row["enabled"]
        )
        try:
            definition = pipelines.definition_of(row)
        except ValidationError:
            return  # edited by hand: its next run says what is wrong with it
        self.add_edges(node, definition)

    def add_edges(self, node: str, definition: Definition) -> str:
        """Add what a pipeline reads and writes; return the node of its target."""
        for source in self._sources(definition):
            self.edges.append(GraphEdge(source=source, target=node, kind="reads"))
        target = self._target(definition)
        self.edges.append(GraphEdge(source=node, target=target, kind="writes"))
        return target

    def _sources(self, definition: Definition) -> list[str]:
        if definition.python_source:
            return [self._add(f"python:{definition.python_source}", "python", definition.python_source, None)]
        if not definition.reads_postgres:
            named = definition.source_table or definition.query or definition.source_type
            return [self._table(f"{definition.source_type}:{named}", definition.source_connection)]
        tables = _tables(definition.query or "", self._settings.sql_policy)
        return [self._table(f"{schema}.{table}", definition.source_connection) for schema, table in tables]

    def _target(self, definition: Definition) -> str:
        target = definition.final_target
        place = definition.options.target_connection
        if targets.connector_of(target) == registry.SEARCH:
            index = target.partition(":")[2]
            return self._add(f"index:{f'{place}:' if place else ''}{index}", "index", target, place)
        return self._table(target, place)

    def _table(self, name: str, connection_name: str | None) -> str:
        database = self._database(connection_name or DEFAULT_CONNECTION)
        return self._add(f"table:{database}:{name}", "table", name, database)

    def _database(self, name: str) -> str:
        if name not in self._databases:
            self._databases[name] = databases.resolve(self._connection, name)
        return self._databases[name]

    def _add(self, node: str, kind: str, name: str, connection_name: str | None) -> str:
        self.nodes.setdefault(
            node, GraphNode.model_validate({"id": node, "kind": kind, "name": name, "connection": connection_name})
        )
        return node


@lru_cache(maxsize=2_000)
def _tables(query: str, policy: SqlPolicy) -> tuple[tuple[str, str], ...]:
    """List the tables that the query really reads. A query that may not run reads none."""
    try:
        return tuple(dict.fromkeys(sqlguard.check(query, policy).tables))
    except InvalidQuery:
        return ()


def _id_of(pipeline: str) -> str:
    return f"pipeline:{pipeline}"
