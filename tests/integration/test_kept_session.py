"""The session that a runner keeps: opened once, opened anew when it is over, and nobody waits behind a dead one."""

import threading

import psycopg
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import CannotConnect
from vitrina.observe import shared_session
from vitrina.observe.shared_session import SharedSession

ASLEEP = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


def pid_of(session: SharedSession) -> int:
    with session.turn() as connection:
        return connection.info.backend_pid


def test_it_is_opened_once_and_anew_when_the_server_has_ended_it(workbench: Workbench) -> None:
    session = SharedSession(workbench.settings)
    try:
        first = pid_of(session)
        assert pid_of(session) == first
        workbench.sql(f"SELECT pg_terminate_backend({first}, 60000)")
        second = pid_of(session)  # nobody sees an error: the goodbye was heard before anything was asked
        assert second != first
        with pytest.raises(psycopg.errors.DivisionByZero), session.turn() as connection:
            connection.execute("SELECT 1 / 0")
        assert pid_of(session) != second
    finally:
        session.close()


def test_who_waits_too_long_cuts_off_the_one_before(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_session, "PATIENCE_SECONDS", 0.2)
    session = SharedSession(workbench.settings)
    asking = threading.Event()
    failed: list[psycopg.Error] = []

    def ask() -> None:
        try:
            with session.turn() as connection:
                asking.set()
                connection.execute("SELECT pg_sleep(600)")
        except psycopg.Error as exc:
            failed.append(exc)

    first = threading.Thread(target=ask)
    first.start()
    asking.wait()
    until(lambda: bool(workbench.sql(ASLEEP)))
    try:
        with pytest.raises(CannotConnect, match="has not answered"):
            pid_of(session)
        first.join(timeout=60)
        assert not first.is_alive()
        assert isinstance(failed[0], psycopg.OperationalError)
        assert pid_of(session)
    finally:
        session.close()
