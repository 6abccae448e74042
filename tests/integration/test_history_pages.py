"""The commands of the page on histories, checks of a history, and a snapshot that is lost while a run reads in it."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_history import FILMS, as_of, make, run, source, touch
from tests.support.workbench import Workbench
from vitrina.connectors.postgres.load import MartTarget
from vitrina.loads.run import Run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "history.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_the_function_of_the_page_shows_the_mart_as_of_a_time(workbench: Workbench) -> None:
    [printed] = [block for block in BLOCKS if "CREATE FUNCTION" in block]
    workbench.source(FILMS)
    make(workbench, "full", target_table="analytics.film_history")
    first = run(workbench)["metrics"]["snapshot_at"]
    before = source(workbench)
    touch(workbench, 3, "second")
    workbench.sql("DELETE FROM content.films WHERE id = 4")
    second = run(workbench)["metrics"]["snapshot_at"]
    workbench.sql(printed)
    for moment, then in ((first, before), (second, source(workbench))):
        rows = workbench.sql(f"SELECT id, title FROM analytics.film_history_as_of('{moment}')")
        assert {row["id"]: row["title"] for row in rows} == then
        assert len(rows) == len(then)


@pytest.mark.parametrize("unique_by", ["valid_from", "valid_to"])
def test_the_statements_of_the_page_turn_a_plain_mart_into_one_like_those_that_a_run_creates(
    workbench: Workbench, unique_by: str
) -> None:
    by_start, by_end = [block for block in BLOCKS if block.startswith("ALTER TABLE analytics.films\n")]
    printed = by_start if unique_by == "valid_from" else by_end
    workbench.source(FILMS)
    query = "SELECT id AS film_id, title FROM content.films"
    kinds: dict[str, dict[str, Any]] = {"films": {}, "made": {"history": {"unique_by": unique_by}}}
    for name, options in kinds.items():
        workbench.pipeline(name, query, target_key=["film_id"], options=options)
        run(workbench, name)
    workbench.sql(printed)
    workbench.change("films", options=kinds["made"])
    touch(workbench, 3, "second")
    assert run(workbench)["rows_written"] == 1
    assert shape(workbench, "films") == shape(workbench, "made")


def shape(bench: Workbench, table: str) -> set[str]:
    """Return the constraints and indexes of a mart, without their names."""
    rows = bench.sql(
        f"""
        SELECT regexp_replace(pg_get_indexdef(i.indexrelid), 'INDEX .* ON \\S+ ', '') AS part
        FROM pg_index i WHERE i.indrelid = 'analytics.{table}'::regclass
        UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid = 'analytics.{table}'::regclass AND contype IN ('c', 'p', 'u')
        """
    )
    return {row["part"] for row in rows}


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_checks_judge_the_current_rows(workbench: Workbench, mode: str) -> None:
    """Closed states repeat keys, and have values that the source has corrected since."""
    workbench.source(FILMS)
    checks: list[dict[str, Any]] = [
        {"kind": "unique", "columns": ["id"]},
        {"kind": "row_count", "min": 10, "max": 10},
        {"kind": "select", "query": "SELECT id FROM target GROUP BY id HAVING count(*) > 1"},
    ]
    make(workbench, mode, checks=checks)
    run(workbench)
    for title in ("second", "third"):
        touch(workbench, 3, title)
        run(workbench)
    assert len(workbench.sql("SELECT id FROM analytics.films")) == 12
    workbench.source("INSERT INTO content.films (id, title) VALUES (11, 'one too many')")
    done = workbench.run("films")
    assert (done["status"], done["error_code"]) == ("FAILED", "check_failed"), done["error_message"]


def test_a_lost_holder_of_the_snapshot_is_tried_again(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    make(workbench, "incremental", batch_size=2)
    run(workbench)
    workbench.sql("UPDATE content.films SET title = title || '!', modified = clock_timestamp() + id * interval '1 us'")
    behind = Run.after_part
    ended: list[Any] = []

    def after_part(self: Run, part: Any) -> None:
        behind(self, part)
        if not ended:
            ended.extend(
                workbench.sql(
                    "SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity"
                    " WHERE query LIKE '%pg_export_snapshot%' AND state LIKE 'idle in transaction%'"
                )
            )

    monkeypatch.setattr(Run, "after_part", after_part)
    done = run(workbench)
    assert ended == [{"ended": True}]
    assert as_of(workbench, done["metrics"]["snapshot_at"]) == source(workbench)


@pytest.mark.parametrize("route", ["auto", "copy"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_states_are_dated_by_the_clock_in_their_snapshot(
    workbench: Workbench, mode: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed after the time of a snapshot is not in it."""
    workbench.source(FILMS)
    make(workbench, mode, batch_size=3, options={"route": route})
    run(workbench)
    touch(workbench, 3, "second")
    dates = MartTarget.use_snapshot
    late: list[str] = []

    def change_then(self: MartTarget, moment: datetime) -> None:
        dates(self, moment)
        if not late:
            late.append("third")
            touch(workbench, 3, "third")

    monkeypatch.setattr(MartTarget, "use_snapshot", change_then)
    moment = run(workbench)["metrics"]["snapshot_at"]
    assert late
    assert as_of(workbench, moment)[3] == "second"
    assert as_of(workbench, run(workbench)["metrics"]["snapshot_at"])[3] == "third"
