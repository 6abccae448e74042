"""Very many pipelines and runs: no statement that is sent often reads a whole table, by the plan that PostgreSQL has.

Statements are those that the product sends, with their values, and each is explained right before it is sent.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.adapt import PyFormat
from psycopg.pq import Escaping

from tests.conftest import admin, settings_for
from tests.integration.api import serving, without_auth
from tests.support import multitude
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.observe.monitoring import MetastoreCollector
from vitrina.runner import housekeeping
from vitrina.settings import Settings
from vitrina.store import database, leases, pipelines, prepared, recovery, requests, run_after, runs, schedules

PIPELINES, RUNS = 3000, 30_000
LARGE = {"etl_runs", "etl_pipelines", "etl_state", "etl_pipeline_tasks"}


@dataclass
class Plans:
    """What was sent while one watched, with the large tables that its plan reads from the first to the last row."""

    seen: list[tuple[str, set[str]]] = field(default_factory=list)
    indexes: set[str] = field(default_factory=set)
    # Of each index: whether it was searched for values, or read in its order.
    searched: dict[str, set[bool]] = field(default_factory=dict)

    def note(self, statement: str, plan: dict[str, Any]) -> None:
        self.seen.append((statement, set(_read_whole(plan))))
        for scan in _index_scans(plan):
            self.indexes.add(scan["Index Name"])
            self.searched.setdefault(scan["Index Name"], set()).add("Index Cond" in scan)

    def whole_reads(self) -> list[tuple[str, set[str]]]:
        return [(statement, tables) for statement, tables in self.seen if tables]


@pytest.fixture(scope="module")
def settings(server: TemporaryServer, template: str) -> Iterator[Settings]:
    name = f"many_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    found = without_auth(settings_for(server, name), log_level="error")
    assert found.admin_url
    with database.connect(found.admin_url.get_secret_value(), "vitrina:test") as connection:
        multitude.fill(connection, pipelines=PIPELINES, runs=RUNS)
    yield found
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def bench(settings: Settings) -> Iterator[Workbench]:
    assert settings.admin_url
    with (
        database.connect(settings.admin_url.get_secret_value(), "vitrina:test-admin") as session,
        database.connect(settings.require_database_url(), "vitrina:test") as metastore,
    ):
        found = Workbench(settings, session, metastore)
        yield found
        found.pool.close()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    found = Plans()
    send = psycopg.Cursor.execute

    def explain_and_send(cursor: psycopg.Cursor[Any], query: Any, params: Any = None, **more: Any) -> Any:
        text = query.as_string(cursor.connection) if isinstance(query, sql.Composable) else query
        text = text.decode() if isinstance(text, bytes) else text
        if re.match(r"[\s(]*(SELECT|WITH|INSERT|UPDATE|DELETE)\b.*\betl\.", text, re.DOTALL):
            send(cursor, "EXPLAIN (FORMAT JSON) " + text, params)
            [row] = cursor.fetchall()
            [plan] = next(iter(row.values()))
            found.note(" ".join(text.split()), plan["Plan"])
        return send(cursor, query, params, **more)

    prepare, ask = prepared._Prepared.__init__, prepared._Prepared._ask
    texts: dict[prepared._Prepared, str] = {}

    def prepare_and_note(statement: prepared._Prepared, connection: Any, numbered: bytes) -> None:
        texts[statement] = " ".join(numbered.decode().split())
        prepare(statement, connection, numbered)

    def explain_and_ask(statement: prepared._Prepared, values: Sequence[Any]) -> Any:
        text = texts.get(statement) or _text_of(statement)
        # Only statements of the metastore: a run asks its reader's session which tables it has touched.
        if "etl." in text:
            found.note(text, _explain_prepared(statement, values))
        return ask(statement, values)

    monkeypatch.setattr(psycopg.Cursor, "execute", explain_and_send)
    monkeypatch.setattr(prepared._Prepared, "__init__", prepare_and_note)
    monkeypatch.setattr(prepared._Prepared, "_ask", explain_and_ask)
    return found


def _text_of(statement: "prepared._Prepared") -> str:
    """Return the text of a statement that was prepared before the test began."""
    asked = b"SELECT statement FROM pg_prepared_statements WHERE name = '%s'" % statement._name
    text = statement._session.exec_(asked).get_value(0, 0)
    assert text
    return " ".join(text.decode().split())


def _explain_prepared(statement: "prepared._Prepared", values: Sequence[Any]) -> dict[str, Any]:
    """Return the plan that a session uses after some executions: for any values, unless that costs more."""
    session, name = statement._session, statement._name
    sent = statement._reading.dump_sequence(values, [PyFormat.TEXT] * len(values))
    escaping = Escaping(session)
    literals = b", ".join(b"NULL" if one is None else escaping.escape_literal(one) for one in sent)
    asked = b"EXPLAIN (FORMAT JSON) EXECUTE " + name + (b"(%s)" % literals if sent else b"")
    *_, explained = (session.exec_(asked) for _ in range(7))
    plan = explained.get_value(0, 0)
    assert plan, explained.error_message
    found: dict[str, Any] = json.loads(plan)[0]["Plan"]
    return found


def _read_whole(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in LARGE:
        yield plan["Relation Name"]
    for part in plan.get("Plans", []):
        yield from _read_whole(part)


def _index_scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Index Name" in plan:
        yield plan
    for part in plan.get("Plans", []):
        yield from _index_scans(part)


def test_the_watch_sees_a_statement_that_reads_a_whole_table(bench: Workbench, plans: Plans) -> None:
    bench.metastore.execute("SELECT count(*) FROM etl.etl_runs WHERE rows_read = %s", [1])
    assert [tables for _, tables in plans.whole_reads()] == [{"etl_runs"}]


# --- the API -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *(f"/pipelines?sort={sign}{column}" for column in pipelines.SORTABLE for sign in ("", "-")),
        "/pipelines?status=FAILED&limit=20",
        "/pipelines?target=analytics.mart_7",
        "/pipelines?managed_by=files_0",
        "/pipelines/pipeline_000100",
        "/pipelines/pipeline_000100/status",
        "/pipelines/pipeline_000100/lag",
        "/pipelines/pipeline_000100/runs",
        "/pipelines/pipeline_000100/runs?status=FAILED",
        "/pipelines/pipeline_000100/alerts",
        "/pipelines/pipeline_000100/reconciles",
        "/runs",
        "/runs?status=RUNNING",
        "/runs?status=SUCCESS",
        "/runs?status=FAILED&status=CANCELLED&status=PAUSED",
        "/runs?status=FAILED&trigger=schedule&since=2020-01-01T00:00:00Z&until=2100-01-01T00:00:00Z",
        "/runs?trigger=manual",
        "/runs?pipeline=pipeline_000100&status=SUCCESS",
        "/overview?limit=200",
        "/graph?limit=200",
        "/feeds",
        "/dead-letters",
        "/dead-letters/groups",
    ],
)
def test_lists_are_read_by_index_page_by_page(api: httpx.Client, plans: Plans, path: str) -> None:
    """Each with its second page, where it has one."""
    answer = api.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    if cursor := answer.json().get("next_cursor"):
        assert api.get(f"/api/v1{path}", params={**answer.request.url.params, "cursor": cursor}).status_code == 200
    assert plans.seen
    assert plans.whole_reads() == []


@pytest.mark.parametrize("status", ["status=RUNNING", "status=SUCCESS", "status=PAUSED&status=CANCELLED"])
def test_runs_of_a_status_are_not_looked_for_among_all(api: httpx.Client, plans: Plans, status: str) -> None:
    """The index of all runs by time is one as well, and reads them all when there are few of that status."""
    assert api.get(f"/api/v1/runs?{status}").status_code == 200
    assert "etl_runs_by_status" in plans.indexes
    assert "etl_runs_recent" not in plans.indexes


def test_the_first_page_looks_at_the_runs_of_its_hours_alone(api: httpx.Client, plans: Plans) -> None:
    """An index that is read until enough recent runs are found would be read to its end, because there are few.

    The ages of marts are computed from whole tables. They are kept when that takes time.
    """
    assert api.get("/api/v1/home?hours=1").status_code == 200
    assert all("max_lag_seconds" in statement for statement, _ in plans.whole_reads())
    assert {"etl_pipelines_held", "etl_pipelines_blocked"} <= plans.indexes
    assert plans.searched["etl_runs_recent"] == {True}
    assert plans.searched["etl_pipelines_due"] == {True, False}  # what is overdue; what comes next, in its order


@pytest.fixture(scope="module")
def api(settings: Settings) -> Iterator[httpx.Client]:
    with serving(settings) as client:
        yield client


def test_changes_and_requests_look_at_one_pipeline(api: httpx.Client, bench: Workbench, plans: Plans) -> None:
    """A second writer is refused too: who writes to a target is known by index, also where a last step names it."""
    query = {"source_query": "SELECT id FROM content.films", "target_key": ["id"]}
    made = api.post("/api/v1/pipelines", json={"name": "new", "target_table": "analytics.new", **query})
    assert made.status_code == 201, made.text
    taken = {"name": "second", "target_table": "analytics.mart_11", **query}
    assert api.post("/api/v1/pipelines", json=taken).status_code == 409
    # Pipelines of whole fives have a last step, which names another target.
    taken = {"name": "second", "target_table": "analytics.mart_15_", **query}
    assert api.post("/api/v1/pipelines", json=taken).status_code == 409
    assert api.patch("/api/v1/pipelines/new", json={"batch_size": 77}).status_code == 200
    assert api.post("/api/v1/pipelines/new/run").status_code == 202
    assert api.post("/api/v1/pipelines/new/pause").status_code == 202
    lines = api.get("/api/v1/overview", params={"pipeline": [made.json()["id"]]}).json()["items"]
    assert [line["name"] for line in lines] == ["new"]
    assert api.delete("/api/v1/pipelines/new").status_code in {204, 409}
    assert plans.whole_reads() == []


# --- runners -------------------------------------------------------------------------------------------------------


def test_a_run_reads_no_whole_table(bench: Workbench, plans: Plans) -> None:
    """From the claim to the end, with a heartbeat and a look at what was cancelled."""
    bench.source("CREATE TABLE content.films AS SELECT i AS id, 'film ' || i AS title FROM generate_series(1, 50) i")
    films = bench.pipeline("films", "SELECT id, title FROM content.films", target_key=["id"])
    bench.request("films")
    claim = leases.claim_next(bench.metastore, uuid4(), 30, only=films)
    assert claim
    assert leases.extend(bench.metastore, [claim.claim_id], 30).extended == {claim.claim_id}
    assert set(leases.still_held(bench.metastore, [claim.claim_id, uuid4()])) == {claim.claim_id}
    bench.perform(claim)
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert any("s.stage IS NOT NULL" in statement for statement, _ in plans.seen)
    assert plans.whole_reads() == []


LOOKS: dict[str, Callable[[Workbench], object]] = {
    "wake-ups": lambda bench: leases.look(bench.metastore, count_to=9),
    "claim": lambda bench: leases.claim_next(bench.metastore, uuid4(), 30, per_source=500, max_connections={"b": 9}),
    "recovery": lambda bench: recovery.recover_expired(bench.metastore, max_attempts=5),
    "pauses": lambda bench: recovery.pause_unclaimed(bench.metastore),
    "schedules": lambda bench: schedules.list_due(bench.metastore),
    "run after": lambda bench: run_after.request_ready(bench.metastore),
    "requests": lambda bench: requests.claim_next(bench.metastore, uuid4(), 30),
    "idempotency keys": lambda bench: requests.forget_keys(bench.metastore, older_than_hours=24),
    "housekeeping": lambda bench: housekeeping.tidy_up(bench.settings),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_runners_look_at_again_and_again_is_found_by_index(bench: Workbench, plans: Plans, name: str) -> None:
    LOOKS[name](bench)
    assert plans.seen
    assert plans.whole_reads() == []


@pytest.mark.parametrize("name", [name for name in LOOKS if name != "housekeeping"])
def test_a_plan_for_any_values_finds_it_by_index_too(settings: Settings, name: str) -> None:
    """A runner's session plans each statement once, for any values."""
    with database.connect(
        settings.require_database_url(), "vitrina:test", settings={"plan_cache_mode": "force_generic_plan"}
    ) as session:
        session.prepare_threshold = 0
        LOOKS[name](Workbench(settings, session, session))
        found = session.execute(
            "SELECT name, statement, cardinality(parameter_types) AS values FROM pg_prepared_statements"
            " WHERE statement LIKE '%etl.%'",
            prepare=False,
        ).fetchall()
        assert found
        for row in found:
            values = f"({', '.join(['NULL'] * row['values'])})" if row["values"] else ""
            explained = database.one(
                session.execute(f"EXPLAIN (FORMAT JSON) EXECUTE {row['name']}{values}".encode(), prepare=False)
            )
            [plan] = next(iter(explained.values()))
            assert set(_read_whole(plan["Plan"])) == set(), row["statement"]


def test_a_scrape_reads_the_pipelines_that_it_shows(bench: Workbench, plans: Plans) -> None:
    """All others are read whole, but in statements whose answer is kept when there are so many that it takes time."""
    collector = MetastoreCollector(lambda: _open(bench), bench.settings, counted=lambda: ["pipeline_000001"])
    assert len(list(collector.collect())) > 10
    kept = [statement for statement, _ in plans.seen if "(p.created_at, p.id) > " in statement]
    assert len(kept) == 4
    others = [(statement, tables) for statement, tables in plans.whole_reads() if statement not in kept]
    assert others == []


def _open(bench: Workbench) -> psycopg.Connection[Any]:
    return database.connect(bench.settings.require_database_url(), "vitrina:test")


# --- old runs ------------------------------------------------------------------------------------------------------


def test_old_runs_are_forgotten_in_slices_and_those_that_count_are_kept(bench: Workbench, plans: Plans) -> None:
    bench.sql("CREATE TABLE public.expected AS " + _EXPECTED)
    # The table of the test gets small while runs are deleted. Analyzed then, it would rightly be read whole.
    bench.sql("ALTER TABLE etl.etl_runs SET (autovacuum_enabled = off)")
    after: tuple[datetime, UUID] | None = None
    forgotten, walks = 0, 0
    while walks == 0 or after:
        done = runs.prune(bench.metastore, older_than_days=1, after=after, slices=3, of_rows=700)
        forgotten, after, walks = forgotten + done.runs, done.upto, walks + 1
    left = bench.sql("SELECT count(*) FILTER (WHERE e.id IS NULL) AS wrongly_kept, count(*) AS runs"
                     " FROM etl.etl_runs r LEFT JOIN public.expected e USING (id)")  # fmt: skip
    kept = bench.sql("SELECT count(*) AS runs FROM public.expected")
    assert left == [{"wrongly_kept": 0, "runs": kept[0]["runs"]}]
    assert forgotten > RUNS // 2
    assert walks > 5
    assert plans.whole_reads() == []


# What the rule says, in one look at everything.
_EXPECTED = """
SELECT id FROM (
    SELECT id, finished_at, is_success,
           row_number() OVER (PARTITION BY pipeline_id ORDER BY started_at DESC) AS place,
           row_number() OVER (PARTITION BY pipeline_id, is_success ORDER BY finished_at DESC) AS among_equals
    FROM (SELECT *, status = 'SUCCESS' AND NOT metrics ?| '{repair,replay}' AS is_success FROM etl.etl_runs) r
) r
WHERE finished_at IS NULL OR finished_at >= now() - interval '1 day' OR place = 1
   OR is_success AND among_equals = 1
"""
