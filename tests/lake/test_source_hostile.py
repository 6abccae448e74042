"""Queries that want more than the files of their connection: refused by name, and out of reach anyway."""

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.waiting import until
from vitrina.connectors.files import urls
from vitrina.connectors.files.reading import engine, listing, query
from vitrina.connectors.files.reading.engine import Engine
from vitrina.connectors.files.reading.listing import FolderFiles
from vitrina.connectors.files.reading.process import Limits
from vitrina.connectors.files.reading.source import Asked, FilesSource
from vitrina.errors import FatalError, SourceQueryFailed, VitrinaError
from vitrina.ports.source import Window
from vitrina.transforms import wire
from vitrina.transforms.wire import Message

ROWS = "id,title\n1,Alien\n2,Brazil\n3,Casablanca\n"
# Refused when the tree of the query is judged: no file is listed, none is opened.
REFUSED = {
    # Other statements than a SELECT.
    "COPY (SELECT 1) TO 'out.csv'": "one SELECT",
    "COPY (FROM 'a.csv') TO 'a.csv' (USE_TMP_FILE false)": "one SELECT",
    "ATTACH 'other.db'": "one SELECT",
    "INSTALL httpfs": "one SELECT",
    "LOAD httpfs": "one SELECT",
    "LOAD '/tmp/evil.duckdb_extension'": "one SELECT",
    "PRAGMA database_list": "not allowed|one SELECT",
    "SET enable_external_access = true": "one SELECT",
    "RESET memory_limit": "one SELECT",
    "SET VARIABLE x = 1": "one SELECT",
    "CREATE TABLE t AS FROM 'a.csv'": "one SELECT",
    "CREATE SECRET (TYPE s3)": "one SELECT",
    "EXPORT DATABASE 'out'": "one SELECT",
    "IMPORT DATABASE 'out'": "one SELECT",
    "CALL pragma_version()": "not allowed|one SELECT",
    "INSERT INTO t VALUES (1)": "one SELECT",
    "DELETE FROM 'a.csv'": "one SELECT",
    "CHECKPOINT": "one SELECT",
    "VACUUM": "one SELECT",
    "EXPLAIN ANALYZE FROM 'a.csv'": "one SELECT",
    "PREPARE p AS FROM 'a.csv'": "one SELECT",
    "BEGIN": "one SELECT",
    "USE memory": "one SELECT",
    "PIVOT 'a.csv' ON title": "one SELECT|not allowed",
    "FROM 'a.csv'; FROM 'a.csv'": "several statements",
    "SELECT * FROM 'a.csv'; COPY (SELECT 1) TO 'x'": "one SELECT|several",
    "": "several statements|no file|parsed",
    "SELECT FROM WHERE": "cannot be parsed",
    "SELECT ?, * FROM 'a.csv'": "parameter|not allowed",
    "SELECT $1, * FROM 'a.csv'": "parameter|not allowed",
    # Functions that read what is no table.
    "SELECT * FROM read_text('a.csv')": "read_text",
    "SELECT * FROM read_blob('a.csv')": "read_blob",
    "SELECT * FROM read_duckdb('a.db')": "read_duckdb",
    "SELECT * FROM glob('*')": "glob",
    "SELECT * FROM sniff_csv('a.csv')": "sniff_csv",
    "SELECT * FROM parquet_metadata('a.parquet')": "parquet_metadata",
    "SELECT * FROM parquet_kv_metadata('a.parquet')": "parquet_kv_metadata",
    "SELECT * FROM query('SELECT 42')": "query",
    "SELECT * FROM query_table('a.csv')": "query_table",
    "SELECT * FROM json_execute_serialized_sql('{}')": "json_execute_serialized_sql",
    "SELECT * FROM duckdb_settings()": "duckdb_settings",
    "SELECT * FROM duckdb_secrets()": "duckdb_secrets",
    "SELECT * FROM pragma_version()": "pragma_version",
    "SELECT * FROM enable_logging()": "enable_logging",
    "SELECT * FROM which_secret('s3://x', 's3')": "which_secret",
    "SELECT * FROM arrow_scan(1, 2, 3)": "arrow_scan",
    "SELECT * FROM range(10)": "range",
    "SELECT * FROM generate_series(1, 1000000000000)": "generate_series",
    "SELECT * FROM repeat('x', 1000000000000)": "repeat",
    "SELECT * FROM (FROM read_text('a.csv')) t, 'a.csv'": "read_text",
    "SELECT (SELECT content FROM read_text('a.csv')) FROM 'a.csv'": "read_text",
    "SELECT * FROM 'a.csv' WHERE EXISTS (FROM glob('*'))": "glob",
    "WITH t AS (FROM glob('*')) SELECT * FROM t, 'a.csv'": "glob",
    "SELECT * FROM 'a.csv' UNION ALL SELECT 1, content FROM read_text('a.csv')": "read_text",
    "SELECT list(x ORDER BY (SELECT count(*) FROM glob('*'))) FROM 'a.csv' t(x)": "glob",
    "SELECT * FROM 'a.csv' QUALIFY row_number() OVER (ORDER BY (FROM glob('*'))) = 1": "glob",
    "SELECT * FROM 'a.csv' LIMIT (SELECT count(*) FROM glob('*'))": "glob",
    "SELECT * FROM read_csv('a.csv', delim = (SELECT content FROM read_text('a.csv')))": "read_text",
    "SELECT * FROM main.read_csv('a.csv')": "not allowed",
    "SELECT * FROM system.main.read_csv('a.csv')": "not allowed",
    "SELECT * FROM (DESCRIBE 'a.csv')": "SHOW_REF",
    "SELECT * FROM (SUMMARIZE 'a.csv')": "SHOW_REF",
    "SELECT * FROM (SHOW TABLES)": "SHOW_REF",
    "SHOW TABLES": "not allowed|one SELECT",
    "DESCRIBE 'a.csv'": "SHOW_REF",
    # Functions that tell of the program, change it or wait.
    "SELECT getenv('PATH') FROM 'a.csv'": "getenv",
    "SELECT current_setting('temp_directory') FROM 'a.csv'": "current_setting",
    "SELECT getvariable('x') FROM 'a.csv'": "getvariable",
    "SELECT sleep_ms(1000000) FROM 'a.csv'": "sleep_ms",
    "SELECT pg_sleep(1000) FROM 'a.csv'": "pg_sleep",
    "SELECT write_log('x') FROM 'a.csv'": "write_log",
    "SELECT nextval('s') FROM 'a.csv'": "nextval",
    "SELECT setseed(0.5) FROM 'a.csv'": "setseed",
    "SELECT current_query() FROM 'a.csv'": "current_query",
    "SELECT json_serialize_sql('SELECT 1') FROM 'a.csv'": "json_serialize_sql",
    "SELECT read_text('a.csv') FROM 'a.csv'": "read_text",
    "SELECT main.upper(title) FROM 'a.csv'": "without a schema",
    "SELECT pg_catalog.pg_get_viewdef(1) FROM 'a.csv'": "without a schema",
    "SELECT no_such_function(1) FROM 'a.csv'": "no_such_function",
    "SELECT upper(title).getenv() FROM 'a.csv'": "getenv",
    "SELECT list_transform([1], lambda x: getenv('PATH')) FROM 'a.csv'": "getenv",
    "SELECT * FROM 'a.csv' ORDER BY current_setting('threads')": "current_setting",
    # Parameters of readers that name other places, or keep what is wrong elsewhere.
    "SELECT * FROM read_csv('a.csv', store_rejects = true)": "store_rejects",
    "SELECT * FROM read_parquet('a.parquet', encryption_config = {footer_key: 'k'})": "encryption_config",
    "SELECT * FROM read_csv(getenv('HOME'))": "as a text",
    "SELECT * FROM read_csv('a' || '.csv')": "as a text",
    "SELECT * FROM read_csv((SELECT 'a.csv'))": "as a text",
    "SELECT * FROM read_csv()": "lacks the names",
    # Tables that are no files.
    "SELECT * FROM information_schema.tables": "is no file",
    "SELECT * FROM pg_catalog.pg_tables": "is no file",
    "SELECT * FROM duckdb_tables": "is no file",
    "SELECT * FROM sqlite_master": "is no file",
    "SELECT * FROM rows": "is no file",
    "SELECT * FROM \"a\".\"csv\"": "is no file",
    "SELECT * FROM '/etc/passwd'": "is no file",
    "SELECT 1": "reads no file",
    "SELECT * FROM (VALUES (1)) t": "reads no file",
    "WITH \"a.csv\" AS (SELECT 1) SELECT * FROM \"a.csv\"": "letters, digits and _",
    # Nested beyond reason.
    f"SELECT {'(' * 3000}1{')' * 3000} FROM 'a.csv'": "nested|parsed|depth",
}  # fmt: skip
# Refused when files are listed.
PATHS = {
    "/etc/hosts.csv": "is no path below",
    "../outside/secret.csv": "is no path below",
    "in/../../outside/secret.csv": "is no path below",
    "./a.csv": "is no path below",
    "in//a.csv": "is no path below",
    "~/a.csv": "is no path below",
    "in\\..\\a.csv": "is no path below",
    "http://127.0.0.1:1/a.csv": "is an address",
    "https://example.com/a.parquet": "is an address",
    "s3://bucket/a.parquet": "is an address",
    "file:///etc/a.csv": "is an address",
    "hf://datasets/a.csv": "is an address",
    "link.csv": "leads out of the connection's folder",
    "linked/secret.csv": "leads out of the connection's folder",
    "**/link.csv": "leads out of the connection's folder",
}
# Not there, for who lists files.
UNSEEN = ["*/secret.csv", "pipe.csv", "in", "none/*.csv", ".hidden.csv", "**/.*"]
# What the sandbox alone holds back, if a query came past the judge.
SANDBOX = [
    "FROM read_text('{outside}/secret.csv')",
    "FROM read_blob('/etc/passwd')",
    "FROM read_csv('{outside}/secret.csv')",
    "FROM 'in/b.csv'",
    "FROM 'link.csv'",
    "FROM '*.csv'",
    "FROM glob('*')",
    "FROM glob('/etc/*')",
    "FROM read_csv('http://127.0.0.1:1/a.csv')",
    "FROM 's3://bucket/a.parquet'",
    "COPY (SELECT 1) TO 'out.csv'",
    "COPY (SELECT 1) TO '{outside}/out.csv'",
    "ATTACH 'other.db'",
    "ATTACH '{outside}/other.db'",
    "INSTALL httpfs",
    "INSTALL httpfs FROM '{outside}'",
    "LOAD httpfs",
    "LOAD '{outside}/evil.duckdb_extension'",
    "EXPORT DATABASE 'out'",
    "CREATE PERSISTENT SECRET (TYPE s3)",
    "SET enable_external_access = true",
    "SET allowed_paths = ['/etc/passwd']",
    "SET allowed_directories = ['/']",
    "SET lock_configuration = false",
    "SET memory_limit = '100GB'",
    "SET threads = 64",
    "RESET memory_limit",
    "SET temp_directory = '/tmp'",
    "SET autoinstall_known_extensions = true",
    "SET python_enable_replacements = true",
    "PRAGMA enable_profiling",
    "SELECT getenv('PATH')",
    "FROM ROWS",
    "FROM SANDBOX",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files, and ways out of it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "in").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.csv").write_text("password\nhunter2\n")
    (root / "a.csv").write_text(ROWS)
    (root / "in" / "b.csv").write_text(ROWS)
    (root / ".hidden.csv").write_text(ROWS)
    (root / "link.csv").symlink_to(outside / "secret.csv")
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe.csv")
    return root


@pytest.fixture
def sources(folder: Path) -> Iterator[Any]:
    opened: list[FilesSource] = []

    def open_source(query: str, *, timeout: float = 60.0, memory_mb: int = 1024, **fields: Any) -> FilesSource:
        asked = Asked(query, Limits(timeout, memory_mb, threads=2, spill_mb=50), **fields)
        opened.append(FilesSource(urls.parse(f"file://{folder}"), asked))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


def limits(folder: Path) -> engine.Limits:
    return engine.Limits(memory_mb=512, threads=1, spill_mb=10, spill=str(folder.parent / "spill"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """What all queries are judged with."""
    return Engine("SELECT 1", limits(tmp_path_factory.mktemp("judge")))


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_plain_reading_is_refused(judge: Engine, text: str) -> None:
    with pytest.raises(SourceQueryFailed, match=REFUSED[text]):
        query.check(judge._parse(text), judge._functions)


@pytest.mark.parametrize("path", PATHS)
def test_paths_lead_nowhere_else(folder: Path, path: str) -> None:
    with pytest.raises(SourceQueryFailed, match=PATHS[path]):
        listing.find(FolderFiles(folder), path)


@pytest.mark.parametrize("path", UNSEEN)
def test_some_files_are_not_seen(folder: Path, path: str) -> None:
    assert listing.find(FolderFiles(folder), path) == []
    assert [file.name for file in listing.find(FolderFiles(folder), "i?/[ab]*")] == ["in/b.csv"]


def test_a_query_says_which_path_leads_out(sources: Any) -> None:
    for path, said in (("link.csv", "link.csv is a link that leads out"), ("none/*.csv", "matches 'none/")):
        with pytest.raises(SourceQueryFailed, match=said):
            sources(f"SELECT * FROM read_csv(['a.csv', '{path}'])").describe(Window())


@pytest.mark.parametrize("statement", SANDBOX)
def test_the_sandbox_holds_what_the_judge_would_let_through(
    folder: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Engine("SELECT 1", limits(folder))._session(["a.csv"]) as session:
        assert len(session.execute("FROM 'a.csv'").fetchall()) == 3
        before = sorted(folder.parent.rglob("*"))
        with pytest.raises(duckdb.Error):
            session.execute(statement.format(outside=folder.parent / "outside")).fetchall()
        assert sorted(folder.parent.rglob("*")) == before


def test_every_function_of_duckdb_is_judged(judge: Engine) -> None:
    """A function that a later version adds is let through only if it is one of values alone."""
    names = judge._functions.names
    assert {"upper", "sum", "regexp_replace", "row_number", "split_part", "list_sum"} <= names
    known = judge._parser.execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'table'")
    for [name] in known.fetchall():
        if name in ("unnest", "json_each", "json_tree") or name in query.READERS:
            continue
        with pytest.raises(SourceQueryFailed, match="not allowed"):
            query.check(judge._parse(f"SELECT * FROM {name}('a.csv'), 'a.csv'"), judge._functions)


def test_an_endless_query_is_ended(sources: Any) -> None:
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) AS n FROM t, 'a.csv'"
    source = sources(endless, timeout=5.0)
    source.describe(Window())
    with pytest.raises(SourceQueryFailed, match=r"step_timeout_seconds \(5 s\)"):
        list(source.read(Window(), "natural"))


def test_a_query_that_is_closed_ends_at_once(sources: Any) -> None:
    product = "SELECT count(*) AS n FROM 'a.csv' a, (SELECT unnest(range(100000)) FROM 'a.csv') b, 'a.csv' c, 'a.csv' d"
    source = sources(product + ", (SELECT unnest(range(100000)) FROM 'a.csv') e")
    source.describe(Window())
    worker = source._reader
    threading.Timer(1.0, source.close).start()
    began = time.monotonic()
    with pytest.raises(VitrinaError, match="ended with its run"):
        list(source.read(Window(), "natural"))
    assert time.monotonic() - began < 30
    assert worker._process.wait(10) == -9


@pytest.mark.parametrize(
    "query",
    [
        "SELECT list(repeat(title, 100000)) AS l FROM 'a.csv', (SELECT unnest(range(100000)) FROM 'a.csv')",
        "SELECT repeat(title, 2000000000) AS l FROM 'a.csv'",
        "SELECT a.n FROM (SELECT unnest(range(3000000)) n FROM 'a.csv') a ORDER BY hash(n), repeat('x', 1000)",
    ],
)
def test_a_query_without_measure_is_ended(sources: Any, query: str) -> None:
    source = sources(query, memory_mb=400)
    with pytest.raises((FatalError, SourceQueryFailed), match=r"step_memory_mb|[Mm]emory|size|too large|temp"):
        sum(batch.take().num_rows for batch in source.read(Window(), "natural"))


def test_nothing_secret_is_in_the_process(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINA_CONN_LAKE", "s3://bucket?secret_access_key=hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    source = sources("SELECT * FROM 'a.csv'")
    source.describe(Window())
    environment = Path(f"/proc/{source._reader._process.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"hunter2" not in environment
    assert b"VITRINA" not in environment


def test_a_source_leaves_nothing_on_disk(sources: Any) -> None:
    source = sources("SELECT * FROM 'a.csv'")
    source.describe(Window())
    place = source._private.path
    assert place.is_dir()
    assert place.stat().st_mode & 0o777 == 0o700
    source.close()
    assert not place.exists()


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["file:/{outside}/secret.csv", "~/secret.csv", "~root/secret.csv"])
def test_names_that_duckdb_takes_for_other_places_are_refused(sources: Any, folder: Path, name: str) -> None:
    """Who may write to a bucket must not choose which files of the runner are read."""
    path = folder / name.format(outside=folder.parent / "outside")
    path.parent.mkdir(parents=True)
    path.write_text("password\nharmless\n")
    (folder / "link.csv").unlink()
    with pytest.raises(SourceQueryFailed, match="reads as a path outside of the connection's folder: rename it"):
        sources("SELECT * FROM '**/secret.csv'").describe(Window())


@pytest.mark.parametrize(
    "name",
    ["q'u\"o.csv", "new\nline.csv", " a .csv", "a;b,{c}.csv", "$HOME %41.csv", "a\\b.csv", "-x.csv", "http:.csv"],
)
def test_odd_names_are_names(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "in" / name).write_text("id\n7\n")
    files = [[file.name] for file in listing.find(FolderFiles(folder), "in/*.csv") if file.name != "in/b.csv"]
    reader = Engine("SELECT * FROM 'in/*.csv'", limits(folder))
    given = reader.given_types(files)
    assert [batch.to_pylist() for batch in reader.batches(files, given, None, 10, 0)] == [[{"id": 7}]]


def test_a_name_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"in/\xff.csv")).write_text("id\n7\n")
    with pytest.raises(SourceQueryFailed, match=r"'in/\\udcff\.csv' is a name that is no UTF-8"):
        listing.find(FolderFiles(folder), "in/*.csv")


def test_a_link_to_itself_is_named(folder: Path) -> None:
    (folder / "in" / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(SourceQueryFailed, match=r"in/loop\.csv cannot be read"):
        listing.find(FolderFiles(folder), "in/loop.csv")


def test_a_pattern_takes_no_longer_with_more_stars(folder: Path) -> None:
    pattern = listing.Pattern("/".join(["**", "a"] * 30) + "/x.csv")
    assert not pattern.matches("/".join(["a"] * 60) + "/y.csv")
    assert pattern.matches("/".join(["a"] * 60) + "/x.csv")


def test_only_folders_that_may_hold_files_are_entered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "in" / "deep" / "er").mkdir(parents=True)
    (folder / "in" / "deep" / "er" / "c.csv").write_text(ROWS)
    entered: list[str] = []
    scandir = os.scandir

    def enter(path: Any) -> Any:
        entered.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", enter)
    assert [file.name for file in listing.find(FolderFiles(folder), "in/*.csv")] == ["in/b.csv"]
    assert entered == [str(folder / "in")]
    assert [file.name for file in listing.find(FolderFiles(folder), "in/**/c.csv")] == ["in/deep/er/c.csv"]


# --- contents --------------------------------------------------------------------------------------------------------


def rows_of(folder: Path, query: str, content: bytes | pa.Table) -> list[dict[str, Any]]:
    """Write x.csv or x.parquet, and read it here."""
    if isinstance(content, bytes):
        (folder / "x.csv").write_bytes(content)
    else:
        pq.write_table(content, folder / "x.parquet")
    files = [["x.csv" if isinstance(content, bytes) else "x.parquet"]]
    reader = Engine(query, limits(folder))
    given = reader.given_types(files)
    columns, _ = reader.describe(files, given)
    return [row for batch in reader.batches(files, given, columns, 10, 0) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfid,t\r\n1,a\r\n2,b\r\n", [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]),
        (b"id,t\n", []),
        (b'id;t\n1;"a;b"\n', [{"id": 1, "t": "a;b"}]),
        (b'id,t\n1,"a ""b"", c\n"\n', [{"id": 1, "t": 'a "b", c\n'}]),
        (b"id,f\n1,1.5\n2,-inf\n", [{"id": 1, "f": 1.5}, {"id": 2, "f": float("-inf")}]),
    ],
)
def test_what_a_csv_file_says(
    folder: Path, content: bytes, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert rows_of(folder, "SELECT * FROM 'x.csv'", content) == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        # DuckDB would begin with the line from which on all lines are alike.
        (b"id,t\n1,a\n2\n3,c,d\n", r"x\.csv has lines with different numbers of values"),
        (b'id,t\n1,"a\n2,b\n', r"x\.csv has lines with different numbers of values"),
        (b"id,t\n" + b"1,a\n" * 30_000 + b"30001\n", r"x\.csv: Invalid Input Error: CSV Error on Line: 30002"),
        (b"id,t\n1,caf\xe9\n", "not utf-8"),
        (b"id,t\n1," + b"x" * 3_000_000 + b"\n", "[Mm]aximum line size"),
    ],
)
def test_a_csv_file_that_is_damaged_loses_no_line(
    folder: Path, content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SourceQueryFailed, match=said) as caught:
        rows_of(folder, "SELECT * FROM 'x.csv'", content)
    assert len(caught.value.message) < 2000


def test_decimals_that_would_be_rounded_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    table = pa.table({"id": [1], "h": pa.array([1], pa.decimal256(60, 2))})
    for text in ("SELECT * FROM 'x.parquet'", "SELECT H + 1 AS more FROM 'x.parquet'"):
        with pytest.raises(SourceQueryFailed, match=r"x\.parquet has the column 'h' with 60 digits"):
            rows_of(folder, text, table)
    assert rows_of(folder, "SELECT id FROM 'x.parquet'", table) == [{"id": 1}]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("{'a': ['nan'::DOUBLE]}", "column 'x' has NaN in a document"),
        ("MAP {'a': '-inf'::DOUBLE}", "column 'x' has -Infinity in a document"),
        ("[DATE 'infinity']", "column 'x' has the value infinity"),
        ("[TIMESTAMP '-infinity']", "column 'x' has the value infinity"),
    ],
)
def test_what_no_document_holds_is_refused(
    folder: Path, column: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SourceQueryFailed, match=said):
        rows_of(folder, f"SELECT {column} AS x FROM 'x.csv'", b"id\n1\n")
    same = "SELECT {'a': 'is:NaN,', 'b': 1.5::DOUBLE} AS x FROM 'x.csv'"
    assert rows_of(folder, same, b"id\n1\n") == [{"x": '{"a":"is:NaN,","b":1.5}'}]


def test_empty_files_have_no_rows(sources: Any, folder: Path) -> None:
    for name in ("a", "c"):
        (folder / "in" / f"{name}.csv").write_text("")
    reading = sources("SELECT * FROM 'in/*.csv'").read(Window(), "natural")
    assert sum(batch.take().num_rows for batch in reading) == 3
    (folder / "in" / "b.csv").write_text("")
    with pytest.raises(SourceQueryFailed, match="or only empty ones: correct the name"):
        sources("SELECT * FROM 'in/*.csv'").describe(Window())


def test_a_small_file_that_unpacks_to_much_is_refused(sources: Any, folder: Path) -> None:
    with gzip.open(folder / "bomb.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"id\n")
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert (folder / "bomb.csv.gz").stat().st_size < 1 << 20
    source = sources("SELECT * FROM 'bomb.csv.gz'", memory_mb=400)
    with pytest.raises((FatalError, SourceQueryFailed), match=r"bomb\.csv\.gz|step_memory_mb"):
        source.describe(Window())


# --- waits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1_000_000], ids=["answer", "question"])
def test_a_process_that_does_nothing_is_ended(sources: Any, size: int) -> None:
    """It is waited for when it is asked, too: a long question does not fit into a pipe."""
    source = sources("SELECT * FROM 'a.csv'", timeout=5.0)
    source.describe(Window())
    process = source._reader._process
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(SourceQueryFailed, match="step_timeout_seconds"):
        source._reader.ask("describe", files=["x" * size])
    assert process.wait(10) == -signal.SIGKILL


def test_a_process_ends_with_its_parent(folder: Path, tmp_path: Path) -> None:
    """The parent is killed in the middle of a query: nothing keeps running or stays on disk."""
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) AS n FROM t, 'a.csv'"
    program = (
        "import sys; from vitrina.connectors.files import urls; from vitrina.ports.source import Window\n"
        "from vitrina.connectors.files.reading.source import Asked, FilesSource, Limits\n"
        f"source = FilesSource(urls.parse('file://{folder}'), Asked({endless!r}, Limits(300, 1024, 1, 10)))\n"
        "source.describe(Window()); print(source._reader._process.pid, flush=True)\n"
        "list(source.read(Window(), 'natural'))\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = dict(os.environ) | {"TMPDIR": str(scratch)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    until(lambda: not Path(f"/proc/{worker}").exists() and not list(scratch.iterdir()), seconds=60)


def test_a_folder_is_removed_to_the_end_when_the_runner_is_gone(tmp_path: Path) -> None:
    """The process stops waiting for questions at the same moment, and must not end before the folder is gone."""
    private = tmp_path / "private"
    private.mkdir()
    for number in range(5000):
        (private / str(number)).touch()
    theirs_in, requests = os.pipe()
    replies, theirs_out = os.pipe()
    life_end, life = os.pipe()
    theirs = (theirs_in, theirs_out, life_end)
    command = [sys.executable, "-P", "-m", "vitrina.connectors.files.reading.worker", *map(str, theirs), str(private)]
    with subprocess.Popen(command, pass_fds=theirs, cwd=tmp_path) as worker:
        for descriptor in theirs:
            os.close(descriptor)
        limits = {"memory_mb": 512, "threads": 1, "spill_mb": 10, "spill": str(private)}
        wire.send(requests, Message({"query": "SELECT * FROM 'a.csv'", "limits": limits}))
        wire.send(requests, Message({"op": "check"}))
        assert "error" not in wire.receive(replies).fields
        for descriptor in (life, requests, replies):
            os.close(descriptor)
        assert worker.wait(60) == 0
    assert not private.exists()
