"""Whole runs into files: full loads, incremental passes, types, partitions, reconcile; read by DuckDB."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.lake import readers
from tests.lake.conftest import Lake, settings_with
from tests.support.workbench import Workbench

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text, gone bool DEFAULT false, changed timestamptz)"
QUERY = "SELECT id, title FROM content.film"
CHANGES = "SELECT id, title, gone, changed FROM content.film"


def add_films(bench: Workbench, first: int, last: int) -> None:
    """Each was changed a second after the one before: a pass reads the last one before its checkpoint again."""
    changed = "now() - (1000 - i) * interval '1 second'"
    bench.sql(
        f"INSERT INTO content.film SELECT i, 'Film ' || i, false, {changed} FROM generate_series({first}, {last}) i"
    )


@pytest.fixture
def bench(lake_bench: Workbench) -> Workbench:
    lake_bench.source(FILM)
    add_films(lake_bench, 1, 30)
    return lake_bench


def full(bench: Workbench, query: str = QUERY, **fields: Any) -> None:
    options = {"target_connection": "lake"} | fields.pop("options", {})
    bench.pipeline(
        "films",
        query,
        **{"target_table": "files:films", "target_key": ["id"], "batch_size": 7} | fields,
        options=options,
    )


def incremental(bench: Workbench, query: str = CHANGES, **options: Any) -> None:
    cursor = {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "id"}
    full(bench, query, **cursor, options={"delete_when": "gone"} | options)


def succeed(bench: Workbench, name: str = "films") -> dict[str, Any]:
    done = bench.run(name)
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


def films(*numbers: int) -> dict[int, str]:
    return {i: f"Film {i}" for i in numbers}


# --- full loads ------------------------------------------------------------------------------------------------------


def test_a_full_load_replaces_what_was_there(bench: Workbench, lake: Lake) -> None:
    full(bench)
    done = succeed(bench)
    assert (done["rows_read"], done["rows_written"]) == (30, 30)
    assert readers.titles(lake.files("films")) == films(*range(1, 31))
    first = lake.manifest("films")
    assert (first["kind"], first["key"], first["rows"], first["previous"]) == ("snapshot", ["id"], 30, [])

    bench.sql("DELETE FROM content.film WHERE id > 20; UPDATE content.film SET title = 'Alien' WHERE id = 3")
    succeed(bench)
    assert readers.titles(lake.files("films")) == films(*range(1, 21)) | {3: "Alien"}
    second = lake.manifest("films")
    assert [one["generation"] for one in second["previous"]] == [first["generation"]]
    assert lake.stored("films") == lake.named("films")


def test_so_many_generations_are_kept_as_were_asked_for(bench: Workbench, lake: Lake) -> None:
    full(bench, options={"keep_generations": 2})
    shown = []
    for _ in range(4):
        succeed(bench)
        shown.append(lake.manifest("films")["generation"])
    assert [one["generation"] for one in lake.manifest("films")["previous"]] == [shown[2], shown[1]]
    assert lake.stored("films") == lake.named("films")


def test_a_load_that_would_empty_or_halve_the_target_is_refused(bench: Workbench, lake: Lake) -> None:
    full(bench)
    succeed(bench)
    bench.sql("DELETE FROM content.film WHERE id > 10")
    assert "publishing would leave 10 of 30 rows" in bench.run("films")["error_message"]
    bench.sql("DELETE FROM content.film")
    assert "set options.allow_empty" in bench.run("films")["error_message"]
    assert readers.titles(lake.files("films")) == films(*range(1, 31))

    bench.change("films", options={"target_connection": "lake", "allow_empty": True})
    succeed(bench)
    assert lake.manifest("films")["files"] == []


def test_several_rows_with_one_key_are_refused(bench: Workbench, lake: Lake) -> None:
    full(bench, "SELECT id % 29 AS id, title FROM content.film")
    assert "several rows have the key id = 1" in bench.run("films")["error_message"]
    assert lake.files("films") == []


def test_files_are_sorted_by_key_in_row_groups_of_a_size(bench: Workbench, lake: Lake) -> None:
    bench.sql("INSERT INTO content.film SELECT i, repeat('x', 200), false FROM generate_series(100, 20000) i")
    query = "SELECT id, reverse(id::text) AS code, title FROM content.film"
    full(bench, query, target_key=["code"], options={"files": {"file_mb": 1, "row_group_mb": 1}}, batch_size=1000)
    succeed(bench)
    files = lake.files("films")
    assert len(files) > 2
    for file in files:
        found = pq.ParquetFile(file)
        assert found.metadata.row_group(0).column(0).compression == "ZSTD"
        assert found.metadata.row_group(0).sorting_columns[0].column_index == 1
        codes = found.read(["code"]).column("code").to_pylist()
        assert codes == sorted(codes)
    assert len(readers.latest(files, "code")) == 19_931


# --- incremental passes ----------------------------------------------------------------------------------------------


def test_changes_and_deletes_are_entries_of_a_log(bench: Workbench, lake: Lake) -> None:
    incremental(bench)
    succeed(bench)
    assert readers.titles(lake.files("films")) == films(*range(1, 31))
    bench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE id > 25")
    add_films(bench, 31, 33)
    done = succeed(bench)
    assert (done["rows_written"], done["rows_deleted"]) == (4, 5)
    assert readers.titles(lake.files("films")) == films(*range(1, 26), 31, 32, 33) | {3: "Alien"}
    shown = lake.manifest("films")
    assert (shown["kind"], shown["rows"], shown["previous"]) == ("log", 39, [])

    bench.sql("UPDATE content.film SET gone = false, changed = clock_timestamp() WHERE id = 30")
    succeed(bench)
    assert readers.titles(lake.files("films"))[30] == "Film 30"
    assert lake.stored("films") == lake.named("films")


def test_a_log_that_was_deleted_is_written_again(bench: Workbench, lake: Lake) -> None:
    incremental(bench)
    succeed(bench)
    (lake.folder / "films" / "manifest.json").unlink()
    succeed(bench)
    assert readers.titles(lake.files("films")) == films(*range(1, 31))


def test_a_new_column_is_let_in_when_the_options_say_so(bench: Workbench, lake: Lake) -> None:
    incremental(bench)
    succeed(bench)
    more = "SELECT id, title, gone, changed, length(title) AS letters FROM content.film"
    bench.change("films", source_query=more)
    assert "column 'letters' is new" in bench.run("films")["error_message"]

    options = {"target_connection": "lake", "delete_when": "gone", "on_schema_change": "add_columns"}
    bench.change("films", options=options)
    bench.sql("UPDATE content.film SET changed = clock_timestamp() WHERE id = 3")
    succeed(bench)
    letters = {row["id"]: row["letters"] for row in readers.latest(lake.files("films"))}
    assert (letters[3], letters[4], len(letters)) == (6, None, 30)
    assert bench.reconcile("films", level="quick")["equal"]

    bench.change("films", source_query="SELECT id, title::varchar(9), gone, changed, 1 AS letters FROM content.film")
    assert "column 'title' is text there and character varying(9)" in bench.run("films")["error_message"]


def test_a_full_pipeline_becomes_an_incremental_one(bench: Workbench, lake: Lake) -> None:
    full(bench, "SELECT id, title, changed FROM content.film")
    succeed(bench)
    bench.change("films", mode="incremental", incremental_key="changed", incremental_id_key="id")
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    succeed(bench)
    assert readers.titles(lake.files("films")) == films(*range(1, 31)) | {3: "Alien"}


# --- partitions ------------------------------------------------------------------------------------------------------


def test_partitions_are_folders_as_hive_names_them(bench: Workbench, lake: Lake) -> None:
    country = "(ARRAY['PT', 'a/b %=ä', '', NULL])[id % 4 + 1]"
    query = f"SELECT id, title, {country} AS country, id % 2 = 0 AS even FROM content.film"
    full(bench, query, options={"files": {"partition_by": ["country", "even"]}})
    succeed(bench)
    files = lake.files("films")
    assert "/country=a%2Fb %25%3D%C3%A4/even=false/" in "".join(files)
    assert "/country=__HIVE_DEFAULT_PARTITION__/" in "".join(files)
    found = duckdb.sql(f"SELECT id, country, even FROM read_parquet({files}, hive_partitioning = true) ORDER BY id")
    expected = bench.sql(f"SELECT id, {country} AS country, id % 2 = 0 AS even FROM content.film ORDER BY id")
    # A folder has no type: DuckDB gives texts unless hive_types says otherwise.
    assert [(i, c or None, e == "true") for i, c, e in found.fetchall()] == [
        (row["id"], row["country"] or None, row["even"]) for row in expected
    ]
    assert bench.reconcile("films", level="full")["equal"]


def test_a_log_may_have_partitions(bench: Workbench, lake: Lake) -> None:
    query = "SELECT id, title, gone, changed, id % 3 AS third FROM content.film"
    incremental(bench, query, files={"partition_by": ["third"]})
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    succeed(bench)
    assert readers.titles(lake.files("films")) == films(*range(1, 31)) | {3: "Alien"}
    assert bench.reconcile("films", level="full")["equal"]


@pytest.mark.parametrize(
    ("column", "said"),
    [("nobody", "'nobody' is not in the query's result"), ("rating", "whose values cannot be names of folders")],
)
def test_what_cannot_be_a_folder_is_refused(bench: Workbench, column: str, said: str) -> None:
    full(bench, "SELECT id, 1.5::float8 AS rating FROM content.film", options={"files": {"partition_by": [column]}})
    assert said in bench.run("films")["error_message"]


# --- types -----------------------------------------------------------------------------------------------------------

TYPES = {
    "flag": ("boolean", "true"),
    "small": ("smallint", "'-32768'"),
    "large": ("bigint", "9223372036854775807"),
    "single": ("real", "1.5"),
    "rate": ("double precision", "'-Infinity'"),
    "amount": ("numeric(38,10)", "1234567890123456789012345678.0123456789"),
    "name": ("character varying(20)", "'Ünïcödé 🎬'"),
    "code": ("character(4)", "'ab'"),
    "raw": ("bytea", "'\\x00ff'"),
    "ident": ("uuid", "'6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111'"),
    "day": ("date", "'2024-02-29'"),
    "clock": ("time without time zone", "'23:59:59.999999'"),
    "local": ("timestamp without time zone", "'9999-12-31 23:59:59.999999'"),
    "moment": ("timestamp with time zone", "'2024-02-29 12:00:00.123456+03'"),
    "doc": ("jsonb", """'{"a": [1.10, null]}'"""),
    "tags": ("text[]", "'{a,NULL,\"\"}'"),
    "amounts": ("numeric(38,2)[]", "'{1.50,NULL}'"),
    "idents": ("uuid[]", "'{6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111}'"),
}


def test_types_arrive_exactly(bench: Workbench, lake: Lake) -> None:
    values = ", ".join(f"{value}::{kind} AS {name}" for name, (kind, value) in TYPES.items())
    nulls = ", ".join(f"NULL::{kind}" for kind, _ in TYPES.values())
    bench.source(f"CREATE TABLE content.typed AS SELECT 1 AS id, {values} UNION ALL SELECT 2, {nulls}")
    full(bench, "SELECT * FROM content.typed")
    succeed(bench)
    session = duckdb.connect()
    session.execute("SET TimeZone = 'UTC'")
    asked = ", ".join(f"{name}::text AS {name}" for name in TYPES if name != "raw")
    found = session.execute(f"SELECT {asked}, hex(raw) FROM read_parquet({lake.files('films')}) ORDER BY id")
    names = [column[0] for column in found.description or ()]
    row, empty = (dict(zip(names, values, strict=True)) for values in found.fetchall())
    assert set(empty.values()) == {None}
    assert row == {
        "flag": "true",
        "small": "-32768",
        "large": "9223372036854775807",
        "single": "1.5",
        "rate": "-inf",
        "amount": "1234567890123456789012345678.0123456789",
        "name": "Ünïcödé 🎬",
        "code": "ab",
        "ident": "6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111",
        "day": "2024-02-29",
        "clock": "23:59:59.999999",
        "local": "9999-12-31 23:59:59.999999",
        "moment": "2024-02-29 09:00:00.123456+00",
        "doc": '{"a": [1.10, null]}',
        "tags": "[a, NULL, '']",
        "amounts": "[1.50, NULL]",
        "idents": "[6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111]",
        "hex(raw)": "00FF",
    }
    kinds = session.execute(f"DESCRIBE SELECT ident, amount, moment, amounts FROM read_parquet({lake.files('films')})")
    assert [kind for _, kind, *_ in kinds.fetchall()] == [
        "UUID",
        "DECIMAL(38,10)",
        "TIMESTAMP WITH TIME ZONE",
        "DECIMAL(38,2)[]",
    ]
    assert bench.reconcile("films", level="full")["equal"]


@pytest.mark.parametrize("kind", ["numeric", "numeric(39,1)", "interval", "inet", "int4range", "time[]", "numeric[]"])
def test_what_parquet_cannot_hold_is_refused_by_name_or_written_as_text(
    workbench: Workbench, tmp_path: Path, kind: str
) -> None:
    workbench.settings = settings_with(workbench.settings, f"file://{tmp_path}")
    value = {"interval": "1 mon", "inet": "10.0.0.1", "int4range": "[1,5)", "time[]": "{10:00}", "numeric[]": "{1.50}"}
    workbench.source(f"CREATE TABLE content.odd AS SELECT 1 AS id, '{value.get(kind, '1.5')}'::{kind} AS odd")
    full(workbench, "SELECT id, odd FROM content.odd")
    assert "column 'odd' is of type" in workbench.run("films")["error_message"]
    workbench.change("films", options={"target_connection": "lake", "files": {"other_types": "string"}})
    succeed(workbench)
    [row] = readers.latest(Lake("", tmp_path).files("films"))
    [expected] = workbench.sql("SELECT odd::text FROM content.odd")
    text = {"time[]": '["10:00:00"]', "numeric[]": '["1.50"]'}.get(kind, expected["odd"])
    assert row == {"id": 1, "odd": text}


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("text", "'ä' || id"),
        ("uuid", "md5(id::text)::uuid"),
        ("numeric(10,2)", "id / 4.0"),
        ("timestamptz", "'2024-01-01'::timestamptz + id * interval '1 microsecond'"),
        ("date", "'2024-01-01'::date + id"),
        ("bytea", "sha256(id::text::bytea)"),
    ],
)
def test_keys_may_be_of_many_types(workbench: Workbench, tmp_path: Path, kind: str, first: str) -> None:
    workbench.settings = settings_with(workbench.settings, f"file://{tmp_path}")
    workbench.source(FILM)
    add_films(workbench, 1, 30)
    query = f"SELECT ({first})::{kind} AS a, id AS b, title, changed FROM content.film"
    cursor = {"mode": "incremental", "incremental_key": "changed", "incremental_id_key": "b"}
    full(workbench, query, target_key=["a", "b"], **cursor)
    succeed(workbench)
    workbench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    succeed(workbench)
    found = {row["b"]: row["title"] for row in readers.latest(Lake("", tmp_path).files("films"), "a, b")}
    assert found == films(*range(1, 31)) | {3: "Alien"}
    assert workbench.reconcile("films", level="full")["equal"]


# --- reconcile -------------------------------------------------------------------------------------------------------


def test_reconcile_finds_what_differs(bench: Workbench, lake: Lake) -> None:
    full(bench)
    succeed(bench)
    assert bench.reconcile("films", level="full")["equal"]
    bench.sql("UPDATE content.film SET title = 'Alien' WHERE id = 3; DELETE FROM content.film WHERE id = 4")
    add_films(bench, 31, 31)
    report = bench.reconcile("films", level="full")
    assert (report["equal"], report["missing"], report["differing"], report["extra"]) == (False, 1, 1, 1)


def test_reconcile_compares_the_latest_of_a_log(bench: Workbench, lake: Lake) -> None:
    incremental(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'Alien', changed = clock_timestamp() WHERE id = 3")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE id > 25")
    succeed(bench)
    report = bench.reconcile("films", level="full")
    assert (report["equal"], report["source"]["rows"], report["target"]["rows"]) == (True, 25, 25)
    bench.sql("UPDATE content.film SET gone = true WHERE id = 5")
    bench.sql("INSERT INTO content.film VALUES (99, 'of long ago', false, '2000-01-01')")
    report = bench.reconcile("films", level="full")
    assert (report["equal"], report["missing"], report["extra"]) == (False, 1, 1)


def test_two_connections_to_one_place_are_found_out(workbench: Workbench, tmp_path: Path) -> None:
    settings = settings_with(workbench.settings, f"file://{tmp_path}")
    (tmp_path / "inner").mkdir()
    other = {"other": settings_with(settings, f"file://{tmp_path}/inner/..").connections["lake"]}
    workbench.settings = settings.model_copy(update={"connections": settings.connections | other})
    workbench.source(FILM)
    full(workbench)
    succeed(workbench)
    workbench.pipeline(
        "rival", QUERY, target_table="files:films", target_key=["id"], options={"target_connection": "other"}
    )
    assert "is already written by pipeline films" in workbench.run("rival")["error_message"]
