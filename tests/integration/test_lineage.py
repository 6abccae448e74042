"""Lineage: every run is told as OpenLineage wants it, in order, and no run depends on who listens."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from prometheus_client import CollectorRegistry
from psycopg import conninfo
from pydantic import SecretStr

from tests.integration.test_observed_runner import observed
from tests.support import openlineage
from tests.support.receiver import Receiver
from tests.support.waiting import until
from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.runner import lineage_sender
from vitrina.runner.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.runner.instruments import Instruments
from vitrina.runner.lineage import RunLineage
from vitrina.runner.lineage_sender import LineageSender
from vitrina.settings import Settings

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
    watched = PipelineDispatcher(settings, onlookers=lambda claim: [RunLineage(settings, claim, events.append)])
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


@contextmanager
def sending(settings: Settings) -> Iterator[tuple[LineageSender, CollectorRegistry]]:
    instruments = Instruments()
    sender = LineageSender(settings, instruments, first_wait_seconds=0.01)
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
    with sending(Settings(lineage_url=nobody_there)) as (sender, registry):
        for _ in range(20):
            sender.send(event)  # at once: nobody waits here, and no more than the queue holds is kept
        assert len(sender._queue) <= 3
        until(lambda: registry.get_sample_value("vitrina_lineage_events_total", {"outcome": "dropped"}) == 20)
    assert registry.get_sample_value("vitrina_lineage_events_total", {"outcome": "sent"}) is None
