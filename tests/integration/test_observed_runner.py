"""A runner seen from outside: pipelines in trouble show in its metrics, its probes, the lines of runs and messages."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tests.support.receiver import Receiver
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.observe import logs
from vitrina.observe.run_logs import RunLogWriter
from vitrina.observe.shared_session import SharedSession
from vitrina.runner.manager import PipelineManager
from vitrina.settings import Settings
from vitrina.store import leases, pipelines, requests, run_logs

PASSWORD = "hunter2-of-the-reader"


@dataclass
class Observed:
    """A runner at work in this process, and what it shows."""

    manager: PipelineManager
    http: httpx.Client

    def series(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        answer = self.http.get("/metrics")
        assert answer.status_code == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.series().get((name, frozenset(labels.items())))


@contextmanager
def observed(settings: Settings) -> Iterator[Observed]:
    manager = PipelineManager(settings)
    thread = threading.Thread(target=manager.run_forever, daemon=True)
    thread.start()
    port = manager._telemetry.port
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
        try:
            yield Observed(manager, http)
        finally:
            manager.stop()
            thread.join(timeout=60)
    assert not thread.is_alive(), "the runner did not stop"
    manager._wakeup_recv.close()
    manager._wakeup_send.close()


@pytest.fixture
def told(workbench: Workbench) -> Iterator[tuple[Settings, Receiver]]:
    before = structlog.get_config()
    with Receiver() as receiver:
        settings = workbench.settings.model_copy(
            update={
                "metrics_port": 0,
                "poll_seconds": 0.2,
                "backoff_seconds": (0.1,),
                "webhook_url": SecretStr(receiver.url("/hook")),
                "log_format": "json",
            }
        )
        logs.configure(settings)
        yield settings, receiver
    structlog.configure(**before)


def test_four_pipelines_in_trouble(workbench: Workbench, told: tuple[Settings, Receiver]) -> None:
    settings, receiver = told
    workbench.source(
        """
        CREATE TABLE content.films (id int PRIMARY KEY, title text);
        INSERT INTO content.films SELECT n, 'film ' || n FROM generate_series(1, 1000) n;
        """
    )
    workbench.source("CREATE TABLE content.crowded (id int PRIMARY KEY, title text)")
    workbench.sql("INSERT INTO content.crowded SELECT * FROM content.films")
    films, crowded = "SELECT id, title FROM content.films", "SELECT id, title FROM content.crowded"
    workbench.pipeline("good", films, target_key=["id"])
    workbench.pipeline("failing", "SELECT id, 1 / (id - 1) AS broken FROM content.films", target_key=["id"])
    workbench.pipeline("slow", crowded, target_key=["id"], options={"max_lag_seconds": 1})
    workbench.pipeline("paused", crowded, target_key=["id"], batch_size=100, options={"route": "arrow"})
    stuck = workbench.pipeline("stuck", films, target_key=["id"])
    leave_stuck(workbench, stuck)

    with observed(settings) as runner:
        with locked(workbench, "content.crowded"):
            for name in ("slow", "paused"):
                workbench.request(name)
            # At work, and getting nowhere: somebody holds their source.
            until(lambda: runner.value("vitrina_runner_running") == 2)
            until(lambda: (runner.value("vitrina_run_progress_age_seconds", pipeline="slow") or 0) > 1)
            assert runner.value("vitrina_pipeline_status", pipeline="slow", status="RUNNING") == 1
            paused = pipelines.find(workbench.metastore, "paused")
            assert paused
            pipelines.request_pause(workbench.metastore, paused["id"])
        for name in ("good", "failing"):
            workbench.request(name)
        receiver.wait_for(lambda r: len(r.at("/hook")) == 1)
        until(lambda: runner.value("vitrina_runs_total", pipeline="slow", status="SUCCESS") == 1)
        until(lambda: runner.value("vitrina_runs_total", pipeline="good", status="SUCCESS") == 1)
        until(lambda: runner.value("vitrina_runs_total", pipeline="paused", status="PAUSED") == 1)
        until(lambda: runner.value("vitrina_notifications_total", channel="webhook", outcome="delivered") == 1)
        until(lambda: (runner.value("vitrina_lag_seconds", pipeline="slow") or 0) > 1)

        series = runner.series()

        def value(name: str, **labels: str) -> float | None:
            return series.get((name, frozenset(labels.items())))

        # Is it running, how fast, how far behind, since when broken, why?
        assert value("vitrina_pipeline_status", pipeline="good", status="IDLE") == 1
        assert value("vitrina_pipeline_status", pipeline="failing", status="FAILED") == 1
        assert value("vitrina_pipeline_status", pipeline="failing", status="IDLE") == 0
        assert value("vitrina_pipeline_status", pipeline="paused", status="PAUSED") == 1
        assert value("vitrina_rows_read_total", pipeline="paused") == 100
        assert (value("vitrina_run_duration_seconds_sum", pipeline="slow") or 0) > 0.5
        assert (value("vitrina_stage_seconds_total", pipeline="slow", stage="plan") or 0) > 0.5
        assert value("vitrina_run_progress_age_seconds", pipeline="slow") is None
        assert value("vitrina_pipeline_status", pipeline="stuck", status="RUNNING") == 1
        assert value("vitrina_rows_read_total", pipeline="good") == 1000
        assert value("vitrina_rows_written_total", pipeline="good") == 1000
        assert value("vitrina_run_duration_seconds_count", pipeline="good") == 1
        assert (value("vitrina_stage_seconds_total", pipeline="good", stage="read") or 0) > 0
        assert (value("vitrina_stage_seconds_total", pipeline="good", stage="publish") or 0) > 0
        assert (value("vitrina_lag_seconds", pipeline="slow") or 0) > (
            value("vitrina_lag_limit_seconds", pipeline="slow") or 9
        )
        assert value("vitrina_lag_seconds", pipeline="failing") is None
        assert value("vitrina_pipeline_failed", pipeline="failing", code="source_query_failed") == 1
        assert (
            abs((value("vitrina_pipeline_failing_since_timestamp_seconds", pipeline="failing") or 0) - time.time())
            < 600
        )
        assert value("vitrina_errors_total", pipeline="failing", code="source_query_failed") == 1
        assert (value("vitrina_run_progress_age_seconds", pipeline="stuck") or 0) > 3000
        assert value("vitrina_runners_alive") == 1
        assert value("vitrina_queue_depth") == 0
        assert value("vitrina_notifications_total", channel="webhook", outcome="delivered") == 1

        body = json.loads(receiver.at("/hook")[0].body)
        assert (body["type"], body["data"]["pipeline"]) == ("pipeline.failed", "failing")
        assert body["data"]["error_code"] == "source_query_failed"

        # Lag goes on while nothing runs.
        earlier = runner.value("vitrina_lag_seconds", pipeline="good") or 0
        until(lambda: (runner.value("vitrina_lag_seconds", pipeline="good") or 0) >= earlier + 0.3)

        good = lines_of(workbench, "good")
        assert [line["topic"] for line in good] == [
            "run.started",
            "status.moved",
            "run.planned",
            "batch.done",
            "run.published",
            "status.moved",
            "run.ended",
        ]
        for line in good:
            assert {"pipeline", "pipeline_id", "epoch"} <= line["payload"].keys()
        batch = good[3]["payload"]
        assert batch["rows"] == 1000
        assert {"attempt", "batch_no", "duration_ms"} <= batch.keys()
        failing = lines_of(workbench, "failing")
        [failed] = [line for line in failing if line["topic"] == "run.failed"]
        assert failed["level"] == "error"
        assert failed["payload"]["sqlstate"] == "22012"
        [ended] = [line for line in lines_of(workbench, "paused") if line["topic"] == "run.ended"]
        assert (ended["payload"]["status"], ended["payload"]["rows"]) == ("PAUSED", 100)
        [ended] = [line for line in lines_of(workbench, "slow") if line["topic"] == "run.ended"]
        assert ended["payload"]["duration_ms"] > 500

        # Mended, it says so; since when it was broken is no longer told.
        workbench.change("failing", source_query="SELECT id, 1 AS broken FROM content.films")
        workbench.request("failing")
        receiver.wait_for(lambda r: len(r.at("/hook")) == 2)
        body = json.loads(receiver.at("/hook")[1].body)
        assert (body["type"], body["data"]["pipeline"]) == ("pipeline.recovered", "failing")
        assert runner.value("vitrina_pipeline_failing_since_timestamp_seconds", pipeline="failing") is None

        # What holds the stuck one lets go in the end, and the others are told whose it was.
        heard: list[dict[str, Any]] = []

        def listen(level: str, fields: dict[str, Any]) -> None:
            heard.append({"level": level, **fields})

        logs.add_listener(listen)
        workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 second' WHERE name = 'stuck'")
        until(lambda: runner.value("vitrina_runs_total", pipeline="stuck", status="SUCCESS") == 1)
        assert runner.value("vitrina_lease_lost_total", pipeline="stuck", seen_by="successor") == 1
        assert runner.value("vitrina_run_progress_age_seconds", pipeline="stuck") is None
        logs.remove_listener(listen)
        [recovered] = [line for line in heard if line["event"] == "pipeline.recovered"]
        assert (recovered["pipeline"], recovered["level"]) == ("stuck", "warning")
        assert len(receiver.at("/hook")) == 2


def test_a_runner_that_starts_says_how_many_pipelines_it_took_over(
    workbench: Workbench, told: tuple[Settings, Receiver]
) -> None:
    for name in ("one", "two"):
        workbench.pipeline(name, "SELECT 1 AS id", target_key=["id"])
        workbench.request(name)
        workbench.claim()
    workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 second'")
    heard: list[dict[str, Any]] = []

    def listen(level: str, fields: dict[str, Any]) -> None:
        heard.append(fields)

    logs.add_listener(listen)
    with observed(told[0]):
        until(lambda: any(line["event"] == "recovery.done" for line in heard))
    logs.remove_listener(listen)
    [done] = [line for line in heard if line["event"] == "recovery.done"]
    assert done["pipelines"] == 2


def test_probes_tell_what_is_wrong(
    workbench: Workbench, told: tuple[Settings, Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A long lease: the next heartbeat must not come between what is broken here and the look at it. Nor may the loop's
    # next look around: a runner leaves a metastore of another version, and its probes with it.
    settings = told[0].model_copy(update={"lease_ttl_seconds": 3600.0})
    monkeypatch.setattr(PipelineManager, "_tick", lambda manager, _: manager._telemetry.mark_alive())
    with observed(settings) as runner:
        assert runner.http.get("/livez").json() == {"status": "ok"}
        ready = runner.http.get("/readyz?verbose")
        assert ready.status_code == 200
        assert ready.json()["checks"] == {"loop": "ok", "metastore": "ok", "heartbeat": "ok"}
        workbench.sql("UPDATE etl.alembic_version SET version_num = '0001'")
        broken = runner.http.get("/readyz")
        assert broken.status_code == 503
        assert "vitrina migrate" in broken.json()["checks"]["metastore"]
        assert runner.http.get("/livez").status_code == 200
        workbench.sql("DELETE FROM etl.etl_runners")
        assert "none within" in runner.http.get("/readyz").json()["checks"]["heartbeat"]
        assert runner.http.get("/nothing").status_code == 404


def test_kept_lines_have_no_secrets_and_survive_odd_values(
    workbench: Workbench, told: tuple[Settings, Receiver]
) -> None:
    settings = told[0].model_copy(update={"reader_password": SecretStr(PASSWORD), "token": SecretStr("12345678901234")})
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    workbench.request("films")
    claim = workbench.claim()
    dropped: list[int] = []
    session = SharedSession(settings)
    keeper = RunLogWriter(settings, session.turn, on_dropped=dropped.append)
    keeper.start()
    try:
        log = structlog.get_logger().bind(run_id=str(claim.run_id))
        log.info("one", login=f"reader:{PASSWORD}", odd=object(), number=12345678901234, zero="a\x00b")
        log.debug("not kept")
        try:
            raise ValueError(PASSWORD)
        except ValueError:
            log.exception("two")
        log.info("refused by Postgres", lone="\ud800")
        log.info("three", long="x" * 100_000)
        log.info("of no run", run_id="nonsense")
    finally:
        keeper.stop()
        session.close()
    lines = kept(workbench, claim.run_id)
    assert [line["topic"] for line in lines] == ["one", "two", "three"]
    assert dropped == [1]
    text = json.dumps([line["payload"] for line in lines])
    assert PASSWORD not in text
    assert "ValueError: ***" in text
    assert len(text) < 20_000


def test_a_lease_taken_away_is_counted(workbench: Workbench, told: tuple[Settings, Receiver]) -> None:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    workbench.request("films")
    workbench.claim()
    workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 second'")
    with observed(told[0]) as runner:
        until(lambda: runner.value("vitrina_lease_lost_total", pipeline="films", seen_by="successor") == 1)
        until(lambda: runner.value("vitrina_runs_total", pipeline="films", status="SUCCESS") == 1)


def test_plans_are_counted_by_what_they_found(workbench: Workbench, told: tuple[Settings, Receiver]) -> None:
    settings, _ = told
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1), (2)")
    pipeline = workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    with observed(settings) as runner:

        def plan() -> None:
            request_id = requests.insert(workbench.metastore, "plan", pipeline, {}, "somebody")
            until(lambda: (requests.find(workbench.metastore, request_id) or {}).get("finished_at") is not None)

        plan()
        workbench.request("films")
        until(lambda: runner.value("vitrina_runs_total", pipeline="films", status="SUCCESS") == 1)
        for change in ("SELECT 1", "DELETE FROM content.films", "DROP TABLE content.films"):
            workbench.sql(change)
            plan()

        results = ("changes", "same", "refused", "failed")
        until(lambda: all(runner.value("vitrina_plans_total", pipeline="films", result=one) == 1 for one in results))


@contextmanager
def locked(workbench: Workbench, table: str) -> Iterator[None]:
    """Somebody's open transaction, behind which every reader of the table waits."""
    assert workbench.settings.admin_url
    with psycopg.connect(workbench.settings.admin_url.get_secret_value()) as somebody:
        somebody.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def leave_stuck(workbench: Workbench, pipeline_id: UUID) -> None:
    """A runner that holds its lease and does nothing."""
    workbench.request("stuck")
    claim = workbench.claim()
    leases.extend(workbench.metastore, [claim.claim_id], 600)
    workbench.sql(f"UPDATE etl.etl_runs SET updated_at = now() - interval '1 hour' WHERE id = '{claim.run_id}'")
    assert claim.pipeline_id == pipeline_id


def lines_of(workbench: Workbench, name: str) -> list[dict[str, Any]]:
    run_id = workbench.last_run(name)["id"]
    until(lambda: any(line["topic"] in ("run.ended", "run.failed") for line in kept(workbench, run_id)))
    return kept(workbench, run_id)


def kept(workbench: Workbench, run_id: UUID) -> list[dict[str, Any]]:
    levels = ["info", "warning", "error"]
    return run_logs.list_of_run(workbench.metastore, run_id, levels=levels, after_id=0, limit=500)
