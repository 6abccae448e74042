"""Whole runs that read files: full loads, passes, steps, previews, and runs that are lost in the middle."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.lake import readers
from tests.lake.conftest import PLACES_OF_KILLS, Lake, settings_with
from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.checks import previews
from vitrina.definition import Definition
from vitrina.store import pipelines, state

QUERY = "SELECT id, title FROM 'in/*.csv'"
FULL = ["batch.filled:crash:2", "batch.committed:crash:3", "publish.applied:crash:1"]
PASSES = ["batch.filled:crash:2", "batch.committed:crash:2", "pass.fenced:crash:1", "pass.ended:crash:1"]


def write(lake: Lake, name: str, *numbers: int, word: str = "Film") -> None:
    lake.put(f"in/{name}", "id,title\n" + "".join(f"{number},{word} {number}\n" for number in numbers))


def read_films(bench: Workbench, query: str = QUERY, **fields: Any) -> None:
    reading = {"source_type": "files", "source_connection": "lake", "target_key": ["id"], "batch_size": 4}
    bench.pipeline("films", query, **reading | fields)


def follow_films(bench: Workbench, query: str = QUERY, **fields: Any) -> None:
    read_films(bench, query, mode="incremental", incremental_key="filename", **fields)


def succeed(bench: Workbench) -> dict[str, Any]:
    done = bench.run("films")
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


def mart(bench: Workbench) -> dict[int, str]:
    rows = bench.sql("SELECT id, title FROM analytics.films")
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["title"] for row in rows}


def films(*numbers: int, word: str = "Film") -> dict[int, str]:
    return {number: f"{word} {number}" for number in numbers}


@pytest.fixture
def bench(lake_bench: Workbench, lake: Lake) -> Workbench:
    write(lake, "a.csv", *range(1, 11))
    write(lake, "b.csv", *range(11, 16))
    return lake_bench


# --- full loads ------------------------------------------------------------------------------------------------------


def test_a_full_load_brings_what_the_files_say(bench: Workbench, lake: Lake) -> None:
    read_films(bench)
    done = succeed(bench)
    assert (done["rows_read"], done["rows_written"]) == (15, 15)
    assert mart(bench) == films(*range(1, 16))
    write(lake, "b.csv", 11, 12, word="New")
    write(lake, "c.csv", 16)
    succeed(bench)
    assert mart(bench) == films(*range(1, 11), 16) | films(11, 12, word="New")
    assert bench.reconcile("films", level="full")["equal"]


def test_rows_of_several_files_are_counted_and_joined(bench: Workbench, lake: Lake) -> None:
    lake.put("kinds.jsonl", '{"odd": 0, "kind": "even"}\n{"odd": 1, "kind": "odd"}\n')
    query = """
        SELECT odd AS id, kind AS title, count(*) AS films, sum(id) AS total
        FROM 'in/*.csv' JOIN 'kinds.jsonl' ON odd = id % 2 GROUP BY ALL
    """
    read_films(bench, query)
    succeed(bench)
    rows = bench.sql("SELECT * FROM analytics.films ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [(0, "even", 7, 56), (1, "odd", 8, 64)]


def test_types_arrive_in_the_mart(on_folder: Workbench) -> None:
    query = """
        SELECT id, id > 1 AS later, [id = 1, NULL] AS answers, 'nan'::DOUBLE AS ratio, TIMESTAMP '290000-01-01' AS far,
               {'a': [id]} AS doc, '6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111'::UUID AS ident, 255::UTINYINT AS small
        FROM 'in/*.csv' WHERE id = 1
    """
    read_films(on_folder, query)
    succeed(on_folder)
    [row] = on_folder.sql("SELECT t::text FROM analytics.films AS t")
    assert row["t"] == (
        '(1,f,"{t,NULL}",NaN,"290000-01-01 00:00:00","{""a"": [1]}",6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111,255)'
    )


def test_steps_and_other_targets_follow(bench: Workbench, lake: Lake) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "rename_columns", "params": {"names": {"title": "name"}}},
    ]
    read_films(
        bench,
        "",
        tasks=tasks,
        target_table="files:films",
        options={"target_connection": "lake"},
    )
    succeed(bench)
    assert readers.latest(lake.files("films"))[0] == {"id": 1, "name": "Film 1"}
    assert len(readers.latest(lake.files("films"))) == 15


def test_a_preview_shows_rows_and_types(bench: Workbench) -> None:
    fields: dict[str, Any] = {
        "name": "films",
        "source_type": "files",
        "source_connection": "lake",
        "target_table": "analytics.films",
    }
    shown = previews.preview(Definition(**fields, source_query=QUERY), bench.settings, 3)
    assert shown["columns"] == [{"name": "id", "type": "bigint"}, {"name": "title", "type": "text"}]
    assert [row["id"] for row in shown["rows"]] == [1, 2, 3]
    whole = Definition(**fields, source_table="in/b.csv")
    assert len(previews.preview(whole, bench.settings, 100)["rows"]) == 5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source_query": "SELECT * FROM 'out/*.csv'"}, "no file of lake matches 'out/*.csv'"),
        ({"source_query": "SELECT * FROM '/etc/passwd.csv'"}, "is no path below the connection's folder"),
        ({"source_query": "SELECT nope FROM 'in/*.csv'"}, '"nope" not found'),
        ({"source_query": "COPY (SELECT 1) TO 'x'"}, "one SELECT"),
        ({"mode": "incremental", "incremental_key": "id"}, "incremental_key is 'id'"),
        (
            {"options": {"files": {"follow": "x"}}, "mode": "incremental", "incremental_key": "filename"},
            "follow is 'x'",
        ),
    ],
)
def test_what_cannot_be_read_is_said(on_folder: Workbench, fields: dict[str, Any], said: str) -> None:
    read_films(on_folder, **{"query": fields.pop("source_query", QUERY)} | fields)
    done = on_folder.run("films")
    assert done["status"] == "FAILED"
    assert said in done["error_message"]


def test_no_file_is_no_row_where_there_may_be_none(on_folder: Workbench, tmp_path: Path) -> None:
    follow_films(on_folder, options={"allow_empty": True})
    succeed(on_folder)
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    assert succeed(on_folder)["rows_read"] == 0
    assert len(mart(on_folder)) == 15
    write(Lake("", tmp_path), "c.csv", 16)
    assert succeed(on_folder)["rows_read"] == 1
    assert len(mart(on_folder)) == 16


# --- passes ----------------------------------------------------------------------------------------------------------


def test_a_pass_reads_files_that_are_new_or_changed(bench: Workbench, lake: Lake) -> None:
    follow_films(bench)
    assert succeed(bench)["rows_read"] == 15
    assert succeed(bench)["rows_read"] == 0
    assert bench.checkpoint("films").safe_upto[:4].isdigit()  # type: ignore[index]
    write(lake, "c.csv", 16, 17)
    assert succeed(bench)["rows_read"] == 2
    write(lake, "a.csv", 1, 2, 3, word="New")
    assert succeed(bench)["rows_read"] == 3
    assert mart(bench) == films(*range(4, 18)) | films(1, 2, 3, word="New")
    # An older time does not hide a file that was moved here.
    write(lake, "d.csv", 18)
    if lake.server is None:
        os.utime(lake.folder / "in" / "d.csv", (1, 1))
    assert succeed(bench)["rows_read"] == 1
    (lake.folder / "in" / "b.csv").unlink()
    assert succeed(bench)["rows_read"] == 0
    assert len(mart(bench)) == 18


def test_another_query_or_a_reset_reads_all_files_again(on_folder: Workbench) -> None:
    follow_films(on_folder)
    succeed(on_folder)
    on_folder.change("films", source_query="SELECT id, upper(title) AS title FROM 'in/*.csv'")
    assert succeed(on_folder)["rows_read"] == 15
    assert mart(on_folder)[1] == "FILM 1"
    row = pipelines.find(on_folder.metastore, "films")
    assert row is not None
    state.reset(on_folder.metastore, row["id"])
    assert succeed(on_folder)["rows_read"] == 15
    on_folder.sql("TRUNCATE analytics.films")
    assert succeed(on_folder)["rows_read"] == 15


# --- runs that are lost ----------------------------------------------------------------------------------------------


@pytest.fixture
def on_folder(workbench: Workbench, tmp_path: Path) -> Workbench:
    lake = Lake(f"file://{tmp_path}", tmp_path)
    write(lake, "a.csv", *range(1, 11))
    write(lake, "b.csv", *range(11, 16))
    workbench.settings = settings_with(workbench.settings, lake.url)
    return workbench


@pytest.mark.parametrize("at", FULL)
def test_a_full_load_survives_its_runner(on_folder: Workbench, at: str) -> None:
    read_films(on_folder)
    on_folder.request("films")
    on_folder.lose_a_runner(at)
    on_folder.recover()
    on_folder.perform(on_folder.claim())
    done = on_folder.last_run("films")
    assert done["status"] == "SUCCESS"
    assert mart(on_folder) == films(*range(1, 16))
    if at == FULL[1]:
        assert done["rows_read"] < 15, "it goes on after the last batch"


@pytest.mark.parametrize("at", PASSES)
def test_a_pass_survives_its_runner(on_folder: Workbench, at: str) -> None:
    follow_films(on_folder)
    on_folder.request("films")
    on_folder.lose_a_runner(at)
    on_folder.recover()
    on_folder.perform(on_folder.claim())
    assert on_folder.last_run("films")["status"] == "SUCCESS"
    assert mart(on_folder) == films(*range(1, 16))
    assert succeed(on_folder)["rows_read"] == 0


def test_a_load_of_other_files_starts_over(on_folder: Workbench, tmp_path: Path) -> None:
    read_films(on_folder)
    on_folder.request("films")
    on_folder.lose_a_runner("batch.committed:crash:3")
    write(Lake("", tmp_path), "a.csv", 1, 2, word="New")
    on_folder.recover()
    on_folder.perform(on_folder.claim())
    done = on_folder.last_run("films")
    assert (done["status"], done["rows_read"]) == ("SUCCESS", 7)
    assert mart(on_folder) == films(*range(11, 16)) | films(1, 2, word="New")


def test_a_pass_that_goes_on_leaves_what_came_since_to_the_next(on_folder: Workbench, tmp_path: Path) -> None:
    follow_films(on_folder)
    on_folder.request("films")
    on_folder.lose_a_runner("batch.committed:crash:1")
    write(Lake("", tmp_path), "a.csv", 1, 2, word="New")
    write(Lake("", tmp_path), "c.csv", 16)
    on_folder.recover()
    on_folder.perform(on_folder.claim())
    assert mart(on_folder) == films(1, 2, 3, 4, *range(11, 16))
    assert succeed(on_folder)["rows_read"] == 3
    assert mart(on_folder) == films(3, 4, *range(11, 17)) | films(1, 2, word="New")


# Between two files' batches, in the middle of a file, between the data and the checkpoint, and after it.
@pytest.mark.chaos
@pytest.mark.timeout(600)
@PLACES_OF_KILLS
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_runner_is_killed(bench: Workbench, lake: Lake, tmp_path: Path, mode: str) -> None:
    """SIGKILL, as the kernel does it: the process of DuckDB ends with its runner, and takes its files along."""
    (read_films if mode == "full" else follow_films)(bench)
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o755)
    environment = {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "TMPDIR": str(scratch),
        "VITRINA_CONN_LAKE": bench.settings.connections["lake"].get_secret_value(),
        "VITRINA_LEASE_TTL_SECONDS": "5",
    }
    bench.request("films")
    with runner_process(bench.settings, tmp_path, VITRINA_FAILPOINTS="batch.committed:kill:3", **environment) as killed:
        until(lambda: killed.poll() is not None, seconds=240)
        assert killed.returncode == -9
    until(lambda: not _left(scratch), seconds=60)
    with runner_process(bench.settings, tmp_path, **environment):
        until(lambda: bench.status("films") in ("IDLE", "FAILED"), seconds=240)
        until(lambda: not _left(scratch), seconds=60)
    done = bench.last_run("films")
    assert done["status"] == "SUCCESS", done["error_message"]
    assert done["rows_read"] < 15, "it goes on after the last batch"
    assert mart(bench) == films(*range(1, 16))


def _left(scratch: Path) -> list[str]:
    """Folders and processes of sources."""
    folders = [path.name for path in scratch.glob("vitrina-files-*")]
    running = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vitrina.connectors.files.reading.worker" in command and str(scratch).encode() in b" ".join(command):
            running.append(entry.name)
    return folders + running


def test_the_checkpoint_says_when_the_newest_file_was_written(on_folder: Workbench, tmp_path: Path) -> None:
    follow_films(on_folder)
    for name, seconds in (("a.csv", 1_700_000_000), ("b.csv", 1_800_000_000)):
        os.utime(tmp_path / "in" / name, (seconds, seconds))
    succeed(on_folder)
    assert on_folder.checkpoint("films").safe_upto == "2027-01-15 08:00:00.000000+00:00"
