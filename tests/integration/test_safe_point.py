"""The safe point: behind the data and behind open transactions, and what is read again because of it."""

import threading
import time
from typing import Any

import psycopg
import pytest

from tests.chaos import mutants
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres import query_pass
from vitrina.store.prepared import Statement

ROUTES = pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
QUERY = "SELECT id, at, note FROM content.events"
EVENTS = "CREATE TABLE content.events (id int PRIMARY KEY, at timestamptz, note text)"
STAMPED = {"cursor_clock": "database"}


def make_pipeline(bench: Workbench, **options: Any) -> None:
    fields = {"target_key": ["id"], "mode": "incremental", "incremental_key": "at", "incremental_id_key": "id"}
    bench.pipeline("events", QUERY, **fields, options=options)


def run(bench: Workbench, name: str = "events") -> dict[str, Any]:
    done = bench.run(name)
    assert (done["status"], done["error_message"]) == ("SUCCESS", None)
    return done


def late_session(bench: Workbench) -> psycopg.Connection[Any]:
    assert bench.settings.admin_url is not None
    return psycopg.connect(bench.settings.admin_url.get_secret_value())


# --- the checkpoint does not run ahead of the data -----------------------------------------------------------------


@ROUTES
def test_rows_with_business_dates_arrive_whenever_they_are_written(workbench: Workbench, route: str) -> None:
    """An import, or a table that another system feeds: their stamps are months older than the last run."""
    assert lost_of_an_import(workbench, route) == 0


def lost_of_an_import(workbench: Workbench, route: str) -> int:
    workbench.source(EVENTS)
    workbench.sql("INSERT INTO content.events SELECT i, '2024-01-01'::date + i, 'old' FROM generate_series(1, 9) AS i")
    make_pipeline(workbench, route=route, null_cursor="read", lookback_seconds=86_400)
    run(workbench)
    workbench.sql(
        """
        INSERT INTO content.events VALUES
            (10, '2024-01-10', 'the same as the last one'), (11, '2024-02-01', 'newer'), (12, '2024-02-02', 'newest'),
            (13, '2024-01-09', 'late, within the lookback'), (14, NULL, 'without any')
        """
    )

    run(workbench)

    lost = workbench.differences(QUERY, "analytics.events")
    workbench.sql("INSERT INTO content.events VALUES (15, '2024-02-02', 'one more of that day')")
    run(workbench)
    return max(lost, workbench.differences(QUERY, "analytics.events"))


def test_rows_from_the_future_do_not_pull_the_checkpoint_ahead_of_the_others(workbench: Workbench) -> None:
    workbench.source(EVENTS)
    workbench.sql("INSERT INTO content.events VALUES (1, '2024-01-01', 'old')")
    make_pipeline(workbench)
    run(workbench)
    workbench.sql("INSERT INTO content.events VALUES (2, 'infinity', 'never'), (3, '2100-01-01', 'later')")
    run(workbench)
    run(workbench)
    workbench.sql("INSERT INTO content.events VALUES (4, '2024-02-01', 'imported')")

    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


def test_a_source_without_rows_leaves_no_checkpoint_behind(workbench: Workbench) -> None:
    workbench.source(EVENTS)
    make_pipeline(workbench)
    run(workbench)
    workbench.sql("INSERT INTO content.events VALUES (1, '2024-01-01', 'imported')")

    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


def test_a_quiet_table_is_not_read_again_and_again(workbench: Workbench) -> None:
    """Of a table that nobody writes to, the last value is read again, and nothing else."""
    workbench.source(EVENTS)
    workbench.sql("INSERT INTO content.events SELECT i, '2024-01-01'::date + i, 'old' FROM generate_series(1, 50) AS i")
    make_pipeline(workbench)
    run(workbench)

    assert [run(workbench)["rows_read"] for _ in range(2)] == [1, 1]


@ROUTES
def test_many_rows_with_one_stamp_travel_again_only_when_they_changed(workbench: Workbench, route: str) -> None:
    many = query_pass.WORTH_A_DIGEST_ROWS
    workbench.source(EVENTS)
    workbench.sql(f"INSERT INTO content.events SELECT i, '2024-01-01', 'old' FROM generate_series(1, {many}) AS i")
    make_pipeline(workbench, route=route)
    run(workbench)
    assert run(workbench)["rows_read"] == many  # once more: what came while they were read must not be lost
    assert run(workbench)["rows_read"] == 0
    workbench.sql(f"INSERT INTO content.events VALUES ({many + 1}, '2024-01-01', 'one more of that day')")

    assert run(workbench)["metrics"]["inserted"] == 1
    assert run(workbench)["rows_read"] == 0
    workbench.sql(f"INSERT INTO content.events VALUES ({many + 2}, '2024-01-02', 'of the next')")
    assert run(workbench)["rows_read"] == 1
    assert workbench.differences(QUERY, "analytics.events") == 0


# --- rows without a cursor -----------------------------------------------------------------------------------------


@ROUTES
def test_rows_without_a_cursor_are_read_on_every_pass(workbench: Workbench, route: str) -> None:
    workbench.source(EVENTS)
    workbench.sql("INSERT INTO content.events SELECT i, now(), 'stamped' FROM generate_series(1, 9) AS i")
    workbench.sql("INSERT INTO content.events SELECT i, NULL, 'not' FROM generate_series(11, 15) AS i")
    make_pipeline(workbench, route=route, null_cursor="read")
    run(workbench)
    workbench.sql("UPDATE content.events SET note = 'changed' WHERE at IS NULL")
    workbench.sql("INSERT INTO content.events VALUES (16, NULL, 'new'), (17, now(), 'new')")

    done = run(workbench)

    assert (done["metrics"]["inserted"], done["metrics"]["updated"], done["rows_rejected"]) == (2, 5, 0)
    assert workbench.differences(QUERY, "analytics.events") == 0
    assert workbench.reconcile("events", level="full")["equal"]


def test_rows_without_a_cursor_are_warned_of(workbench: Workbench) -> None:
    workbench.source(EVENTS)
    workbench.sql("INSERT INTO content.events VALUES (1, now(), 'stamped'), (2, NULL, 'not'), (3, NULL, 'not')")
    make_pipeline(workbench)

    done = run(workbench)

    assert any("2 row(s) have no value in incremental_key at" in text for text in done["metrics"]["plan"]["warnings"])


# --- the three edges of the watermark ------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["milliseconds", "seconds"])
def test_stamps_that_are_cut_are_not_below_the_watermark(workbench: Workbench, precision: str) -> None:
    """The transaction has lasted longer than the margin: its start alone would be past what it writes."""
    assert lost_of_cut_stamps(workbench, precision) == 0


def lost_of_cut_stamps(workbench: Workbench, precision: str) -> int:
    workbench.source(EVENTS)
    workbench.sql(f"ALTER TABLE content.events ALTER at SET DEFAULT date_trunc('{precision}', now())")
    make_pipeline(workbench, **STAMPED)
    run(workbench)
    with late_session(workbench) as late:
        late.execute("INSERT INTO content.events (id) VALUES (1)")
        _let_the_margin_pass(workbench)
        run(workbench)
        late.commit()
    run(workbench)
    return workbench.differences(QUERY, "analytics.events")


def test_the_lookback_reaches_behind_open_transactions(workbench: Workbench) -> None:
    """What an application stamped before it began its transaction is late by that much."""
    workbench.source(EVENTS)
    make_pipeline(workbench, lookback_seconds=1, **STAMPED)
    run(workbench)
    with late_session(workbench) as late:
        late.execute("INSERT INTO content.events VALUES (1, now() - interval '1.8 seconds', 'stamped before')")
        _let_the_margin_pass(workbench, 1)
        run(workbench)
        late.commit()
    run(workbench)

    assert workbench.differences(QUERY, "analytics.events") == 0


def test_a_session_that_begins_while_others_are_looked_at_is_not_passed_by(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks may be put aside by the machine between looking at the sessions and reading the clock."""
    assert lost_while_put_aside(workbench, monkeypatch) == 0


def lost_while_put_aside(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> int:
    workbench.source(EVENTS)
    make_pipeline(workbench, **STAMPED)
    run(workbench)
    with late_session(workbench) as late, late_session(workbench) as machine:
        machine.autocommit = True  # whoever holds the lock does not hold the checkpoint back
        machine.execute("SELECT pg_advisory_lock(4711)")
        monkeypatch.setattr(cursors, "_OLDEST_TRANSACTION", Statement(_put_aside_behind_the_sessions().encode()))
        asking = threading.Thread(target=run, args=[workbench])
        asking.start()
        until(lambda: _is_waiting(machine))
        late.execute("INSERT INTO content.events VALUES (1, now(), 'meanwhile')")
        time.sleep(cursors.VISIBILITY_SECONDS + 0.2)
        machine.execute("SELECT pg_advisory_unlock(4711)")
        asking.join()
        late.commit()
    run(workbench)
    return workbench.differences(QUERY, "analytics.events")


def test_a_transaction_that_is_prepared_while_others_are_looked_at_is_not_passed_by(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lost_while_prepared(workbench, monkeypatch, cursors.OLDEST_TRANSACTION) == 0


def lost_while_prepared(workbench: Workbench, monkeypatch: pytest.MonkeyPatch, asked: str) -> int:
    """Prepare a transaction right before the sessions are read, which then no longer show it."""
    workbench.source(EVENTS)
    make_pipeline(workbench, **STAMPED)
    run(workbench)
    with late_session(workbench) as late, late_session(workbench) as machine:
        machine.autocommit = True
        machine.execute("SELECT pg_advisory_lock(4711)")
        late.execute("INSERT INTO content.events VALUES (1, now(), 'prepared')")
        _let_the_margin_pass(workbench)
        monkeypatch.setattr(cursors, "_OLDEST_TRANSACTION", Statement(_put_aside_before_the_sessions(asked).encode()))
        asking = threading.Thread(target=run, args=[workbench])
        asking.start()
        until(lambda: _is_waiting(machine))
        late.execute("PREPARE TRANSACTION 'while others are looked at'")
        machine.execute("SELECT pg_advisory_unlock(4711)")
        asking.join()
    workbench.sql("COMMIT PREPARED 'while others are looked at'")
    run(workbench)
    return workbench.differences(QUERY, "analytics.events")


def _put_aside_before_the_sessions(asked: str) -> str:
    sessions = "FROM pg_catalog.pg_stat_activity\n"
    assert sessions in asked
    aside = "(SELECT pg_catalog.pg_advisory_lock_shared(4711)::text AS done OFFSET 0) AS aside"
    later = "LATERAL (SELECT * FROM pg_catalog.pg_stat_activity WHERE aside.done IS NOT NULL OFFSET 0) AS s"
    return asked.replace(sessions, f"FROM (SELECT s.* FROM {aside}, {later}) AS put_aside\n")


def _put_aside_behind_the_sessions() -> str:
    sessions = "FROM pg_catalog.pg_stat_activity\n"
    found = cursors.OLDEST_TRANSACTION
    assert sessions in found
    aside = "SELECT s.*, pg_catalog.pg_advisory_lock_shared(4711) FROM pg_catalog.pg_stat_activity s OFFSET 0"
    return found.replace(sessions, f"FROM ({aside}) AS put_aside\n")


def _is_waiting(machine: psycopg.Connection[Any]) -> bool:
    row = machine.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    return bool(row and row[0])


def _let_the_margin_pass(bench: Workbench, lookback_seconds: float = 0) -> None:
    bench.sql(f"SELECT pg_sleep({cursors.VISIBILITY_SECONDS + lookback_seconds + 0.2})")


# --- each of these, switched on, must lose rows: otherwise the tests above prove nothing ---------------------------


def test_a_watermark_ahead_of_the_data_loses_rows(workbench: Workbench) -> None:
    with mutants.applied("watermark_ahead"):
        assert lost_of_an_import(workbench, "auto") > 0


def test_a_margin_that_leaves_open_transactions_out_loses_rows(workbench: Workbench) -> None:
    with mutants.applied("margin_short"):
        assert lost_of_cut_stamps(workbench, "seconds") > 0


def test_a_clock_that_is_read_behind_the_sessions_loses_rows(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mutants.applied("clock_behind"):
        assert lost_while_put_aside(workbench, monkeypatch) > 0


def test_prepared_transactions_that_are_counted_before_the_sessions_lose_rows(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, _, rest = cursors.OLDEST_TRANSACTION.partition("(SELECT count(*) FROM pg_catalog.pg_prepared_xacts")
    _, _, rest = rest.partition(" AS prepared")
    first = "SELECT count(*) AS open FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() OFFSET 0"
    assert "FROM (SELECT 1) one" in rest
    asked = f"{counted}one.open AS prepared{rest.replace('FROM (SELECT 1) one', f'FROM ({first}) one')}"
    assert lost_while_prepared(workbench, monkeypatch, asked) > 0


# --- prepared transactions and sequences ---------------------------------------------------------------------------


def test_a_number_that_was_drawn_by_a_transaction_prepared_since_is_not_lost(workbench: Workbench) -> None:
    """PREPARE TRANSACTION takes away the id under which the transaction was waited for."""
    workbench.source("CREATE TABLE content.events (id bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, note text)")
    query = "SELECT id, note FROM content.events"
    workbench.pipeline("events", query, mode="incremental", incremental_key="id", options=STAMPED, target_key=["id"])
    run(workbench)
    with late_session(workbench) as late:
        late.execute("INSERT INTO content.events (note) VALUES ('late')")
        workbench.sql("INSERT INTO content.events (note) VALUES ('early')")
        run(workbench)
        late.execute("PREPARE TRANSACTION 'between two passes'")
    run(workbench)
    run(workbench)
    workbench.sql("COMMIT PREPARED 'between two passes'")
    run(workbench)

    assert workbench.differences(query, "analytics.events") == 0


def test_prepared_transactions_one_after_the_other_do_not_hold_the_checkpoint_for_ever(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.events (id bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, note text)")
    query = "SELECT id, note FROM content.events"
    workbench.pipeline("events", query, mode="incremental", incremental_key="id", options=STAMPED, target_key=["id"])
    for number in range(4):
        with late_session(workbench) as session:
            session.execute("INSERT INTO content.events (note) VALUES ('one of many')")
            session.execute(f"PREPARE TRANSACTION 'number {number}'")
        if number:
            workbench.sql(f"COMMIT PREPARED 'number {number - 1}'")
        run(workbench)

    assert workbench.checkpoint("events").safe_upto is not None
    workbench.sql("COMMIT PREPARED 'number 3'")
    run(workbench)
    assert workbench.differences(query, "analytics.events") == 0
