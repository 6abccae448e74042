"""Verbs over HTTP: every status with every verb, idempotency, and the reports an operator reads."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from psycopg.types.json import Jsonb

from tests.integration.api import create, problem, wrong_fields
from vitrina.errors import LeaseLost
from vitrina.status import Status
from vitrina.store import leases, recovery, requests, runners, runs
from vitrina.store.database import Connection

FILMS = "/api/v1/pipelines/films"

# What each verb does to an enabled pipeline in each status: the HTTP status, and the pipeline's status afterwards.
# Written by hand from the requirements, not from the code that it checks.
EXPECTED: dict[str, dict[Status, tuple[int, Status | None]]] = {
    "run": {
        Status.IDLE: (202, Status.RUN_REQUESTED),
        Status.RUN_REQUESTED: (202, Status.RUN_REQUESTED),
        Status.RUNNING: (202, Status.RUNNING),
        Status.PAUSE_REQUESTED: (409, Status.PAUSE_REQUESTED),
        Status.PAUSED: (202, Status.RUN_REQUESTED),
        Status.FAILED: (202, Status.RUN_REQUESTED),
    },
    "pause": {
        Status.IDLE: (202, Status.PAUSE_REQUESTED),
        Status.RUN_REQUESTED: (202, Status.PAUSE_REQUESTED),
        Status.RUNNING: (202, Status.PAUSE_REQUESTED),
        Status.PAUSE_REQUESTED: (202, Status.PAUSE_REQUESTED),
        Status.PAUSED: (202, Status.PAUSED),
        Status.FAILED: (409, Status.FAILED),
    },
    "cancel": {
        Status.IDLE: (409, Status.IDLE),
        Status.RUN_REQUESTED: (202, Status.IDLE),
        Status.RUNNING: (202, Status.IDLE),
        Status.PAUSE_REQUESTED: (202, Status.PAUSED),
        Status.PAUSED: (409, Status.PAUSED),
        Status.FAILED: (409, Status.FAILED),
    },
    "disable": {
        Status.IDLE: (200, Status.IDLE),
        Status.RUN_REQUESTED: (200, Status.IDLE),
        Status.RUNNING: (200, Status.RUNNING),
        Status.PAUSE_REQUESTED: (200, Status.PAUSE_REQUESTED),
        Status.PAUSED: (200, Status.PAUSED),
        Status.FAILED: (200, Status.FAILED),
    },
    "enable": {status: (200, status) for status in Status},
    "reload-config": {status: (200, status) for status in Status},
    "reset-state": {
        Status.IDLE: (200, Status.IDLE),
        Status.RUN_REQUESTED: (200, Status.RUN_REQUESTED),
        Status.RUNNING: (409, Status.RUNNING),
        Status.PAUSE_REQUESTED: (409, Status.PAUSE_REQUESTED),
        Status.PAUSED: (200, Status.PAUSED),
        Status.FAILED: (200, Status.FAILED),
    },
    "delete": {
        Status.IDLE: (204, None),
        Status.RUN_REQUESTED: (204, None),
        Status.RUNNING: (409, Status.RUNNING),
        Status.PAUSE_REQUESTED: (409, Status.PAUSE_REQUESTED),
        Status.PAUSED: (204, None),
        Status.FAILED: (204, None),
    },
    "change target_table": {
        Status.IDLE: (200, Status.IDLE),
        Status.RUN_REQUESTED: (200, Status.RUN_REQUESTED),
        Status.RUNNING: (409, Status.RUNNING),
        Status.PAUSE_REQUESTED: (409, Status.PAUSE_REQUESTED),
        Status.PAUSED: (200, Status.PAUSED),
        Status.FAILED: (200, Status.FAILED),
    },
    "change batch_size": {status: (200, status) for status in Status},
}


def test_the_table_has_every_pair() -> None:
    assert all(set(row) == set(Status) for row in EXPECTED.values())


@pytest.mark.parametrize("verb", EXPECTED)
@pytest.mark.parametrize("status", Status)
def test_every_status_with_every_verb(api: httpx.Client, api_metastore: Connection, status: Status, verb: str) -> None:
    put(api, api_metastore, status)
    response = perform(api, verb)
    expected, after = EXPECTED[verb][status]
    assert response.status_code == expected, response.text
    assert status_of(api_metastore) == after
    if expected == 409:
        found = problem(response)
        assert found["code"] == "conflict"
        assert f"pipeline films is {status}" in found["detail"]


@pytest.mark.parametrize("status", Status)
def test_a_disabled_pipeline_cannot_be_run(api: httpx.Client, api_metastore: Connection, status: Status) -> None:
    put(api, api_metastore, status)
    api_metastore.execute("UPDATE etl.etl_pipelines SET enabled = false")
    response = api.post(f"{FILMS}/run")
    assert response.status_code == 409
    assert problem(response)["detail"] == "pipeline films is disabled: enable it, then run it"
    assert status_of(api_metastore) == status


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_table", "analytics.other"),
        ("mode", "incremental"),
        ("source_query", "SELECT 1 AS id"),
        ("incremental_key", "updated_at"),
        ("incremental_id_key", "id"),
        ("options", {"allow_shrink": True}),
        ("tasks", [{"order_index": 0, "task_type": "SQL", "body": "SELECT 1 AS id"}]),
    ],
)
def test_what_a_run_depends_on_is_locked_under_it(
    api: httpx.Client, api_metastore: Connection, field: str, value: Any
) -> None:
    put(api, api_metastore, Status.RUNNING)
    fields = {field: value} | ({"incremental_key": "updated_at"} if field == "mode" else {})
    response = api.patch(FILMS, json=fields)
    assert response.status_code == 409
    assert problem(response)["detail"] == (
        f"pipeline films is RUNNING: {', '.join(sorted(fields))} cannot change during a run;"
        " pause it, wait until it is PAUSED, then change it"
    )
    same = {name: api.get(FILMS).json()[name] for name in fields}
    assert api.patch(FILMS, json=same | {"batch_size": 9}).status_code == 200


def test_disabling_by_patch_takes_the_request_back_too(api: httpx.Client, api_metastore: Connection) -> None:
    put(api, api_metastore, Status.RUN_REQUESTED)
    assert api.patch(FILMS, json={"enabled": False}).json()["status"] == "IDLE"


# --- running ------------------------------------------------------------------------------------------------------


def test_asking_twice_is_one_request(api: httpx.Client) -> None:
    create(api)
    first, second = api.post(f"{FILMS}/run").json(), api.post(f"{FILMS}/run").json()
    assert first == second
    runs_in_audit = api.get("/api/v1/audit", params={"action": "run"}).json()["items"]
    assert len(runs_in_audit) == 1


def test_a_run_asked_for_while_one_works_is_remembered(api: httpx.Client, api_metastore: Connection) -> None:
    claim = start(api, api_metastore)
    answer = api.post(f"{FILMS}/run").json()
    assert (answer["status"], answer["run"]["id"]) == ("RUNNING", str(claim.run_id))
    assert answer["message"] == "pipeline films is running; another run follows this one"
    assert leases.conclude_run(api_metastore, claim) == Status.RUN_REQUESTED


def test_a_run_at_work_is_cancelled_with_the_one_behind_it(api: httpx.Client, api_metastore: Connection) -> None:
    claim = start(api, api_metastore)
    api.post(f"{FILMS}/run").raise_for_status()
    assert api.post(f"{FILMS}/cancel").json()["status"] == "IDLE"
    with pytest.raises(LeaseLost):
        leases.conclude_run(api_metastore, claim)
    run = api.get(f"/api/v1/runs/{claim.run_id}").json()
    assert (run["status"], run["error_code"]) == ("CANCELLED", "cancelled")
    assert leases.claim_next(api_metastore, uuid4(), 30) is None


def test_cancel_with_a_request_ends_the_run_of_that_request_and_no_other(
    api: httpx.Client, api_metastore: Connection
) -> None:
    def asked() -> dict[str, str]:
        return {"run_requested_at": api.post(f"{FILMS}/run").raise_for_status().json()["run_requested_at"]}

    create(api)
    waiting = asked()
    assert api.post(f"{FILMS}/cancel", json=waiting).json()["status"] == "IDLE"
    over = api.post(f"{FILMS}/cancel", json=waiting)
    assert over.status_code == 409
    assert "has ended, or another one was requested since" in problem(over)["detail"]

    first = asked()
    assert api.post(f"{FILMS}/cancel", json=waiting).status_code == 409  # another request waits by now
    claim = claimed(api_metastore)
    second = asked()
    assert api.post(f"{FILMS}/cancel", json=first).status_code == 409  # would take the second one with it
    assert api.post(f"{FILMS}/cancel", json=second).status_code == 409  # the run at work is not its own
    assert leases.conclude_run(api_metastore, claim) == Status.RUN_REQUESTED

    claimed(api_metastore)
    assert api.post(f"{FILMS}/cancel", json=second).json()["status"] == "IDLE"


@pytest.mark.parametrize("noted", [False, True], ids=["not yet noted", "noted"])
def test_a_later_run_is_not_cancelled_for_a_request_that_is_over(
    api: httpx.Client, api_metastore: Connection, noted: bool
) -> None:
    create(api)
    mine = {"run_requested_at": api.post(f"{FILMS}/run").json()["run_requested_at"]}
    claim = claimed(api_metastore)
    leases.answer_request(api_metastore, claim)
    leases.conclude_run(api_metastore, claim)
    api.post(f"{FILMS}/run").raise_for_status()
    theirs = claimed(api_metastore)
    if noted:
        leases.answer_request(api_metastore, theirs)
    assert api.post(f"{FILMS}/cancel", json=mine).status_code == 409
    assert leases.conclude_run(api_metastore, theirs) == Status.IDLE


def test_an_interrupted_run_is_cancelled_by_its_request_too(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    asked = api.post(f"{FILMS}/run").json()["run_requested_at"]
    claim = claimed(api_metastore)
    leases.answer_request(api_metastore, claim)
    leases.give_back(api_metastore, claim)
    assert api.post(f"{FILMS}/cancel", json={"run_requested_at": asked}).json()["status"] == "IDLE"


def test_the_same_idempotency_key_runs_once(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    create(api, name="other")
    headers = {"Idempotency-Key": "dag-2026-11-15"}
    first = api.post(f"{FILMS}/run", headers=headers)
    assert "idempotent-replayed" not in first.headers
    leases.conclude_run(api_metastore, claimed(api_metastore))

    again = api.post(f"{FILMS}/run", headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.status_code, again.json()) == (202, first.json())
    assert status_of(api_metastore) == Status.IDLE  # no second run was asked for

    elsewhere = api.post("/api/v1/pipelines/other/run", headers=headers)
    assert elsewhere.status_code == 409
    assert "was used for another pipeline" in problem(elsewhere)["detail"]


def test_a_refused_run_does_not_use_up_its_key(api: httpx.Client) -> None:
    create(api, enabled=False)
    headers = {"Idempotency-Key": "k"}
    assert api.post(f"{FILMS}/run", headers=headers).status_code == 409
    api.post(f"{FILMS}/enable").raise_for_status()
    assert api.post(f"{FILMS}/run", headers=headers).json()["status"] == "RUN_REQUESTED"


# --- reports ------------------------------------------------------------------------------------------------------


def test_status_of_a_pipeline_that_never_ran(api: httpx.Client) -> None:
    created = create(api)
    found = api.get(f"{FILMS}/status").json()
    assert found["status"] == "IDLE"
    assert found["since"] == created["status_since"]
    for nothing in ("runner", "run", "progress", "checkpoint", "hold", "guarantee", "last_error", "next_run_at"):
        assert found[nothing] is None, nothing
    assert found["recent"]["runs"] == 0
    assert found["recent"]["success_rate"] is None
    assert found["lag"]["last_success_at"] is None


def test_status_of_a_run_at_work(api: httpx.Client, api_metastore: Connection) -> None:
    runner_id = uuid4()
    heartbeat(api_metastore, runner_id)
    claim = start(api, api_metastore, runner_id)
    metrics = {"rows_estimate": 1000, "guarantee": "exact"}
    counters = runs.Counters(rows_read=250, rows_written=240, batches=5, metrics=metrics)
    runs.record_progress(api_metastore, claim.run_id, counters, attempts=1)
    hold = {"pid": 77, "user": "app", "since": "2026-01-01T00:00:00Z"}
    leases.note_hold(api_metastore, claim, hold)
    api_metastore.execute("UPDATE etl.etl_runs SET started_at = started_at - interval '10 seconds'")

    found = api.get(f"{FILMS}/status").json()
    assert found["status"] == "RUNNING"
    assert found["runner"].pop("heartbeat_at")
    assert found["runner"] == {"id": str(runner_id), "host": "worker-1", "pid": 42, "alive": True}
    assert found["run"]["id"] == str(claim.run_id)
    assert found["guarantee"] == "exact"
    assert found["hold"] == hold
    progress = found["progress"]
    assert (progress["rows_read"], progress["batches"], progress["percent"]) == (250, 5, 25.0)
    assert progress["rows_per_second"] == pytest.approx(25, rel=0.3)
    assert progress["eta_seconds"] == pytest.approx(30, rel=0.3)


def test_status_of_a_failed_pipeline_says_what_to_do(api: httpx.Client, api_metastore: Connection) -> None:
    claim = start(api, api_metastore)
    leases.fail_run(api_metastore, claim, "source_query_failed", 'column "titel" does not exist')
    found = api.get(f"{FILMS}/status").json()
    assert found["status"] == "FAILED"
    error = found["last_error"]
    assert (error["code"], error["message"]) == ("source_query_failed", 'column "titel" does not exist')
    assert error["run_id"] == str(claim.run_id)
    assert error["next_step"] == ("Correct source_query (a validation tries it against the source), then run again.")
    assert found["recent"]["success_rate"] == 0.0
    assert api.get("/api/v1/runs", params={"status": "FAILED"}).json()["items"][0]["next_step"] == error["next_step"]


def test_history_is_paged_and_narrowed(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    create(api, name="other")
    for name in ("films", "other", "films", "films"):
        api.post(f"/api/v1/pipelines/{name}/run").raise_for_status()
        leases.conclude_run(api_metastore, claimed(api_metastore))

    everything = api.get("/api/v1/runs").json()["items"]
    assert [run["pipeline"] for run in everything] == ["films", "films", "other", "films"]
    first = api.get(f"{FILMS}/runs", params={"limit": 2}).json()
    rest = api.get(f"{FILMS}/runs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    ids = [run["id"] for run in first["items"] + rest["items"]]
    assert ids == [run["id"] for run in everything if run["pipeline"] == "films"]
    assert rest["next_cursor"] is None
    newest = everything[0]["started_at"]
    assert len(api.get("/api/v1/runs", params={"since": newest}).json()["items"]) == 1
    assert len(api.get("/api/v1/runs", params={"until": newest, "pipeline": "films"}).json()["items"]) == 2
    assert api.get("/api/v1/runs", params={"pipeline": "nobody"}).status_code == 404
    assert api.get(f"/api/v1/runs/{ids[0]}").json() == everything[0] | {"next_step": None}
    missing = api.get(f"/api/v1/runs/{uuid4()}")
    assert (missing.status_code, problem(missing)["code"]) == (404, "not_found")


def test_checkpoint_and_lag(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api, mode="incremental", incremental_key="updated_at")
    assert api.get(f"{FILMS}/state").json()["safe_upto"] is None
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    reset = api.post(f"{FILMS}/reset-state", json={"cursor": an_hour_ago.isoformat(sep=" ")})
    assert reset.json()["safe_upto"] == an_hour_ago.isoformat(sep=" ")
    assert api.get(f"{FILMS}/state").json() == reset.json()
    lag = api.get(f"{FILMS}/lag").json()
    assert lag["pipeline_id"] == created["id"]
    assert lag["cursor_lag_seconds"] == pytest.approx(3600, abs=30)
    assert api.post(f"{FILMS}/reset-state").json()["safe_upto"] is None


def test_only_an_incremental_pipeline_has_a_cursor_to_reset(api: httpx.Client) -> None:
    create(api)
    response = api.post(f"{FILMS}/reset-state", json={"cursor": "2026-01-01"})
    assert response.status_code == 422
    assert problem(response)["errors"][0]["path"] == "cursor"


# --- what a runner performs ---------------------------------------------------------------------------------------


def test_validate_without_a_runner_says_what_can_be_said(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    report = api.post(f"{FILMS}/validate").json()
    assert report["valid"] is True
    assert report["deep"] is None
    assert "no runner is alive" in report["warnings"][0]
    api_metastore.execute("UPDATE etl.etl_pipelines SET source_query = 'DELETE FROM content.film_work'")
    report = api.post(f"{FILMS}/validate").json()
    assert report["valid"] is False
    assert [(e["path"], e["code"]) for e in report["errors"]] == [("source_query", "invalid_query")]


def test_steps_that_nobody_has_are_named_with_those_that_somebody_has(
    api: httpx.Client, api_metastore: Connection
) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": "SELECT id FROM content.film_work"},
        {"order_index": 1, "task_type": "PYTHON", "body": "title_case"},
        {"order_index": 2, "task_type": "PYTHON", "body": "missing_step"},
    ]
    create(api, tasks=tasks)  # no runner is alive, so nobody can tell
    known = [{"name": "title_case", "doc": "Title Case."}, {"name": "broken_module", "kind": "error", "doc": "No."}]
    heartbeat(api_metastore, uuid4(), transforms=known)
    expected = {
        "path": "tasks.2.body",
        "message": "no live runner has the Python step 'missing_step'; available: title_case",
        "code": "unknown_step",
    }
    assert wrong_fields(api.post(f"{FILMS}/validate").json()) == [expected]
    refused = api.put(f"{FILMS}/tasks", json={"items": [*tasks[:2], tasks[2] | {"body": "broken_module"}]})
    assert refused.status_code == 422
    assert "no live runner has the Python step 'broken_module'; available: title_case" in refused.text
    assert api.put(f"{FILMS}/tasks", json={"items": tasks[:2]}).status_code == 200
    assert api.patch(FILMS, json={"batch_size": 7}).status_code == 200
    listed = api.get("/api/v1/transforms").json()["items"]
    assert [(t["name"], t["doc"], t["runners"]) for t in listed] == [
        ("broken_module", "No.", 1),
        ("title_case", "Title Case.", 1),
    ]


def test_what_no_runner_answers_in_time_is_looked_up_later(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    asked = api.post(f"{FILMS}/preview", json={"limit": 3})
    assert asked.status_code == 202
    assert asked.headers["location"] == f"/api/v1/requests/{asked.json()['id']}"
    assert api.get(asked.headers["location"]).json()["status"] == "QUEUED"

    runner = uuid4()
    taken = requests.claim_next(api_metastore, runner, 30)
    assert taken
    assert (taken["kind"], taken["payload"]) == ("preview", {"limit": 3})
    requests.finish(api_metastore, taken["id"], runner, result={"rows": [{"id": 1}]}, error=None)
    done = api.get(asked.headers["location"]).json()
    assert (done["status"], done["result"]) == ("DONE", {"rows": [{"id": 1}]})


def test_a_runner_that_answers_in_time_is_waited_for(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    heartbeat(api_metastore, uuid4())
    api_metastore.execute(
        """
        CREATE OR REPLACE FUNCTION etl.answer_at_once() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.status := 'FAILED'; NEW.finished_at := now();
            NEW.error := '{"code": "source_query_failed", "message": "column titel does not exist"}';
            RETURN NEW;
        END $$
        """
    )
    api_metastore.execute(
        "CREATE TRIGGER answer BEFORE INSERT ON etl.etl_requests FOR EACH ROW EXECUTE FUNCTION etl.answer_at_once()"
    )
    try:
        report = api.post(f"{FILMS}/validate")
    finally:
        api_metastore.execute("DROP TRIGGER answer ON etl.etl_requests")
    assert report.status_code == 200
    assert report.json()["valid"] is False
    assert wrong_fields(report.json()) == [
        {"path": "source_query", "message": "column titel does not exist", "code": "source_query_failed"}
    ]


def test_requests_that_nobody_takes_up_expire(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    assert api.get(f"{FILMS}/reconcile").status_code == 404
    first = api.post(f"{FILMS}/reconcile").json()
    api_metastore.execute("UPDATE etl.etl_requests SET created_at = now() - interval '1 hour'")
    api.post(f"{FILMS}/reconcile").raise_for_status()
    expired = api.get(f"/api/v1/requests/{first['id']}").json()
    assert (expired["status"], expired["error"]["code"]) == ("FAILED", "expired")
    assert api.get(f"{FILMS}/reconcile").json()["id"] != first["id"]


def test_differences_are_downloaded_and_nothing_is_repaired_beside_a_run(
    api: httpx.Client, api_metastore: Connection
) -> None:
    create(api)
    assert api.get(f"{FILMS}/reconcile/differences").status_code == 404
    wish = {"level": "sample", "repair": True, "limit": 5}
    assert api.post(f"{FILMS}/reconcile", json=wish).status_code == 202
    runner = uuid4()
    taken = requests.claim_next(api_metastore, runner, 30)
    assert taken
    assert (taken["kind"], taken["payload"]) == ("reconcile", wish)
    keys = [
        {"kind": "differing", "key": {"id": "1"}, "columns": {"title": {"source": 'a "b", c', "target": None}}},
        {"kind": "extra", "key": {"id": "2"}, "columns": {}},
    ]
    requests.finish(api_metastore, taken["id"], runner, result={"keys": keys}, error=None)

    assert api.get(f"{FILMS}/reconcile/differences").json() == keys
    file = api.get(f"{FILMS}/reconcile/differences", params={"format": "csv"})
    assert file.headers["content-type"].startswith("text/csv")
    assert "films-differences.csv" in file.headers["content-disposition"]
    assert file.text.splitlines() == [
        '"kind","id","column","source","target"',
        '"differing","1","title","a ""b"", c",',
        '"extra","2",,,',
    ]
    api.post(f"{FILMS}/run").raise_for_status()
    refused = api.post(f"{FILMS}/reconcile", json=wish)
    assert refused.status_code == 409
    assert "rows cannot be repaired during a run" in refused.json()["detail"]
    assert api.post(f"{FILMS}/reconcile", json={"level": "quick"}).status_code == 202
    assert api.post(f"{FILMS}/reconcile", json={"level": "deep"}).status_code == 422


# --- the installation ---------------------------------------------------------------------------------------------


def test_targets_are_listed_page_by_page(api: httpx.Client) -> None:
    for name in ("films", "genres", "people"):
        create(api, name=name)

    first = api.get("/api/v1/targets", params={"limit": 2}).raise_for_status().json()
    rest = api.get("/api/v1/targets", params={"limit": 2, "cursor": first["next_cursor"]}).raise_for_status().json()

    assert [item["pipelines"] for item in first["items"] + rest["items"]] == [["films"], ["genres"], ["people"]]
    assert (len(first["items"]), rest["next_cursor"]) == (2, None)


def test_runners_targets_connections(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    alive, silent = uuid4(), uuid4()
    heartbeat(api_metastore, alive)
    heartbeat(api_metastore, silent)
    api_metastore.execute("UPDATE etl.etl_runners SET heartbeat_at = now() - interval '1 hour' WHERE id = %s", [silent])
    listed = {runner["id"]: runner["alive"] for runner in api.get("/api/v1/runners").json()["items"]}
    assert listed == {str(alive): True, str(silent): False}
    [default] = api.get("/api/v1/connections").json()["items"]
    assert (default["name"], default["set_in"]) == ("default", "environment")
    targets = api.get("/api/v1/targets").json()
    assert targets["items"] == [{"target": "analytics.films", "pipelines": ["films"]}]
    assert targets["allowed"] == ["analytics.*", "es:film_dim", "es:film_rating_agg"]
    health = api.get("/health").json()
    assert (health["status"], health["runners"]) == ("ok", 1)
    metrics = api.get("/metrics").text
    assert 'vitrina_pipelines{status="IDLE"} 1.0' in metrics
    assert "vitrina_runners_alive 1.0" in metrics


def test_dead_letters(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    for number in range(3):
        api_metastore.execute(
            "INSERT INTO etl.etl_dead_letters (pipeline_id, document_id, error, document) VALUES (%s, %s, %s, %s)",
            [created["id"], str(number), "mapper_parsing_exception", Jsonb({"n": number})],
        )
    first = api.get("/api/v1/dead-letters", params={"limit": 2, "pipeline": "films"}).json()
    assert [letter["document_id"] for letter in first["items"]] == ["2", "1"]
    rest = api.get("/api/v1/dead-letters", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [letter["document"] for letter in rest["items"]] == [{"n": 0}]
    assert {letter["resolution"] for letter in rest["items"]} == {None}


def test_dead_letters_of_one_cause_are_one_group(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    for number in range(5):
        error = f"column 'n{number}' is no number: \"{number} apples\" at row {number}" if number else "it is too large"
        api_metastore.execute(
            "INSERT INTO etl.etl_dead_letters (pipeline_id, document_id, error, document) VALUES (%s, %s, %s, '{}')",
            [created["id"], str(number), error],
        )
    large, small = api.get("/api/v1/dead-letters/groups", params={"pipeline": "films"}).json()["items"]
    assert (large["letters"], large["reason"]) == (4, "column … is no number: … at row #")
    assert large["error"] == "column 'n4' is no number: \"4 apples\" at row 4"
    assert (small["letters"], small["reason"], small["pipeline"]) == (1, "it is too large", "films")
    within = api.get("/api/v1/dead-letters", params={"reason": large["reason"]}).json()["items"]
    assert [letter["document_id"] for letter in within] == ["4", "3", "2", "1"]

    api.post("/api/v1/dead-letters/replay", json={"pipeline": "films", "reason": large["reason"]}).raise_for_status()
    [request] = api_metastore.execute("SELECT payload FROM etl.etl_requests WHERE kind = 'replay'").fetchall()
    assert request["payload"] == {"letters": [letter["id"] for letter in within]}
    gone = api.post("/api/v1/dead-letters/replay", json={"pipeline": "films", "reason": "another"})
    assert problem(gone)["detail_said"]["code"] == "pipeline.no_letters_of_group"


def test_dead_letters_are_sent_again_by_a_runner(api: httpx.Client, api_metastore: Connection) -> None:
    create(api)
    asked = api.post("/api/v1/dead-letters/replay", json={"pipeline": "films", "letters": [7]})
    assert (asked.status_code, asked.json()["kind"]) == (202, "replay")
    [request] = api_metastore.execute("SELECT payload FROM etl.etl_requests WHERE kind = 'replay'").fetchall()
    assert request["payload"] == {"letters": [7]}
    [entry] = api.get("/api/v1/audit", params={"action": "replay"}).json()["items"]
    assert (entry["object"], entry["after"]) == ("pipeline:films", {"letters": [7]})

    api.post(f"{FILMS}/run").raise_for_status()
    claimed(api_metastore)
    refused = api.post("/api/v1/dead-letters/replay", json={"pipeline": "films"})
    assert refused.status_code == 409
    assert "dead letters cannot be replayed during a run" in problem(refused)["detail"]


# --- making statuses ----------------------------------------------------------------------------------------------


def put(api: httpx.Client, metastore: Connection, status: Status) -> None:
    """A pipeline in that status, brought there the way it really comes about."""
    if status in (Status.RUNNING, Status.FAILED, Status.PAUSE_REQUESTED):
        claim = start(api, metastore)
        if status == Status.FAILED:
            leases.fail_run(metastore, claim, "fatal", "it broke")
    else:
        create(api)
    if status == Status.RUN_REQUESTED:
        api.post(f"{FILMS}/run").raise_for_status()
    if status in (Status.PAUSE_REQUESTED, Status.PAUSED):
        api.post(f"{FILMS}/pause").raise_for_status()
    if status == Status.PAUSED:
        recovery.pause_unclaimed(metastore)
    assert status_of(metastore) == status


def start(api: httpx.Client, metastore: Connection, runner_id: UUID | None = None) -> leases.Claim:
    create(api)
    api.post(f"{FILMS}/run").raise_for_status()
    return claimed(metastore, runner_id)


def claimed(metastore: Connection, runner_id: UUID | None = None) -> leases.Claim:
    claim = leases.claim_next(metastore, runner_id or uuid4(), 30)
    assert claim
    return claim


def perform(api: httpx.Client, verb: str) -> httpx.Response:
    changes = {"change target_table": {"target_table": "analytics.other"}, "change batch_size": {"batch_size": 1}}
    if verb in changes:
        return api.patch(FILMS, json=changes[verb])
    return api.delete(FILMS) if verb == "delete" else api.post(f"{FILMS}/{verb}")


def status_of(metastore: Connection) -> Status | None:
    row = metastore.execute("SELECT status FROM etl.etl_pipelines WHERE name = 'films'").fetchone()
    return Status(row["status"]) if row else None


def heartbeat(metastore: Connection, runner_id: UUID, transforms: list[dict[str, Any]] | None = None) -> None:
    runners.heartbeat(
        metastore, runner_id, host="worker-1", pid=42, version="1", capacity=4, running=0, transforms=transforms or []
    )
