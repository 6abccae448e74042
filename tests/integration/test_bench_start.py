"""What a start costs, as the benchmark measures it: a runner loads pyarrow when a run needs it, and not before."""

from pathlib import Path

import pytest

from bench import start
from bench.small_runs import define, open_sessions
from vitrina.settings import Settings
from vitrina.store import pipelines


def test_a_runner_loads_pyarrow_when_a_run_needs_it(
    database: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "REST_SECONDS", 0.5)
    with open_sessions(database) as sessions:
        define(sessions)
        found = start.measure_memory(sessions, database, tmp_path)

    assert [memory.has_pyarrow for memory in found.values()] == [False, False, True]
    assert all(memory.resident_mb > 10 for memory in found.values())


def test_the_commands_succeed_and_their_cpu_is_counted(database: Settings, tmp_path: Path) -> None:
    with open_sessions(database) as sessions:
        define(sessions)
        found = start.measure_commands(sessions, database, tmp_path, rounds=1)
        requested = pipelines.find(sessions.metastore, "full")

    assert found.keys() == start.COMMANDS.keys()
    assert all(seconds > 0 for [seconds] in found.values())
    assert requested is not None
    assert requested["status"] == "RUN_REQUESTED"  # the last command has reached the API
