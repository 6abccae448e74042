"""Notifications: written with the move they tell of, delivered once, signed, retried, and muted where asked."""

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID, uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from tests.integration.api import create
from tests.support.receiver import Receiver
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.loads.control import RunControl
from vitrina.observe import notifications as notifications_module
from vitrina.observe.notifications import MAX_ATTEMPTS, Notifier
from vitrina.observe.prometheus import Instruments
from vitrina.runner import requests as runner_requests
from vitrina.settings import Settings
from vitrina.store import database, notifications, pipelines
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

SECRET = "whsec_" + base64.b64encode(b"a key of the operator's").decode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def told(workbench: Workbench, receiver: Receiver) -> Settings:
    """Settings with both receivers."""
    return workbench.settings.model_copy(
        update={
            "webhook_url": SecretStr(receiver.url("/hook")),
            "webhook_secret": SecretStr(SECRET),
            "slack_webhook_url": SecretStr(receiver.url("/slack")),
        }
    )


@contextmanager
def session(settings: Settings) -> Iterator[Connection]:
    with database.connect(settings.require_database_url(), "notifier") as connection:
        yield connection


def notifier(settings: Settings) -> Notifier:
    return impatient_notifier(settings, Instruments(CollectorRegistry()), patience_seconds=60)


def impatient_notifier(settings: Settings, instruments: Instruments, patience_seconds: float = 0) -> Notifier:
    return Notifier(
        settings, instruments, lambda: session(settings), first_wait_seconds=0, patience_seconds=patience_seconds
    )


def make_failing(workbench: Workbench, **fields: object) -> UUID:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY, title text)")
    query = "SELECT id, title, 1 / 0 AS broken FROM content.films"
    return workbench.pipeline("films", query, target_key=["id"], **fields)


def repair(workbench: Workbench) -> None:
    workbench.change("films", source_query="SELECT id, title FROM content.films", options={"allow_empty": True})


def test_a_failure_and_the_recovery_are_told_once_each(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    pipeline_id = make_failing(workbench)
    workbench.sql("INSERT INTO content.films VALUES (1, 'Solaris')")
    failed = workbench.run("films")
    assert failed["status"] == "FAILED"
    assert notifier(told).deliver_due() == 1
    # A second failure is told again, the recovery once; a second success is no news.
    workbench.run("films")
    repair(workbench)
    assert workbench.run("films")["status"] == "SUCCESS"
    workbench.run("films")
    assert notifier(told).deliver_due() == 2
    assert notifier(told).deliver_due() == 0

    bodies = [json.loads(one.body) for one in receiver.at("/hook")]
    assert [body["type"] for body in bodies] == ["pipeline.failed", "pipeline.failed", "pipeline.recovered"]
    assert bodies[0]["data"]["pipeline"] == "films"
    assert bodies[0]["data"]["pipeline_id"] == str(pipeline_id)
    assert bodies[0]["data"]["run_id"] == str(failed["id"])
    assert bodies[0]["data"]["error_code"] == failed["error_code"]
    assert "division by zero" in bodies[0]["data"]["error"]
    assert bodies[2]["data"]["failing_since"] == bodies[0]["data"]["failing_since"]
    texts = [json.loads(one.body)["text"] for one in receiver.at("/slack")]
    assert "*films* failed" in texts[0]
    assert "works again" in texts[2]


def test_checks_that_warn_are_told_when_they_begin(workbench: Workbench, told: Settings, receiver: Receiver) -> None:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY, title text)")
    workbench.sql("INSERT INTO content.films VALUES (1, NULL)")
    checks = [
        {"kind": "not_null", "column": "title", "severity": "warn"},
        {"kind": "expression", "name": "few", "expression": "id < 3", "severity": "warn"},
    ]
    workbench.pipeline("films", "SELECT id, title FROM content.films", target_key=["id"], checks=checks)

    def run_and_count() -> int:
        assert workbench.run("films")["status"] == "SUCCESS"
        return notifier(told).deliver_due()

    assert run_and_count() == 1
    assert run_and_count() == 0
    workbench.sql("INSERT INTO content.films VALUES (3, 'Stalker')")
    assert run_and_count() == 1
    # One that no longer warns is no news either; when it warns again, it is.
    workbench.sql("UPDATE content.films SET title = 'Solaris' WHERE id = 1")
    assert run_and_count() == 0
    workbench.sql("UPDATE content.films SET title = NULL WHERE id = 1")
    assert run_and_count() == 1

    bodies = [json.loads(one.body) for one in receiver.at("/hook")]
    assert [body["type"] for body in bodies] == ["pipeline.warned"] * 3
    assert [body["data"]["checks"] for body in bodies] == [["not_null_title"], *[["few", "not_null_title"]] * 2]
    assert bodies[-1]["data"]["run_id"] == str(workbench.last_run("films")["id"])
    texts = [json.loads(one.body)["text"] for one in receiver.at("/slack")]
    assert "*films* published rows that break checks which only warn: not_null_title" in texts[0]


@pytest.mark.parametrize("metrics", ['{"checks": 1}', '{"checks": [1, null, {"result": "warned"}]}', "[]", '"checks"'])
def test_odd_results_of_checks_stop_nobody(workbench: Workbench, metrics: str) -> None:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    workbench.run("films")
    workbench.sql(f"UPDATE etl.etl_runs SET status = 'RUNNING', metrics = '{metrics}'")

    workbench.sql("UPDATE etl.etl_runs SET status = 'SUCCESS'")

    assert workbench.sql("SELECT 1 FROM etl.etl_notifications WHERE kind = 'warned'") == []


def test_the_signature_is_one_that_a_receiver_can_verify(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    fail_by_hand(workbench, make_failing(workbench))
    notifier(told).deliver_due()
    [got] = receiver.at("/hook")
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.new(b"a key of the operator's", signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"


def test_a_receiver_that_refuses_is_tried_again_and_the_other_is_not_told_twice(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    receiver.refusals_at = {"/hook": [500, 503]}
    fail_by_hand(workbench, make_failing(workbench))
    for _ in range(3):
        notifier(told).deliver_due()
    assert len(receiver.at("/hook")) == 3
    assert len(receiver.at("/slack")) == 1
    # The same message each time: the receiver can tell that it is no new one.
    assert len({one.headers["webhook-id"] for one in receiver.at("/hook")}) == 1
    assert notifier(told).deliver_due() == 0


def test_a_receiver_that_never_accepts_is_given_up(workbench: Workbench, told: Settings, receiver: Receiver) -> None:
    receiver.refusals = [500] * 100
    told = told.model_copy(update={"slack_webhook_url": None})
    pipeline_id = make_failing(workbench)
    fail_by_hand(workbench, pipeline_id)
    for _ in range(MAX_ATTEMPTS + 3):
        notifier(told).deliver_due()
    assert len(receiver.received) == MAX_ATTEMPTS
    [row] = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
    assert row["done_at"] is not None
    assert row["last_error"] == "webhook: the receiver answered 500"


@contextmanager
def silent_receiver() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_a_receiver_that_does_not_answer_delays_only_itself(
    workbench: Workbench, told: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications_module, "DELIVERY_SECONDS", 600.0)
    monkeypatch.setattr(notifications_module, "TIMEOUT_SECONDS", 600.0)
    pipeline_id = make_failing(workbench)
    write_messages(workbench, pipeline_id, 10)
    with silent_receiver() as url:
        sender = impatient_notifier(told.model_copy(update={"webhook_url": SecretStr(url)}), instruments())

        def told_all() -> bool:
            sender.deliver_due()
            return len(receiver.at("/slack")) == 10

        until(told_all, seconds=120)
        rows = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
        # Nobody has given up on the first delivery there yet.
        assert [row["last_error"] for row in rows] == [None] * 10


def test_what_was_not_tried_is_not_counted(
    workbench: Workbench, told: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message found that the receiver is slow; the others wait until it is not, without losing a try."""
    monkeypatch.setattr(notifications_module, "DELIVERY_SECONDS", 0.2)
    pipeline_id, counted = make_failing(workbench), instruments()
    write_messages(workbench, pipeline_id, 3)
    with silent_receiver() as url:
        settings = told.model_copy(update={"webhook_url": SecretStr(url), "slack_webhook_url": None})
        sender = impatient_notifier(settings, counted, patience_seconds=60)
        assert sender.deliver_due() == 3
        assert [sender.deliver_due() for _ in range(MAX_ATTEMPTS)] == [0] * MAX_ATTEMPTS
    rows = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
    assert tries(workbench, "webhook") == [0, 0, 1]
    assert [row["done_at"] for row in rows] == [None] * 3
    labels = {"channel": "webhook", "outcome": "failed"}
    assert counted.registry.get_sample_value("vitrina_notifications_total", labels) == 1


def test_a_message_that_everybody_has_is_done_also_if_that_was_not_written_down(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    pipeline_id = make_failing(workbench)
    write_messages(workbench, pipeline_id, 1)
    workbench.sql("UPDATE etl.etl_notifications SET delivered = '{webhook,slack}'")
    assert notifier(told).deliver_due() == 1
    assert receiver.received == []
    [row] = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
    assert row["done_at"] is not None


def instruments() -> Instruments:
    return Instruments(CollectorRegistry())


def write_messages(workbench: Workbench, pipeline_id: UUID, count: int) -> None:
    for _ in range(count):
        workbench.metastore.execute(
            "INSERT INTO etl.etl_notifications (kind, pipeline_id) VALUES ('failed', %s)", [pipeline_id]
        )


def test_two_runners_do_not_send_the_same_message(workbench: Workbench, told: Settings, receiver: Receiver) -> None:
    fail_by_hand(workbench, make_failing(workbench))
    for channel in ("webhook", "slack"):
        assert len(notifications.claim_due(workbench.metastore, channel, lease_seconds=60, limit=4)) == 1
    assert notifier(told).deliver_due() == 0
    # The first one died before it could send: the lease ends, and another one takes it up.
    workbench.sql("UPDATE etl.etl_deliveries SET next_try_at = now()")
    assert notifier(told).deliver_due() == 1
    assert (len(receiver.at("/hook")), len(receiver.at("/slack"))) == (1, 1)


def test_two_runners_that_look_at_once_do_not_take_the_same_message(workbench: Workbench, told: Settings) -> None:
    """The second one looked before the first had committed, and goes on after it has."""
    fail_by_hand(workbench, make_failing(workbench))
    taken: list[int] = []
    with session(told) as first, session(told) as second:
        with first.transaction():
            assert len(notifications.claim_due(first, "webhook", lease_seconds=60, limit=4)) == 1
            waiting = threading.Thread(
                target=lambda: taken.append(len(notifications.claim_due(second, "webhook", lease_seconds=60, limit=4)))
            )
            waiting.start()
            stuck = f"SELECT cardinality(pg_blocking_pids({second.info.backend_pid})) AS by"
            until(lambda: workbench.sql(stuck)[0]["by"] > 0)
        waiting.join(60)
    assert taken == [0]


# --- each receiver for itself ---------------------------------------------------------------------------------------


def test_a_receiver_that_is_given_up_takes_no_try_from_the_other(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    """The chat is out of reach until the webhook has been tried for the last time."""
    receiver.refusals_at = {"/hook": [500] * 100, "/slack": [503] * 2}
    pipeline_id = make_failing(workbench)
    fail_by_hand(workbench, pipeline_id)
    only_webhook = told.model_copy(update={"slack_webhook_url": None})
    with holding_back(workbench, "slack"):
        for _ in range(MAX_ATTEMPTS + 3):
            notifier(told).deliver_due()
    assert (len(receiver.at("/hook")), len(receiver.at("/slack"))) == (MAX_ATTEMPTS, 0)

    for _ in range(3):
        notifier(told).deliver_due()

    assert (len(receiver.at("/hook")), len(receiver.at("/slack"))) == (MAX_ATTEMPTS, 3)
    [row] = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
    assert (row["delivered"], row["last_error"]) == (["slack"], "webhook: the receiver answered 500")
    assert row["done_at"] is not None
    assert notifier(only_webhook).deliver_due() == 0


def test_a_receiver_waits_as_long_as_its_own_failures_say(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    receiver.refusals_at = {"/hook": [500] * 5, "/slack": [503]}
    fail_by_hand(workbench, make_failing(workbench))
    with holding_back(workbench, "slack"):
        for _ in range(5):
            notifier(told).deliver_due()
    assert tries(workbench, "webhook") == [5]

    counted = Notifier(told, instruments(), lambda: session(told), first_wait_seconds=100, patience_seconds=60)
    counted.deliver_due()

    assert tries(workbench, "slack") == [1]
    [waits] = workbench.sql(
        "SELECT next_try_at - clock_timestamp() BETWEEN '0 s' AND '100 s' AS first FROM etl.etl_deliveries"
        " WHERE channel = 'slack'"
    )
    assert waits["first"]


def test_a_runner_without_a_receiver_leaves_to_others_what_they_are_about_to_try(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    receiver.refusals_at = {"/hook": [500]}
    pipeline_id = make_failing(workbench)
    fail_by_hand(workbench, pipeline_id)
    patient = Notifier(told, instruments(), lambda: session(told), first_wait_seconds=600, patience_seconds=60)
    patient.deliver_due()
    nobody = told.model_copy(update={"slack_webhook_url": None, "webhook_url": None})
    assert notifier(nobody).deliver_due() == 0
    [row] = notifications.list_of_pipeline(workbench.metastore, pipeline_id)
    assert (row["done_at"], row["delivered"]) == (None, ["slack"])


@contextmanager
def holding_back(workbench: Workbench, channel: str) -> Iterator[None]:
    """As while this receiver's own thread is busy with it: somebody else has it on lease."""
    assert len(notifications.claim_due(workbench.metastore, channel, lease_seconds=600, limit=4)) == 1
    yield
    workbench.sql(f"UPDATE etl.etl_deliveries SET next_try_at = now(), attempts = 0 WHERE channel = '{channel}'")


def tries(workbench: Workbench, channel: str) -> list[int]:
    found = workbench.sql(f"SELECT attempts FROM etl.etl_deliveries WHERE channel = '{channel}' ORDER BY attempts")
    return [row["attempts"] for row in found]


def test_a_move_that_is_rolled_back_is_not_told(workbench: Workbench) -> None:
    pipeline_id = make_failing(workbench)
    with workbench.metastore.transaction(force_rollback=True):
        fail_by_hand(workbench, pipeline_id)
    assert notifications.list_of_pipeline(workbench.metastore, pipeline_id) == []


def test_a_pipeline_may_ask_for_less(workbench: Workbench, told: Settings, receiver: Receiver) -> None:
    fail_by_hand(workbench, make_failing(workbench, options={"notify": ["recovered"]}))
    assert notifier(told).deliver_due() == 1
    assert receiver.received == []


def test_drift_is_told_when_a_reconciliation_finds_some(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    pipeline_id = make_failing(workbench)
    for rows in (0, 3):
        workbench.sql(f"INSERT INTO etl.etl_requests (kind, pipeline_id) VALUES ('reconcile', '{pipeline_id}')")
        workbench.sql(
            f"""UPDATE etl.etl_requests SET status = 'DONE', result = '{{"differences": {rows}}}'
                WHERE status = 'QUEUED'"""
        )
    assert notifier(told).deliver_due() == 1
    [got] = receiver.at("/hook")
    assert json.loads(got.body)["data"]["differences"] == 3


def fail_by_hand(workbench: Workbench, pipeline_id: UUID) -> None:
    """As a person with psql may: such a move is told of like any other."""
    workbench.metastore.execute(
        "UPDATE etl.etl_pipelines SET status = 'FAILED', last_error = 'broken' WHERE id = %s", [pipeline_id]
    )
    row = pipelines.find(workbench.metastore, pipeline_id)
    assert row
    assert row["failing_since"] is not None


# --- a test -------------------------------------------------------------------------------------------------------


def tried(bench: Workbench, settings: Settings) -> list[dict[str, object]]:
    request = {"id": uuid4(), "kind": "test_notifications", "payload": {}, "pipeline_id": None, "requested_by": "ann"}
    result, error = runner_requests.perform(request, bench.metastore, settings, _no_lease_is_needed)
    assert error is None
    assert result is not None
    found: list[dict[str, object]] = result["receivers"]
    return found


def _no_lease_is_needed(claim: Claim, claimed_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("a test needs no lease")


def test_a_test_message_arrives_signed_and_says_that_it_is_one(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    assert [(one["name"], one["is_set"], one["error"]) for one in tried(workbench, told)] == [
        ("webhook", True, None),
        ("slack", True, None),
    ]
    hook, slack = receiver.received
    assert json.loads(hook.body)["type"] == "test"
    assert json.loads(hook.body)["data"] == {"asked_by": "ann"}
    assert hook.headers["webhook-signature"].startswith("v1,")
    assert "test of Vitrina" in json.loads(slack.body)["text"]


def test_a_test_says_what_a_receiver_answered_and_which_is_not_set(
    workbench: Workbench, told: Settings, receiver: Receiver
) -> None:
    receiver.refusals = [403]
    only = told.model_copy(update={"slack_webhook_url": None})
    assert [(one["name"], one["is_set"], one["error"]) for one in tried(workbench, only)] == [
        ("webhook", True, "the receiver answered 403"),
        ("slack", False, None),
    ]


def test_nobody_is_shown_where_a_receiver_is(workbench: Workbench, told: Settings) -> None:
    request = {"id": uuid4(), "kind": "receivers", "payload": {}, "pipeline_id": None, "requested_by": "ann"}
    result, _ = runner_requests.perform(request, workbench.metastore, told, _no_lease_is_needed)
    assert result == {
        "receivers": [
            {"name": "webhook", "is_set": True, "setting": "VITRINA_WEBHOOK_URL"},
            {"name": "slack", "is_set": True, "setting": "VITRINA_SLACK_WEBHOOK_URL"},
        ]
    }


def test_the_latest_messages_of_all_pipelines_are_listed(api: httpx.Client, api_metastore: Connection) -> None:
    created = create(api)
    api_metastore.execute(
        """
        INSERT INTO etl.etl_notifications (kind, pipeline_id, payload, last_error)
        VALUES ('failed', %s, '{"error": "it broke"}', 'slack: the receiver answered 403')
        """,
        [created["id"]],
    )
    found = api.get("/api/v1/notifications").json()
    assert found["receivers"] is None
    (latest,) = found["latest"]
    assert (latest["pipeline"], latest["kind"], latest["error"]) == ("films", "failed", "it broke")
    assert latest["delivery_error"] == "slack: the receiver answered 403"
    asked = api.post("/api/v1/notifications/test")
    assert (asked.status_code, asked.json()["kind"]) == (202, "test_notifications")
    assert api.get("/api/v1/audit", params={"action": "test_notifications"}).json()["items"][0]["who"] == "local"
