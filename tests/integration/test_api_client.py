"""The Python client against a real API: every call, the errors' meanings, waiting, events."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import DEFINITION, serving
from tests.support.processes import command
from tests.support.waiting import until
from vitrina import errors, schemas
from vitrina.api import feed
from vitrina.client import Client
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store import database as postgres
from vitrina.store import events, leases, recovery, run_logs, runners
from vitrina.store.database import Connection


@pytest.fixture
def client(api: httpx.Client) -> Iterator[Client]:
    with Client(str(api.base_url)) as made:
        yield made


def test_the_life_of_a_pipeline(client: Client) -> None:
    created = client.create_pipeline(DEFINITION)
    assert client.get_pipeline(created.id) == client.get_pipeline("films") == created
    changed = client.update_pipeline("films", {"batch_size": 7}, version=1)
    assert (changed.batch_size, changed.version) == (7, 2)
    with pytest.raises(errors.PreconditionFailed, match="at version 2, not 1"):
        client.update_pipeline("films", {"batch_size": 8}, version=1)
    assert [p.name for p in client.list_pipelines(name="fil")] == ["films"]
    assert client.list_pipelines(status=[Status.FAILED]) == []
    tasks = client.replace_tasks(
        "films", [{"order_index": 0, "task_type": "SQL", "body": "SELECT id FROM content.film_work"}]
    )
    assert client.get_tasks("films") == tasks
    assert [v.version for v in client.list_versions("films")] == [3, 2, 1]
    assert [c.path for c in client.compare_versions("films", 1, 2).changes] == ["batch_size"]
    assert client.roll_back("films", 1).version == 4
    assert client.disable("films").enabled is False
    assert client.enable("films").enabled is True
    assert client.reload_config("films").version == 6
    assert client.status("films").status == Status.IDLE
    assert client.state("films").safe_upto is None
    assert client.reset_state("films").pipeline_id == created.id
    assert client.lag("films").last_success_at is None
    assert client.validate("films").valid
    assert client.list_audit(object="pipeline:films", limit=1)[0].action == "reset_state"
    assert client.list_targets().items[0].pipelines == ["films"]
    assert [c.name for c in client.list_connections()] == ["default"]
    assert client.list_runners() == []
    assert client.list_transforms() == []
    assert client.list_dead_letters("films") == []
    client.delete_pipeline("films")
    with pytest.raises(errors.NotFound, match="there is no pipeline 'films'"):
        client.get_pipeline("films")
    assert client.health().status == "ok"
    assert client.version().api == "v1"


def test_every_page_is_fetched(client: Client, api_metastore: Connection) -> None:
    api_metastore.execute(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table)"
        " SELECT 'p' || n, 'SELECT 1 AS id', 'analytics.p' || n FROM generate_series(1, 550) n"
    )
    assert len({p.name for p in client.list_pipelines()}) == 550
    assert len(client.list_pipelines(limit=201)) == 201
    assert len({found.target for found in client.list_targets().items}) == 550


def test_errors_carry_the_server_s_words_and_fields(client: Client) -> None:
    with pytest.raises(errors.Invalid, match="batch_size must be greater than or equal to 1, not 0") as caught:
        client.create_pipeline(DEFINITION | {"batch_size": 0})
    assert [(field.path, field.code) for field in caught.value.fields] == [("batch_size", "invalid")]
    client.create_pipeline(DEFINITION)
    with pytest.raises(errors.Conflict, match="already exists"):
        client.create_pipeline(DEFINITION)


def test_no_server_says_how_to_start_one() -> None:
    with Client("http://127.0.0.1:1") as nobody, pytest.raises(errors.CannotConnect) as caught:
        nobody.list_pipelines()
    assert str(caught.value) == (
        "no Vitrina API answers at http://127.0.0.1:1: start one with `vitrina dev` (everything in one)"
        " or `vitrina api`, or set VITRINA_API_URL to its address"
    )


def test_something_else_at_the_address_is_noticed() -> None:
    page = httpx.MockTransport(lambda request: httpx.Response(404, text="<html>nginx</html>"))
    with Client("http://127.0.0.1:1", transport=page) as wrong, pytest.raises(errors.CannotConnect) as caught:
        wrong.list_pipelines()
    assert "not as a Vitrina API does: check VITRINA_API_URL" in str(caught.value)


def test_an_address_that_is_none() -> None:
    with Client("ftp://example") as wrong, pytest.raises(errors.ConfigError, match="VITRINA_API_URL"):
        wrong.list_pipelines()


def test_a_run_without_a_key_is_not_sent_twice_and_one_with_a_key_is() -> None:
    sent: list[httpx.Request] = []

    def lose_the_answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        raise httpx.ReadError("lost")

    with Client("http://127.0.0.1:1", transport=httpx.MockTransport(lose_the_answer)) as unlucky:
        with pytest.raises(errors.CannotConnect):
            unlucky.run("films")
        assert len(sent) == 1
        with pytest.raises(errors.CannotConnect):
            unlucky.run("films", idempotency_key="k")
        assert [request.headers.get("idempotency-key") for request in sent[1:]] == ["k"] * 3


def test_a_token_is_sent(api_settings: Settings, client: Client, api_metastore: Connection) -> None:
    _, secret = tokens.create(api_metastore, Caller("setup", Role.ADMIN), name="admin", role=Role.ADMIN)
    with serving(api_settings.model_copy(update={"auth": "token"})) as guarded:
        url = str(guarded.base_url)
        with Client(url) as nobody, pytest.raises(errors.Unauthenticated):
            nobody.list_pipelines()
        with Client(url, secret) as admin:
            made = admin.create_token("viewer", "viewer", expires_in_days=30)
            assert [token.name for token in admin.list_tokens()] == ["admin", "viewer"]
            with Client(url, made.token) as viewer, pytest.raises(errors.Forbidden, match="needs operator"):
                viewer.create_pipeline(DEFINITION)
            admin.revoke_token("viewer")
            with Client(url, made.token) as viewer, pytest.raises(errors.Unauthenticated, match="revoked or expired"):
                viewer.list_pipelines()


# --- waiting ------------------------------------------------------------------------------------------------------


def test_waiting_for_a_run_follows_it_through_a_lost_runner(client: Client, api_metastore: Connection) -> None:
    client.create_pipeline(DEFINITION)
    accepted = client.run("films")

    seen: list[Status] = []

    def lose_one_then_finish(metastore: Connection) -> None:
        """Each time when whoever waits has seen how it stands."""
        until(lambda: seen[-1:] == [Status.RUN_REQUESTED])
        leases.claim_next(metastore, uuid4(), 30)
        until(lambda: seen[-1:] == [Status.RUNNING])
        metastore.execute("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 minute'")
        recovery.recover_expired(metastore, max_attempts=3)
        until(lambda: seen[-1:] == [Status.RUN_REQUESTED])
        claim = leases.claim_next(metastore, uuid4(), 30)
        assert claim
        until(lambda: seen[-1:] == [Status.RUNNING])
        leases.conclude_run(metastore, claim)

    with in_background(api_metastore, lose_one_then_finish):
        run = client.wait_for_run(
            "films",
            requested_at=accepted.run_requested_at,
            on_progress=lambda status: seen.append(status.status),
            poll_seconds=0.02,
        )
    assert run.status == RunStatus.SUCCESS
    assert [r.status for r in client.list_runs("films")] == [RunStatus.SUCCESS, RunStatus.FAILED]
    assert client.get_run(run.id) == run


def test_waiting_skips_the_run_that_was_at_work_before(client: Client, api_metastore: Connection) -> None:
    client.create_pipeline(DEFINITION)
    client.run("films")
    first = leases.claim_next(api_metastore, uuid4(), 30)
    assert first
    accepted = client.run("films")
    assert accepted.run
    assert accepted.run.id == first.run_id
    leases.conclude_run(api_metastore, first)
    second = leases.claim_next(api_metastore, uuid4(), 30)
    assert second
    leases.fail_run(api_metastore, second, "fatal", "it broke")
    run = client.wait_for_run("films", requested_at=accepted.run_requested_at, poll_seconds=0.02)
    assert (run.id, run.status, run.error_message) == (second.run_id, RunStatus.FAILED, "it broke")


def test_waiting_ends_when_time_is_up_or_the_request_is_gone(client: Client) -> None:
    client.create_pipeline(DEFINITION)
    accepted = client.run("films")
    with pytest.raises(errors.TransientError, match="still RUN_REQUESTED"):
        client.wait_for_run("films", requested_at=accepted.run_requested_at, timeout_seconds=0.1, poll_seconds=0.05)
    client.cancel("films")
    with pytest.raises(errors.Conflict, match="the run did not start"):
        client.wait_for_run("films", requested_at=accepted.run_requested_at)


def test_waiting_for_a_request_names_the_missing_runner(client: Client) -> None:
    client.create_pipeline(DEFINITION)
    asked = client.preview("films", limit=3)
    assert client.get_request(asked.id) == asked
    with pytest.raises(errors.TransientError, match="is one running"):
        client.wait_for_request(asked, timeout_seconds=0.1, poll_seconds=0.02)


# --- events -------------------------------------------------------------------------------------------------------


def test_events_arrive_as_they_happen_and_are_replayed(client: Client, api_metastore: Connection) -> None:
    client.create_pipeline(DEFINITION)
    start = events.newest_id(api_metastore)
    stream = client.events(last_event_id=start)
    client.run("films")
    first = next(stream)
    assert (first.topic, first.payload["from"], first.payload["to"]) == ("status", "IDLE", "RUN_REQUESTED")
    assert first.payload["pipeline"] == "films"
    client.pause("films")
    second = next(stream)
    assert second.payload["to"] == "PAUSE_REQUESTED"
    stream.close()

    replayed = client.events(last_event_id=start)
    assert [next(replayed).id, next(replayed).id] == [first.id, second.id]
    replayed.close()
    behind = client.events(last_event_id=first.id)
    assert next(behind).id == second.id
    behind.close()


def test_a_replay_of_any_length_is_whole(client: Client, api_metastore: Connection) -> None:
    start = events.newest_id(api_metastore)
    api_metastore.execute(
        "INSERT INTO etl.etl_events (topic, payload)"
        " SELECT 'progress', jsonb_build_object('number', n) FROM generate_series(1, 6000) n"
    )
    stream = client.events(last_event_id=start)
    replayed = [next(stream).payload["number"] for _ in range(6000)]
    events.publish(api_metastore, "progress", {"number": 6001})
    assert [*replayed, next(stream).payload["number"]] == list(range(1, 6002))
    stream.close()


def test_a_definition_that_comes_changes_or_goes_is_told(client: Client, api_metastore: Connection) -> None:
    start = events.newest_id(api_metastore)
    made = client.create_pipeline(DEFINITION)
    client.update_pipeline("films", {"batch_size": 77})
    client.delete_pipeline("films")
    stream = client.events(last_event_id=start)
    told = [next(stream) for _ in range(3)]
    stream.close()
    assert [(event.topic, event.payload["state"]) for event in told] == [
        ("pipeline", "created"),
        ("pipeline", "changed"),
        ("pipeline", "deleted"),
    ]
    assert [event.payload["version"] for event in told] == [1, 2, 2]
    assert {(event.payload["pipeline_id"], event.payload["pipeline"]) for event in told} == {(str(made.id), "films")}


def test_events_come_in_order_whatever_order_they_are_committed_in(
    client: Client, api_settings: Settings, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = events.newest_id(api_metastore)
    stream = client.events(last_event_id=start)
    url = api_settings.require_database_url()
    events.publish(api_metastore, "before", {})
    assert next(stream).topic == "before"
    held_back = feed._GAP_SECONDS
    monkeypatch.setattr(feed, "_GAP_SECONDS", 60.0)  # however long this machine takes from one line to the next
    with postgres.connect(url, "vitrina:late", autocommit=False) as late:
        events.publish(late, "first", {})  # takes its number, commits last
        events.publish(api_metastore, "second", {})
        time.sleep(0.3)
        late.commit()
    assert [next(stream).topic, next(stream).topic] == ["first", "second"]
    monkeypatch.setattr(feed, "_GAP_SECONDS", held_back)

    with postgres.connect(url, "vitrina:gone", autocommit=False) as gone:
        events.publish(gone, "never", {})
        gone.rollback()
    events.publish(api_metastore, "third", {})
    assert next(stream).topic == "third"

    with postgres.connect(url, "vitrina:very-late", autocommit=False) as very_late:
        events.publish(very_late, "very late", {})
        events.publish(api_metastore, "fourth", {})
        assert next(stream).topic == "fourth"  # after a second it is no longer held back
        very_late.commit()
    assert next(stream).topic == "very late"
    stream.close()


@pytest.mark.parametrize("words", ["", "x", "-1", "1.5", "²", "9" * 7000])
def test_any_words_on_the_channel_of_events_leave_the_streams_open(
    client: Client, api_metastore: Connection, words: str
) -> None:
    stream = client.events(last_event_id=events.newest_id(api_metastore))
    events.publish(api_metastore, "before", {})
    assert next(stream).topic == "before"
    api_metastore.execute("SELECT pg_notify('vitrina_events', %s)", [words])
    events.publish(api_metastore, "after", {})
    assert next(stream).topic == "after"
    stream.close()


def test_streams_go_on_after_an_error_in_the_api_itself(
    client: Client, api_metastore: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.events(last_event_id=events.newest_id(api_metastore))
    events.publish(api_metastore, "before", {})
    assert next(stream).topic == "before"
    failed = threading.Event()

    def fail(*_: object) -> bool:
        failed.set()
        raise KeyError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(feed.EventFeed, "_deliver_new", fail)
        assert failed.wait(timeout=60)
    events.publish(api_metastore, "after", {})
    assert next(stream).topic == "after"
    stream.close()


def test_a_run_s_lines_are_its_log(client: Client, api_metastore: Connection) -> None:
    client.create_pipeline(DEFINITION)
    client.run("films")
    claim = leases.claim_next(api_metastore, uuid4(), 30)
    assert claim
    levels = ["info", "info", "warning", "error"]
    now = datetime.now(UTC)
    run_logs.insert(
        api_metastore,
        [
            run_logs.LogLine(claim.run_id, now, level, "batch.done", f'{{"batch_no": {n}}}')
            for n, level in enumerate(levels)
        ],
    )
    log = client.run_log(claim.run_id)
    assert [line.payload["batch_no"] for line in log] == [0, 1, 2, 3]
    assert [line.payload["batch_no"] for line in client.run_log(claim.run_id, after=log[1].id)] == [2, 3]
    assert [line.level for line in client.run_log(claim.run_id, level="warning")] == ["warning", "error"]
    run_logs.trim(api_metastore, [claim.run_id], keep=1)
    assert [line.payload["batch_no"] for line in client.run_log(claim.run_id)] == [3]


class in_background:  # noqa: N801 - reads as a verb
    """Does something on the metastore meanwhile; its errors are raised at the end."""

    def __init__(self, metastore: Connection, what: Callable[[Connection], None]) -> None:
        self._error: BaseException | None = None

        def work() -> None:
            try:
                what(metastore)
            except BaseException as exc:  # noqa: BLE001 - handed to the test below
                self._error = exc

        self._thread = threading.Thread(target=work)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._error:
            raise self._error


def test_answers_of_a_newer_server_are_understood() -> None:
    assert schemas.Connection.model_validate({"name": "default", "invented_later": 1}).name == "default"


def test_runs_and_runners_tell_of_their_beginning_and_end(client: Client, api_metastore: Connection) -> None:
    client.create_pipeline(DEFINITION)
    start = events.newest_id(api_metastore)
    runner = uuid4()
    runners.heartbeat(api_metastore, runner, host="worker-1", pid=7, version="1", capacity=1, running=0, transforms=[])
    client.run("films")
    claim = leases.claim_next(api_metastore, runner, 30)
    assert claim
    leases.fail_run(api_metastore, claim, "bad_key", "film_id is not unique")
    runners.remove(api_metastore, runner)

    stream = client.events(last_event_id=start)
    told = [next(stream) for _ in range(7)]
    stream.close()
    said = {"status": "to", "run": "status", "runner": "state"}
    shown = [(event.topic, event.payload[said[event.topic]]) for event in told]
    assert sorted(shown) == sorted(
        [
            ("runner", "started"),
            ("status", "RUN_REQUESTED"),
            ("status", "RUNNING"),
            ("run", "RUNNING"),
            ("status", "FAILED"),
            ("run", "FAILED"),
            ("runner", "gone"),
        ]
    )
    [started, ended] = [event.payload for event in told if event.topic == "run"]
    assert (started["run_id"], started["status"]) == (str(claim.run_id), "RUNNING")
    assert (ended["status"], ended["error_code"], ended["pipeline"]) == ("FAILED", "bad_key", "films")


def test_smoke_without_a_runner_says_so_and_makes_no_probe(api: httpx.Client, tmp_path: Path) -> None:
    said = command(tmp_path, {"VITRINA_API_URL": str(api.base_url)}, "smoke")
    assert re.search(r"PROBLEM +runners .*\n +next step: start a runner: `vitrina runner`", said), said
    assert api.get("/api/v1/pipelines").json()["items"] == []
