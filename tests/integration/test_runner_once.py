"""`vitrina runner --once`: one pipeline is taken up, run to its end, and the exit code says what became of it."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import VITRINA, environment_of
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import Conflict, NotFound, VitrinaError
from vitrina.runner.once import Ending, OnceRunner

LEASE_SECONDS = "2"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(
        "CREATE TABLE content.films AS SELECT n AS id, 'film ' || n AS title FROM generate_series(1, 100) n"
    )
    workbench.pipeline("films", "SELECT id, title FROM content.films", target_key=["id"])
    return workbench


def test_it_runs_what_waits_longest_and_leaves_the_rest(bench: Workbench) -> None:
    bench.pipeline("other", "SELECT id, title FROM content.films", target_key=["id"])
    bench.request("other")
    bench.request("films")

    assert in_this_process(bench) is Ending.SUCCESS

    assert (bench.status("other"), bench.last_run("other")["status"]) == ("IDLE", "SUCCESS")
    assert bench.status("films") == "RUN_REQUESTED"
    assert bench.sql("SELECT count(*) FROM etl.etl_runners")[0]["count"] == 0


def test_nothing_to_do_is_no_failure(bench: Workbench, tmp_path: Path) -> None:
    done = once(bench, tmp_path)

    assert (done.returncode, "no requested pipeline can be run" in done.stderr) == (0, True)


def test_a_named_pipeline_is_asked_for_and_run(bench: Workbench, tmp_path: Path) -> None:
    bench.pipeline("other", "SELECT id, title FROM content.films", target_key=["id"])
    bench.request("other")

    done = once(bench, tmp_path, "--pipeline", "films")

    assert done.returncode == 0, done.stderr
    assert [run["trigger"] for run in runs(bench)] == ["api"]
    assert bench.sql("SELECT count(*) FROM analytics.films")[0]["count"] == 100
    assert bench.status("other") == "RUN_REQUESTED"


def test_a_request_that_waits_already_is_run_once(bench: Workbench) -> None:
    bench.request("films")

    assert in_this_process(bench, "films") is Ending.SUCCESS

    assert [run["status"] for run in runs(bench)] == ["SUCCESS"]
    assert bench.status("films") == "IDLE"


def test_a_failed_run_is_exit_code_1_and_says_why(bench: Workbench, tmp_path: Path) -> None:
    bench.sql("DROP TABLE content.films")

    done = once(bench, tmp_path, "--pipeline", "films")

    assert done.returncode == 1
    assert "pipeline films:" in done.stderr
    assert "content.films" in done.stderr


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("UPDATE etl.etl_pipelines SET status = 'PAUSED'", Conflict, "PAUSED"),
        ("UPDATE etl.etl_pipelines SET enabled = false", Conflict, "disabled"),
        ("DELETE FROM etl.etl_pipelines", NotFound, "there is no pipeline 'films'"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    bench: Workbench, statement: str, error: type[VitrinaError], said: str
) -> None:
    bench.sql(statement)

    with pytest.raises(error, match=said):
        in_this_process(bench, "films")

    assert bench.sql("SELECT count(*) FROM etl.etl_runs")[0]["count"] == 0


def test_a_pipeline_without_once_is_refused(bench: Workbench, tmp_path: Path) -> None:
    done = subprocess.run(
        [VITRINA, "runner", "--pipeline", "films"],
        env=environment_of(bench.settings),
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.returncode, "--once" in done.stderr) == (2, True)


def test_the_next_one_recovers_what_a_killed_one_left(bench: Workbench, tmp_path: Path) -> None:
    """Without waiting for anybody else: the lease of the killed one ends, and the load goes on at its checkpoint."""
    bench.change("films", options={"route": "copy", "checkpoint_rows": 10}, batch_size=10)
    killed = once(bench, tmp_path, "--pipeline", "films", VITRINA_FAILPOINTS="batch.committed:kill:3")
    assert (killed.returncode, bench.status("films")) == (-signal.SIGKILL, "RUNNING")

    done = once(bench, tmp_path, "--pipeline", "films")

    assert done.returncode == 0, done.stderr
    assert bench.sql("SELECT count(*) FROM analytics.films")[0]["count"] == 100
    first, *others = runs(bench)
    assert (first["status"], first["error_code"]) == ("FAILED", "lease_lost")
    assert [run["status"] for run in others] == ["SUCCESS"] * len(others)
    assert others[0]["trigger"] == "recovery"
    assert bench.status("films") == "IDLE"


def test_one_that_another_runner_works_on_is_left_to_it(bench: Workbench, tmp_path: Path) -> None:
    with stopped_in_the_middle(bench, tmp_path) as working:
        # It lives: its heartbeat is a thread of the runner, and a runner that sleeps in a statement goes on beating.
        done = once(bench, tmp_path, "--pipeline", "films")
        assert (done.returncode, "another runner is running pipeline films" in done.stderr) == (5, True), done.stderr
        bench.sql("SELECT pg_advisory_unlock(1)")
        assert working.wait(60) == 0
    assert [run["status"] for run in runs(bench)] == ["SUCCESS"]


def test_sigterm_gives_the_run_back(bench: Workbench, tmp_path: Path) -> None:
    with stopped_in_the_middle(bench, tmp_path) as working:
        working.send_signal(signal.SIGTERM)
        assert working.wait(60) == 1
    assert bench.status("films") == "RUN_REQUESTED"
    assert [(run["status"], run["error_code"]) for run in runs(bench)] == [("CANCELLED", "runner_stopped")]


def test_a_pause_in_the_middle_is_exit_code_5(bench: Workbench, tmp_path: Path) -> None:
    with stopped_in_the_middle(bench, tmp_path) as working:
        bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED' WHERE name = 'films'")
        bench.sql("SELECT pg_advisory_unlock(1)")
        assert working.wait(60) == 5
    assert bench.status("films") == "PAUSED"


@contextmanager
def stopped_in_the_middle(bench: Workbench, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`--once --pipeline films`, which waits inside its query until lock 1 is free."""
    bench.sql("SELECT pg_advisory_lock(1)")
    bench.sql(
        """
        CREATE FUNCTION content.wait_for_the_test() RETURNS integer LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN 0; END $$
        """
    )
    bench.sql("CREATE VIEW content.slow AS SELECT id + content.wait_for_the_test() AS id, title FROM content.films")
    bench.sql("GRANT SELECT ON content.slow TO vitrina_reader")
    bench.change("films", source_query="SELECT id, title FROM content.slow", options={"route": "copy"})
    with (directory / "working.log").open("w") as output:
        process = subprocess.Popen(
            [VITRINA, "runner", "--once", "--pipeline", "films"],
            env=environment_of(bench.settings),
            cwd=directory,
            stdout=output,
            stderr=output,
        )
        try:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted"
            until(lambda: bench.sql(waiting)[0]["count"] > 0)
            yield process
        finally:
            bench.sql("SELECT pg_advisory_unlock_all()")
            process.kill()
            process.wait(60)


def in_this_process(bench: Workbench, pipeline: str | None = None) -> Ending:
    """In a thread, because a runner in the main one takes over the signals."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(OnceRunner(bench.settings, pipeline).run_once).result(timeout=120)


def once(bench: Workbench, directory: Path, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [VITRINA, "runner", "--once", *words],
        env=environment_of(bench.settings) | {"VITRINA_LEASE_TTL_SECONDS": LEASE_SECONDS} | more,
        cwd=directory,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def runs(bench: Workbench) -> list[dict[str, object]]:
    return bench.sql("SELECT trigger, status, error_code FROM etl.etl_runs ORDER BY started_at, id")
