"""Whole runs into Iceberg tables: full loads, incremental passes, columns, types, reconcile, deletes."""

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import test_runs as of_files
from tests.lake.iceberg.conftest import settings_with
from tests.lake.iceberg.tables import Tables
from tests.lake.test_runs import CHANGES, FILM, QUERY, TYPES, add_films, films, succeed
from tests.support.workbench import Workbench
from vitrina.connectors.iceberg import connector, maintenance
from vitrina.settings import Settings

TABLE = "iceberg:marts.films"


@pytest.fixture
def bench(ice_bench: Workbench) -> Workbench:
    ice_bench.source(FILM)
    add_films(ice_bench, 1, 30)
    return ice_bench


@pytest.fixture
def folder_bench(workbench: Workbench, folder_tables: Tables) -> Workbench:
    """The bench on a folder: for what does not depend on the kind of warehouse."""
    workbench.settings = settings_with(workbench.settings, folder_tables.url)
    workbench.source(FILM)
    add_films(workbench, 1, 30)
    return workbench


def full(bench: Workbench, query: str = QUERY, **fields: Any) -> None:
    of_files.full(bench, query, **{"target_table": TABLE} | fields)


def incremental(bench: Workbench, query: str = CHANGES, **options: Any) -> None:
    cursor = {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "id"}
    full(bench, query, **cursor, options={"delete_when": "gone"} | options)


def test_a_full_load_is_one_snapshot_with_its_checkpoint(bench: Workbench, tables: Tables) -> None:
    full(bench)
    done = succeed(bench)
    assert (done["rows_read"], done["rows_written"]) == (30, 30)
    assert tables.titles() == films(*range(1, 31))
    # The first claim made one without rows.
    made, first = tables.snapshots()
    assert (made.summary["total-records"], first.summary["total-records"]) == ("0", "30")
    checkpoint = json.loads(first.summary["vitrina.checkpoint"])
    assert (checkpoint["rows"], checkpoint["stage"]) == (30, first.summary["vitrina.load"])

    bench.sql("DELETE FROM content.film WHERE id > 20; UPDATE content.film SET title = 'Alien' WHERE id = 3")
    succeed(bench)
    assert tables.titles() == films(*range(1, 21)) | {3: "Alien"}
    *_, last = tables.snapshots()
    assert (last.parent_snapshot_id, last.summary.operation.value) == (first.snapshot_id, "overwrite")
    assert (last.summary["deleted-records"], last.summary["total-records"]) == ("30", "20")
    # What was replaced can still be read.
    assert tables.loaded().scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 30
    assert tables.stored() == tables.named()
    assert bench.reconcile("films", level="full")["equal"]


def test_changes_and_deletes_are_entries_of_a_log(bench: Workbench, tables: Tables) -> None:
    incremental(bench)
    succeed(bench)
    assert tables.titles() == films(*range(1, 31))
    assert len(tables.snapshots()) == 2
    bench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE id > 25")
    add_films(bench, 31, 33)
    succeed(bench)
    assert tables.titles() == films(*range(1, 26), 31, 32, 33) | {3: "Alien"}
    *_, last = tables.snapshots()
    assert len(tables.snapshots()) == 3, "a pass is one snapshot"
    assert last.summary.operation.value == "append"
    report = bench.reconcile("films", level="full")
    assert (report["equal"], report["source"]["rows"], report["target"]["rows"]) == (True, 28, 28)
    succeed(bench)
    bench.sql("UPDATE content.film SET gone = true WHERE id = 5")
    report = bench.reconcile("films", level="full")
    assert (report["equal"], report["extra"]) == (False, 1)


def test_a_pass_without_changes_makes_no_snapshot(folder_bench: Workbench, folder_tables: Tables) -> None:
    incremental(folder_bench, cursor_clock="database")
    succeed(folder_bench)
    before = [one.snapshot_id for one in folder_tables.snapshots()]
    succeed(folder_bench)
    added = [one for one in folder_tables.snapshots() if one.snapshot_id not in before]
    assert all(one.summary["added-records"] == "1" for one in added), (
        "it reads the last row before its checkpoint again"
    )


def test_columns_come_and_go(folder_bench: Workbench, folder_tables: Tables) -> None:
    bench, tables = folder_bench, folder_tables
    incremental(bench)
    succeed(bench)
    more = "SELECT id, title, gone, changed, ARRAY[length(title)] AS letters FROM content.film"
    bench.change("films", source_query=more)
    assert "column 'letters' is new" in bench.run("films")["error_message"]
    options = {"target_connection": "lake", "delete_when": "gone", "on_schema_change": "add_columns"}
    bench.change("films", options=options)
    bench.sql("UPDATE content.film SET changed = clock_timestamp() WHERE id = 3")
    succeed(bench)
    letters = {row["id"]: row["letters"] for row in tables.latest()}
    assert (letters[3], letters[4], len(letters)) == ([6], None, 30)
    known = {field.name: field.field_id for field in tables.loaded().schema().fields}

    # A full load may change types: the column gets another id, and old snapshots are read with the old one.
    bench.change("films", mode="full", source_query="SELECT id, id AS title, 1 AS letters FROM content.film")
    bench.change("films", options={"target_connection": "lake"})
    succeed(bench)
    fields = {field.name: field for field in tables.loaded().schema().fields}
    assert list(fields) == ["id", "title", "letters", "_version", "_deleted"]
    assert (fields["id"].field_id, str(fields["title"].field_type)) == (known["id"], "int")
    assert fields["title"].field_id not in known.values()
    assert {row["title"] for row in tables.latest()} == set(range(1, 31))
    older = tables.snapshots()[-2].snapshot_id
    assert "Film 7" in tables.loaded().scan(snapshot_id=older).to_arrow().column("title").to_pylist()


def test_types_arrive_exactly(folder_bench: Workbench, folder_tables: Tables) -> None:
    bench, tables = folder_bench, folder_tables
    values = ", ".join(f"{value}::{kind} AS {name}" for name, (kind, value) in TYPES.items())
    nulls = ", ".join(f"NULL::{kind}" for kind, _ in TYPES.values())
    bench.source(f"CREATE TABLE content.typed AS SELECT 1 AS id, {values} UNION ALL SELECT 2, {nulls}")
    full(bench, "SELECT * FROM content.typed")
    succeed(bench)
    kinds = {field.name: str(field.field_type) for field in tables.loaded().schema().fields}
    assert (kinds["small"], kinds["ident"], kinds["amount"]) == ("int", "uuid", "decimal(38, 10)")
    assert (kinds["moment"], kinds["doc"], kinds["idents"]) == ("timestamptz", "string", "list<uuid>")
    row, empty = sorted(tables.entries().to_pylist(), key=lambda one: one["id"])
    assert {empty[name] for name in TYPES} == {None}
    assert (row["small"], row["rate"], str(row["amount"])) == (
        -32768,
        float("-inf"),
        "1234567890123456789012345678.0123456789",
    )
    assert (row["raw"], str(row["ident"])) == (b"\x00\xff", "6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111")
    assert row["moment"].isoformat() == "2024-02-29T09:00:00.123456+00:00"
    assert (row["clock"].isoformat(), row["local"].isoformat()) == ("23:59:59.999999", "9999-12-31T23:59:59.999999")
    assert (row["doc"], row["tags"]) == ('{"a": [1.10, null]}', ["a", None, ""])
    assert [str(one) for one in row["amounts"]] == ["1.50", "None"]
    assert bench.reconcile("films", level="full")["equal"]


def test_what_iceberg_cannot_hold_is_refused_by_name_or_written_as_text(
    folder_bench: Workbench, folder_tables: Tables
) -> None:
    full(folder_bench, "SELECT id, interval '1 month' AS odd FROM content.film")
    said = folder_bench.run("films")["error_message"]
    assert "column 'odd' is of type interval, which Iceberg has no exact type for" in said
    assert "options.iceberg.other_types" in said
    folder_bench.change("films", options={"target_connection": "lake", "iceberg": {"other_types": "string"}})
    succeed(folder_bench)
    assert {row["odd"] for row in folder_tables.latest()} == {"1 mon"}


def test_guards_and_repeats(folder_bench: Workbench, folder_tables: Tables) -> None:
    full(folder_bench)
    succeed(folder_bench)
    folder_bench.sql("DELETE FROM content.film WHERE id > 10")
    assert "publishing would leave 10 of 30 rows in iceberg:" in folder_bench.run("films")["error_message"]
    folder_bench.sql("DELETE FROM content.film")
    assert "set options.allow_empty" in folder_bench.run("films")["error_message"]
    assert len(folder_tables.titles()) == 30
    folder_bench.change("films", options={"target_connection": "lake", "allow_empty": True})
    succeed(folder_bench)
    assert folder_tables.entries().num_rows == 0
    add_films(folder_bench, 1, 30)
    folder_bench.change("films", source_query="SELECT id % 29 AS id, title FROM content.film")
    assert "several rows have the key id = 1" in folder_bench.run("films")["error_message"]


def test_a_scan_removes_exactly_what_left(folder_bench: Workbench, folder_tables: Tables) -> None:
    incremental(folder_bench, deletes={"scan": "1h"}, cursor_clock="database")
    succeed(folder_bench)
    folder_bench.sql("DELETE FROM content.film WHERE id % 10 = 0")
    found = folder_bench.scan_deletes("films")
    assert (found["found"], found["deleted"]) == (3, 3)
    assert folder_tables.titles() == films(*(i for i in range(1, 31) if i % 10))


def test_a_table_of_somebody_else_is_left_alone(folder_bench: Workbench, folder_tables: Tables) -> None:
    catalog = folder_tables.catalog()
    catalog.create_namespace("marts")
    place = f"file://{folder_tables.folder}/marts/films"
    catalog.create_table("marts.films", pa.schema([pa.field("id", pa.int64())]), location=place)
    catalog.engine.dispose()
    full(folder_bench)
    assert "iceberg:marts.films exists, and Vitrina did not make it" in folder_bench.run("films")["error_message"]


def test_a_table_that_was_dropped_is_written_again(folder_bench: Workbench, folder_tables: Tables) -> None:
    incremental(folder_bench)
    succeed(folder_bench)
    catalog = folder_tables.catalog()
    catalog.drop_table("marts.films")
    catalog.engine.dispose()
    succeed(folder_bench)
    assert folder_tables.titles() == films(*range(1, 31))


def test_snapshots_are_expired_and_their_files_removed(
    folder_bench: Workbench, folder_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_DAY_MS", 0)
    full(folder_bench, options={"iceberg": {"expire_days": 1, "keep_snapshots": 2, "orphan_days": 0}})
    for _ in range(4):
        succeed(folder_bench)
    assert len(folder_tables.snapshots()) <= 4
    assert folder_tables.titles() == films(*range(1, 31))
    assert folder_tables.stored() == folder_tables.named()


def test_doctor_says_what_answers_and_shows_no_secret(folder_tables: Tables, database: Settings) -> None:
    assert connector.check
    found = list(connector.check(folder_tables.url, database))
    assert [one.status for one in found] == ["OK", "OK"]
    silent = "iceberg+postgresql://someone:hush-hush@127.0.0.1:1/none?warehouse=file:///tmp"
    [one] = connector.check(silent, database)
    assert (one.status, "hush-hush" in one.finding) == ("PROBLEM", False)
    refused = folder_tables.url.replace("postgresql://", "postgresql://nobody_known:hush-hush@", 1)
    refused = "@".join((refused.split("@")[0], refused.rpartition("@")[2]))
    [one] = connector.check(refused, database)
    assert (one.status, "hush-hush" in one.finding) == ("PROBLEM", False)
