"""Full loads whose ranges of the key are brought by executors of a real Spark cluster."""

import json
import os
import re
import signal
import sys
import threading
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from tests.spark.server import SparkServer
from tests.support.waiting import until
from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.connectors.spark import engine
from vitrina.loads import range_filling
from vitrina.loads.control import RunControl
from vitrina.runner import requests
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.store import pipelines

pytestmark = pytest.mark.timeout(1800)

ROWS = 3_000
QUERY = "SELECT id, title FROM content.films"
CUT: dict[str, Any] = {"engine": "spark", "checkpoint_rows": 500, "route": "arrow"}
# A step of a user, which is in no package that executors have.
STEP = """
from vitrina.transforms import transform

@transform("shout", rows=True)
def shout(row):
    return row | {"title": row["title"].upper()}
"""
# It refuses a row that is in no sample.
REFUSING = f"""
from vitrina.transforms import transform

@transform("refuse", rows=True)
def refuse(row):
    if row["id"] == {ROWS}:
        raise ValueError("no such film")
    return row
"""
SLOW = """
SELECT f.id, (SELECT count(*) FROM generate_series(1, 1000000) AS g WHERE g <> f.id) AS others FROM content.films AS f
"""
# The first attempt ends after its rows were committed and before it is answered for. `OneNumber` is a mutant.
LOSING = """
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrina.connectors.spark.executor import Numbers


@dataclass(frozen=True)
class Losing:
    handle: Any
    lost: str

    @property
    def modules(self):
        return self.handle.modules

    def open(self, settings):
        return LosingFiller(self.handle.open(settings), Path(self.lost))


class LosingFiller:
    def __init__(self, filler, lost):
        self._filler = filler
        self._lost = lost
        self.close = filler.close

    def fill(self, task, progressed):
        filled = self._filler.fill(task, progressed)
        try:
            self._lost.touch(exist_ok=False)
        except FileExistsError:
            return filled
        os.kill(os.getpid(), signal.SIGKILL)


class OneNumber(Numbers):
    def of(self, attempt):
        from pyspark import TaskContext

        return self.first + 1 + TaskContext.get().partitionId()
"""
# A range takes seconds: long enough for a process to be found and killed meanwhile.
SLOWER = """
SELECT f.id, f.title, (SELECT count(*) FROM generate_series(1, 20000) AS g WHERE g <> f.id) AS others
FROM content.films AS f
"""


@pytest.fixture
def films(bench: Workbench) -> Workbench:
    bench.source(
        f"""
        CREATE TABLE content.films (id int PRIMARY KEY, title text);
        INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(1, {ROWS}) AS i;
        ANALYZE content.films;
        """
    )
    return bench


def difference(bench: Workbench, source: str = QUERY) -> list[dict[str, Any]]:
    mart = "SELECT id, title FROM analytics.films"
    return bench.sql(f"({source} EXCEPT ALL {mart}) UNION ALL ({mart} EXCEPT ALL {source})")


def stages(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname ~ '^p_'")


@pytest.mark.parametrize("route", [pytest.param("arrow", marks=pytest.mark.takes_long), "copy"])
def test_executors_bring_every_row_once(films: Workbench, route: str) -> None:
    films.pipeline("films", QUERY, target_key=["id"], batch_size=100, options=CUT | {"route": route})

    run = films.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    assert run["metrics"]["consistency"] == "snapshot"
    assert run["metrics"]["ranges"]["left"] == 0
    assert run["metrics"]["ranges"]["done"] == run["batches"] >= 6
    assert run["rows_read"] == ROWS
    assert difference(films) == []
    assert stages(films) == []
    [row] = films.sql("SELECT batch_no FROM etl.etl_state")
    assert row["batch_no"] < 100  # what was reserved for attempts is given back


def test_steps_are_sent_to_executors(films: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shouting.py").write_text(STEP)
    monkeypatch.syspath_prepend(str(tmp_path))
    films.settings = films.settings.model_copy(update={"transforms": "shouting"})
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "shout"},
    ]
    films.pipeline("films", QUERY, source_query=None, tasks=tasks, target_key=["id"], options=CUT)

    run = films.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    assert run["rows_read"] == ROWS
    assert difference(films, "SELECT id, upper(title) AS title FROM content.films") == []


@pytest.mark.takes_long
def test_a_range_that_a_step_refuses_ends_the_run_with_its_reason(
    films: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    films.settings = films.settings.model_copy(update={"transforms": "refusing"})
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "refuse"},
    ]
    films.pipeline("films", QUERY, source_query=None, tasks=tasks, target_key=["id"], options=CUT)

    run = films.run("films")

    assert run["status"] == "FAILED"
    assert "refuse" in run["error_message"]
    assert films.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]


@pytest.mark.parametrize("victim", [pytest.param("python worker", marks=pytest.mark.takes_long), "executor"])
def test_what_a_killed_process_brought_does_not_count(films: Workbench, spark: SparkServer, victim: str) -> None:
    films.pipeline("films", SLOWER, target_key=["id"], batch_size=100, options=CUT)
    films.request("films")
    run = threading.Thread(target=films.perform, args=[films.claim()])
    run.start()
    until(lambda: reading(films) > 0, seconds=600)

    kill(spark.python_workers if victim == "python worker" else spark.executors)
    run.join(900)

    found = films.last_run("films")
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    assert found["rows_read"] == ROWS
    assert difference(films) == []
    until(lambda: len(spark.executors()) == 2, seconds=600)


def kill(victims: Any) -> None:
    until(lambda: bool(victims()), seconds=60)
    os.kill(victims()[0], signal.SIGKILL)


@pytest.mark.parametrize("mutant", [False, pytest.param(True, marks=pytest.mark.takes_long)])
def test_rows_that_a_lost_attempt_has_committed_do_not_count(
    films: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    """A mutant that ignores the attempt gives both attempts at a range one number, and counts the rows of both."""
    (tmp_path / "losing.py").write_text(LOSING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "losing", raising=False)
    losing, lost = import_module("losing"), tmp_path / "lost"
    handle_of = range_filling.handle_of
    monkeypatch.setattr(range_filling, "handle_of", lambda *given: losing.Losing(handle_of(*given), str(lost)))
    if mutant:
        monkeypatch.setattr(engine, "Numbers", losing.OneNumber)
    films.settings = films.settings.model_copy(update={"transforms": "losing"})
    films.pipeline("films", QUERY, target_key=["id"], options=CUT | {"max_attempts": 1})

    run = films.run("films")

    assert lost.exists()
    assert run["status"] == ("FAILED" if mutant else "SUCCESS"), run["error_message"]
    assert (difference(films) == []) is not mutant
    assert stages(films) == [] or mutant


@pytest.mark.parametrize("end", ["pause", pytest.param("lease", marks=pytest.mark.takes_long)])
def test_the_job_and_its_sessions_end_with_the_run(films: Workbench, spark: SparkServer, end: str) -> None:
    films.pipeline("films", SLOW, target_key=["id"], options=CUT | {"route": "copy"})
    films.request("films")
    claim, control = films.claim(), RunControl(NO_HEARTBEAT_SECONDS, threading.Event())
    run = threading.Thread(target=PipelineDispatcher(films.settings).work, args=[claim, control])
    run.start()
    until(lambda: reading(films) == 2, seconds=600)

    if end == "pause":
        films.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
        control.pause_asked = True
    else:
        control.lose()
        control.cut()
    run.join(120)

    assert not run.is_alive()
    until(lambda: reading(films) == 0, seconds=60)
    until(lambda: active_jobs(spark) == [], seconds=60)


def reading(bench: Workbench) -> int:
    """Count the sessions in which executors read."""
    found = bench.sql(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        " AND query LIKE 'COPY (%'"
    )
    return int(found[0]["n"])


def active_jobs(spark: SparkServer) -> list[Any]:
    [application] = json.loads(spark.page("/api/v1/applications"))
    found: list[Any] = json.loads(spark.page(f"/api/v1/applications/{application['id']}/jobs?status=running"))
    return found


def test_a_plan_names_what_executors_have_in_another_version(films: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    films.pipeline("films", QUERY, target_key=["id"], options=CUT)
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9" if name == "psycopg" else installed(name))
    row = pipelines.find(films.metastore, "films")
    assert row is not None

    found_out = requests.validate({"pipeline_id": row["id"], "payload": {}}, films.metastore, films.settings)

    warnings = found_out["plan"]["warnings"]
    assert [line for line in warnings if "psycopg" in line and "9.9" in line]


def test_a_cluster_that_is_not_there_is_named(films: Workbench) -> None:
    films.settings = films.settings.model_copy(update={"connections": {}})
    films.pipeline("films", QUERY, target_key=["id"], options=CUT)

    run = films.run("films")

    assert run["status"] == "FAILED"
    assert "VITRINA_CONN_CLUSTER" in run["error_message"]


def test_no_secret_is_written_by_spark(films: Workbench, spark: SparkServer) -> None:
    """Look for the passwords in the event log, in the log of server and executors, and on every page there is."""
    films.pipeline("films", QUERY, target_key=["id"], options=CUT)
    assert films.run("films")["status"] == "SUCCESS"
    secrets = passwords(films)
    assert secrets

    folders = (spark.directory / "events", spark.directory / "local", spark.work)
    written = [spark.log, *(path for folder in folders for path in folder.rglob("*") if path.is_file())]
    texts = {str(path): path.read_bytes().decode(errors="replace") for path in written}
    [application] = json.loads(spark.page("/api/v1/applications"))
    pages = ["/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/connect/"]
    answers = ["jobs", "stages", "executors", "environment", "sql"]
    pages += [f"/api/v1/applications/{application['id']}/{name}" for name in answers]
    texts |= {page: spark.page(page) for page in pages}

    assert any("events" in name for name in texts)
    assert any(name.endswith("stderr") for name in texts)
    assert [name for name, text in texts.items() for secret in secrets if secret in text] == []


def passwords(bench: Workbench) -> set[str]:
    urls = [bench.settings.require_database_url()]
    urls += [bench.settings.reader_url.get_secret_value()] if bench.settings.reader_url else []
    found = {match for url in urls for match in re.findall(r"://[^:/@]+:([^@]+)@", url)}
    given = bench.settings.reader_password
    return found | ({given.get_secret_value()} if given else set())
