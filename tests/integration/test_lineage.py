"""Lineage: every run is told as OpenLineage wants it, in order, and no run depends on who listens."""

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from prometheus_client import CollectorRegistry
from psycopg import conninfo
from pydantic import SecretStr

from tests.integration.test_observed_runner import locked, observed
from tests.support import openlineage
from tests.support.processes import runner_process
from tests.support.receiver import Receiver
from tests.support.waiting import until
from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.errors import CannotConnect
from vitrina.loads.control import RunControl
from vitrina.observe import lineage_sender
from vitrina.observe.lineage import RunLineage
from vitrina.observe.lineage_sender import LineageSender
from vitrina.observe.monitoring import Connect
from vitrina.observe.observer import RunOutcome
from vitrina.observe.prometheus import Instruments
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.store import leases, recovery
from vitrina.store import lineage as lineage_begun
from vitrina.store.database import Connection
from vitrina.store.runs import Counters

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text);
CREATE TABLE content.genres (film int, genre text);
INSERT INTO content.films SELECT n, 'film ' || n FROM generate_series(1, 100) n;
INSERT INTO content.genres SELECT n, 'drama' FROM generate_series(1, 50) n;
"""
QUERY = "SELECT id, title FROM content.films"
BROKEN = "SELECT f.id, 1 / (f.id - 1) AS broken FROM content.films f JOIN content.genres g ON g.film = f.id"


def work(bench: Workbench, settings: Settings, name: str) -> list[dict[str, Any]]:
    """Run a pipeline; its events, each of which the specification accepts."""
    events: list[dict[str, Any]] = []
    bench.request(name)
    claim = bench.claim()
    watched = PipelineDispatcher(settings, observers=lambda claim: [RunLineage(settings, claim, events.append)])
    watched.work(claim, RunControl(NO_HEARTBEAT_SECONDS, threading.Event()))
    return [openlineage.check(json.loads(json.dumps(event))) for event in events]


def login(settings: Settings) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo.conninfo_to_dict(settings.require_database_url()).items()}


def test_a_run_that_succeeds(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"], description="All films.")

    start, complete = work(workbench, workbench.settings, "films")

    known = login(workbench.settings)
    namespace = f"postgres://{known['host']}:{known['port']}"
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["eventTime"] < complete["eventTime"]
    for event in (start, complete):
        assert event["run"]["runId"] == str(workbench.last_run("films")["id"])
        assert (event["job"]["namespace"], event["job"]["name"]) == ("vitrina", "films")
        assert event["job"]["facets"]["sql"]["query"] == QUERY
        datasets = [(one["namespace"], one["name"]) for one in (*event["inputs"], *event["outputs"])]
        assert datasets == [
            (namespace, f"{known['dbname']}.content.films"),
            (namespace, f"{known['dbname']}.analytics.films"),
        ]
    [read], [written] = complete["inputs"], complete["outputs"]
    columns = [{"name": "id", "type": "integer"}, {"name": "title", "type": "text"}]
    assert read["facets"]["schema"]["fields"] == written["facets"]["schema"]["fields"] == columns
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 100
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 100
    assert known["password"] not in json.dumps([start, complete])


def test_a_run_that_fails_and_one_whose_definition_is_broken(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", BROKEN, target_key=["id"])
    start, fail = work(workbench, workbench.settings, "films")
    assert [start["eventType"], fail["eventType"]] == ["START", "FAIL"]
    assert "division by zero" in fail["run"]["facets"]["errorMessage"]["message"]
    assert [one["name"].partition(".")[2] for one in fail["inputs"]] == ["content.films", "content.genres"]
    # How many rows came from which of the two, nobody knows.
    assert [one.get("inputFacets") for one in fail["inputs"]] == [None, None]

    workbench.pipeline("wrong", QUERY, target_key=["id"])
    workbench.sql("UPDATE etl.etl_pipelines SET source_query = 'DROP TABLE content.films' WHERE name = 'wrong'")
    start, fail = work(workbench, workbench.settings, "wrong")
    assert (start["inputs"], fail["eventType"]) == ([], "FAIL")
    assert [one["name"].partition(".")[2] for one in fail["outputs"]] == ["analytics.wrong"]


def test_what_came_of_checks_is_told_with_the_target(workbench: Workbench) -> None:
    workbench.source(FILMS)
    checks = [
        {"kind": "not_null", "column": "title"},
        {"kind": "unique", "columns": ["id", "title"]},
        {"kind": "expression", "name": "known_film", "expression": "id < 50", "severity": "warn"},
        {"kind": "row_count", "max": 100},
    ]
    workbench.pipeline("films", QUERY, target_key=["id"], checks=checks)

    _, complete = work(workbench, workbench.settings, "films")

    [written] = complete["outputs"]
    assert written["facets"]["schema"]["fields"]
    assert written["facets"]["dataQualityAssertions"]["assertions"] == [
        {"assertion": "not_null", "column": "title", "success": True},
        {"assertion": "known_film", "success": False},
        {"assertion": "unique", "success": True},
        {"assertion": "row_count", "success": True},
    ]

    # A load that was not published is told of, too.
    workbench.sql("INSERT INTO content.films VALUES (101, 'film 101')")
    _, fail = work(workbench, workbench.settings, "films")
    assert fail["eventType"] == "FAIL"
    found = fail["outputs"][0]["facets"]["dataQualityAssertions"]["assertions"]
    assert {one["assertion"]: one["success"] for one in found}["row_count"] is False


def test_the_check_refuses_what_the_specification_refuses(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    _, event = work(workbench, workbench.settings, "films")
    for broken in (
        event | {"eventType": "DONE"},
        event | {"run": {"runId": "7"}},
        event | {"eventTime": "yesterday"},
        {name: value for name, value in event.items() if name != "producer"},
        event | {"outputs": [{"name": "films"}]},
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            openlineage.check(broken)


def test_a_runner_tells_a_receiver_and_a_file(workbench: Workbench, tmp_path: Path) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.request("films")
    with Receiver(refusals=[503]) as receiver:
        settings = workbench.settings.model_copy(
            update={
                "metrics_port": 0,
                "poll_seconds": 0.2,
                "lineage_url": SecretStr(receiver.url("/api/v1/lineage")),
                "lineage_api_key": SecretStr("key-of-the-catalogue"),
                "lineage_file": tmp_path / "lineage.jsonl",
                "lineage_namespace": "cinema",
            }
        )
        with observed(settings) as runner:
            until(lambda: runner.value("vitrina_lineage_events_total", outcome="sent") == 2)
        arrived = [json.loads(one.body) for one in receiver.at("/api/v1/lineage")]
        assert {one.headers["authorization"] for one in receiver.received} == {"Bearer key-of-the-catalogue"}
    # The first was refused once, came again, and the second waited for it.
    assert [event["eventType"] for event in arrived] == ["START", "START", "COMPLETE"]
    assert {event["job"]["namespace"] for event in map(openlineage.check, arrived)} == {"cinema"}
    written = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    assert written == arrived[1:]


def away() -> AbstractContextManager[Connection]:
    raise CannotConnect("the metastore is away")


@contextmanager
def sending(settings: Settings, metastore: Connect) -> Iterator[tuple[LineageSender, CollectorRegistry]]:
    instruments = Instruments()
    sender = LineageSender(settings, instruments, metastore, first_wait_seconds=0.01)
    sender.start()
    try:
        yield sender, instruments.registry
    finally:
        sender.stop()


def test_who_does_not_listen_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_sender, "QUEUE_EVENTS", 3)
    with Receiver() as closed:
        nobody_there = SecretStr(closed.url("/api/v1/lineage"))
    event = {"eventType": "START", "job": {"name": "films"}, "run": {"runId": "1"}}
    with sending(Settings(lineage_url=nobody_there), away) as (sender, registry):
        for _ in range(20):
            sender.send(event)  # at once: nobody waits here, and no more than the queue holds is kept
        assert len(sender._queue) <= 3
        until(lambda: registry.get_sample_value("vitrina_lineage_events_total", {"outcome": "dropped"}) == 20)
    assert registry.get_sample_value("vitrina_lineage_events_total", {"outcome": "sent"}) is None


def test_the_end_of_runs_whose_runner_was_killed(
    workbench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a run over tells how it ended, under its own id; and that it was given up, everybody hears."""
    monkeypatch.setattr(lineage_sender, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(lineage_sender, "OWN_RUNNER_SECONDS", 0.0)
    workbench.source(FILMS)
    workbench.pipeline("goes_on", QUERY, target_key=["id"])
    workbench.pipeline("given_up", QUERY, target_key=["id"], options={"max_attempts": 1})
    cancelled = workbench.pipeline("cancelled", QUERY, target_key=["id"])
    names = ("goes_on", "given_up", "cancelled")
    for name in names:
        workbench.request(name)
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        url = receiver.url("/api/v1/lineage")

        def told(name: str) -> list[tuple[str, str]]:
            events = [openlineage.check(json.loads(one.body)) for one in receiver.at("/api/v1/lineage")]
            return [(event["eventType"], event["run"]["runId"]) for event in events if event["job"]["name"] == name]

        held = stack.enter_context(ExitStack())
        held.enter_context(locked(workbench, "content.films"))
        with runner_process(workbench.settings, tmp_path, VITRINA_LINEAGE_URL=url, NO_PROXY="*") as process:
            receiver.wait_for(lambda r: len(r.at("/api/v1/lineage")) == 3)
            process.kill()
            process.wait()
        workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now()")  # it will never be extended again
        lost = {name: str(workbench.last_run(name)["id"]) for name in names}
        assert {name: told(name) for name in names} == {name: [("START", lost[name])] for name in names}
        # Cancelled while nobody works on it: no runner of its own hears of that.
        assert leases.cancel_run(workbench.metastore, cancelled, "no longer wanted")

        settings = workbench.settings.model_copy(
            update={"metrics_port": 0, "poll_seconds": 0.2, "lineage_url": SecretStr(url)}
        ).model_copy(update={"webhook_url": SecretStr(receiver.url("/hook"))})
        with observed(settings):
            until(lambda: ("FAIL", lost["given_up"]) in told("given_up"))
            until(lambda: ("ABORT", lost["cancelled"]) in told("cancelled"))
            until(lambda: ("ABORT", lost["goes_on"]) in told("goes_on"))
            held.close()
            until(lambda: told("goes_on")[-1][0] == "COMPLETE")
            receiver.wait_for(lambda r: bool(r.at("/hook")))

    successor = str(workbench.last_run("goes_on")["id"])
    assert successor != lost["goes_on"]
    assert sorted(told("goes_on")) == sorted(
        [("START", lost["goes_on"]), ("ABORT", lost["goes_on"]), ("START", successor), ("COMPLETE", successor)]
    )
    assert told("given_up") == [("START", lost["given_up"]), ("FAIL", lost["given_up"])]
    assert told("cancelled") == [("START", lost["cancelled"]), ("ABORT", lost["cancelled"])]
    [message] = [json.loads(one.body) for one in receiver.at("/hook")]
    assert (message["type"], message["data"]["run_id"]) == ("pipeline.failed", lost["given_up"])
    assert message["data"]["error_code"] == "too_many_losses"
    assert workbench.sql("SELECT * FROM etl.etl_lineage_begun") == []


def test_a_runner_that_was_taken_for_dead_does_not_tell_the_end_again(workbench: Workbench) -> None:
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.request("films")
    claim = workbench.claim()
    with Receiver() as receiver:
        settings = workbench.settings.model_copy(update={"lineage_url": SecretStr(receiver.url("/lineage"))})
        with sending(settings, lambda: nullcontext(workbench.metastore)) as (sender, _):
            late = RunLineage(settings, claim, sender.send)
            receiver.wait_for(lambda r: len(r.received) == 1)
            assert not lineage_begun.take_left_behind(workbench.metastore, after_seconds=0, limit=9)
            workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 second'")
            recovery.recover_expired(workbench.metastore, max_attempts=3)
            sender.look()
            receiver.wait_for(lambda r: len(r.received) == 2)
            late.ended(RunOutcome("LOST"), Counters())
    assert [json.loads(one.body)["eventType"] for one in receiver.received] == ["START", "ABORT"]


def test_an_end_that_nobody_took_is_told_later(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_sender, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(lineage_sender, "OWN_RUNNER_SECONDS", 0.0)
    monkeypatch.setattr(lineage_sender, "MAX_ATTEMPTS", 1)
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.request("films")
    claim = workbench.claim()
    with Receiver() as receiver:
        settings = workbench.settings.model_copy(update={"lineage_url": SecretStr(receiver.url("/lineage"))})
        with sending(settings, lambda: nullcontext(workbench.metastore)) as (sender, registry):
            watched = PipelineDispatcher(settings, observers=lambda claim: [RunLineage(settings, claim, sender.send)])
            receiver.refusals = [200, 503]
            watched.work(claim, RunControl(NO_HEARTBEAT_SECONDS, threading.Event()))
            until(lambda: registry.get_sample_value("vitrina_lineage_events_total", {"outcome": "sent"}) == 2)
        arrived = [openlineage.check(json.loads(one.body)) for one in receiver.received]
    assert [event["eventType"] for event in arrived] == ["START", "COMPLETE", "COMPLETE"]
    assert arrived[2]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 100
