"""Runners that are killed with SIGKILL around the commit of a snapshot: another one goes on; 0 lost, 0 double."""

from pathlib import Path

import pytest

from tests.chaos.conftest import LONG
from tests.lake.iceberg.tables import Tables
from tests.lake.iceberg.test_faults import prepared, require_nothing_left
from tests.lake.iceberg.test_runs import full, incremental
from tests.lake.test_kills import run_killed
from tests.lake.test_runs import films
from tests.support.workbench import Workbench

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture
def tables(folder_tables: Tables) -> Tables:
    return folder_tables


@pytest.fixture
def bench(workbench: Workbench, tables: Tables) -> Workbench:
    return prepared(workbench, tables)


# Between the commit and the checkpoint; between data files; between the last of them and the commit.
KILLS = ["publish.applied:kill:1", "batch.filled:kill:3", "batch.committed:kill:5"]


@pytest.mark.parametrize("at", KILLS if LONG else KILLS[:1])
def test_a_full_load_is_killed(bench: Workbench, tables: Tables, tmp_path: Path, at: str) -> None:
    full(bench)
    run_killed(bench, tmp_path, at, "iceberg:*")
    assert (tables.entries().num_rows, tables.titles()) == (30, films(*range(1, 31)))
    assert len([one for one in tables.snapshots() if one.summary["total-records"] == "30"]) == 1
    require_nothing_left(tables)


def test_a_pass_is_killed(bench: Workbench, tables: Tables, tmp_path: Path) -> None:
    incremental(bench)
    run_killed(bench, tmp_path, "publish.applied:kill:1", "iceberg:*")
    bench.sql("UPDATE content.film SET title = 'new ' || id, changed = clock_timestamp()")
    run_killed(bench, tmp_path, "merge.applied:kill:1", "iceberg:*")
    assert tables.titles() == {i: f"new {i}" for i in range(1, 31)}
    require_nothing_left(tables)
