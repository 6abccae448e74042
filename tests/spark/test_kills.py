"""A load by a Spark cluster whose executors, Python processes, driver and runner are killed: each row arrives once."""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import vitrina
from tests.chaos.arena import ROOT, Arena
from tests.chaos.conftest import MakeArena, make_arena, say
from tests.spark.server import EXECUTORS, SparkServer
from vitrina.definition import Definition
from vitrina.settings import Settings
from vitrina.store import pipelines

__all__ = ["make_arena"]

ROWS = 1_000_000
RANGE_ROWS = ROWS // 100
# A kill meets a load with so many ranges left, so that it does not end meanwhile.
LEAST_LEFT = 10
PATIENCE_SECONDS = 1200.0
VICTIMS = ["python worker", "executor", "driver", "runner"]
KILLS = [*VICTIMS * 7, "executor", "python worker"]
QUERY = "SELECT id, id AS version, 0 AS applied FROM content.item"


@pytest.mark.chaos
@pytest.mark.takes_long
@pytest.mark.timeout(7200)
def test_whoever_is_killed_nothing_is_lost_or_doubled(
    make_arena: MakeArena, spark: SparkServer, database: Settings
) -> None:
    assert database.reader_url is not None
    spark.tell(
        VITRINA_DATABASE_URL=database.require_database_url(), VITRINA_READER_URL=database.reader_url.get_secret_value()
    )
    arena = make_arena(lease_seconds=60.0)
    # Runners of an arena have a path of their own, which lacks the client.
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT), str(Path(vitrina.__file__).parents[1])])
    arena.environment |= {"VITRINA_CONN_CLUSTER": spark.url, "VITRINA_MAX_ATTEMPTS": "20", "PYTHONPATH": path}
    prepare(arena)
    arena.start_runners(1)
    arena.request("films")
    kills, loads = list(KILLS), Loads(arena)
    random.Random(7).shuffle(kills)
    for victim in kills:
        # Each meets a load that goes on, with a range more than the one before; after a load comes the next one.
        arena.await_true(loads.goes_on, PATIENCE_SECONDS, "another range arrived")
        strike(arena, spark, victim)
        say(f"killed: {victim}")
    arena.await_true(loads.is_over, PATIENCE_SECONDS, "the last load ended")

    loads.check()
    say(f"{ROWS} rows by Spark, {loads.begun} loads: {kills}, {len(loads.runs())} runs")


class Loads:
    """Loads of the same rows, one after the other, as many as there are kills for."""

    def __init__(self, arena: Arena) -> None:
        self.begun = 1
        self._arena = arena
        self._seen = 0

    def goes_on(self) -> bool:
        """Tell whether a range has arrived since the last time this was true, and some are left."""
        if self.is_over():
            self.check()
            self._seen = 0
            self.begun += 1
            self._arena.request("films")
        [found] = self._arena.sql(
            "SELECT (s.identity -> 'ranges' ->> 'done')::int AS done,"
            " jsonb_array_length(s.identity -> 'ranges' -> 'left') AS left"
            " FROM etl.etl_pipelines AS p LEFT JOIN etl.etl_state AS s ON s.pipeline_id = p.id"
        )
        if not found["left"] or found["left"] < LEAST_LEFT or found["done"] <= self._seen:
            return False
        self._seen = found["done"]
        return True

    def is_over(self) -> bool:
        status = self._arena.status("films")
        if status == "FAILED":
            # A busy machine may take longer to start a driver than a run waits for it: another run goes on.
            [*_, last] = self._arena.sql("SELECT error_code, error_message FROM etl.etl_runs ORDER BY started_at")
            assert last["error_code"] == "cannot_connect", last
            self._arena.request("films")
        return status == "IDLE"

    def runs(self) -> list[dict[str, Any]]:
        return self._arena.sql("SELECT status, trigger, rows_read, metrics FROM etl.etl_runs ORDER BY started_at")

    def check(self) -> None:
        runs = self.runs()
        assert runs[-1]["status"] == "SUCCESS"
        # Executors brought every row.
        assert {run["metrics"]["paging"] for run in runs if run["rows_read"]} == {"key ranges"}
        loads = loads_of(runs)
        # No range that was accepted is read again: each was counted once, by the run that read it.
        assert [sum(run["rows_read"] for run in load) for load in loads] == [ROWS] * len(loads), runs
        # A load that was resumed by a new request began before it, so another one follows; no other load does.
        follows = [False, *(any(run["trigger"] == "api" for run in load[1:]) for load in loads)]
        assert [load[0]["trigger"] for load in loads] == [
            "follow-up" if followed else "api" for followed in follows[:-1]
        ], runs
        assert not follows[-1], runs
        assert follows.count(False) - 1 == self.begun, runs
        [mart] = self._arena.sql(
            "SELECT count(*) AS rows, count(DISTINCT id) AS ids, count(DISTINCT xmin::text) AS publishes"
            " FROM analytics.films"
        )
        # Later loads find every row as it is.
        assert mart == {"rows": ROWS, "ids": ROWS, "publishes": 1}


def loads_of(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the runs of each load: those that were interrupted, and the one that published it."""
    loads: list[list[dict[str, Any]]] = [[]]
    for run in runs:
        loads[-1].append(run)
        if run["status"] == "SUCCESS":
            loads.append([])
    assert loads.pop() == []
    return loads


def prepare(arena: Arena) -> None:
    arena.sql(f"CREATE TABLE content.item AS SELECT i AS id FROM generate_series(1, {ROWS}) AS i")
    arena.sql("ALTER TABLE content.item ADD PRIMARY KEY (id); GRANT SELECT ON content.item TO vitrina_reader")
    arena.sql("ANALYZE content.item")
    definition = Definition.model_validate(
        {
            "name": "films",
            "source_query": QUERY,
            "target_table": "analytics.films",
            "target_key": ["id"],
            "options": {"engine": "spark", "route": "arrow", "checkpoint_rows": RANGE_ROWS},
        }
    )
    arena.ids["films"] = pipelines.insert(arena.admin, definition, pipeline_id=None, managed_by=None)


def strike(arena: Arena, spark: SparkServer, victim: str) -> None:
    if victim == "runner":
        arena.runners[0].process.kill()
        arena.runners[0].process.wait()
        arena.expire_leases()
        arena.replace_dead()
    elif victim == "driver":
        spark.kill()
        spark.start()
    else:
        find: Callable[[], list[int]] = spark.executors if victim == "executor" else spark.python_workers
        arena.await_true(lambda: bool(find()), PATIENCE_SECONDS, f"there is a {victim}")
        with suppress(ProcessLookupError, IndexError):
            os.kill(find()[0], signal.SIGKILL)
    if victim == "executor":
        arena.await_true(lambda: len(spark.executors()) == EXECUTORS, PATIENCE_SECONDS, "executors are back")
