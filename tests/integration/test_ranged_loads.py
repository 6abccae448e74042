"""Full loads that are cut into ranges of the key."""

from typing import Any

import pytest

from tests.support.workbench import Workbench

ROWS = 3_000
FILMS = f"""
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(3, 1));
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, {ROWS}) AS i;
ANALYZE content.films;
"""
QUERY = "SELECT id, title, rating FROM content.films"
CUT = {"parallel": 2, "checkpoint_rows": 300}


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    return workbench


def difference(bench: Workbench, mart: str = "analytics.films") -> list[dict[str, Any]]:
    return bench.sql(
        f"(TABLE content.films EXCEPT ALL TABLE {mart}) UNION ALL (TABLE {mart} EXCEPT ALL TABLE content.films)"
    )


@pytest.mark.parametrize("route", ["copy", "arrow"])
def test_ranges_bring_every_row_once(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], batch_size=100, options=CUT | {"route": route})

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run
    assert run["metrics"]["paging"] == "key ranges"
    assert run["metrics"]["ranges"]["done"] >= 10
    assert run["metrics"]["ranges"]["left"] == 0
    assert run["rows_read"] == ROWS
    assert difference(bench) == []
