"""Marts that keep a history: every state of a row, valid from one snapshot of the source to another."""

from typing import Any

import pytest

from tests.support.workbench import Workbench

FILMS = """
CREATE TABLE content.films (id bigint PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.films (id, title) SELECT n, 'film ' || n FROM generate_series(1, 10) n;
"""
QUERY = "SELECT id, title, modified FROM content.films"


def make(bench: Workbench, mode: str, name: str = "films", **fields: Any) -> None:
    options = {"history": {}, "allow_shrink": True, "cursor_clock": "database"} | fields.pop("options", {})
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    bench.pipeline(name, QUERY, target_key=["id"], mode=mode, options=options, **cursor, **fields)


def run(bench: Workbench, name: str = "films") -> dict[str, Any]:
    done = bench.run(name)
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


def touch(bench: Workbench, number: int, title: str) -> None:
    bench.sql(f"UPDATE content.films SET title = '{title}', modified = clock_timestamp() WHERE id = {number}")


def as_of(bench: Workbench, moment: str, mart: str = "analytics.films") -> dict[int, str]:
    rows = bench.sql(
        f"SELECT id, title FROM {mart} WHERE valid_from <= '{moment}' AND (valid_to > '{moment}' OR valid_to IS NULL)"
    )
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["title"] for row in rows}


def source(bench: Workbench) -> dict[int, str]:
    return {row["id"]: row["title"] for row in bench.sql("SELECT id, title FROM content.films")}


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_each_run_leaves_the_states_of_its_snapshot(workbench: Workbench, mode: str, route: str) -> None:
    workbench.source(FILMS)
    make(workbench, mode, options={"route": route}, batch_size=3)
    seen = []
    for title in ("", "second", "third"):
        if title:
            touch(workbench, 3, title)
            workbench.source(f"INSERT INTO content.films (id, title) VALUES ({10 + len(seen)}, 'new')")
        done = run(workbench)
        seen.append((done["metrics"]["snapshot_at"], source(workbench)))
    for moment, then in seen:
        assert as_of(workbench, moment) == then
    again = run(workbench)
    assert (again["rows_written"], again["rows_deleted"]) == (0, 0)
    assert again["metrics"]["snapshot_at"] > seen[-1][0]
    [states] = workbench.sql("SELECT count(*) AS all, count(*) FILTER (WHERE is_current) AS now FROM analytics.films")
    assert (states["all"], states["now"]) == (14, 12)
