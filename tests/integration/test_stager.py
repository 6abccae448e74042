"""The session that copies Arrow tables into a stage is closed by another thread than the one that is in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest

from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import stream
from vitrina.connectors.postgres.stage import Stage, StageColumn, Turns
from vitrina.connectors.postgres.stream import Stager
from vitrina.errors import Disconnected
from vitrina.ports.batch import Written
from vitrina.targets import PostgresTarget

STAGE = Stage("p_closing", (StageColumn("id", "bigint", "bigint"), StageColumn("body", "text", "text")), ("id",))
SESSION = "vitrina:closing"
SMALL = pa.table({"id": [1, 2], "body": ["a", "b"]})
WIDE = pa.table({"id": [1], "body": ["x" * (17 << 20)]})


class Copying(threading.Thread):
    """A thread that copies a table, and keeps what came of it."""

    def __init__(self, stager: Stager, table: pa.Table) -> None:
        super().__init__()
        self._stager, self._table = stager, table
        self.came: Written | None = None
        self.failed_with: Exception | None = None

    def run(self) -> None:
        try:
            self.came = self._stager.stage(self._table, 1)
        except Disconnected as exc:
            self.failed_with = exc


@pytest.fixture
def stager(workbench: Workbench) -> Iterator[Stager]:
    workbench.metastore.execute(STAGE.creation(fillable_by=None))
    stager = Stager(
        workbench.settings.require_database_url(),
        SESSION,
        Turns(STAGE),
        epoch=1,
        target=PostgresTarget("analytics", "films"),
    )
    yield stager
    stager.close()
    STAGE.drop(workbench.metastore)


@contextmanager
def copying(bench: Workbench, stager: Stager, table: pa.Table) -> Iterator[Copying]:
    """Within the block a thread is in the middle of a copy: the stage is locked."""
    assert bench.settings.admin_url
    copying = Copying(stager, table)
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as somebody:
        somebody.execute("LOCK TABLE etl_stage.p_closing IN ACCESS EXCLUSIVE MODE")
        copying.start()
        until(lambda: _sessions(bench, "wait_event_type = 'Lock'") == 1)
        yield copying
    copying.join(timeout=60)
    assert not copying.is_alive()


def _sessions(bench: Workbench, which: str = "true") -> int:
    [row] = bench.sql(f"SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = '{SESSION}' AND {which}")
    return int(row["n"])


def _staged(bench: Workbench) -> int:
    [row] = bench.sql("SELECT count(*) AS n FROM etl_stage.p_closing")
    return int(row["n"])


def test_who_closes_waits_for_the_thread_that_is_in_it(workbench: Workbench, stager: Stager) -> None:
    closing = threading.Thread(target=stager.close)
    with copying(workbench, stager, SMALL) as thread:
        closing.start()
        assert _sessions(workbench) == 1
    closing.join(timeout=60)

    assert (thread.came, thread.failed_with) == (Written(2), None)
    assert _staged(workbench) == 2
    until(lambda: _sessions(workbench) == 0)


def test_a_thread_that_stays_in_it_is_left_its_session(
    workbench: Workbench, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copying(workbench, stager, SMALL) as thread:
        with monkeypatch.context() as patience:
            patience.setattr(stream, "_CLOSE_SECONDS", 0.0)
            stager.close()
        assert _sessions(workbench) == 1

    assert thread.came == Written(2)
    stager.close()
    until(lambda: _sessions(workbench) == 0)


def test_a_copy_of_wide_rows_is_cut_off(workbench: Workbench, stager: Stager) -> None:
    """That session is of another driver, which may be closed at any time."""
    with copying(workbench, stager, WIDE) as thread:
        stager.close()
        thread.join(timeout=60)
        assert thread.failed_with is not None
    assert _staged(workbench) == 0
    until(lambda: _sessions(workbench) == 0)
