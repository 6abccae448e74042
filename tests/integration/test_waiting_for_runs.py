"""Whoever waits for a run is told how the run ended that answers the request, whatever else ran meanwhile."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import DEFINITION
from vitrina import errors, schemas
from vitrina.client import Client
from vitrina.status import RunStatus, Status
from vitrina.store import leases, pipelines, recovery
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

INCREMENTAL = DEFINITION | {"mode": "incremental", "incremental_key": "modified", "target_key": ["id"]}


@pytest.fixture
def client(api: httpx.Client) -> Iterator[Client]:
    with Client(str(api.base_url)) as made:
        made.create_pipeline(INCREMENTAL)
        yield made


def claimed(metastore: Connection) -> Claim:
    claim = leases.claim_next(metastore, uuid4(), 30)
    assert claim
    return claim


def lose(metastore: Connection) -> None:
    metastore.execute("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 minute'")
    assert recovery.recover_expired(metastore, max_attempts=3)


def wait(client: Client, accepted: schemas.RunAccepted, **how: Any) -> schemas.Run:
    return client.wait_for_run(
        "films", requested_at=accepted.run_requested_at, asked=accepted.asked, poll_seconds=0.02, **how
    )


def test_a_backfill_is_answered_by_the_backfill_and_not_by_the_run_behind_it(
    client: Client, api_metastore: Connection
) -> None:
    backfill = client.run("films", since="2024-01-01")
    plain = client.run("films")
    first = claimed(api_metastore)
    leases.fail_run(api_metastore, first, "fatal", "it broke")
    second = claimed(api_metastore)
    leases.conclude_run(api_metastore, second)

    assert (wait(client, backfill).id, wait(client, backfill).status) == (first.run_id, RunStatus.FAILED)
    assert (wait(client, plain).id, wait(client, plain).status) == (second.run_id, RunStatus.SUCCESS)


def test_a_backfill_that_was_taken_back_is_not_answered_by_a_plain_run(
    client: Client, api_metastore: Connection
) -> None:
    backfill = client.run("films", since="2024-01-01")
    client.cancel("films")
    client.run("films")
    running = claimed(api_metastore)
    with pytest.raises(errors.TransientError, match="still RUNNING"):
        wait(client, backfill, timeout_seconds=0)
    leases.answer_request(api_metastore, running)
    with pytest.raises(errors.TransientError, match="still RUNNING"):
        wait(client, backfill, timeout_seconds=0)


def test_a_clock_that_is_set_back_hides_no_answer(client: Client, api_metastore: Connection) -> None:
    accepted = client.run("films")
    claim = claimed(api_metastore)
    leases.answer_request(api_metastore, claim)
    api_metastore.execute("UPDATE etl.etl_runs SET started_at = started_at - interval '5 minutes'")
    leases.conclude_run(api_metastore, claim)

    run = wait(client, accepted)

    assert (run.id, run.status) == (claim.run_id, RunStatus.SUCCESS)


def test_a_backfill_is_followed_through_lost_runners_and_pauses(client: Client, api_metastore: Connection) -> None:
    backfill = client.run("films", since="2024-01-01")
    claimed(api_metastore)
    lose(api_metastore)
    again = claimed(api_metastore)
    client.pause("films")
    leases.conclude_run(api_metastore, again, boundary=True)
    assert wait(client, backfill).status == RunStatus.PAUSED
    resumed = client.resume("films")
    last = claimed(api_metastore)
    leases.conclude_run(api_metastore, last)

    assert [wait(client, asked).id for asked in (backfill, resumed)] == [last.run_id] * 2


def test_a_later_run_that_failed_is_not_taken_for_the_answer(client: Client, api_metastore: Connection) -> None:
    asked = client.run("films", idempotency_key="once")
    first = claimed(api_metastore)
    leases.conclude_run(api_metastore, first)
    client.run("films")
    second = claimed(api_metastore)
    with_key = client.run("films", idempotency_key="once")
    assert wait(client, with_key).id == first.run_id, "another run at work is not waited for"
    leases.fail_run(api_metastore, second, "fatal", "it broke")

    assert wait(client, asked).id == wait(client, with_key).id == first.run_id


def test_a_run_asked_for_beside_a_load_that_is_continued_waits_for_the_one_behind_it(
    client: Client, api_metastore: Connection
) -> None:
    """Also when somebody else asks once more, which replaces the request."""
    asked = client.run("films")
    continued = claimed(api_metastore)
    later = client.run("films")
    assert later.run_requested_at > asked.run_requested_at
    leases.conclude_run(api_metastore, continued, answered=False)
    with pytest.raises(errors.TransientError, match="still RUN_REQUESTED"):
        wait(client, asked, timeout_seconds=0)
    fresh = claimed(api_metastore)
    leases.conclude_run(api_metastore, fresh)

    assert [wait(client, one).id for one in (asked, later)] == [fresh.run_id] * 2


def test_a_load_whose_runner_was_lost_is_answered_by_the_run_that_goes_on_with_it(
    client: Client, api_metastore: Connection
) -> None:
    """Somebody asks again meanwhile: two requests, each with a run of its own."""
    asked = client.run("films")
    leases.answer_request(api_metastore, claimed(api_metastore))
    later = client.run("films")
    lose(api_metastore)
    continuing = claimed(api_metastore)
    leases.conclude_run(api_metastore, continuing, answered=False)
    fresh = claimed(api_metastore)
    leases.fail_run(api_metastore, fresh, "fatal", "it broke")

    assert (wait(client, asked).id, wait(client, asked).status) == (continuing.run_id, RunStatus.SUCCESS)
    assert wait(client, later).id == fresh.run_id


def test_a_run_that_made_room_for_another_writer_of_its_target_is_waited_for(
    client: Client, api_metastore: Connection
) -> None:
    asked = client.run("films")
    leases.give_back(api_metastore, claimed(api_metastore), "target_taken", "another pipeline writes there")
    with pytest.raises(errors.TransientError, match="still RUN_REQUESTED"):
        wait(client, asked, timeout_seconds=0)
    second = claimed(api_metastore)
    leases.conclude_run(api_metastore, second)

    assert wait(client, asked).id == second.run_id


def test_a_resumed_load_is_answered_by_the_run_that_goes_on_with_it(client: Client, api_metastore: Connection) -> None:
    client.run("films")
    first = claimed(api_metastore)
    client.pause("films")
    leases.conclude_run(api_metastore, first, boundary=True)
    resumed = client.resume("films")
    second = claimed(api_metastore)
    client.run("films")
    leases.conclude_run(api_metastore, second, answered=False)
    third = claimed(api_metastore)
    leases.fail_run(api_metastore, third, "fatal", "it broke")

    assert (wait(client, resumed).id, wait(client, resumed).status) == (second.run_id, RunStatus.SUCCESS)


def test_a_run_that_somebody_cancelled_is_told_as_cancelled(client: Client, api_metastore: Connection) -> None:
    asked = client.run("films")
    first = claimed(api_metastore)
    client.cancel("films")
    assert (wait(client, asked).id, wait(client, asked).status) == (first.run_id, RunStatus.CANCELLED)


def test_runs_of_a_runner_that_does_not_say_what_they_answer_are_told_when_they_end(
    client: Client, api_metastore: Connection
) -> None:
    """As while an installation is being upgraded."""
    asked = client.run("films")
    first = claimed(api_metastore)
    leases.conclude_run(api_metastore, first)
    api_metastore.execute("UPDATE etl.etl_runs SET answers_request = NULL")
    assert wait(client, asked).id == first.run_id
    found = pipelines.find(api_metastore, "films")
    assert found
    assert found["status"] == Status.IDLE
