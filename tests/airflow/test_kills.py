"""Worker, triggerer and API are killed at every step of a task: each task is one run, and succeeds."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

from tests.airflow.cinema import Cinema, Hold
from tests.airflow.station import Station, descendants, kill, owner_of
from tests.support.waiting import until

ROUNDS = 14 if os.environ.get("VITRINA_CHAOS") == "long" else 1
AT_ONCE = 3

pytestmark = pytest.mark.timeout(900 * ROUNDS)


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


class Killer:
    """Ends processes, one at a time, and starts them again."""

    def __init__(self, airflow: Station, vitrina: Cinema) -> None:
        self._airflow = airflow
        self._vitrina = vitrina
        self._lock = threading.Lock()

    def worker(self, hold: Hold) -> None:
        """The process of the task; its supervisor tells Airflow."""
        kill(owner_of(hold.port, descendants(self._airflow.processes["scheduler"].pid)))
        hold.let_go()

    def api(self, hold: Hold | None) -> None:
        with self._lock:
            self._vitrina.kill_api()
            if hold:
                hold.let_go()
            self._vitrina.start_api()

    def triggerer(self, hold: Hold | None, meanwhile: Callable[[], None] = lambda: None) -> None:
        with self._lock:
            self._airflow.kill("triggerer")
            if hold:
                hold.let_go()
            meanwhile()
            self._airflow.start("triggerer")


def cases() -> list[tuple[str, str]]:
    """Which step, and who dies."""
    of_worker = [step for step in STEPS if step != "while the triggerer looks"]
    found = [(step, victim) for step in of_worker for victim in ("worker", "api")]
    found += [("while the triggerer looks", victim) for victim in ("triggerer", "api")]
    return [*found, ("deferred", "triggerer"), ("its run ends meanwhile", "triggerer"), ("deferred", "api")]


def test_whoever_is_killed_each_task_is_one_run(airflow: Station, vitrina: Cinema) -> None:
    killer = Killer(airflow, vitrina)

    def suffer(case: tuple[str, str]) -> str:
        step, victim = case
        pipeline, run = vitrina.pipeline(), f"kill_{uuid4().hex[:8]}"
        if step in STEPS:
            _while_it_asks(airflow, vitrina, killer, STEPS[step], victim, pipeline, run)
        else:
            _while_it_waits(airflow, vitrina, killer, step, victim, pipeline, run)
        airflow.wait_for("one", run, "success")
        return pipeline

    for _ in range(ROUNDS):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            suffered = dict(zip(cases(), pool.map(suffer, cases()), strict=True))
        assert len(suffered) == 15
        # All that was asked for is in the audit: also a second request that waited for nothing.
        asked = {case: (_runs(vitrina, name), _requests(vitrina, name)) for case, name in suffered.items()}
        assert asked == dict.fromkeys(suffered, (1, 1))


def _while_it_asks(
    airflow: Station, vitrina: Cinema, killer: Killer, step: Step, victim: str, pipeline: str, run: str
) -> None:
    ending = f"/pipelines/{pipeline}{step.ending}"
    hold = vitrina.holds.hold(step.method, ending, after=step.after, passing=step.passing)
    with vitrina.blocked(pipeline) if step.blocked else nullcontext():
        airflow.trigger("one", run, {"pipeline": pipeline})
        hold.wait()
        getattr(killer, victim)(hold)


def _while_it_waits(
    airflow: Station, vitrina: Cinema, killer: Killer, step: str, victim: str, pipeline: str, run: str
) -> None:
    block = vitrina.blocked(pipeline)
    block.__enter__()
    try:
        airflow.trigger("one", run, {"pipeline": pipeline})
        airflow.wait_for("one", run, "deferred")
        if step == "deferred":
            getattr(killer, victim)(None)
    finally:
        if step == "deferred":
            block.__exit__(None, None, None)
    if step != "deferred":

        def end() -> None:
            block.__exit__(None, None, None)
            until(lambda: _ended(vitrina, pipeline), seconds=180)

        killer.triggerer(None, end)


def _ended(vitrina: Cinema, pipeline: str) -> bool:
    return (
        _count(
            vitrina,
            "SELECT count(*) FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id"
            " WHERE p.name = %s AND r.status = 'SUCCESS'",
            pipeline,
        )
        == 1
    )


def _runs(vitrina: Cinema, pipeline: str) -> int:
    return len(vitrina.runs(pipeline))


def _requests(vitrina: Cinema, pipeline: str) -> int:
    return len([entry for entry in vitrina.client.list_audit(object=f"pipeline:{pipeline}") if entry.action == "run"])


def _count(vitrina: Cinema, query: str, *parameters: str) -> int:
    with psycopg.connect(vitrina.settings.require_database_url()) as connection:
        found = connection.execute(query.encode(), parameters).fetchone()
    assert found
    return int(found[0])
