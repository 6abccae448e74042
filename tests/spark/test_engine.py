"""The engine alone, on a real cluster: ranges that are filled without a database, by code that was sent there."""

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.spark.server import SparkServer
from vitrina.connectors.spark.engine import SparkEngine
from vitrina.connectors.spark.executor import NUMBERS
from vitrina.errors import FatalError
from vitrina.observe import logs
from vitrina.ports.ranges import EngineOpening, KeyRange, Result, Task
from vitrina.settings import Settings

pytestmark = pytest.mark.timeout(1800)

RANGES = 6
CANARY = "canary-of-an-executor"
# It is in no package that executors have. What a range is called says what becomes of it.
HANDLES = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from vitrina.errors import FatalError
from vitrina.ports.batch import Part
from vitrina.ports.ranges import FilledRange


@dataclass(frozen=True)
class Handle:
    directory: str
    modules = ()

    def open(self, settings):
        return Filler(Path(self.directory), settings)


class Filler:
    def __init__(self, directory, settings):
        self._directory = directory
        self._settings = settings

    def fill(self, task, progressed):
        what = task.range.upto[0]
        # One file for each attempt: what it would have staged.
        (self._directory / f"{what}-{task.number}").touch()
        if what == "talks":
            url = self._settings.require_database_url()
            structlog.get_logger().info("talking", about=url)
            raise FatalError(f"it stumbled over {url}")
        if what == "refused":
            raise FatalError("this range is refused")
        if what == "dies" and len(list(self._directory.glob("dies-*"))) == 1:
            os.kill(os.getpid(), 9)
        if what == "slow":
            time.sleep(600)
        return FilledRange(Part(task.number, 10, None))

    def close(self):
        pass
"""


class Interrupted(Exception):
    """The run was ended while it waited."""


class Seen:
    """Keep the numbers of tasks that the cluster was reported to run."""

    def __init__(self) -> None:
        self.tasks: list[int] = []

    def read(self, number: int, rows: int) -> None:
        raise AssertionError("executors report no rows before they answer")

    def running(self, tasks: int) -> None:
        self.tasks.append(tasks)

    def sent(self) -> None:
        """Another job begins."""


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def open_engine(
    spark: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> Iterator[Callable[[], SparkEngine]]:
    (tmp_path / "spark_handles.py").write_text(HANDLES)
    (tmp_path / "attempts").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    reserved: list[int] = []
    opened: list[SparkEngine] = []

    def reserve(count: int) -> int:
        reserved.append(count)
        return sum(reserved[:-1])

    def made() -> SparkEngine:
        handle = import_module("spark_handles").Handle(str(tmp_path / "attempts"))
        settings = Settings(transforms="spark_handles")
        engine = SparkEngine(EngineOpening(handle, settings, spark.url, reserve, logs.redactor_of, seen))
        opened.append(engine)
        return engine

    yield made
    for engine in opened:
        engine.cancel()


def ranges_of(*names: str) -> list[Task]:
    return [Task(KeyRange(None, (name,)), number, None, 100, 1000) for number, name in enumerate(names, 1)]


def collected(engine: SparkEngine, tasks: list[Task]) -> list[Result]:
    for task in tasks:
        engine.submit(task)
    return list(engine.results(lambda: False))


def attempts(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "attempts").iterdir())


def test_each_range_is_answered_once_under_a_number_of_its_own(
    open_engine: Callable[[], SparkEngine], tmp_path: Path
) -> None:
    tasks = ranges_of(*(f"range{place}" for place in range(RANGES)))

    found = collected(open_engine(), tasks)

    assert [result.task for result in found] == tasks
    numbers = [result.filled.part.number for result in found if result.filled]
    assert len(set(numbers)) == RANGES
    assert all(0 < number <= NUMBERS for number in numbers)
    assert attempts(tmp_path) == sorted(f"range{place}-{number}" for place, number in enumerate(numbers))


def test_a_range_whose_process_dies_is_tried_again_under_another_number(
    open_engine: Callable[[], SparkEngine], tmp_path: Path
) -> None:
    [dying, other] = collected(open_engine(), ranges_of("dies", "other"))

    assert dying.filled is not None
    assert other.filled is not None
    tried = [name for name in attempts(tmp_path) if name.startswith("dies-")]
    assert len(tried) == 2
    assert f"dies-{dying.filled.part.number}" in tried


def test_an_executor_is_awaited_before_there_are_tasks_and_running_tasks_are_counted(
    open_engine: Callable[[], SparkEngine], seen: Seen
) -> None:
    engine = open_engine()
    engine.await_accepted(lambda: None)
    [task] = ranges_of("slow")
    engine.submit(task)

    # The job is recalled when it was seen to run.
    [found] = list(engine.results(lambda: max(seen.tasks, default=0) == 1))

    assert found.is_recalled
    assert found.task == task


@pytest.mark.takes_long
def test_an_error_is_an_answer_and_is_not_tried_again(open_engine: Callable[[], SparkEngine], tmp_path: Path) -> None:
    [refused, other] = collected(open_engine(), ranges_of("refused", "other"))

    assert isinstance(refused.error, FatalError)
    assert "this range is refused" in str(refused.error)
    assert other.filled is not None
    assert len(attempts(tmp_path)) == 2


def test_passwords_of_executors_are_masked_before_they_answer(
    open_engine: Callable[[], SparkEngine], spark: SparkServer
) -> None:
    spark.tell(VITRINA_DATABASE_URL=f"postgresql://somebody:{CANARY}@127.0.0.1:1/none")

    with capture_logs() as lines:
        [found] = collected(open_engine(), ranges_of("talks"))

    assert "it stumbled over postgresql://somebody:***@" in str(found.error)
    [line] = [line for line in lines if line["event"] == "talking"]
    assert CANARY not in str(line)


@pytest.mark.takes_long
def test_what_is_submitted_meanwhile_is_the_next_job(open_engine: Callable[[], SparkEngine]) -> None:
    engine = open_engine()
    first, second = ranges_of("first", "second")
    engine.submit(first)
    found: list[Any] = []
    for result in engine.results(lambda: False):
        found.append(result)
        if len(found) == 1:
            engine.submit(second)

    numbers = [result.filled.part.number for result in found]
    assert [result.task for result in found] == [first, second]
    # The second job has numbers of its own.
    assert numbers[0] <= NUMBERS < numbers[1]


@pytest.mark.takes_long
@pytest.mark.parametrize("end", ["recall", "cancel"])
def test_a_job_is_ended_within_seconds(open_engine: Callable[[], SparkEngine], tmp_path: Path, end: str) -> None:
    engine = open_engine()
    ended_at: list[float] = []

    def check() -> bool:
        if not attempts(tmp_path) or ended_at:
            return False
        ended_at.append(time.monotonic())
        if end == "cancel":
            raise Interrupted
        return True

    [task] = ranges_of("slow")
    engine.submit(task)
    if end == "cancel":
        with pytest.raises(Interrupted):
            list(engine.results(check))
        engine.cancel()
    else:
        assert [(result.task, result.is_recalled) for result in engine.results(check)] == [(task, True)]
    assert time.monotonic() - ended_at[0] < 60
