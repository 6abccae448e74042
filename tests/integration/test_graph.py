"""The graph: what queries really read, what they fill, and who runs after whom."""

from typing import Any

import httpx
import pytest

from tests.integration.api import create
from tests.support.workbench import Workbench
from vitrina.cli import graph as drawings
from vitrina.schemas import Graph
from vitrina.services import graph
from vitrina.store.database import Connection

FILMS = {
    "name": "films",
    "source_query": "WITH f AS (SELECT * FROM content.film_work) SELECT f.id FROM f JOIN content.genre g ON true",
    "target_table": "analytics.films",
    "target_key": ["id"],
}
REPORT = {
    "name": "report",
    "source_query": "SELECT id FROM analytics.films",
    "target_table": "es:report",
    "target_key": ["id"],
    "run_after": [{"pipeline": "films", "only_if_changed": True}],
}


@pytest.fixture
def drawn(workbench: Workbench) -> Graph:
    """`films` reads two tables; `report` reads the mart that it fills, and runs after it."""
    for definition in (FILMS, REPORT):
        fields: dict[str, Any] = {**definition}
        workbench.pipeline(fields.pop("name"), fields.pop("source_query"), **fields)
    workbench.sql("UPDATE etl.etl_pipelines SET status = 'FAILED' WHERE name = 'report'")
    opened = {"allowed_source_schemas": "content,analytics"}
    return graph.graph(workbench.metastore, workbench.settings.model_copy(update=opened))


def test_edges_are_what_queries_really_read(drawn: Graph) -> None:
    """No name of a WITH clause, and the mart between two pipelines is one node."""
    names = {node.id: node.name for node in drawn.nodes}
    assert {(names[edge.source], edge.kind, names[edge.target]) for edge in drawn.edges} == {
        ("content.film_work", "reads", "films"),
        ("content.genre", "reads", "films"),
        ("films", "writes", "analytics.films"),
        ("analytics.films", "reads", "report"),
        ("report", "writes", "es:report"),
        ("films", "run_after", "report"),
    }
    assert len(names) == len(set(names.values())) == 6


def test_nodes_have_their_status(drawn: Graph) -> None:
    statuses = {node.name: node.status for node in drawn.nodes}
    assert (statuses["films"], statuses["report"], statuses["content.genre"]) == ("IDLE", "FAILED", None)


def test_an_empty_installation_has_an_empty_graph(api: httpx.Client) -> None:
    assert api.get("/api/v1/graph").json() == {"nodes": [], "edges": []}
    assert list(drawings.text(Graph(nodes=[], edges=[]))) == ["no pipelines"]


def test_a_row_that_was_edited_into_nonsense_is_drawn_without_edges(
    api: httpx.Client, api_metastore: Connection
) -> None:
    create(api, **FILMS)
    api_metastore.execute("UPDATE etl.etl_pipelines SET source_query = 'DELETE FROM x', target_key = '{}'")

    found = api.get("/api/v1/graph").raise_for_status().json()

    assert ([node["name"] for node in found["nodes"]], found["edges"]) == (["films"], [])


def test_as_text(drawn: Graph) -> None:
    assert list(drawings.text(drawn)) == [
        "films  [IDLE]",
        "  reads   content.film_work, content.genre",
        "  writes  analytics.films",
        "report  [FAILED]",
        "  reads   analytics.films",
        "  writes  es:report",
        "  after   films (if changed, is waited for)",
    ]


def test_as_mermaid_and_dot(drawn: Graph) -> None:
    mermaid, dot = "\n".join(drawings.mermaid(drawn)), "\n".join(drawings.dot(drawn))
    assert mermaid.startswith("flowchart LR\n")
    assert '(["report"]):::FAILED' in mermaid
    assert "-. after .->" in mermaid
    assert '"pipeline:films" -> "pipeline:report" [style=dashed, label="after"];' in dot
    assert dot.count("{") == dot.count("}")


@pytest.mark.parametrize("name", ['a "quoted" table', "back\\slash", "end]) --> x"])
def test_names_cannot_leave_their_quotes(name: str) -> None:
    node: dict[str, Any] = {"id": f"table:default:{name}", "kind": "table", "name": name}
    found = Graph.model_validate({"nodes": [node], "edges": []})
    [line] = [line for line in drawings.mermaid(found) if line.startswith("  n0")]
    assert line.startswith('  n0[("')
    assert line.endswith('")]')
    assert line.count('"') == 2
    [line] = [line for line in drawings.dot(found) if "cylinder" in line]
    assert line.replace('\\"', "").count('"') == 4
