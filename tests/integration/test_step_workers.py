"""Python steps are not trusted with the runner's life: they run in processes that end when they must."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.checks import previews
from vitrina.errors import StepFailed
from vitrina.runner.manager import PipelineManager
from vitrina.services import pipelines as service
from vitrina.services.callers import Caller, Role
from vitrina.store import pipelines
from vitrina.transforms import forking

pytestmark = pytest.mark.step_processes

OPERATOR = Caller("ann", Role.OPERATOR)
MODULE = "tests.support.bad_steps"
QUERY = "SELECT id, title FROM content.film_work"
FILMS = """
CREATE TABLE content.film_work (id int PRIMARY KEY, title text);
INSERT INTO content.film_work SELECT i, 'Film ' || i FROM generate_series(1, 1300) AS i;
"""
# Behind the rows with which columns are found out, so that it is met in a batch.
LATE_ROW = 1250
# What a run takes of memory beside what a step sends.
LITTLE = 48 << 20
LONGEST_MESSAGE = 4_000


@pytest.fixture(scope="module", autouse=True, params=["spawned", "forked"])
def _begun(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers are processes of their own from the beginning, or forked from a template, as runners do."""
    templates = forking.Templates()
    if request.param == "forked":
        templates.keep()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forking, "templates", templates)
        yield
    templates.close()


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(update={"transforms": MODULE, "backoff_seconds": (0.01,)})
    return workbench


def define(bench: Workbench, how: str, *, row: int = LATE_ROW, marker: Path | None = None, **options: Any) -> None:
    params = {"how": how, "row": row, "marker": str(marker or "")}
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "bad_row", "params": params},
    ]
    bench.pipeline("films", QUERY, tasks=tasks, target_key=["id"], batch_size=500, options=options)


def step(bench: Workbench, name: str, **fields: Any) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": name},
    ]
    bench.pipeline("films", QUERY, tasks=tasks, **fields)


@contextmanager
def heard() -> Iterator[list[dict[str, Any]]]:
    """The lines that are logged meanwhile."""
    lines: list[dict[str, Any]] = []
    before = structlog.get_config()

    def listen(_: Any, __: str, line: Any) -> Any:
        lines.append(dict(line))
        return line

    # Ahead of what is configured: an API of other tests in this process may have chosen to log errors only.
    first = [structlog.contextvars.merge_contextvars, listen]
    structlog.configure(processors=[*first, *before["processors"]])
    try:
        yield lines
    finally:
        structlog.configure(**before)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("os_exit", "ended its process with exit code 7 (os._exit)"),
        ("sys_exit", "called sys.exit('enough')"),
        ("segfault", "crashed its process with SIGSEGV"),
        ("close", "closed the pipes of its process"),
        # Or each answer would be taken for that to the next question.
        ("answer_twice", "wrote into the pipes of its process"),
        ("answer_nonsense", "wrote into the pipes of its process"),
        ("send_many_lists", "wrote into the pipes of its process"),
        ("promise_much", "wrote into the pipes of its process"),
    ],
)
def test_a_death_is_reported_as_what_it_was(bench: Workbench, how: str, told: str) -> None:
    define(bench, how)
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert told in run["error_message"]
    # Batch 3 begins with row 1001 of the query; 250 rows into it stands the one.
    assert "step 1 (bad_row), in batch 3, rows 201 to 300" in run["error_message"]


@pytest.mark.parametrize("how", ["send_many_lists", "promise_much", "complain"])
def test_what_a_worker_sends_takes_little_of_the_runner(bench: Workbench, how: str) -> None:
    define(bench, how)
    bench.run("films")  # with everything that is loaded only once
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = resident("VmRSS")
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert len(run["error_message"]) <= LONGEST_MESSAGE
    assert resident("VmHWM") - before < LITTLE


def resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def test_a_source_keeps_little_in_its_checkpoint(bench: Workbench) -> None:
    bench.pipeline("feed", "", type="PYTHON", python_task="bad_checkpoint", target_key=["n"], mode="incremental")
    run = bench.run("feed")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "source bad_checkpoint set a checkpoint of 688,900 characters, more than 262,144" in run["error_message"]


def test_an_error_that_no_database_stores_is_the_reason_all_the_same(bench: Workbench) -> None:
    define(bench, "mumble")
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "ValueError: a file named \\x00 \\udcff" in run["error_message"]


def test_a_child_of_a_worker_answers_nobody(bench: Workbench) -> None:
    define(bench, "fork", row=650)
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_an_end_from_outside_is_tried_again(bench: Workbench) -> None:
    define(bench, "kill", max_attempts=2)
    with heard() as lines:
        run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "transient")
    assert "was ended from outside with SIGKILL" in run["error_message"]
    assert run["attempts"] == 2
    assert [line["event"] for line in lines].count("run.retrying") == 1


@pytest.mark.parametrize("how", ["loop", "loop_in_c"])
def test_a_loop_ends_at_the_time_limit(bench: Workbench, how: str, tmp_path: Path) -> None:
    define(bench, how, step_timeout_seconds=5, marker=tmp_path / "pid")
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "longer than options.step_timeout_seconds (5 s)" in run["error_message"]
    assert "in batch 3, rows 201 to 300" in run["error_message"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_memory_has_a_limit(bench: Workbench, tmp_path: Path) -> None:
    define(bench, "memory", step_memory_mb=400, marker=tmp_path / "pid")
    run = bench.run("films")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "more than options.step_memory_mb (400)" in run["error_message"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_what_a_step_prints_is_in_the_log_of_its_run_up_to_a_limit(bench: Workbench) -> None:
    define(bench, "print")
    with heard() as lines:
        run = bench.run("films")
        # Said when the worker is gone, which nobody waits for.
        until(lambda: any(line["event"] == "step.output_dropped" for line in lines))
    assert run["status"] == "SUCCESS"
    said = [line for line in lines if line["event"] == "step.output"]
    assert 1 < len(said) <= 500
    assert {line["run_id"] for line in said} == {str(run["id"])}
    assert max(len(line["text"]) for line in said) <= 1_000
    assert any("of what a step says" in line["text"] for line in said)
    assert [line["kept_lines"] for line in lines if line["event"] == "step.output_dropped"] == [500]


def test_a_step_is_given_nothing_that_it_does_not_need(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VITRINA_DATABASE_URL", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "TMDB_KEY", "VITRINA_HASH_KEY"):
        monkeypatch.setenv(name, f"secret of {name}")
    bench.settings = bench.settings.model_copy(update={"step_env": "TMDB_*", "hash_key": SecretStr("hashes")})
    bench.settings.__dict__.pop("step_environment", None)
    step(bench, "bad_surroundings", target_key=["name"])
    assert bench.run("films")["status"] == "SUCCESS"

    told = {row["name"]: row["value"] for row in bench.sql("SELECT name, value FROM analytics.films")}
    named = [line.partition("=")[0] for line in told["environment"].split("\n")]
    assert "TMDB_KEY" in named
    assert [name for name in named if name.startswith(("VITRINA", "PG", "AWS"))] == []
    assert told["environment"].count("secret of") == 1
    # Standard input, output and error, the questions, the answers, the runner's life, and a page of memory (mapped).
    assert len(told["descriptors"].split("\n")) <= 8
    assert "socket" not in told["descriptors"]
    assert told["hash_key"] == "None"
    assert int(told["pid"]) != os.getpid()
    assert "postgres" not in told["arguments"]


def test_one_worker_serves_a_whole_run(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrina.transforms import process

    started: list[int] = []
    real = process.start

    def counted(environment: dict[str, str]) -> process.Started:
        found = real(environment)
        started.append(found.process.pid)
        return found

    monkeypatch.setattr(process, "start", counted)
    define(bench, "nothing")
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0
    [pid] = started
    until(lambda: not is_alive(pid))


def test_a_reference_is_asked_of_the_runner(bench: Workbench) -> None:
    step(bench, "bad_reference", target_key=["id"])
    assert bench.run("films")["status"] == "SUCCESS"
    [row] = bench.sql("SELECT DISTINCT seen FROM analytics.films")
    assert row["seen"] == "[3, 'Film 1']"


def test_a_source_runs_in_a_worker_and_goes_on_behind_its_last_batch(bench: Workbench) -> None:
    feed = {"type": "PYTHON", "python_task": "bad_source", "mode": "incremental", "target_key": ["n"]}
    bench.pipeline("feed", "", **feed, options={"params": {"how": "segfault", "row": 4}})
    run = bench.run("feed")
    assert (run["status"], run["error_code"]) == ("FAILED", "step_failed")
    assert "source bad_source, in batch 4, crashed its process with SIGSEGV" in run["error_message"]
    assert [row["n"] for row in bench.sql("SELECT n FROM analytics.feed ORDER BY n")] == [1, 2, 3]

    bench.change("feed", options={"params": {"how": "nothing", "row": 4}})
    assert bench.run("feed")["status"] == "SUCCESS"
    rows = bench.sql("SELECT n, pid FROM analytics.feed ORDER BY n")
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5]
    assert len({row["pid"] for row in rows}) == 2


def test_previews_and_reconcile_use_workers_too(bench: Workbench) -> None:
    define(bench, "nothing")
    assert bench.run("films")["status"] == "SUCCESS"
    assert bench.reconcile("films")["differences"] == 0
    bench.change("films", tasks=_with_mischief("os_exit", 3))
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    with pytest.raises(StepFailed, match=r"step 1 \(bad_row\), in the first 20 row\(s\), .* exit code 7"):
        previews.preview(pipelines.definition_of(row), bench.settings, 20)


def _with_mischief(how: str, row: int) -> list[dict[str, Any]]:
    return [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "bad_row", "params": {"how": how, "row": row}},
    ]


# --- the runner ----------------------------------------------------------------------------------------------------


@pytest.fixture
def runner(bench: Workbench) -> Iterator[PipelineManager]:
    manager = PipelineManager(bench.settings.model_copy(update={"poll_seconds": 30.0}))
    thread = threading.Thread(target=manager.run_forever)
    thread.start()
    yield manager
    manager.stop()
    thread.join(timeout=60)
    manager._wakeup_recv.close()
    manager._wakeup_send.close()


@pytest.mark.parametrize("row", [5, LATE_ROW], ids=["while columns are found out", "in a batch"])
def test_cancel_ends_a_step_that_loops_and_frees_its_slot(
    bench: Workbench, runner: PipelineManager, row: int, tmp_path: Path
) -> None:
    define(bench, "loop_in_c", row=row, marker=tmp_path / "pid")
    bench.request("films")
    pid = worker_in(tmp_path / "pid")

    service.cancel(bench.metastore, OPERATOR, "films")

    until(lambda: not is_alive(pid))
    until(lambda: not runner._claims)
    assert bench.last_run("films")["status"] == "CANCELLED"


@pytest.mark.parametrize("kind", ["step", "source"])
def test_a_runner_with_a_step_that_loops_ends_when_it_is_told_to(bench: Workbench, tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "pid"
    if kind == "step":
        define(bench, "loop_in_c", marker=marker)
    else:
        params = {"how": "loop_in_c", "row": 3, "marker": str(marker)}
        feed = {"type": "PYTHON", "python_task": "bad_source", "target_key": ["n"], "options": {"params": params}}
        bench.pipeline("films", "", **feed)
    bench.request("films")
    root = str(Path(__file__).parents[2])
    with runner_process(bench.settings, tmp_path, VITRINA_TRANSFORMS=MODULE, PYTHONPATH=root) as process:
        pid = worker_in(marker)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    until(lambda: not is_alive(pid))
    assert bench.status("films") == "RUN_REQUESTED"  # given back, for another runner


def test_a_worker_does_not_outlive_a_runner_that_was_killed(bench: Workbench, tmp_path: Path) -> None:
    define(bench, "loop_in_c", marker=tmp_path / "pid")
    bench.request("films")
    root = str(Path(__file__).parents[2])
    with runner_process(bench.settings, tmp_path, VITRINA_TRANSFORMS=MODULE, PYTHONPATH=root) as process:
        pid = worker_in(tmp_path / "pid")
        process.kill()
        process.wait(timeout=60)
    until(lambda: not is_alive(pid))


def worker_in(marker: Path) -> int:
    """The worker that has begun to misbehave."""
    until(lambda: marker.exists() and bool(marker.read_text()))
    return int(marker.read_text())


def is_alive(pid: int) -> bool:
    """A zombie is dead; whoever started it has merely not looked yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


# --- several workers -------------------------------------------------------------------------------------------------


def test_several_workers_take_turns_and_commits_stay_in_order(bench: Workbench) -> None:
    bench.sql("INSERT INTO content.film_work SELECT i, 'Film ' || i FROM generate_series(1301, 3000) AS i")
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "bad_pid"},
    ]
    bench.pipeline("films", QUERY, tasks=tasks, target_key=["id"], batch_size=100, options={"parallel": 2})
    with heard() as lines:
        assert bench.run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films", columns="id, title") == 0
    assert [line["batch_no"] for line in lines if line["event"] == "batch.done"] == list(range(1, 31))
    [row] = bench.sql("SELECT count(DISTINCT pid) AS workers FROM analytics.films")
    assert row["workers"] == 2


def test_batches_before_one_that_fails_count(bench: Workbench) -> None:
    define(bench, "os_exit", parallel=3)
    bench.change("films", batch_size=100)
    run = bench.run("films")
    assert "in batch 13, rows 1 to 100 of what the step was given, ended its process" in run["error_message"]
    assert bench.checkpoint("films").rows == 1200


# --- the template ----------------------------------------------------------------------------------------------------


def test_workers_are_forked_from_a_process_that_is_started_again_when_it_dies(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = forking.Templates()
    templates.keep()
    monkeypatch.setattr(forking, "templates", templates)
    define(bench, "nothing")
    assert bench.run("films")["status"] == "SUCCESS"
    first = templates.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_alive(first))
    for _ in range(2):
        assert bench.run("films")["status"] == "SUCCESS"
    assert templates.pid not in (None, first)
    templates.close()
