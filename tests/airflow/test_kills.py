"""Worker, triggerer and API are killed at every step of a task: each task is one run, and succeeds."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

from tests.airflow.cinema import PATIENCE, Cinema, Hold
from tests.airflow.station import Station, descendants, kill, owner_of
from tests.chaos.conftest import say
from tests.support.waiting import until

ROUNDS = 14 if os.environ.get("VITRINA_CHAOS") == "long" else 1

pytestmark = pytest.mark.timeout(3600 * ROUNDS)


@dataclass(frozen=True)
class Step:
    """A request of the task that is stopped while somebody dies; the run is kept at work until then, or not."""

    method: str
    ending: str
    after: bool = False
    passing: int = 0
    blocked: bool = False


# The worker looks twice before the task waits, so the third look is the triggerer's.
STEPS = {
    "before it looks": Step("GET", "/status"),
    "before it asks": Step("POST", "/run"),
    "before it hears the answer": Step("POST", "/run", after=True),
    "while it looks at the run": Step("GET", "/status", passing=1),
    "while it concludes": Step("GET", ""),
    "while the triggerer looks": Step("GET", "/status", passing=2, blocked=True),
    "before the triggerer hears the answer": Step("GET", "/status", after=True, passing=2, blocked=True),
    "its run ends meanwhile": Step("GET", "/status", after=True, passing=2, blocked=True),
}


class Arena:
    """Runs tasks and ends processes, which it starts again."""

    def __init__(self, airflow: Station, vitrina: Cinema) -> None:
        self._airflow = airflow
        self._vitrina = vitrina
        # One at a time: nobody is killed who has not yet been started again.
        self._api = threading.Lock()
        self._triggerer = threading.Lock()

    def suffer(self, pipeline: str, case: tuple[str, str]) -> None:
        """Let a task have its fault. It succeeds all the same."""
        name, victim = case
        step = STEPS[name]
        die = {"worker": self._kill_worker, "api": self._kill_api, "triggerer": self._kill_triggerer}[victim]
        run = f"kill_{uuid4().hex[:8]}"
        ending = f"/pipelines/{pipeline}{step.ending}"
        hold = self._vitrina.holds.hold(step.method, ending, after=step.after, passing=step.passing)
        with ExitStack() as stack:
            if step.blocked:
                stack.enter_context(self._vitrina.blocked(pipeline))
            self._airflow.trigger("one", run, {"pipeline": pipeline})
            hold.wait()
            if name == "its run ends meanwhile":
                self._end_the_run_without_triggerer(hold, pipeline, stack)
            else:
                die(hold)
        self._airflow.wait_for("one", run, "success")

    def _kill_worker(self, hold: Hold) -> None:
        """End the process of the task; its supervisor tells Airflow."""
        kill(owner_of(hold.port, descendants(self._airflow.processes["scheduler"].pid)))
        hold.let_go()

    def _kill_api(self, hold: Hold) -> None:
        with self._api:
            self._vitrina.kill_api()
            hold.let_go(lost=True)
            self._vitrina.start_api()

    def _kill_triggerer(self, hold: Hold) -> None:
        with self._triggerer:
            self._airflow.kill("triggerer")
            hold.let_go()
            self._airflow.start_triggerer()

    def _end_the_run_without_triggerer(self, hold: Hold, pipeline: str, blocked: ExitStack) -> None:
        with self._triggerer:
            self._airflow.kill("triggerer")
            hold.let_go()
            blocked.close()
            until(lambda: self._has_ended(pipeline), seconds=PATIENCE)
            self._airflow.start_triggerer()

    def _has_ended(self, pipeline: str) -> bool:
        query = (
            "SELECT count(*) FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            " WHERE p.name = %s AND r.status = 'SUCCESS'"
        )
        with psycopg.connect(self._vitrina.settings.require_database_url()) as connection:
            return connection.execute(query, [pipeline]).fetchone() == (1,)


def cases() -> list[tuple[str, str]]:
    """Which step, and who dies."""
    of_worker = [name for name, step in STEPS.items() if not step.blocked]
    of_triggerer = [name for name, step in STEPS.items() if step.blocked]
    found = [(step, victim) for step in of_worker for victim in ("worker", "api")]
    return [*found, *((step, "triggerer") for step in of_triggerer), *((step, "api") for step in of_triggerer[:2])]


def test_whoever_is_killed_each_task_is_one_run(airflow: Station, vitrina: Cinema) -> None:
    arena = Arena(airflow, vitrina)
    for number in range(ROUNDS):
        suffered = {case: vitrina.pipeline() for case in cases()}
        assert len(suffered) == 15
        with ThreadPoolExecutor(len(suffered)) as pool:
            list(pool.map(arena.suffer, suffered.values(), suffered))
        asked = {case: (len(vitrina.runs(name)), vitrina.asked(name)) for case, name in suffered.items()}
        assert asked == dict.fromkeys(suffered, (1, 1))
        say(f"{(number + 1) * len(suffered)} faults: every task was one run, asked for once")
