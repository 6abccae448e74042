"""Rows that left the source, in files: a scan adds entries that delete exactly these; a full load may keep them."""

from typing import Any

import pytest

from tests.lake import readers
from tests.lake.conftest import Lake
from tests.lake.test_runs import FILM, add_films, films, full, incremental, succeed
from tests.support.workbench import Workbench


@pytest.fixture
def bench(lake_bench: Workbench) -> Workbench:
    lake_bench.source(FILM)
    add_films(lake_bench, 1, 30)
    return lake_bench


def test_a_scan_removes_exactly_what_left(bench: Workbench, lake: Lake) -> None:
    incremental(bench, deletes={"scan": "1h"}, cursor_clock="database")
    succeed(bench)
    assert bench.scan_deletes("films") == {"found": 0}
    bench.sql("DELETE FROM content.film WHERE id % 10 = 0; UPDATE content.film SET title = 'quiet' WHERE id = 1")
    found = bench.scan_deletes("films")
    assert (found["found"], found["deleted"], found["inserted"], found["updated"]) == (3, 3, 0, 0)
    assert readers.titles(lake.files("films")) == films(*(i for i in range(1, 31) if i % 10))
    assert bench.scan_deletes("films") == {"found": 0}
    # The next pass goes on, and a row that comes back is written again.
    rows = ", ".join(f"({number}, 'Film {number}', false, clock_timestamp())" for number in (10, 40))
    bench.sql(f"INSERT INTO content.film VALUES {rows}")
    succeed(bench)
    left = [i for i in range(1, 31) if i not in (20, 30)]
    assert readers.titles(lake.files("films")) == films(*left, 40)


def test_a_repair_removes_what_left_or_says_that_it_did(bench: Workbench, lake: Lake) -> None:
    incremental(bench)
    succeed(bench)
    bench.sql("DELETE FROM content.film WHERE id = 3; UPDATE content.film SET gone = true WHERE id = 4")
    bench.sql("UPDATE content.film SET title = 'Alien' WHERE id = 5")
    report = bench.reconcile("films", level="full", repair=True)
    assert (report["repair"]["deleted"], report["repair"]["remaining"]) == (2, 0)
    wanted = films(*(i for i in range(1, 31) if i not in (3, 4))) | {5: "Alien"}
    assert readers.titles(lake.files("films")) == wanted
    assert bench.reconcile("films", level="full")["equal"]


TYPED = """
CREATE TABLE content.typed (
    id uuid DEFAULT gen_random_uuid(), day date, moment timestamptz, amount numeric(10, 2), yes boolean, note text,
    changed timestamptz NOT NULL DEFAULT clock_timestamp() - interval '1 hour');
INSERT INTO content.typed SELECT gen_random_uuid(), '2026-01-01'::date + i, now() + i * interval '1.5 hour', i / 4.0,
    i % 2 = 0, 'note ' || i FROM generate_series(1, 20) i;
"""


@pytest.mark.parametrize("key", [["id"], ["day", "moment"], ["amount", "yes", "id"]])
def test_keys_of_every_type_are_found_again(bench: Workbench, lake: Lake, key: list[str]) -> None:
    bench.source(TYPED)
    full(
        bench,
        "SELECT * FROM content.typed",
        target_key=key,
        mode="incremental",
        incremental_key="changed",
        incremental_id_key="id",
        options={"deletes": {"scan": "1h"}, "files": {"partition_by": ["yes"]}},
    )
    succeed(bench)
    bench.sql("DELETE FROM content.typed WHERE amount < 2")
    assert bench.scan_deletes("films")["deleted"] == 7
    notes = {row["note"] for row in readers.latest(lake.files("films"), ", ".join(key), "note")}
    assert notes == {f"note {i}" for i in range(8, 21)}
    assert bench.reconcile("films", level="full")["equal"]


def test_a_full_load_keeps_what_left_when_asked(bench: Workbench, lake: Lake) -> None:
    options: dict[str, Any] = {"deletes": "none"}
    full(bench, options=options)
    succeed(bench)
    bench.sql("DELETE FROM content.film WHERE id <= 25; UPDATE content.film SET title = 'Alien' WHERE id = 30")
    done = succeed(bench)
    assert done["metrics"]["plan"]["deletes"] is False
    assert readers.titles(lake.files("films")) == films(*range(1, 30)) | {30: "Alien"}
    assert bench.reconcile("films", level="full")["equal"]
    bench.sql("TRUNCATE content.film")
    succeed(bench)
    assert len(readers.titles(lake.files("films"))) == 30
