"""The graph: what queries really read, what they fill, and who runs after whom."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.integration.api import create
from tests.support import multitude
from tests.support.workbench import Workbench
from vitrina import answers, client, sqlguard
from vitrina.cli import graph as drawings
from vitrina.definition import Definition
from vitrina.schemas import Graph
from vitrina.services import graph, table_use
from vitrina.sqlguard import SqlPolicy
from vitrina.store import graph as lines
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
    return graph.graph(
        workbench.metastore, workbench.settings.model_copy(update=opened), lines.list_lines(workbench.metastore)
    )


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
    assert api.get("/api/v1/graph").json() == {"nodes": [], "edges": [], "next_cursor": None}
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


# --- a large metastore ----------------------------------------------------------------------------------------------

MANY = 2_500
# One that the API of these tests accepts.
AFTER_FILMS = REPORT | {"source_query": "SELECT id FROM content.genre", "target_table": "analytics.report"}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that were parsed, in order."""
    queries: list[str] = []
    check = sqlguard.check

    def counting(query: str, policy: SqlPolicy) -> sqlguard.CheckedQuery:
        queries.append(query)
        return check(query, policy)

    monkeypatch.setattr(sqlguard, "check", counting)
    return queries


def test_only_new_and_changed_queries_are_parsed(workbench: Workbench, parsed: list[str]) -> None:
    multitude.fill(workbench.admin, pipelines=MANY, runs=1)
    workbench.sql("DELETE FROM etl.etl_pipeline_tasks")
    films = Definition.model_validate(FILMS)

    def depending() -> list[str]:
        parsed.clear()
        opened = workbench.settings.model_copy(update={"allowed_source_schemas": "content,analytics"})
        return graph.downstream(workbench.metastore, opened, films)["pipelines"]

    depending()
    assert len(parsed) >= MANY
    assert (depending(), parsed) == ([], [])
    # As with psql: the version stays.
    workbench.sql(
        f"UPDATE etl.etl_pipelines SET source_query = '{REPORT['source_query']}' WHERE name = 'pipeline_000077'"
    )
    assert (depending(), parsed) == (["pipeline_000077"], [REPORT["source_query"]])


def test_parts_add_up_to_the_whole(api: httpx.Client, api_metastore: Connection) -> None:
    for definition in (FILMS, AFTER_FILMS, {**FILMS, "name": "films_2", "target_table": "analytics.films_2"}):
        create(api, **definition)

    whole = api.get("/api/v1/graph").raise_for_status().json()
    parts: list[dict[str, Any]] = []
    cursor = None
    while not parts or cursor:
        asked = {"limit": 1} | ({"cursor": cursor} if cursor else {})
        parts.append(api.get("/api/v1/graph", params=asked).raise_for_status().json())
        cursor = parts[-1]["next_cursor"]

    assert (len(parts), whole["next_cursor"]) == (3, None)
    assert {node["id"]: node for part in parts for node in part["nodes"]} == {
        node["id"]: node for node in whole["nodes"]
    }
    assert sorted(map(str, (edge for part in parts for edge in part["edges"]))) == sorted(map(str, whole["edges"]))


def test_a_part_of_the_name_narrows_the_graph_and_no_edge_ends_nowhere(api: httpx.Client) -> None:
    for definition in (FILMS, AFTER_FILMS):
        create(api, **definition)

    found = api.get("/api/v1/graph", params={"name": "EPOR"}).raise_for_status().json()

    names = {node["id"]: node["name"] for node in found["nodes"]}
    edges = {(names[edge["source"]], edge["kind"], names[edge["target"]]) for edge in found["edges"]}
    assert edges == {
        ("content.genre", "reads", "report"),
        ("report", "writes", "analytics.report"),
        ("films", "run_after", "report"),
    }


@pytest.mark.parametrize("read", [answers.validated, answers.plain])
def test_the_client_gets_all_parts(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch, read: Callable[[Any, bytes, str], Any]
) -> None:
    monkeypatch.setattr(client, "_DRAWN", 1)
    for definition in (FILMS, AFTER_FILMS):
        create(api, **definition)

    with client.Client(str(api.base_url), read=read) as asking:
        found = asking.graph()

    assert [node.name for node in found.nodes if node.kind == "pipeline"] == ["films", "report"]
    assert [edge.kind for edge in found.edges].count("writes") == 2
    assert "  reads   content.genre" in list(drawings.text(found))


def test_what_is_kept_is_bounded_and_not_lost_at_once() -> None:
    known = table_use.Known(100_000)
    use = table_use.Use((table_use.Place("table", "content.film_work", None),), None)
    policy = SqlPolicy(frozenset({"content"}))
    digests = [number.to_bytes(32, "big") for number in range(1_000)]
    for digest in digests:
        known.keep(digest, policy, use)

    kept = [digest for digest in digests if known.find(digest, policy)]

    assert 100 < len(kept) < 200
    assert digests[-1] in kept
