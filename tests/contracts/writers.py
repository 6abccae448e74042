"""The suite that every writer passes: whole runs into a target, which is then read back and compared with the source.

A new kind of target inherits `WriterContract` and gives it a `mart` fixture.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tests.support.workbench import Workbench
from vitrina.status import Status
from vitrina.store import pipelines

SOURCE = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text NOT NULL, rating numeric(3,1), note text, modified timestamptz NOT NULL);
INSERT INTO content.film_work
SELECT i, 'Film ' || i, i % 10 + 0.5, CASE WHEN i % 2 = 0 THEN 'note ' || i END,
       timestamptz '2024-01-01' + make_interval(secs => i)
FROM generate_series(1, 60) AS i;
"""
COLUMNS = "id, title, rating, note, modified"
QUERY = f"SELECT {COLUMNS} FROM content.film_work"
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "incremental": {
        "mode": "incremental",
        "incremental_key": "modified",
        "incremental_id_key": "id",
        # Else the rows of the newest stamp are read again by each pass.
        "options": {"cursor_clock": "database"},
    },
}
EVERY_MODE = pytest.mark.parametrize("mode", MODES)

Row = tuple[str, float | None, str | None]


class Target(Protocol):
    """What is written to."""

    @property
    def name(self) -> str: ...

    def rows(self) -> dict[int, Row]:
        """Title, rating and note by id, as they are in the target now."""
        ...


@dataclass
class Mart:
    """A source, a pipeline `films` into the target under test, and both sides' rows."""

    bench: Workbench
    target: Target

    def define(self, mode: str, query: str = QUERY, **fields: Any) -> None:
        wanted = {"target_table": self.target.name, "target_key": ["id"], "batch_size": 20} | MODES[mode] | fields
        wanted["options"] = MODES[mode].get("options", {}) | fields.get("options", {})
        self.bench.pipeline("films", query, **wanted)

    def change(self, assignments: str, where: str = "true") -> None:
        self.bench.sql(f"UPDATE content.film_work SET {assignments}, modified = clock_timestamp() WHERE {where}")

    def run(self) -> dict[str, Any]:
        run = self.bench.run("films")
        assert (run["status"], run["error_message"]) == ("SUCCESS", None)
        return run

    @property
    def source(self) -> dict[int, Row]:
        rows = self.bench.sql("SELECT id, title, rating::float8 AS rating, note FROM content.film_work")
        return {row["id"]: (row["title"], row["rating"], row["note"]) for row in rows}

    @property
    def is_exact(self) -> bool:
        return self.target.rows() == self.source


class WriterContract:
    """Whatever the target is."""

    @EVERY_MODE
    def test_a_load_equals_the_source(self, mart: Mart, mode: str) -> None:
        mart.define(mode)

        run = mart.run()

        assert (run["rows_read"], run["rows_written"], run["rows_rejected"]) == (60, 60, 0)
        assert mart.is_exact

    @EVERY_MODE
    def test_a_rerun_changes_nothing(self, mart: Mart, mode: str) -> None:
        mart.define(mode)
        mart.run()

        again = mart.run()

        assert again["rows_read"] == (60 if mode == "full" else 0)
        assert mart.is_exact

    @EVERY_MODE
    def test_changes_arrive(self, mart: Mart, mode: str) -> None:
        mart.define(mode)
        mart.run()
        mart.change("title = 'New'", "id <= 25")
        mart.bench.sql("INSERT INTO content.film_work VALUES (61, 'Added', 1.5, NULL, clock_timestamp())")

        run = mart.run()

        assert run["rows_read"] == (61 if mode == "full" else 26)
        assert mart.is_exact

    @EVERY_MODE
    def test_null_clears_a_value(self, mart: Mart, mode: str) -> None:
        mart.define(mode)
        mart.run()
        mart.change("rating = NULL, note = NULL", "id = 2")

        mart.run()

        assert mart.target.rows()[2] == ("Film 2", None, None)
        assert mart.is_exact

    def test_a_full_load_takes_away_what_left_the_source(self, mart: Mart) -> None:
        mart.define("full")
        mart.run()
        mart.bench.sql("DELETE FROM content.film_work WHERE id > 50")

        mart.run()

        assert mart.is_exact

    @EVERY_MODE
    def test_a_pause_is_obeyed_at_a_batch_boundary_and_the_next_run_goes_on(self, mart: Mart, mode: str) -> None:
        mart.define(mode, options={"route": "arrow"})
        mart.bench.request("films")
        claim = mart.bench.claim()
        assert pipelines.request_pause(mart.bench.metastore, claim.pipeline_id)

        mart.bench.perform(claim)

        paused = mart.bench.last_run("films")
        assert (paused["status"], paused["rows_read"]) == ("PAUSED", 20)
        assert mart.bench.status("films") == Status.PAUSED
        assert mart.run()["rows_read"] == 40
        assert mart.is_exact

    @EVERY_MODE
    @pytest.mark.parametrize("where", ["batch.filled", "batch.fenced", "batch.committed"])
    def test_a_crash_is_recovered_from(self, mart: Mart, mode: str, where: str) -> None:
        mart.define(mode, options={"route": "arrow"})
        mart.bench.request("films")
        mart.bench.lose_a_runner(f"{where}:crash:2")
        mart.bench.recover()

        mart.bench.perform(mart.bench.claim())

        assert mart.bench.last_run("films")["status"] == "SUCCESS"
        assert mart.is_exact

    def test_a_column_of_another_type_is_named(self, mart: Mart) -> None:
        mart.define("incremental")
        mart.run()
        mart.bench.change("films", source_query=QUERY.replace("rating", "rating::text || ' stars' AS rating"))
        mart.change("title = 'New'")

        run = mart.bench.run("films")

        assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
        assert "rating" in run["error_message"]

    def test_a_new_column_needs_a_yes(self, mart: Mart) -> None:
        mart.define("incremental", "SELECT id, title, rating, modified FROM content.film_work")
        mart.run()
        mart.bench.change("films", source_query=QUERY)
        mart.change("title = 'New'")
        refused = mart.bench.run("films")
        assert (refused["status"], refused["error_code"]) == ("FAILED", "target_mismatch")
        assert "note" in refused["error_message"]

        mart.bench.change("films", options={"on_schema_change": "add_columns"})
        mart.run()

        assert mart.is_exact

    def test_a_key_that_the_query_lacks_is_named(self, mart: Mart) -> None:
        mart.define("full", target_key=["film_id"])

        run = mart.bench.run("films")

        assert (run["status"], run["error_code"]) == ("FAILED", "target_mismatch")
        assert "film_id" in run["error_message"]

    def test_a_full_load_needs_a_key_that_is_unique(self, mart: Mart) -> None:
        mart.define("full", QUERY.replace("id,", "(id + 1) / 2 AS id,", 1))

        run = mart.bench.run("films")

        assert (run["status"], run["error_code"]) == ("FAILED", "bad_key")
