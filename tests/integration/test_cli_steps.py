"""`vitrina transform test` as a process: a developer's own module, a pipeline's rows, before and after."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workbench import Workbench

MODULE = '''
from vitrina.transforms import transform

@transform("cli_shout", rows=True)
def shout(row):
    """Upper case; drops film 2 and doubles film 3."""
    if row["id"] == 2:
        return None
    made = row | {"title": row["title"].upper(), "length": len(row["title"])}
    return [made, made] if row["id"] == 3 else made
'''
QUERY = "SELECT id, title, rating FROM content.film_work ORDER BY id"


@pytest.fixture
def bench(workbench: Workbench, tmp_path: Path) -> Workbench:
    workbench.source(
        "CREATE TABLE content.film_work (id int PRIMARY KEY, title text, rating numeric(3,1));"
        "INSERT INTO content.film_work VALUES (1, 'Alien', 8.5), (2, 'Brazil', 7.9), (3, 'Cube', 7.2)"
    )
    (tmp_path / "my_steps.py").write_text(MODULE)
    return workbench


def vitrina(bench: Workbench, directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    found = bench.settings
    secrets = {
        "VITRINA_DATABASE_URL": found.database_url,
        "VITRINA_READER_URL": found.reader_url,
    }
    variables = {name: value.get_secret_value() for name, value in secrets.items() if value}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VITRINA_")}
    path = os.pathsep.join([str(directory), kept.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "vitrina.cli", *arguments],
        cwd=directory,
        env=kept | variables | {"PYTHONPATH": path, "VITRINA_TRANSFORMS": "my_steps"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_before_and_after_side_by_side(bench: Workbench, tmp_path: Path) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    ended = vitrina(bench, tmp_path, "transform", "test", "cli_shout", "--pipeline", "films", "--limit", "20")
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["ID", "TITLE", "BEFORE", "TITLE", "AFTER", "LENGTH", "AFTER"]
    assert lines[1:] == [
        ["1", "Alien", "ALIEN", "5"],
        ["2", "Brazil", "-", "-", "dropped"],
        ["3", "Cube", "CUBE", "4"],
        ["3", "Cube", "CUBE", "4"],
    ]
    assert "3 rows before, 3 after cli_shout" in ended.stderr
    assert bench.sql("SELECT to_regclass('analytics.films') AS t") == [{"t": None}]


def test_a_step_of_the_plan_is_shown_in_its_place(bench: Workbench, tmp_path: Path) -> None:
    bench.pipeline(
        "films",
        "SELECT 1",
        tasks=[
            {"order_index": 0, "task_type": "SQL", "body": QUERY},
            {"order_index": 1, "task_type": "PYTHON", "body": "cli_shout"},
            {"order_index": 2, "task_type": "PYTHON", "body": "select_columns", "params": {"columns": ["id"]}},
        ],
        target_key=["id"],
    )
    command = ["transform", "test", "-p", "films", "-o", "json"]
    ended = vitrina(bench, tmp_path, *command, "cli_shout")
    found = json.loads(ended.stdout)
    assert [row["title"] for row in found["before"]["rows"]] == ["Alien", "Brazil", "Cube"]
    assert [row["title"] for row in found["after"]["rows"]] == ["ALIEN", "CUBE", "CUBE"]
    assert found["after"]["columns"][2:] == [
        {"name": "rating", "type": "numeric(3,1)"},
        {"name": "length", "type": "bigint"},
    ]
    ended = vitrina(bench, tmp_path, *command, "select_columns", "--params", '{"columns": ["title"]}')
    assert [row["title"] for row in json.loads(ended.stdout)["after"]["rows"]] == ["ALIEN", "CUBE", "CUBE"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "-p", "films"], "there is no Python step 'nope' here; there are: add_columns, cast_columns"),
        (["cli_shout", "-p", "nobody"], "there is no pipeline 'nobody'"),
        (["keep_rows", "-p", "films", "--params", "{"], "--params is not JSON"),
        (["keep_rows", "-p", "films", "--params", "{}"], "params.where: Field required"),
        (["explode", "-p", "films", "--params", '{"column": "title"}'], "column 'title' is string, not a list"),
    ],
)
def test_a_mistake_is_told_in_one_line(bench: Workbench, tmp_path: Path, arguments: list[str], words: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    ended = vitrina(bench, tmp_path, "transform", "test", *arguments)
    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
