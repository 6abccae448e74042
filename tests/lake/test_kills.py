"""Runners that are killed with SIGKILL, as the kernel does it: another one goes on, and nothing is lost or double."""

import os
from pathlib import Path

import pytest

from tests.lake import readers
from tests.lake.conftest import PLACES_OF_KILLS, Lake
from tests.lake.test_faults import FILM, require_nothing_left
from tests.lake.test_runs import add_films, films, full, incremental
from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600), PLACES_OF_KILLS]


@pytest.fixture
def bench(lake_bench: Workbench) -> Workbench:
    lake_bench.source(FILM)
    add_films(lake_bench, 1, 30)
    return lake_bench


def run_killed(bench: Workbench, place: Path, at: str, targets: str = "files:*") -> None:
    """A runner that is killed at a failpoint, and one that finds its work when the lease is over."""
    environment = {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "VITRINA_CONN_LAKE": bench.settings.connections["lake"].get_secret_value(),
        "VITRINA_ALLOWED_TARGETS": targets,
        "VITRINA_LEASE_TTL_SECONDS": "5",
    }
    bench.request("films")
    with runner_process(bench.settings, place, VITRINA_FAILPOINTS=at, **environment) as killed:
        until(lambda: killed.poll() is not None, seconds=240)
        assert killed.returncode == -9
    with runner_process(bench.settings, place, **environment):
        until(lambda: bench.status("films") == "IDLE", seconds=240)
    assert bench.last_run("films")["status"] == "SUCCESS"


# Between data files, between the last of them and the switch, between the switch and the checkpoint, and after it.
@pytest.mark.parametrize("at", ["batch.filled:kill:3", "batch.committed:kill:5", "publish.applied:kill:1"])
def test_a_full_load_is_killed(bench: Workbench, lake: Lake, tmp_path: Path, at: str) -> None:
    full(bench)
    run_killed(bench, tmp_path, at)
    assert lake.manifest("films")["rows"] == 30
    assert readers.titles(lake.files("films")) == films(*range(1, 31))
    require_nothing_left(lake)


@pytest.mark.parametrize("at", ["batch.filled:kill:2", "merge.applied:kill:1"])
def test_a_pass_is_killed(bench: Workbench, lake: Lake, tmp_path: Path, at: str) -> None:
    incremental(bench)
    run_killed(bench, tmp_path, at)
    assert readers.titles(lake.files("films")) == films(*range(1, 31))
    require_nothing_left(lake)
