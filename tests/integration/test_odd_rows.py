"""Whatever stands in a row of the metastore, written by hand: the other pipelines are scheduled, run and recovered."""

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.integration.api import serving, without_auth
from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.runner import housekeeping
from vitrina.store import leases, pipelines, recovery

LONG = "x" * 20_000
DEEP = "[" * 3000 + "]" * 3000
HUGE = "9" * 5000
EXTREMES: dict[str, list[Any]] = {
    "epoch": [2**63 - 1, -(2**63)],
    "attempts": [2**31 - 1, -5],
    "version": [2**31 - 1],
    "lease_seconds": ["NaN", "Infinity", 1e308, -1e308],
    "lease_until": ["infinity", "-infinity", "9999-12-31"],
    "next_run_at": ["infinity", "-infinity", "0001-01-01", "250000-01-01"],
    "run_requested_at": ["infinity", "-infinity", "9999-12-31"],
    "schedule_interval": [
        "",
        "often",
        "0 3 * * * localtime",
        "0 3 * * * Mars/Base",
        "P999999999W",
        LONG,
        "١٥m",
        "\u0000",
    ],
    "options": [
        *('{"schedule_jitter_seconds": 1e13}', '{"schedule_jitter_seconds": "soon"}', '{"max_attempts": 1e400}'),
        *('{"max_attempts": -1}', '{"target_connection": 7}', '{"reconcile": {"interval": "P999999999W"}}', "[]", "7"),
        *(f'{{"params": {DEEP}}}', f'{{"reconcile": {DEEP}}}', f'{{"max_attempts": {HUGE}}}', '{"notify": {}}'),
        *(f'{{"reconcile": {{"interval": {HUGE}}}}}', '{"max_lag_seconds": 1e400}', '{"cursor_timezone": "Europe"}'),
    ],
    "target_table": ["", LONG, "no.such.thing", "es:", "pg_catalog.pg_class"],
    "source_query": ["", None, "DROP TABLE x", LONG],
    "source_connection": ["", LONG, "nowhere"],
    "checks": ["7", "{}", "[7]", '[{"kind": 7}]', '[{"kind": "row_count"}]', DEEP],
    "accepted_checks": ["7", "{}", "[7]", '"shrink"', DEEP],
    "requested_range": ["7", "[]", '{"since": []}', DEEP],
    "requested_trigger": ["", "nonsense", LONG],
    "requested_trace": ["", LONG],
    "mode": ["incremental"],
    "holds_target": ["database default|analytics.odd"],
    "claim_id": [str(uuid4())],
    "hold": ["7", DEEP],
    "labels": ["[]", '{"team": 7}'],
    "needs_attention": ['{"schedule": {}}'],
}
STATUSES = ("IDLE", "RUN_REQUESTED", "RUNNING", "PAUSE_REQUESTED", "PAUSED", "FAILED")


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1)")
    return workbench


def odd_rows(bench: Workbench, seed: int) -> int:
    """A row for each extreme value, in some status, and as many with several at random; how many could be written."""
    chance = random.Random(seed)
    singles = [{column: value} for column, values in EXTREMES.items() for value in values]
    several = [
        {column: chance.choice(EXTREMES[column]) for column in chance.sample(sorted(EXTREMES), 3)} for _ in range(60)
    ]
    return sum(insert(bench, number, odd, chance) for number, odd in enumerate(singles + several))


def insert(bench: Workbench, number: int, odd: dict[str, Any], chance: random.Random) -> bool:
    values = {
        "name": f"odd{number}",
        "source_query": "SELECT id FROM content.films",
        "target_table": f"analytics.odd{number}",
        "target_key": ["id"],
        "incremental_key": "id",
        "status": chance.choice(STATUSES),
        "schedule_interval": "1h",
        "next_run_at": "2020-01-01",
    } | odd
    statement = sql.SQL("INSERT INTO etl.etl_pipelines ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join([sql.Placeholder()] * len(values))
    )
    try:
        bench.admin.execute(statement, list(values.values()))
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.StatementTooComplex):
        return False  # the database has refused it, and said so to whoever tried
    return True


def test_other_pipelines_run_whatever_stands_in_the_rows_beside_them(bench: Workbench, tmp_path: Path) -> None:
    assert odd_rows(bench, seed=1) > 60
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"], schedule_interval="1h")
    bench.pipeline("asked", "SELECT id FROM content.films", target_key=["id"])
    bench.pipeline("lost", "SELECT id FROM content.films", target_key=["id"])
    bench.sql("UPDATE etl.etl_pipelines SET next_run_at = now() - interval '1 s' WHERE name = 'films'")
    bench.sql("UPDATE etl.etl_pipelines SET status = 'RUNNING', lease_until = now() WHERE name = 'lost'")
    bench.request("asked")

    with runner_process(bench.settings, tmp_path, VITRINA_POLL_SECONDS="0.2") as runner:
        until(lambda: all(succeeded(bench, name) for name in ("films", "asked", "lost")), seconds=240)
        assert runner.poll() is None, "the runner ended"


def succeeded(bench: Workbench, name: str) -> bool:
    return bool(
        bench.sql(
            "SELECT r.id FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            f" WHERE p.name = '{name}' AND r.status = 'SUCCESS'"
        )
    )


def test_a_row_that_cannot_be_claimed_is_set_aside_and_says_why(bench: Workbench) -> None:
    bench.pipeline("odd", "SELECT id FROM content.films", target_key=["id"])
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    bench.request("odd")
    bench.request("films")
    bench.sql("UPDATE etl.etl_pipelines SET epoch = 9223372036854775807 WHERE name = 'odd'")

    assert bench.claim().name == "films"

    odd = pipelines.find(bench.metastore, "odd")
    assert odd is not None
    assert (odd["status"], odd["claim_id"]) == ("FAILED", None)
    assert "bigint out of range" in odd["needs_attention"]["claim"]
    bench.sql("UPDATE etl.etl_pipelines SET epoch = 0 WHERE name = 'odd'")
    bench.request("odd")
    assert leases.claim_next(bench.metastore, uuid4(), 30) is not None
    again = pipelines.find(bench.metastore, "odd")
    assert again is not None
    assert again["needs_attention"] == {}


def test_a_row_that_cannot_even_be_set_aside_keeps_nobody_waiting(bench: Workbench) -> None:
    for name in ("odd", "films"):
        bench.pipeline(name, "SELECT id FROM content.films", target_key=["id"])
        bench.request(name)
    refuse_changes(bench, "odd")
    assert bench.claim().name == "films"
    assert bench.status("odd") == "RUN_REQUESTED"


def test_a_row_that_cannot_be_recovered_says_why_until_it_can(bench: Workbench) -> None:
    for name in ("odd", "lost"):
        bench.pipeline(name, "SELECT id FROM content.films", target_key=["id"])
    bench.sql("UPDATE etl.etl_pipelines SET status = 'RUNNING', lease_until = 'epoch'")
    refuse_changes(bench, "odd", of="status")

    assert [row["name"] for row in recovery.recover_expired(bench.metastore, max_attempts=5)] == ["lost"]

    odd = pipelines.find(bench.metastore, "odd")
    assert odd is not None
    assert "somebody's trigger" in odd["needs_attention"]["recovery"]
    bench.sql("DROP TRIGGER refuses ON etl.etl_pipelines")
    recovery.recover_expired(bench.metastore, max_attempts=5)
    odd = pipelines.find(bench.metastore, "odd")
    assert odd is not None
    assert (odd["status"], odd["needs_attention"]) == ("RUN_REQUESTED", {})


def refuse_changes(bench: Workbench, name: str, *, of: str = "") -> None:
    """As an administrator's own trigger may."""
    bench.sql(
        f"""
        CREATE FUNCTION etl.refuses() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'somebody''s trigger'; END $$;
        CREATE TRIGGER refuses BEFORE UPDATE {f"OF {of}" if of else ""} ON etl.etl_pipelines
        FOR EACH ROW WHEN (old.name = '{name}') EXECUTE FUNCTION etl.refuses()
        """
    )


def test_housekeeping_does_its_other_duties_when_one_fails(bench: Workbench) -> None:
    odd_rows(bench, seed=2)
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    bench.sql("ALTER TABLE etl.etl_events RENAME TO somewhere_else")  # one duty cannot be done at all
    bench.sql("UPDATE etl.etl_pipelines SET holds_target = 'database default|analytics.films' WHERE name = 'films'")

    housekeeping.tidy_up(bench.settings)

    films = pipelines.find(bench.metastore, "films")
    assert films is not None
    assert films["holds_target"] is None


def test_the_lists_of_the_api_show_the_others_and_the_odd_ones(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    bench.run("films")
    odd_rows(bench, seed=3)
    with serving(without_auth(bench.settings)) as api:
        for path in ("pipelines", "overview"):
            assert "films" in names_of(api, path), path
        runs = api.get("/api/v1/runs")
        assert [run["pipeline"] for run in runs.json()["items"]] == ["films"]
        for path in ("/health", "/metrics", "/api/v1/runners"):
            assert api.get(path).status_code == 200, path
        odd = [name for name in names_of(api, "overview") if name != "films"]
        assert odd
        for name in odd:
            for path in ("", "/status", "/versions"):
                answer = api.get(f"/api/v1/pipelines/{name}{path}", headers={"Connection": "close"})
                assert answer.status_code == 200, (name, path, answer.text)


ODD_COLUMNS = [
    *(("etl_pipelines", "options", value) for value in ("null", "5", '"x"', "[]")),
    *(("etl_pipelines", "labels", value) for value in ("null", "5", '"x"', "[1]", '{"team": null}')),
    *(("etl_pipelines", "target_key", value) for value in ("{NULL}", "{id,NULL}", "{{id}}")),
    *(("etl_runs", "metrics", value) for value in ("null", "5", '"x"', "[]", '{"checks": 5}')),
]


def test_one_odd_value_breaks_no_answer(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    bench.run("films")
    run = bench.sql("SELECT id FROM etl.etl_runs")[0]["id"]
    lists = ["pipelines", "overview", "home", "graph", "export", "runs", "audit"]
    of_one = ["pipelines/films", "pipelines/films/status", "pipelines/films/runs", "pipelines/films/lag", f"runs/{run}"]
    with serving(without_auth(bench.settings)) as api:
        for table, column, value in ODD_COLUMNS:
            kept = bench.sql(f"SELECT {column} FROM etl.{table}")[0][column]
            set_everywhere(bench, table, column, value)
            for path in lists + of_one:
                answer = api.get(f"/api/v1/{path}", headers={"Connection": "close"})
                assert answer.status_code == 200, (column, value, path, answer.text)
            set_everywhere(bench, table, column, kept if isinstance(kept, list) else Jsonb(kept))


def set_everywhere(bench: Workbench, table: str, column: str, value: Any) -> None:
    change = sql.SQL("UPDATE etl.{} SET {} = %s").format(sql.Identifier(table), sql.Identifier(column))
    bench.admin.execute(change, [value])


def names_of(api: httpx.Client, path: str) -> list[str]:
    """Of all pages."""
    found, cursor = [], None
    while True:
        answer = api.get(f"/api/v1/{path}", params={"limit": 50} | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [line["name"] for line in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
