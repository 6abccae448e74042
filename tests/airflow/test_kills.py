"""Worker, triggerer and API are killed at every step of a task: each task is one run, and succeeds."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

from tests.airflow.cinema import Cinema, Hold
from tests.airflow.station import PATIENCE, Station, descendants, kill, owner_of
from tests.support.waiting import until

ROUNDS = 14 if os.environ.get("VITRINA_CHAOS") == "long" else 1
AT_ONCE = 3

pytestmark = pytest.mark.timeout(3600 * ROUNDS)


@dataclass(frozen=True)
class Step:
    """A request of the task that is stopped while somebody dies; the run is kept at work until then, or not."""

    method: str
    ending: str
    after: bool = False
    passing: int = 0
    blocked: bool = False


STEPS = {
    "before it looks": Step("GET", "/status"),
    "before it asks": Step("POST", "/run"),
    "before it hears the answer": Step("POST", "/run", after=True),
    "while it looks at the run": Step("GET", "/status", passing=1),
    "while it concludes": Step("GET", ""),
    "while the triggerer looks": Step("GET", "/status", passing=2, blocked=True),
}


class Arena:
    """Runs tasks and ends processes, one at a time, which it starts again."""

    def __init__(self, airflow: Station, vitrina: Cinema) -> None:
        self._airflow = airflow
        self._vitrina = vitrina
        self._lock = threading.Lock()

    def suffer(self, pipeline: str, case: tuple[str, str]) -> None:
        """Let a task have its fault. It succeeds all the same."""
        step, victim = case
        run = f"kill_{uuid4().hex[:8]}"
        die = {"worker": self._kill_worker, "api": self._kill_api, "triggerer": self._kill_triggerer}[victim]
        if step in STEPS:
            self._stop_at(STEPS[step], pipeline, run, die)
        else:
            self._while_it_waits(step, pipeline, run, die)
        self._airflow.wait_for("one", run, "success")

    def _stop_at(self, step: Step, pipeline: str, run: str, die: Callable[[Hold], None]) -> None:
        ending = f"/pipelines/{pipeline}{step.ending}"
        hold = self._vitrina.holds.hold(step.method, ending, after=step.after, passing=step.passing)
        with self._vitrina.blocked(pipeline) if step.blocked else nullcontext():
            self._airflow.trigger("one", run, {"pipeline": pipeline})
            hold.wait()
            die(hold)

    def _while_it_waits(self, step: str, pipeline: str, run: str, die: Callable[[Hold], None]) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._vitrina.blocked(pipeline))
            self._airflow.trigger("one", run, {"pipeline": pipeline})
            self._airflow.wait_for("one", run, "deferred")
            if step == "deferred":
                die(Hold("GET", ""))
                return
            with self._lock:
                self._airflow.kill("triggerer")
                stack.close()
                until(lambda: self._has_ended(pipeline), seconds=PATIENCE)
                self._airflow.start("triggerer")

    def _kill_worker(self, hold: Hold) -> None:
        """End the process of the task; its supervisor tells Airflow."""
        kill(owner_of(hold.port, descendants(self._airflow.processes["scheduler"].pid)))
        hold.let_go()

    def _kill_api(self, hold: Hold) -> None:
        with self._lock:
            self._vitrina.kill_api()
            hold.let_go()
            self._vitrina.start_api()

    def _kill_triggerer(self, hold: Hold) -> None:
        with self._lock:
            self._airflow.kill("triggerer")
            hold.let_go()
            self._airflow.start("triggerer")

    def _has_ended(self, pipeline: str) -> bool:
        query = (
            "SELECT count(*) FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            " WHERE p.name = %s AND r.status = 'SUCCESS'"
        )
        with psycopg.connect(self._vitrina.settings.require_database_url()) as connection:
            return connection.execute(query, [pipeline]).fetchone() == (1,)


def cases() -> list[tuple[str, str]]:
    """Which step, and who dies."""
    of_worker = [step for step in STEPS if step != "while the triggerer looks"]
    found = [(step, victim) for step in of_worker for victim in ("worker", "api")]
    found += [("while the triggerer looks", victim) for victim in ("triggerer", "api")]
    return [*found, ("deferred", "triggerer"), ("its run ends meanwhile", "triggerer"), ("deferred", "api")]


def test_whoever_is_killed_each_task_is_one_run(airflow: Station, vitrina: Cinema) -> None:
    arena = Arena(airflow, vitrina)
    for _ in range(ROUNDS):
        pipelines = [vitrina.pipeline() for _ in cases()]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(arena.suffer, pipelines, cases()))
        suffered = dict(zip(cases(), pipelines, strict=True))
        assert len(suffered) == 15
        # The audit has all that was asked for: also a second request that came to nothing.
        asked = {case: (len(vitrina.runs(name)), requests(vitrina, name)) for case, name in suffered.items()}
        assert asked == dict.fromkeys(suffered, (1, 1))


def requests(vitrina: Cinema, pipeline: str) -> int:
    return len([entry for entry in vitrina.client.list_audit(object=f"pipeline:{pipeline}") if entry.action == "run"])
