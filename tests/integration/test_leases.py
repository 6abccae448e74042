"""Leases on a real database: every arrow of the status machine, one writer per target, losses, requests, schedules."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina import status
from vitrina.errors import LeaseLost
from vitrina.ports.checkpoint import Checkpoint
from vitrina.runner import housekeeping
from vitrina.status import Status, Trigger
from vitrina.store import (
    database,
    leases,
    pipelines,
    recovery,
    requests,
    run_after,
    runners,
    runs,
    schedules,
    sessions,
    stages,
    state,
)
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger
from vitrina.store.runs import Counters

QUERY = "SELECT id, title FROM content.film_work"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(
        "CREATE TABLE content.film_work (id int PRIMARY KEY, title text);"
        "INSERT INTO content.film_work SELECT i, 'Film ' || i FROM generate_series(1, 300) AS i"
    )
    workbench.pipeline("films", QUERY, target_key=["id"])
    return workbench


def row(bench: Workbench, name: str = "films") -> dict[str, Any]:
    found = pipelines.find(bench.metastore, name)
    assert found is not None
    return found


def claim(bench: Workbench, name: str = "films") -> Claim:
    bench.request(name)
    return bench.claim()


def expire(bench: Workbench) -> None:
    bench.sql(
        "UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() - interval '1 s' WHERE claim_id IS NOT NULL"
    )


def recover(bench: Workbench, max_attempts: int = 3) -> list[dict[str, Any]]:
    return recovery.recover_expired(bench.metastore, max_attempts=max_attempts)


# --- every arrow, and no other ------------------------------------------------------------------------------------


def put(bench: Workbench, wanted: Status) -> Claim:
    """The pipeline in that status; the claim is real where the status has one, and nobody's where it has none."""
    held = claim(bench)
    if wanted not in status.ACTIVE:
        leases.conclude_run(bench.metastore, held)
    bench.sql(f"UPDATE etl.etl_pipelines SET status = '{wanted}'")
    if wanted == Status.RUN_REQUESTED:
        bench.sql("UPDATE etl.etl_pipelines SET run_requested_at = now()")
    return held


def perform(bench: Workbench, move: str, held: Claim) -> None:
    films = row(bench)
    metastore = bench.metastore
    if move == "pause_unclaimed":
        bench.sql("UPDATE etl.etl_pipelines SET claim_id = NULL, lease_until = NULL, holds_target = NULL")
    if move == "recover_expired":
        expire(bench)
    actions: dict[str, Callable[[], object]] = {
        "request_run": lambda: pipelines.request_run(metastore, films["id"], trigger=Trigger.API),
        "request_backfill": lambda: pipelines.request_backfill(metastore, films["id"], {}, trigger=Trigger.API),
        "resume": lambda: pipelines.resume(metastore, films["id"], trigger=Trigger.API, traceparent=None),
        "fire_schedule": lambda: fire(bench),
        "request_ready": lambda: complete_wave(bench),
        "claim_next": lambda: leases.claim_next(metastore, uuid4(), 30),
        "request_pause": lambda: pipelines.request_pause(metastore, films["id"]),
        "conclude_run": lambda: leases.conclude_run(metastore, held),
        "begin_again": lambda: leases.begin_again(metastore, held, "a day is over", loads=False),
        "fail_run": lambda: leases.fail_run(metastore, held, "fatal", "broken"),
        "pause_unclaimed": lambda: recovery.pause_unclaimed(metastore),
        "give_back": lambda: leases.give_back(metastore, held),
        "surrender": lambda: recovery.surrender(metastore, held, max_attempts=3, reason="gone"),
        "recover_expired": lambda: recover(bench),
        "disable": lambda: pipelines.set_enabled(metastore, films["id"], False),
        "cancel": lambda: pipelines.withdraw_request(metastore, films["id"], "cancel"),
        "cancel_run": lambda: leases.cancel_run(metastore, films["id"], "enough"),
    }
    with suppress(LeaseLost):
        actions[move]()


def fire(bench: Workbench) -> None:
    bench.sql(
        "UPDATE etl.etl_pipelines SET schedule_interval = '1h', next_run_at = now() - interval '1 minute',"
        """ options = '{"schedule_after_failure": true}'"""
    )
    for due in schedules.list_due(bench.metastore):
        schedules.fire(bench.metastore, due, due["now"] + timedelta(hours=1))


def complete_wave(bench: Workbench) -> None:
    """Everything has arrived that `films` runs after."""
    bench.sql(
        """
        UPDATE etl.etl_pipelines SET options = '{"schedule_after_failure": true}';
        INSERT INTO etl.etl_pipelines (name, target_table) VALUES ('upstream', 'analytics.upstream')
        ON CONFLICT DO NOTHING;
        INSERT INTO etl.etl_run_after (downstream_id, upstream_id, arrived_run_id)
        SELECT d.id, u.id, gen_random_uuid() FROM etl.etl_pipelines d, etl.etl_pipelines u
        WHERE d.name = 'films' AND u.name = 'upstream'
        """
    )
    run_after.request_ready(bench.metastore)
    bench.sql("DELETE FROM etl.etl_pipelines WHERE name = 'upstream'")


MOVES = sorted({move.name for move in status.MOVES} - {"claim_idle", "claim_followed", "set_aside"})


@pytest.mark.parametrize("source", list(Status))
def test_only_the_arrows_of_the_table_can_be_moved(bench: Workbench, source: Status) -> None:
    for move in MOVES:
        bench.sql(
            "DELETE FROM etl.etl_runs; UPDATE etl.etl_pipelines SET status = 'IDLE', enabled = true, claim_id = NULL,"
            " holds_target = NULL, lease_until = NULL, options = '{}', schedule_interval = NULL, attempts = 0"
        )
        held = put(bench, source)
        perform(bench, move, held)
        allowed = {m.target for m in status.MOVES if m.name == move and m.source == source}
        assert bench.status("films") in (allowed or {source}), (move, source)
        if allowed:
            assert bench.status("films") != source, (move, source)


# --- claims --------------------------------------------------------------------------------------------------------


def test_many_runners_claim_each_pipeline_once_and_each_target_once(bench: Workbench) -> None:
    for i in range(12):
        bench.pipeline(f"p{i}", QUERY, target_table=f"analytics.t{i % 4}", target_key=["id"])
        bench.request(f"p{i}")

    def grab(_: int) -> list[Claim]:
        with database.connect(bench.settings.require_database_url(), "vitrina:grab") as connection:
            found = []
            while taken := leases.claim_next(connection, uuid4(), 30):
                found.append(taken)
            return found

    with ThreadPoolExecutor(6) as pool:
        claims = [taken for found in pool.map(grab, range(6)) for taken in found]

    assert len(claims) == 4
    assert len({taken.row["holds_target"] for taken in claims}) == 4
    assert len({taken.pipeline_id for taken in claims}) == 4
    leases.conclude_run(bench.metastore, claims[0])
    follower = bench.claim()
    assert follower.row["holds_target"] == claims[0].row["holds_target"]


def test_the_metastores_own_database_is_one_target_under_both_its_names(bench: Workbench) -> None:
    bench.pipeline("twin", QUERY, target_table="analytics.films", options={"target_connection": "default"})
    bench.request("films")
    bench.request("twin")
    assert leases.claim_next(bench.metastore, uuid4(), 30)
    assert leases.claim_next(bench.metastore, uuid4(), 30) is None


def test_epochs_grow_also_when_the_clock_does_not(bench: Workbench) -> None:
    bench.sql("UPDATE etl.etl_pipelines SET epoch = 99999999999999")
    first = claim(bench)
    leases.give_back(bench.metastore, first)
    assert first.epoch == 99999999999999 + 1
    assert bench.claim().epoch == first.epoch + 1


@pytest.mark.parametrize("options", [{}, {"target_connection": "default"}])
def test_a_run_discards_unfinished_loads_of_others_on_the_target(bench: Workbench, options: dict[str, Any]) -> None:
    """Its claim does not: many a claim ends before anything is written."""
    bench.change("films", options=options | {"shared_target": True})
    stage_a_load_of_another(bench)
    taken = claim(bench)
    assert bench.checkpoint("other").stage == "p_x"
    Ledger(taken, bench.metastore).seize()
    assert bench.checkpoint("other") == Checkpoint()


def test_a_run_whose_source_does_not_answer_leaves_loads_of_others_as_they_are(bench: Workbench) -> None:
    bench.change("films", source_connection="nowhere", options={"shared_target": True})
    stage_a_load_of_another(bench)
    assert bench.run("films")["status"] == "FAILED"
    assert bench.checkpoint("other").stage == "p_x"


def stage_a_load_of_another(bench: Workbench) -> None:
    bench.pipeline("other", QUERY, target_table="analytics.films", options={"shared_target": True}, target_key=["id"])
    bench.sql(
        "INSERT INTO etl.etl_state (pipeline_id, stage, segments, rows, last_processed_key)"
        f""" VALUES ('{row(bench, "other")["id"]}', 'p_x', '{{"1": 2}}', 5, '[1]')"""
    )


def test_a_claim_takes_the_checkpoint_so_that_its_run_writes_nothing_to_seize_it(bench: Workbench) -> None:
    taken = claim(bench)
    before = checkpoint_row(bench)
    assert (before["epoch"], before["claim_id"], before["run_id"]) == (taken.epoch, taken.claim_id, taken.run_id)
    Ledger(taken, bench.metastore).seize()
    assert checkpoint_row(bench) == before


def test_a_later_attempt_seizes_what_an_earlier_one_has_committed(bench: Workbench) -> None:
    taken = claim(bench)
    first = Ledger(taken, bench.metastore)
    moved = replace(first.seize(), batch_no=7, safe_upto="7")
    with bench.metastore.transaction():
        first.fence(moved, Counters(), attempt=1)
    assert Ledger(taken, bench.metastore).seize() == moved


def test_a_claim_leaves_a_checkpoint_that_another_database_may_keep(bench: Workbench) -> None:
    """That it was reset is told to that database by the run; a claim that took the row would hide it."""
    bench.change("films", options={"target_connection": "elsewhere"})
    state.reset(bench.metastore, row(bench)["id"], cursor="5")
    before = checkpoint_row(bench)
    claim(bench)
    assert checkpoint_row(bench) == before
    assert state.find_reset(bench.metastore, row(bench)["id"]) == Checkpoint(safe_upto="5")


def test_a_claim_takes_a_checkpoint_with_what_a_late_fence_committed_before_it(bench: Workbench) -> None:
    """No claim gets in between the fence of a late run and its COMMIT, and none waits for it."""
    bench.request("films")
    late = leases.claim_next(bench.metastore, uuid4(), 0.05)
    assert late is not None
    with database.connect(bench.settings.require_database_url(), "late") as session:
        ledger = Ledger(late, session)
        moved = replace(ledger.seize(), batch_no=1, safe_upto="1")
        with session.transaction():
            ledger.fence(moved, Counters(), attempt=1)
            until(lambda: bool(bench.sql("SELECT 1 FROM etl.etl_pipelines WHERE lease_until < clock_timestamp()")))
            assert recover(bench) == []
            assert bench.claim_or_none() is None
        assert recover(bench)
        taken = bench.claim()
        assert Ledger(taken, bench.metastore).seize() == moved
        with pytest.raises(LeaseLost), session.transaction():
            ledger.fence(replace(moved, batch_no=2), Counters(), attempt=1)


def checkpoint_row(bench: Workbench) -> dict[str, Any]:
    [found] = bench.sql("SELECT *, xmin::text AS written_by FROM etl.etl_state")
    return found


@pytest.mark.parametrize("ends", [recover, lambda bench: leases.cancel_run(bench.metastore, row(bench)["id"], "stop")])
def test_a_claim_that_nobody_has_followed_yet_cannot_seize_either(
    bench: Workbench, ends: Callable[[Workbench], object]
) -> None:
    late = claim(bench)
    expire(bench)
    assert ends(bench)
    with pytest.raises(LeaseLost):
        Ledger(late, bench.metastore).seize()


def test_a_late_claim_cannot_seize_and_ends_no_newer_session(bench: Workbench) -> None:
    late = claim(bench)
    expire(bench)
    recover(bench)
    newer = bench.claim()
    url = bench.settings.require_database_url()
    with database.connect(url, newer.session_name) as working, database.connect(url, late.session_name) as woken:
        assert sessions.end_older(woken, late) == 0
        with pytest.raises(LeaseLost):
            Ledger(late, woken).seize()
        Ledger(newer, working).seize()
        assert sessions.end_older(working, newer) == 1


@pytest.mark.parametrize("move", ["fence", "settle"])
def test_a_batch_and_a_cancel_take_their_locks_in_one_order(bench: Workbench, move: str) -> None:
    """Pipeline, then run: a batch that is fenced while its run is cancelled waits, and neither is a deadlock."""
    held = claim(bench)
    url = bench.settings.require_database_url()

    def commit_batch() -> None:
        with database.connect(url, "a") as metastore, database.connect(url, "b") as mart, metastore.transaction():
            ledger = Ledger(held, metastore, metastore if move == "fence" else mart)
            getattr(ledger, move)(Checkpoint(), runs.Counters(), attempt=1)

    with ThreadPoolExecutor() as threads:
        with bench.admin.transaction():
            bench.sql("UPDATE etl.etl_pipelines SET claim_id = NULL, status = 'IDLE', lease_until = NULL")
            batch = threads.submit(commit_batch)
            until(lambda: batch.done() or bool(bench.sql("SELECT 1 FROM pg_locks WHERE NOT granted")))
            bench.sql(f"UPDATE etl.etl_runs SET status = 'CANCELLED' WHERE id = '{held.run_id}'")
        with pytest.raises(LeaseLost):
            batch.result(60)


def test_a_request_is_answered_behind_a_cancel_and_not_across_it(bench: Workbench) -> None:
    """Pipeline, then run, in one statement; what was cancelled meanwhile is not touched."""
    held = claim(bench)

    def answer() -> None:
        with database.connect(bench.settings.require_database_url(), "a") as metastore:
            leases.answer_request(metastore, held)

    with ThreadPoolExecutor() as threads:
        with bench.admin.transaction():
            bench.sql("UPDATE etl.etl_pipelines SET claim_id = NULL, status = 'IDLE', lease_until = NULL")
            answering = threads.submit(answer)
            until(lambda: answering.done() or bool(bench.sql("SELECT 1 FROM pg_locks WHERE NOT granted")))
            assert not answering.done()
            bench.sql(f"UPDATE etl.etl_runs SET status = 'CANCELLED' WHERE id = '{held.run_id}'")
        answering.result(60)
    [row] = bench.sql("SELECT r.answers_request, p.run_requested_at FROM etl.etl_runs r, etl.etl_pipelines p")
    assert (row["answers_request"], row["run_requested_at"]) == (None, held.row["run_requested_at"])


def test_a_request_is_answered(bench: Workbench) -> None:
    held = claim(bench)
    leases.answer_request(bench.metastore, held)
    [row] = bench.sql("SELECT r.answers_request, p.run_requested_at FROM etl.etl_runs r, etl.etl_pipelines p")
    assert (row["answers_request"], row["run_requested_at"]) == (held.row["run_requested_at"], None)


# --- leases --------------------------------------------------------------------------------------------------------


def test_a_lease_impossibly_far_ahead_is_over(bench: Workbench) -> None:
    """The clock stepped back by a day while a runner died."""
    claim(bench)
    assert recover(bench) == []
    bench.sql("UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() + interval '1 day'")
    assert [r["status"] for r in recover(bench)] == ["RUN_REQUESTED"]


def test_leases_of_different_lengths_do_not_disturb_each_other(bench: Workbench) -> None:
    bench.request("films")
    leases.claim_next(bench.metastore, uuid4(), 3600)
    assert recover(bench) == []


def test_a_locked_row_does_not_keep_other_leases_from_being_extended(bench: Workbench) -> None:
    bench.pipeline("others", QUERY, target_key=["id"])
    locked, free = claim(bench), claim(bench, "others")
    with bench.admin.transaction():
        bench.sql("SELECT 1 FROM etl.etl_pipelines WHERE name = 'films' FOR UPDATE")
        answer = leases.extend(bench.metastore, [locked.claim_id, free.claim_id], 30)
    assert answer.held == {locked.claim_id, free.claim_id}
    assert answer.extended == {free.claim_id}


def test_losses_without_progress_end_in_failed_with_the_reason(bench: Workbench) -> None:
    lost: dict[str, Any] = {}
    for attempt in range(3):
        bench.claim() if attempt else claim(bench)
        expire(bench)
        [lost] = recover(bench)
    assert lost["status"] == "FAILED"
    assert "lost 3 runners in a row without a committed batch" in lost["last_error"]
    assert {r["status"] for r in bench.sql("SELECT status FROM etl.etl_runs")} == {"FAILED"}
    assert bench.run("films")["status"] == "SUCCESS"


def test_a_committed_batch_resets_the_count_of_losses(bench: Workbench) -> None:
    for attempt in range(5):
        held = bench.claim() if attempt else claim(bench)
        leases.touch(bench.metastore, held, progressed=True)
        expire(bench)
        assert recover(bench)[0]["status"] == "RUN_REQUESTED"


def test_a_runner_that_loses_connections_again_and_again_is_a_loss_too(bench: Workbench) -> None:
    held = claim(bench)
    assert recovery.surrender(bench.metastore, held, max_attempts=2, reason="gone") == Status.RUN_REQUESTED
    held = bench.claim()
    assert recovery.surrender(bench.metastore, held, max_attempts=2, reason="gone") == Status.FAILED
    assert "gone" in row(bench)["last_error"]
    assert recovery.surrender(bench.metastore, held, max_attempts=2, reason="gone") is None


def test_a_pipeline_that_was_given_up_shows_no_session_that_holds_it_back(bench: Workbench) -> None:
    """Only the next run would find out whether that session is still there."""
    held = claim(bench)
    leases.note_hold(bench.metastore, held, {"pid": 77, "user": "app", "since": "2026-01-01T00:00:00Z"})
    expire(bench)
    recover(bench, max_attempts=1)
    assert bench.status("films") == "FAILED"
    assert bench.sql("SELECT hold FROM etl.etl_pipelines") == [{"hold": None}]


def test_one_nonsensical_row_does_not_stop_the_recovery_and_schedule_of_others(bench: Workbench) -> None:
    bench.pipeline("odd", QUERY, target_key=["id"], schedule_interval="1h")
    claim(bench), claim(bench, "odd")
    bench.sql("""UPDATE etl.etl_pipelines SET options = '{"max_attempts": "x", "schedule_after_failure": "y"}'""")
    expire(bench)
    assert len(recover(bench)) == 2
    assert schedules.list_due(bench.metastore) == []


# --- requests ------------------------------------------------------------------------------------------------------


def test_a_request_while_running_is_answered_by_another_run_once(bench: Workbench) -> None:
    held = claim(bench)
    bench.request("films")
    bench.perform(held)
    assert bench.status("films") == "RUN_REQUESTED"
    bench.perform(bench.claim())
    assert bench.status("films") == "IDLE"


def test_a_clock_that_steps_back_makes_no_endless_runs(bench: Workbench) -> None:
    bench.request("films")
    bench.sql("UPDATE etl.etl_pipelines SET run_requested_at = now() + interval '1 day'")
    bench.perform(bench.claim())
    assert bench.status("films") == "IDLE"


def test_a_paused_load_that_is_resumed_is_followed_by_one_that_sees_everything(bench: Workbench) -> None:
    bench.change("films", options={"checkpoint_rows": 100})
    bench.sql("ANALYZE content.film_work")
    held = claim(bench)
    pipelines.request_pause(bench.metastore, held.pipeline_id)
    bench.perform(held)
    assert (bench.status("films"), bench.last_run("films")["status"]) == ("PAUSED", "PAUSED")
    bench.sql("UPDATE content.film_work SET title = 'New' WHERE id = 1")  # behind the checkpoint

    bench.request("films")
    bench.perform(bench.claim())
    assert bench.last_run("films")["metrics"]["consistency"] == "mixed"
    assert bench.status("films") == "RUN_REQUESTED"
    bench.perform(bench.claim())

    assert bench.status("films") == "IDLE"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_pause_at_the_end_of_data_is_a_success(bench: Workbench) -> None:
    bench.run("films")
    held = claim(bench)
    bench.sql(
        "CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        " UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'; RETURN NULL; END $$;"
        "CREATE TRIGGER pause AFTER UPDATE ON analytics.films EXECUTE FUNCTION public.pause();"
        "UPDATE content.film_work SET title = 'New' WHERE id = 1"
    )
    bench.perform(held)
    assert (bench.status("films"), bench.last_run("films")["status"]) == ("PAUSED", "SUCCESS")


def test_a_pause_that_nobody_works_for_is_performed_and_kept(bench: Workbench) -> None:
    pipelines.request_pause(bench.metastore, row(bench)["id"])
    assert recovery.pause_unclaimed(bench.metastore) == 1
    held = claim(bench)
    pipelines.request_pause(bench.metastore, held.pipeline_id)
    assert recovery.pause_unclaimed(bench.metastore) == 0
    expire(bench)
    assert recover(bench)[0]["status"] == "PAUSED"
    assert bench.last_run("films")["status"] == "PAUSED"


def test_a_request_whose_runner_died_is_given_to_another_and_not_for_ever(bench: Workbench) -> None:
    asked = requests.insert(bench.metastore, "preview", row(bench)["id"], {}, "somebody")
    dead = uuid4()
    for _ in range(requests.MAX_TRIES):
        assert requests.claim_next(bench.metastore, dead, 30)
        assert requests.claim_next(bench.metastore, uuid4(), 30) is None
        bench.sql("UPDATE etl.etl_requests SET lease_until = clock_timestamp() - interval '1 s'")
    assert requests.claim_next(bench.metastore, uuid4(), 30) is None
    housekeeping.tidy_up(bench.settings)
    found = requests.find(bench.metastore, asked)
    assert found is not None
    assert (found["status"], found["error"]["code"]) == ("FAILED", "lease_lost")
    assert not requests.finish(bench.metastore, asked, dead, result={}, error=None)


# --- schedules -----------------------------------------------------------------------------------------------------


def test_two_runners_fire_a_schedule_once(bench: Workbench) -> None:
    bench.change("films", schedule_interval="1h")
    [first] = schedules.list_due(bench.metastore)
    assert schedules.fire(bench.metastore, first, first["now"] + timedelta(hours=1))
    assert (bench.status("films"), row(bench)["next_run_at"]) == ("IDLE", first["now"] + timedelta(hours=1))
    bench.sql("UPDATE etl.etl_pipelines SET next_run_at = now() - interval '5 hours'")
    [seen] = [*schedules.list_due(bench.metastore)]
    [also] = schedules.list_due(bench.metastore)
    assert schedules.fire(bench.metastore, seen, seen["now"] + timedelta(hours=1))
    assert not schedules.fire(bench.metastore, also, also["now"] + timedelta(hours=1))
    assert bench.status("films") == "RUN_REQUESTED"


@pytest.mark.parametrize(
    "change",
    ["enabled = false", "status = 'PAUSED'", "status = 'FAILED'", "status = 'RUNNING'"],
)
def test_what_may_not_fire_does_not(bench: Workbench, change: str) -> None:
    bench.sql(
        f"UPDATE etl.etl_pipelines SET schedule_interval = '1h', next_run_at = now() - interval '1 day', {change}"
    )
    assert schedules.list_due(bench.metastore) == []


# --- tidying up ----------------------------------------------------------------------------------------------------


def test_stages_are_dropped_when_nobody_needs_them_and_never_before(bench: Workbench) -> None:
    films = row(bench)["id"].hex
    bench.pipeline("busy", QUERY, target_key=["id"])
    claim(bench, "busy")
    busy = row(bench, "busy")["id"].hex
    named, forgotten = f"p_{films}_named", f"p_{films}_forgotten"
    working, gone, foreign = f"p_{busy}_a", f"p_{uuid4().hex}_a", f"p_{(stranger := uuid4()).hex}_a"
    for name in (named, forgotten, working, gone, foreign):
        bench.sql(f"CREATE TABLE etl_stage.{name} (); ALTER TABLE etl_stage.{name} OWNER TO vitrina_app")
    bench.sql(
        f"INSERT INTO etl.etl_state (pipeline_id, stage) VALUES ('{row(bench)['id']}', '{named}');"
        f"INSERT INTO etl_stage.ledger (pipeline_id, stage) VALUES ('{stranger}', '{foreign}')"
    )
    assert sorted(stages.list_orphans(bench.metastore)) == sorted([forgotten, gone])
    housekeeping.tidy_up(bench.settings)
    left = {stage["name"] for stage in stages.list_all(bench.metastore)}
    assert left == {named, working, foreign}


def test_what_a_hand_edited_status_cut_off_is_ended(bench: Workbench) -> None:
    held = claim(bench)
    bench.sql("UPDATE etl.etl_pipelines SET status = 'IDLE'")
    assert leases.extend(bench.metastore, [held.claim_id], 30).held == frozenset()
    housekeeping.tidy_up(bench.settings)
    assert bench.last_run("films")["status"] == "CANCELLED"
    assert row(bench)["holds_target"] is None
    assert bench.run("films")["status"] == "SUCCESS"


def test_old_runs_that_cannot_be_removed_now_keep_no_other_duty_waiting(bench: Workbench) -> None:
    for _ in range(3):
        bench.run("films")
    bench.sql(
        "UPDATE etl.etl_runs SET started_at = started_at - interval '1 year',"
        " finished_at = finished_at - interval '1 year'"
    )
    runners.heartbeat(bench.metastore, uuid4(), host="h", pid=1, version="1", capacity=4, running=0, transforms=[])
    bench.sql("UPDATE etl.etl_runners SET heartbeat_at = now() - interval '2 days'")
    with bench.metastore.transaction():
        bench.metastore.execute("SELECT FROM etl.etl_runs FOR UPDATE")
        housekeeping.tidy_up(bench.settings)
    assert len(bench.sql("SELECT 1 FROM etl.etl_runs")) == 3
    assert runners.list_all(bench.metastore, stale_after_seconds=60) == []
    housekeeping.tidy_up(bench.settings)
    assert len(bench.sql("SELECT 1 FROM etl.etl_runs")) == 1


def test_a_round_goes_on_where_the_last_one_ended(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that runs that are kept, however many, do not stand in the way of those behind them."""
    bench.pipeline("other", QUERY, target_key=["id"])
    for name in ("films", "other", "other"):
        bench.run(name)
    # The only run of films is the oldest of all, and is kept.
    bench.sql(
        "UPDATE etl.etl_runs SET started_at = started_at - interval '1 year',"
        " finished_at = finished_at - interval '1 year'"
    )
    monkeypatch.setattr(runs, "prune", partial(runs.prune, slices=1, of_rows=1))
    old_runs = housekeeping.OldRuns()
    left = []
    for _ in range(3):
        housekeeping.tidy_up(bench.settings, old_runs)
        left.append(len(bench.sql("SELECT 1 FROM etl.etl_runs")))
    assert left == [3, 2, 2]


def test_silent_runners_are_shown_and_later_forgotten(bench: Workbench) -> None:
    runner = uuid4()
    runners.heartbeat(bench.metastore, runner, host="h", pid=1, version="1", capacity=4, running=0, transforms=[])
    bench.sql("UPDATE etl.etl_runners SET heartbeat_at = now() - interval '2 minutes'")
    assert [r["alive"] for r in runners.list_all(bench.metastore, stale_after_seconds=60)] == [False]
    bench.sql("UPDATE etl.etl_runners SET heartbeat_at = now() - interval '2 days'")
    housekeeping.tidy_up(bench.settings)
    assert runners.list_all(bench.metastore, stale_after_seconds=60) == []


def test_a_column_that_was_added_by_hand_fails_no_claim(workbench: Workbench) -> None:
    """Require that a runner whose session has prepared the claim tries again, and sets no pipeline aside."""
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    url = workbench.settings.require_database_url()
    with database.connect(url, "vitrina:manager") as manager:
        for _ in range(8):  # the driver prepares what was executed five times
            workbench.request("films")
            claim = leases.claim_next(manager, uuid4(), 30)
            assert claim is not None
            leases.conclude_run(workbench.metastore, claim)
        workbench.request("films")
        workbench.sql("ALTER TABLE etl.etl_pipelines ADD COLUMN note text")
        with suppress(psycopg.errors.SerializationFailure):
            leases.claim_next(manager, uuid4(), 30)
        assert workbench.sql("SELECT status FROM etl.etl_pipelines") == [{"status": "RUN_REQUESTED"}]
        assert leases.claim_next(manager, uuid4(), 30) is not None
