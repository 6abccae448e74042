"""Queries that want more than the files of their connection: refused by name, and out of reach anyway."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from vitrina.connectors.files import urls
from vitrina.connectors.files.reading import engine, listing, query
from vitrina.connectors.files.reading.engine import Engine
from vitrina.connectors.files.reading.listing import FolderFiles
from vitrina.connectors.files.reading.process import Limits
from vitrina.connectors.files.reading.source import Asked, FilesSource
from vitrina.errors import FatalError, SourceQueryFailed, VitrinaError
from vitrina.ports.source import Window

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
        query.judge(judge._parse(text), judge._functions)


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
            query.judge(judge._parse(f"SELECT * FROM {name}('a.csv'), 'a.csv'"), judge._functions)


def test_an_endless_query_is_ended(sources: Any) -> None:
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) AS n FROM t, 'a.csv'"
    source = sources(endless, timeout=1.0)
    source.describe(Window())
    with pytest.raises(SourceQueryFailed, match=r"step_timeout_seconds \(1 s\)"):
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
