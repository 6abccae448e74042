"""Full loads that are cut into ranges of the key: each counts once, whatever becomes of those who bring them."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Literal
from structlog.testing import capture_logs

from tests.support.waiting import until
from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.connectors.postgres import query_source, range_workers, source
from vitrina.connectors.postgres.pushdown import SharedSnapshot
from vitrina.connectors.postgres.sessions import QueryReader
from vitrina.connectors.postgres.source import Age
from vitrina.errors import CannotConnect, Disconnected, SnapshotGone, SourceQueryFailed, TransientError
from vitrina.loads import local_pool, processors, ranged
from vitrina.loads.control import RunControl
from vitrina.ports.ranges import FillHandle, KeyRange, Result, Task
from vitrina.runner import dispatcher
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.schemas import RangesProgress
from vitrina.settings import ConnectionLimits, Settings
from vitrina.store import database, pipelines, session_limits
from vitrina.transforms import forking

ROWS = 1_500
FILMS = f"""
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(3, 1));
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, {ROWS}) AS i;
ANALYZE content.films;
"""
QUERY = "SELECT id, title, rating FROM content.films"
CUT = {"parallel": 2, "checkpoint_rows": 150}
LEFT_OUT = {"order_index": 1, "task_type": "PYTHON", "body": "arena_drop"}
# Each row takes a good part of a second, inside the server.
SLOW = """
SELECT f.id, (SELECT count(*) FROM generate_series(1, 1000000) AS g WHERE g <> f.id) AS others FROM content.films AS f
"""


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    return workbench


def difference(bench: Workbench) -> list[dict[str, Any]]:
    source, mart = "TABLE content.films", "TABLE analytics.films"
    return bench.sql(f"({source} EXCEPT ALL {mart}) UNION ALL ({mart} EXCEPT ALL {source})")


def begun(lines: list[Any]) -> list[Any]:
    return [line["range"] for line in lines if line["event"] == "range.begun"]


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_ranges_bring_every_row_once(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=100, options=CUT | {"route": route})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    assert run["metrics"]["ranges"]["left"] == 0
    assert run["metrics"]["ranges"]["done"] == run["batches"] >= 10
    assert run["metrics"]["consistency"] == "snapshot"
    assert run["rows_read"] == ROWS
    assert difference(bench) == []
    # Numbers that were reserved and not used are given back.
    assert bench.sql("SELECT batch_no FROM etl.etl_state") == [{"batch_no": run["batches"]}]
    assert bench.run("films")["metrics"]["unchanged"] == ROWS


def test_steps_of_users_run_below_the_workers(bench: Workbench) -> None:
    bench.settings = bench.settings.model_copy(update={"transforms": "tests.chaos.steps"})
    query = "SELECT id, id AS version, 0 AS applied FROM content.films"
    tasks = [{"order_index": 0, "task_type": "SQL", "body": query}, LEFT_OUT]
    bench.pipeline("films", query, source_query=None, tasks=tasks, target_key=["id"], batch_size=100, options=CUT)

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    [mart] = bench.sql("SELECT count(*) AS rows, bool_or(id % 7 = 0) AS dropped FROM analytics.films")
    assert mart == {"rows": ROWS - ROWS // 7, "dropped": False}


@pytest.mark.parametrize("repeats", [False, True], ids=["each key once", "keys that come again"])
def test_a_first_pass_with_steps_is_cut_too(bench: Workbench, repeats: bool) -> None:
    """Several rows may have one key, in batches far apart: the latest counts, as in every pass."""
    bench.settings = bench.settings.model_copy(update={"transforms": "tests.chaos.steps"})
    key = "id % 1000" if repeats else "id"
    query = f"SELECT id AS source_id, {key} AS id, id AS version, 0 AS applied FROM content.films"
    bench.pipeline(
        "films",
        query,
        source_query=None,
        tasks=[{"order_index": 0, "task_type": "SQL", "body": query}, LEFT_OUT],
        target_key=["id"],
        mode="incremental",
        incremental_key="source_id",
        batch_size=100,
        options=CUT,
    )
    bench.sql("CREATE INDEX ON content.films ((id % 1000)); ANALYZE content.films")

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    of_key = f"SELECT {key} AS id, max(id) AS version FROM content.films GROUP BY 1"
    kept, mart = f"SELECT * FROM ({of_key}) AS f WHERE id % 7 <> 0", "SELECT id, version FROM analytics.films"
    assert bench.sql(f"({kept} EXCEPT ALL {mart}) UNION ALL ({mart} EXCEPT ALL {kept})") == []

    # The pass after it begins where the load ended.
    bench.sql(f"INSERT INTO content.films VALUES ({ROWS + 1}, 'New', 1)")
    run = bench.run("films")
    assert run["metrics"]["paging"] != "key ranges"
    assert run["rows_read"] <= 2
    assert bench.sql("SELECT max(version) AS newest FROM analytics.films") == [{"newest": ROWS + 1}]


WHOSE_CHILD = """
import os
from pathlib import Path
from vitrina.transforms import transform

@transform("whose_child", rows=True)
def whose_child(row):
    words = Path("/proc/self/cmdline").read_bytes().split(bytes(1))
    held = b"VITRINA_" in Path("/proc/self/environ").read_bytes()
    row["title"] = f"{os.getppid()} {words[3].decode()} {held}"
    return row
"""


@pytest.mark.step_processes
def test_steps_below_the_workers_are_forked_too(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "family.py").write_text(WHOSE_CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VITRINA_CONN_OTHER", "postgresql://somebody:secret@127.0.0.1:1/none")
    kept = forking.Templates(), forking.Templates(["vitrina.loads.range_worker"])
    for module, templates in zip((forking, local_pool), kept, strict=True):
        templates.keep()
        monkeypatch.setattr(module, "templates", templates)
    bench.settings = bench.settings.model_copy(update={"transforms": "family"})
    step = {"order_index": 1, "task_type": "PYTHON", "body": "whose_child"}
    tasks = [{"order_index": 0, "task_type": "SQL", "body": QUERY}, step]
    bench.pipeline("films", QUERY, source_query=None, tasks=tasks, target_key=["id"], batch_size=100, options=CUT)

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    found = {row["title"].split()[0] for row in bench.sql("SELECT DISTINCT title FROM analytics.films")}
    modules = bench.sql(
        "SELECT DISTINCT split_part(title, ' ', 2) AS module, split_part(title, ' ', 3) AS held FROM analytics.films"
    )
    assert modules == [{"module": "vitrina.transforms.template", "held": "False"}]
    # One branch for each worker, none of them the runner's own, and all of them end with their worker.
    assert 1 <= len(found) <= 2
    assert str(kept[0].pid) not in found
    until(lambda: not any(is_alive(int(pid)) for pid in found), seconds=30)
    for templates in kept:
        templates.close()


@pytest.mark.parametrize("end", ["pause", "lease"])
def test_workers_and_their_sessions_end_with_the_run(bench: Workbench, end: str) -> None:
    bench.pipeline("slow", SLOW, target_key=["id"], options=CUT | {"route": "copy"})
    bench.request("slow")
    claim, control = bench.claim(), RunControl(NO_HEARTBEAT_SECONDS, threading.Event())
    run = threading.Thread(target=PipelineDispatcher(bench.settings).work, args=[claim, control])
    run.start()
    until(lambda: reading(bench) == 2, seconds=120)

    if end == "pause":
        bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
        control.pause_asked = True
    else:
        control.lose()
        control.cut()
    run.join(60)

    assert not run.is_alive()
    until(lambda: reading(bench) == 0, seconds=30)
    # The left rows stay with the load; who goes on with it ends what is still there of the older epoch.
    assert bench.last_run("slow")["status"] == ("PAUSED" if end == "pause" else "RUNNING")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reading(bench: Workbench) -> int:
    """Count the sessions in which workers read."""
    found = bench.sql(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        " AND query LIKE 'COPY (%'"
    )
    return int(found[0]["n"])


# --- an engine that cannot be relied on -------------------------------------------------------------------------------


class Unreliable:
    """Fill ranges in this process, in any order; lose some before, some after they are written, and repeat itself."""

    progress: Any = None

    def __init__(self, handle: FillHandle, settings: Settings, chance: random.Random, losses: float) -> None:
        self._filler = handle.open(settings)
        self._chance = chance
        self._losses = losses
        self._tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        while self._tasks:
            if check():
                # What is submitted from now on is read in another snapshot.
                recalled, self._tasks = self._tasks, []
                yield from (Result(task, is_recalled=True) for task in recalled)
            else:
                yield from self._fate(self._tasks.pop(self._chance.randrange(len(self._tasks))))

    def _fate(self, task: Task) -> Iterator[Result]:
        lost = Result(task, error=TransientError("the worker is gone"), is_lost=True)
        fate = self._chance.random()
        if fate < self._losses / 2:
            yield lost
            return
        filled = self._filler.fill(task, lambda rows: None)
        if fate < self._losses:
            yield lost
            return
        yield from [Result(task, filled=filled)] * self._chance.randint(1, 2)

    def cancel(self) -> None:
        self._filler.close()


def rely_on(
    patch: pytest.MonkeyPatch, seed: int, losses: float = 0.3, kind: Callable[..., Unreliable] = Unreliable
) -> None:
    # One for all tries of a run: the next one does not have the fate of the last.
    chance = random.Random(seed)

    @contextmanager
    def pool(run: Any, handle: FillHandle, progress: Any) -> Iterator[Unreliable]:
        engine = kind(handle, run.job.settings, chance, losses)
        engine.progress = progress
        try:
            yield engine
        finally:
            engine.cancel()

    patch.setattr(ranged, "_opened", pool)


@pytest.mark.timeout(300)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1000), range_rows=st.sampled_from([40, 150, 600]), route=st.sampled_from(["copy", "arrow"]))
def test_parts_that_are_lost_repeated_and_late_count_once(
    bench: Workbench, seed: int, range_rows: int, route: str
) -> None:
    bench.sql("DELETE FROM etl.etl_pipelines; DROP TABLE IF EXISTS analytics.films")
    options = CUT | {"checkpoint_rows": range_rows, "route": route, "max_attempts": 20}
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=70, options=options)
    with pytest.MonkeyPatch.context() as patch:
        rely_on(patch, seed)
        run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    assert run["rows_read"] == ROWS
    assert difference(bench) == []


class Forgetful(Unreliable):
    """Lose the first attempt at every range after it was written."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lost: set[KeyRange] = set()

    def _fate(self, task: Task) -> Iterator[Result]:
        filled = self._filler.fill(task, lambda rows: None)
        if task.range in self._lost:
            yield Result(task, filled=filled)
            return
        self._lost.add(task.range)
        yield Result(task, error=TransientError("the worker is gone"), is_lost=True)


@pytest.mark.parametrize("mutant", [False, True])
def test_a_number_that_two_attempts_share_is_noticed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    """The property above can fail: a mutant that ignores the attempt counts the rows of a lost one as well."""
    rely_on(monkeypatch, seed=3, kind=Forgetful)
    numbers: dict[KeyRange, int] = {}
    attempt = ranged.RangedFill._attempt

    def ignoring(self: ranged.RangedFill, one: KeyRange) -> Task:
        drawn = attempt(self, one)
        return replace(drawn, number=numbers.setdefault(one, drawn.number))

    if mutant:
        monkeypatch.setattr(ranged.RangedFill, "_attempt", ignoring)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy", "max_attempts": 1})

    run = bench.run("films")

    assert run["status"] == ("FAILED" if mutant else "SUCCESS")
    assert (difference(bench) == []) is not mutant


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_short", [False, True], ids=["whole ranges", "ranges that are cut again"])
def test_a_worker_reads_its_ranges_in_one_session(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, cut_short: bool
) -> None:
    """The Arrow driver reads the catalog whenever it connects. A read that was abandoned still sends rows."""
    rely_on(monkeypatch, seed=1, losses=0.0)
    if cut_short:
        monkeypatch.setattr(ranged, "_STOP_AFTER", 0)
    opened: list[Any] = []
    connect = adbc.connect

    def counted(*given: Any, **more: Any) -> Any:
        opened.append(given)
        return connect(*given, **more)

    monkeypatch.setattr(adbc, "connect", counted)
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=40, options=CUT | {"route": "arrow"})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["ranges"]["done"] >= 10
    assert (len(opened) > 5) == cut_short, len(opened)
    assert difference(bench) == []


def test_a_kept_session_begins_each_read_anew(bench: Workbench) -> None:
    """It holds no snapshot between two reads, and what a statement sets ends with it."""
    assert bench.settings.reader_url
    url = bench.settings.reader_url.get_secret_value()
    reader = QueryReader(database.connect(url, "main", settings=database.READ_ONLY), url, "kept")
    with reader.stream(SQL("SELECT set_config('my.value', 'left', false)"), keeps_session=True) as rows:
        assert [batch.num_rows for batch in rows] == [1]
    between = "SELECT state, xact_start, backend_xmin FROM pg_stat_activity WHERE application_name = 'kept'"
    assert bench.sql(between) == [{"state": "idle", "xact_start": None, "backend_xmin": None}]
    bench.sql("INSERT INTO content.films VALUES (0, 'Later', 1)")
    found = SQL("SELECT current_setting('my.value', true) AS left, pg_backend_pid()::text AS pid, count(*) FROM {}")
    pids = set()
    for _ in range(2):
        with reader.stream(found.format(SQL("content.films")), keeps_session=True) as rows:
            [row] = [row for batch in rows for row in batch.to_pylist()]
        assert (row["left"] or "", row["count"]) == ("", ROWS + 1)
        pids.add(row["pid"])
    assert len(pids) == 1
    with pytest.raises(SourceQueryFailed), reader.stream(SQL("SELECT 1 / 0"), keeps_session=True) as rows:
        list(rows)
    until(lambda: bench.sql(between) == [])
    reader.connection.close()


# --- ranges and keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_a_range_with_more_rows_than_it_should_have_is_cut_again(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    # A worker stops after one batch.
    monkeypatch.setattr(ranged, "_STOP_AFTER", 0)
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=40, options=CUT | {"route": route})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["ranges"]["done"] > ROWS / 40
    assert run["rows_read"] == ROWS
    assert difference(bench) == []


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_keys_of_several_columns_are_cut_too(bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    """Nearly all rows have one tenant: the first column alone would be one range."""
    rely_on(monkeypatch, seed=1, losses=0.2)
    bench.source(
        """
        CREATE TABLE content.votes (tenant text COLLATE "C", id uuid, film int, PRIMARY KEY (tenant, id));
        INSERT INTO content.votes SELECT CASE WHEN i % 50 = 0 THEN 'Ö-' || i ELSE 'a' END, md5(i::text)::uuid, i
        FROM generate_series(1, 2000) AS i;
        """
    )
    query = "SELECT tenant, id, film FROM content.votes"
    bench.pipeline("votes", query, target_key=["tenant", "id"], options=CUT | {"route": route, "max_attempts": 20})

    run = bench.run("votes")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["ranges"]["done"] >= 8
    assert bench.sql("(TABLE content.votes EXCEPT TABLE analytics.votes)") == []
    assert bench.sql("SELECT count(*) AS n FROM analytics.votes") == [{"n": 2000}]


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_a_row_without_a_key_is_refused_by_name(bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    bench.sql("ALTER TABLE content.films DROP CONSTRAINT films_pkey, ALTER id DROP NOT NULL")
    bench.sql("CREATE INDEX ON content.films (id); UPDATE content.films SET id = NULL WHERE id = 700")
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": route})

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_key")
    assert "id" in run["error_message"]


FAILING = """
from vitrina.transforms import transform

@transform("fail_some", rows=True)
def fail_some(row):
    if row["id"] % 100 == 0:
        raise ValueError("odd")
    return row
"""


@pytest.mark.parametrize(("most", "status"), [(15, "SUCCESS"), (12, "FAILED")])
def test_rejected_rows_are_counted_over_the_whole_load(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int, status: str
) -> None:
    """Those of ranges that were accepted before the load was interrupted count too."""
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    bench.settings = bench.settings.model_copy(update={"transforms": "failing"})
    rely_on(monkeypatch, seed=1, losses=0.0)
    params = {"on_error": "dead_letter", "max_dead_letters": most}
    step = {"order_index": 1, "task_type": "PYTHON", "body": "fail_some", "params": params}
    tasks = [{"order_index": 0, "task_type": "SQL", "body": QUERY}, step]
    bench.pipeline("films", QUERY, source_query=None, tasks=tasks, target_key=["id"], batch_size=100, options=CUT)
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:5")
    bench.recover()

    bench.perform(bench.claim())

    run = bench.last_run("films")
    assert run["status"] == status, run["error_message"]
    assert run["metrics"]["continued"][0]["rows"] > 0
    assert status == "SUCCESS" or "more than 12 rows in this load" in run["error_message"]


def test_a_range_that_loses_every_worker_ends_the_run(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on(monkeypatch, seed=1, losses=1.0)
    options = CUT | {"route": "copy", "parallel": 2, "max_attempts": 1}
    bench.pipeline("films", QUERY, target_key=["id"], options=options)

    with capture_logs() as lines:
        run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "the worker is gone" in run["error_message"]
    tries = begun(lines)
    assert max(tries.count(name) for name in tries) == ranged._MOST_LOSSES
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_an_accepted_range_is_not_read_again(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})
    bench.request("films")
    with capture_logs() as before:
        bench.lose_a_runner("batch.committed:crash:4")
    bench.recover()
    with capture_logs() as after:
        bench.perform(bench.claim())

    run = bench.last_run("films")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["continued"][0]["rows"] > 0
    assert difference(bench) == []
    # Four counted; what else was begun before was in vain.
    again = set(begun(before)) & set(begun(after))
    assert len(begun(before)) - len(again) == 4
    assert len(set(begun(before) + begun(after))) == len(begun(after)) + 4


class Stumbling(Unreliable):
    """Fail before anything is loaded, the first time."""

    tries: int

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        type(self).tries += 1
        if self.tries == 1:
            raise TransientError("the cluster stumbled")
        return super().results(check)


def test_a_load_interrupted_before_its_first_range_has_one_snapshot(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stumbling, "tries", 0, raising=False)
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Stumbling)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert (run["status"], Stumbling.tries) == ("SUCCESS", 2)
    assert run["metrics"]["continued"][0]["rows"] == 0
    assert run["metrics"]["consistency"] == "snapshot"


class Flickering(Unreliable):
    """Load one range, and then be unreachable."""

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        yield from super()._fate(self._tasks.pop(0))
        if self._tasks:
            raise CannotConnect("the cluster does not answer")


def test_each_outage_has_its_own_patience(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 0.01)
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Flickering)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert len(run["metrics"]["continued"]) > 2
    assert difference(bench) == []


def test_one_snapshot_is_not_mixed_with_another(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy", "consistency": "snapshot"})
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:4")
    bench.recover()

    bench.perform(bench.claim())

    run = bench.last_run("films")
    assert run["metrics"]["consistency"] == "snapshot"
    assert "one snapshot" in run["metrics"]["started_over"]
    assert difference(bench) == []


def test_ranges_of_a_snapshot_that_is_too_old_are_given_back(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    monkeypatch.setattr(Age, "is_over", property(lambda self: True))
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    with capture_logs() as lines:
        run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["consistency"] == "mixed"
    assert run["rows_read"] == ROWS
    assert difference(bench) == []
    # Some were submitted again, because the other range of their snapshot had arrived.
    assert len(begun(lines)) > len(set(begun(lines)))


@pytest.mark.parametrize("when", ["before anything counts", "in the last range"])
def test_a_snapshot_in_which_all_ranges_are_read_is_not_mixed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It grows too old, but no range waits for another one, or none was read in it: the load is of one moment."""
    early = when == "before anything counts"
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Forgetful if early else Unreliable)
    is_over = early
    accept = ranged.RangedFill._accept

    def accepting(self: ranged.RangedFill, *given: Any) -> None:
        nonlocal is_over
        is_over = not early and not self._waiting and not self._under_way
        accept(self, *given)

    monkeypatch.setattr(ranged.RangedFill, "_accept", accepting)
    monkeypatch.setattr(Age, "is_over", property(lambda self: is_over))
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["consistency"] == "snapshot"
    assert difference(bench) == []


class Idle(Unreliable):
    """Run nothing after the first range, until the run has said so."""

    bench: Workbench

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        yield from super()._fate(self._tasks.pop(0))
        self.progress.running(0)

        def is_told() -> bool:
            check()
            told = "SELECT 1 FROM etl.etl_runs WHERE metrics ->> 'waiting' LIKE '%runs none of the ranges now%'"
            return bool(self.bench.sql(told))

        until(is_told, seconds=30)
        while self._tasks:
            yield from super()._fate(self._tasks.pop(0))


def test_a_cluster_that_is_idle_in_between_is_named_until_the_ranges_are_loaded(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(Idle, "bench", bench, raising=False)
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Idle)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"].get("waiting") is None
    assert run["metrics"]["ranges"]["running"] is None
    assert difference(bench) == []


def test_another_job_of_a_cluster_is_not_idle_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "_SILENT_SECONDS", 0.05)
    progress = ranged._Progress()
    progress.running(0)
    time.sleep(0.1)
    assert progress.is_idle

    progress.sent()
    progress.running(0)

    assert not progress.is_idle


class Busy(Unreliable):
    """Begin only when the run has said that it waits; note which snapshots are held until then."""

    bench: Workbench
    held: list[Any]

    def await_accepted(self, check: Callable[[], object]) -> None:
        def is_told() -> bool:
            check()
            return bool(self.bench.sql("SELECT 1 FROM etl.etl_runs WHERE metrics ->> 'waiting' LIKE '%has not begun%'"))

        until(is_told, seconds=30)
        self.held.append(
            self.bench.sql(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_export_snapshot%'"
                " AND pid <> pg_backend_pid() AND datname = current_database()"
            )
        )


def test_no_snapshot_is_held_while_a_cluster_is_busy(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(Busy, "bench", bench, raising=False)
    monkeypatch.setattr(Busy, "held", [], raising=False)
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Busy)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert Busy.held == [[]]
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"].get("waiting") is None
    assert difference(bench) == []


class Elsewhere(Unreliable):
    """Reach a server that does not know the runner's snapshot: the name is one that no session has exported."""

    def _fate(self, task: Task) -> Iterator[Result]:
        there = replace(task, snapshot=task.snapshot and "00000099-000000FF-1")
        try:
            yield Result(task, filled=self._filler.fill(there, lambda rows: None))
        except SnapshotGone as exc:
            yield Result(task, error=exc)


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_workers_on_another_server_read_what_is_there(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    rely_on(monkeypatch, seed=1, kind=Elsewhere)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": route})

    with capture_logs() as lines:
        run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["consistency"] == "mixed"
    assert [line["event"] for line in lines].count("load.reads_apart") == 1
    assert difference(bench) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": CUT | {"route": "copy", "consistency": "snapshot"}}, "a different server"),
        # The next pass would begin after rows that a server which lags did not have.
        ({"options": CUT | {"route": "copy"}, "mode": "incremental", "incremental_key": "id"}, "a different server"),
    ],
    ids=["one snapshot", "a first pass"],
)
def test_workers_on_another_server_are_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    rely_on(monkeypatch, seed=1, kind=Elsewhere)
    bench.pipeline("films", QUERY, target_key=["id"], **fields)

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert said in run["error_message"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_workers_in_another_database_are_refused(bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    rely_on(monkeypatch, seed=1, kind=Elsewhere)
    known = range_workers.origin_of
    # As the runner's server would answer if it were another one.
    monkeypatch.setattr(query_source, "origin_of", lambda connection: f"{known(connection)}0")
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": route})

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "a different database" in run["error_message"]


def test_a_snapshot_that_nobody_holds_any_more_is_no_other_server(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rely_on(monkeypatch, seed=1, kind=Elsewhere)
    monkeypatch.setattr(SharedSnapshot, "is_held", lambda self: False)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy", "max_attempts": 1})

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "no longer exists" in run["error_message"]


def test_rows_that_come_meanwhile_are_not_in_the_snapshot(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    rely_on(monkeypatch, seed=1, losses=0.0)
    counting = ranged.RangedFill._counting

    def with_a_change(self: ranged.RangedFill, *given: Any) -> Any:
        bench.sql("UPDATE content.films SET title = title || '!'; DELETE FROM content.films WHERE id % 100 = 0")
        return counting(self, *given)

    monkeypatch.setattr(ranged.RangedFill, "_counting", with_a_change)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    bench.run("films")

    assert bench.sql("SELECT count(*) AS n FROM analytics.films WHERE title NOT LIKE '%!'") == [{"n": ROWS}]


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_only_an_answer_about_a_snapshot_says_that_it_does_not_exist(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """A worker whose session ends at that moment has not reached another server."""
    assert bench.settings.reader_url
    url = bench.settings.reader_url.get_secret_value()
    reader = QueryReader(database.connect(url, "worker", settings=database.READ_ONLY), url, "worker")
    with pytest.raises(SnapshotGone):
        read_in(reader, route, "00000099-000000FF-1")

    def ending(name: str) -> Literal:
        bench.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'worker'")
        return Literal(name)

    monkeypatch.setattr(source, "Value", ending)
    with pytest.raises(Disconnected):
        read_in(reader, route, "00000099-000000FF-1")
    reader.connection.close()


def read_in(reader: QueryReader, route: str, snapshot: str) -> None:
    if route == "copy":
        with reader.reading(snapshot=snapshot):
            return
    with reader.stream(SQL("SELECT 1 AS one"), snapshot=snapshot) as rows:
        list(rows)


# --- where it does not apply ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": CUT}, "Postgres moves the rows in one statement"),
        ({"options": {"parallel": 2, "route": "arrow"}}, "several processes pay off"),
        ({"options": {"parallel": 2, "route": "copy"}}, "one stream loads about"),
        ({"mode": "incremental", "incremental_key": "id", "options": CUT}, "Postgres moves the rows in one statement"),
    ],
)
def test_a_plan_says_why_a_load_is_not_cut(bench: Workbench, fields: dict[str, Any], said: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], **fields)

    run = bench.run("films")

    assert run["status"] == "SUCCESS"
    assert run["metrics"]["paging"] != "key ranges"
    assert said in " ".join(run["metrics"]["plan"]["reasons"])


@pytest.mark.parametrize("asked", [{}, {"since": "100", "until": "200"}], ids=["pass", "backfill"])
def test_passes_and_backfills_say_that_one_process_brings_them(bench: Workbench, asked: dict[str, str]) -> None:
    options = CUT | {"route": "copy"}
    bench.pipeline("films", QUERY, mode="incremental", incremental_key="id", target_key=["id"], options=options)
    assert bench.run("films")["metrics"]["paging"] == "key ranges"

    run = bench.run("films", **asked)

    assert run["status"] == "SUCCESS"
    assert run["metrics"]["paging"] != "key ranges"
    assert "by one process" in " ".join(run["metrics"]["plan"]["reasons"])


def test_nothing_is_said_of_ranges_that_nobody_asked_for(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": "copy"})

    assert "ranges" not in " ".join(bench.run("films")["metrics"]["plan"]["reasons"])


# --- connections with a limit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "parallel", "workers"), [(2, 4, 1), (5, 4, 1), (6, 4, 2), (20, 4, 4), (20, "auto", 1)]
)
def test_workers_are_counted_on_a_connection_with_a_limit(
    bench: Workbench, most: int, parallel: int | str, workers: int
) -> None:
    assert bench.settings.database_url
    limits = {"marts": ConnectionLimits(max_connections=most)}
    update = {"connections": {"marts": bench.settings.database_url}, "connection_limits": limits}
    bench.settings = bench.settings.model_copy(update=update)
    options = {"target_connection": "marts", "parallel": parallel}
    bench.pipeline("films", QUERY, target_key=["id"], options=options)
    bench.pipeline("other", QUERY, target_key=["id"], options={"target_connection": "marts"})
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    definition = pipelines.definition_of(row)

    assert session_limits.workers_with_room(definition, bench.settings, 4) == workers
    bench.request("films")
    bench.claim()
    bench.request("other")
    taken = 2 + (2 * workers if workers > 1 else 0)
    waiting = session_limits.list_waiting(bench.metastore, bench.settings.max_connections)
    assert [found["pipeline"] for found in waiting] == (["other"] if taken + 2 > most else [])


# --- progress and `auto` ----------------------------------------------------------------------------------------------


class Telling(Unreliable):
    """Report rows and running tasks of the first attempt, and keep what is then recorded."""

    bench: Workbench
    recorded: dict[str, Any]

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        first = self._tasks[0]
        for rows in (40, 2):
            self.progress.read(first.number, rows)
        self.progress.running(1)
        check()
        [run] = self.bench.sql("SELECT metrics FROM etl.etl_runs")
        self.recorded |= run["metrics"]["ranges"]
        yield from super().results(check)


def test_rows_of_ranges_under_way_are_recorded(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(Telling, "bench", bench, raising=False)
    monkeypatch.setattr(Telling, "recorded", {}, raising=False)
    rely_on(monkeypatch, seed=1, losses=0.0, kind=Telling)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy"})

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert [one["rows"] for one in Telling.recorded["under_way"]] == [42, None]
    assert Telling.recorded["running"] == 1
    shown = RangesProgress.model_validate(Telling.recorded)
    assert (shown.under_way[0].rows, shown.running) == (42, 1)
    assert run["metrics"]["ranges"]["under_way"] == []


def test_auto_is_one_worker_for_each_processor(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "usable", lambda: 3)
    rely_on(monkeypatch, seed=1, losses=0.0)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"route": "copy", "parallel": "auto"})

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert run["metrics"]["ranges"]["workers"] == 3
    assert difference(bench) == []


# --- a mart that keeps its history ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unique_by", ["valid_from", "valid_to"])
def test_a_history_is_loaded_in_ranges_too(bench: Workbench, unique_by: str) -> None:
    """Each state of a row is what it was at the moment of one snapshot, whichever worker read it."""
    options = CUT | {"route": "copy", "history": {"unique_by": unique_by}}
    bench.pipeline("films", QUERY, target_key=["id"], options=options)
    first = bench.run("films")
    bench.sql("UPDATE content.films SET title = title || '!' WHERE id % 10 = 0; DELETE FROM content.films WHERE id = 1")

    second = bench.run("films")

    for run in (first, second):
        assert (run["status"], run["error_message"]) == ("SUCCESS", None)
        assert run["metrics"]["paging"] == "key ranges"
        assert run["metrics"]["consistency"] == "snapshot"
    states = "SELECT id, title, rating FROM analytics.films WHERE valid_to IS NULL"
    source = "TABLE content.films"
    assert bench.sql(f"({source} EXCEPT ALL {states}) UNION ALL ({states} EXCEPT ALL {source})") == []
    closed = bench.sql(
        "SELECT count(*) AS n, count(DISTINCT valid_to) AS moments FROM analytics.films WHERE valid_to IS NOT NULL"
    )
    assert closed == [{"n": ROWS // 10 + 1, "moments": 1}]
