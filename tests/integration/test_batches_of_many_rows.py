"""Batches of many rows are merged in one statement on every version of PostgreSQL, and counted exactly."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support import extension_types
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import counted_merge, target
from vitrina.connectors.postgres.counted_merge import Merged
from vitrina.ports.batch import Counts

FILMS = """
CREATE TABLE content.films (id int, title text, at timestamptz DEFAULT clock_timestamp());
INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, at FROM content.films"
# Ten rows differ, five are new, and five are read again as they are.
CHANGES = """
UPDATE content.films SET title = 'New', at = clock_timestamp() WHERE id BETWEEN 50 AND 59;
INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(101, 105) AS i;
UPDATE content.films SET at = clock_timestamp() WHERE id BETWEEN 60 AND 64;
"""
# What the mart writes in addition to what it is given.
ECHO = """
CREATE FUNCTION analytics.echo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO analytics.films SELECT NEW.id + 1000, 'echo', now() WHERE NEW.id < 1000;
    RETURN NULL;
END $$;
CREATE TRIGGER echo AFTER INSERT OR UPDATE ON analytics.films FOR EACH ROW EXECUTE FUNCTION analytics.echo();
"""

WAITING = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%MERGE INTO%') AS waits
"""


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(target, "FEW_ROWS", 0)
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 2})
    workbench.source(FILMS)
    workbench.pipeline(
        "films",
        QUERY,
        target_key=["id"],
        mode="incremental",
        incremental_key="at",
        options={"stamps": ["at"]},
    )
    assert workbench.run("films")["status"] == "SUCCESS"
    return workbench


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[Merged | None]:
    """What merges of one statement have done; None for each that was left to a difference."""
    done: list[Merged | None] = []

    def noting(upsert: Callable[..., Merged | None]) -> Callable[..., Merged | None]:
        def note(*arguments: Any) -> Merged | None:
            done.append(upsert(*arguments))
            return done[-1]

        return note

    for name in ("upsert", "try_upsert"):
        monkeypatch.setattr(counted_merge, name, noting(getattr(counted_merge, name)))
    return done


def test_a_batch_is_merged_in_one_statement(bench: Workbench, merged: list[Merged | None]) -> None:
    bench.sql(CHANGES)

    run = bench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 15)
    [done] = merged
    assert done
    assert done.counts == Counts(inserted=5, updated=10)
    # The checkpoint remembers rows that the batch wrote, not ones that it found as they should be.
    assert len(done.places) == counted_merge.SAMPLED
    found = bench.sql(f"SELECT id FROM analytics.films WHERE ctid = ANY(ARRAY{done.places}::tid[])")
    assert {row["id"] for row in found} <= {*range(50, 60), *range(101, 106)}


@pytest.mark.parametrize("key", ["NOT DEFERRABLE", "DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize(
    ("versions", "written"),
    [
        pytest.param([(7, "a"), (7, "b")], 1, id="both would be written"),
        pytest.param([(7, "a"), (7, "Film 7")], 0, id="the latest is in the mart already"),
        pytest.param([(7, "Film 7"), (7, "a")], 1, id="the first is in the mart already"),
        pytest.param([(7, "Film 7"), (7, "Film 7")], 0, id="both are in the mart already"),
        pytest.param([(101, "a"), (101, "b")], 1, id="both are new"),
        pytest.param([(101, "a"), (101, "b"), (102, "c")], 2, id="one of three is new and alone"),
    ],
)
def test_the_latest_version_wins_wherever_the_others_are(
    bench: Workbench, key: str, versions: list[tuple[int, str]], written: int
) -> None:
    bench.sql(f"ALTER TABLE analytics.films DROP CONSTRAINT films_pkey, ADD PRIMARY KEY (id) {key}")
    bench.sql("UPDATE content.films SET at = at - interval '1 hour'")  # none is read again as it is
    bench.sql(f"DELETE FROM content.films WHERE id = {versions[0][0]}")
    for number, title in versions:
        bench.sql(f"INSERT INTO content.films VALUES ({number}, '{title}', clock_timestamp())")

    run = bench.run("films")

    assert (run["error_message"], run["attempts"], run["rows_written"]) == (None, 1, written)
    for number, title in dict(versions).items():
        assert bench.sql(f"SELECT title FROM analytics.films WHERE id = {number}") == [{"title": title}]


def test_after_a_repeated_key_the_keys_of_later_batches_are_counted_first(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.change("films", batch_size=10)
    bench.sql("UPDATE content.films SET at = at - interval '1 hour'")  # none is read again as it is
    for number in range(201, 221):
        bench.sql(f"INSERT INTO content.films VALUES ({number}, 'first', clock_timestamp())")
        bench.sql(f"INSERT INTO content.films VALUES ({number}, 'latest', clock_timestamp())")
    tried: list[Any] = []
    try_upsert = counted_merge.try_upsert

    def note(*given: Any) -> Merged | None:
        tried.append(given)
        return try_upsert(*given)

    monkeypatch.setattr(counted_merge, "try_upsert", note)

    run = bench.run("films")

    assert (run["error_message"], run["rows_written"], len(tried)) == (None, 20, 1)
    assert bench.sql("SELECT DISTINCT title FROM analytics.films WHERE id > 200") == [{"title": "latest"}]


@pytest.mark.parametrize("mode", ["incremental", "full"])
def test_a_first_load_meets_a_repeated_key_that_is_checked_at_the_end(bench: Workbench, mode: str) -> None:
    bench.sql("TRUNCATE analytics.films; ALTER TABLE analytics.films DROP CONSTRAINT films_pkey")
    bench.sql("ALTER TABLE analytics.films ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED")
    bench.sql("INSERT INTO content.films VALUES (7, 'latest', clock_timestamp())")
    cursor = {"incremental_key": "at"} if mode == "incremental" else {}
    bench.pipeline("first", QUERY, target_table="analytics.films", target_key=["id"], mode=mode, **cursor)

    run = bench.run("first")

    if mode == "full":
        assert (run["error_code"], run["attempts"]) == ("bad_key", 1)
        assert "id" in run["error_message"]
        assert "7" in run["error_message"]
    else:
        assert (run["error_message"], run["attempts"]) == (None, 1)
        assert bench.sql("SELECT title FROM analytics.films WHERE id = 7") == [{"title": "latest"}]


def test_a_key_of_a_parent_and_its_child_hides_no_repeated_key(bench: Workbench) -> None:
    """One staged row updates two, which would make up for a version that is not written."""
    bench.sql("CREATE TABLE analytics.more () INHERITS (analytics.films); INSERT INTO analytics.more VALUES (5, 'Old')")
    bench.sql("UPDATE content.films SET at = at - interval '1 hour'; DELETE FROM content.films WHERE id = 9")
    bench.sql("UPDATE content.films SET title = 'New', at = clock_timestamp() WHERE id = 5")
    for title in ("older", "Film 9"):
        bench.sql(f"INSERT INTO content.films VALUES (9, '{title}', clock_timestamp())")

    assert bench.run("films")["status"] == "SUCCESS"

    assert bench.sql("SELECT title FROM analytics.films WHERE id = 9") == [{"title": "Film 9"}]


@pytest.mark.parametrize(
    ("key", "made_of", "index"),
    [
        pytest.param("public.citext", "'Xx'", "CREATE UNIQUE INDEX ON analytics.films (id text_ops)", id="citext"),
        pytest.param(
            "int4range", "'[5,6)'", "ALTER TABLE analytics.films ADD PRIMARY KEY (id, v WITHOUT OVERLAPS)", id="times"
        ),
    ],
)
def test_the_latest_version_wins_whatever_the_index_calls_equal(
    bench: Workbench, key: str, made_of: str, index: str
) -> None:
    if "OVERLAPS" in index and bench.metastore.info.server_version < 18_00_00:
        pytest.skip("temporal keys need PostgreSQL 18")
    extension_types.create(bench, "citext")
    shape = f"(id {key} NOT NULL, v daterange NOT NULL DEFAULT 'empty', title text, at timestamptz)"
    bench.sql(f"DROP TABLE analytics.films; CREATE TABLE analytics.films {shape}; {index}")
    bench.sql("GRANT ALL ON analytics.films TO PUBLIC")
    bench.sql(f"DROP TABLE content.films; CREATE TABLE content.films {shape}")
    bench.sql("GRANT SELECT ON content.films TO vitrina_reader")
    keys = ["id", "v"] if "OVERLAPS" in index else ["id"]
    query = "SELECT id, v, title, at FROM content.films"
    more = {"mode": "incremental", "incremental_key": "at", "options": {"stamps": ["at"]}}
    bench.pipeline("odd", query, target_table="analytics.films", target_key=keys, **more)
    days = "daterange '[2020-01-01,2021-01-01)'"
    other = "'a'" if key == "public.citext" else "'[1,2)'"
    bench.sql(f"INSERT INTO content.films VALUES ({other}, {days}, 'first', '2020-01-01')")
    assert bench.run("odd")["error_message"] is None
    bench.sql("UPDATE content.films SET title = 'changed', at = '2020-01-02'")
    for title, written in (("old", made_of), ("new", made_of.swapcase())):
        bench.sql(f"INSERT INTO content.films VALUES ({written}, {days}, '{title}', now())")

    assert bench.run("odd")["error_message"] is None

    assert bench.sql("SELECT title FROM analytics.films ORDER BY title") == [{"title": "changed"}, {"title": "new"}]


def create_any_case(bench: Workbench) -> None:
    try:
        bench.sql(
            "CREATE COLLATION content.any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")


@pytest.fixture
def any_case(bench: Workbench) -> Workbench:
    """Give a mart a key of which 'a' and 'A' are one, with the row of 'a'."""
    create_any_case(bench)
    shape = "(code text COLLATE content.any_case, title text, at timestamptz DEFAULT clock_timestamp())"
    bench.source(f"CREATE TABLE content.codes {shape}; INSERT INTO content.codes VALUES ('a', 'first')")
    bench.sql(f"CREATE TABLE analytics.codes {shape}; ALTER TABLE analytics.codes ADD PRIMARY KEY (code)")
    bench.sql("GRANT ALL ON analytics.codes TO vitrina_app; GRANT USAGE ON SCHEMA content TO vitrina_app")
    return bench


@pytest.mark.parametrize("few", [0, 1_000])
@pytest.mark.parametrize(
    "versions",
    [
        pytest.param([("A", "older"), ("a", "first")], id="the latest is in the mart already"),
        pytest.param([("a", "older"), ("A", "latest")], id="both would be written"),
        pytest.param([("b", "older"), ("B", "latest")], id="both are new"),
    ],
)
def test_versions_are_those_of_a_key_by_the_collation_of_the_mart(
    any_case: Workbench, monkeypatch: pytest.MonkeyPatch, versions: list[tuple[str, str]], few: int
) -> None:
    monkeypatch.setattr(target, "FEW_ROWS", few)
    more = {"mode": "incremental", "incremental_key": "at", "options": {"stamps": ["at"]}}
    any_case.pipeline("codes", "SELECT code, title, at FROM content.codes", target_key=["code"], **more)
    assert any_case.run("codes")["error_message"] is None
    any_case.sql("DELETE FROM content.codes")
    for code, title in versions:
        any_case.sql(f"INSERT INTO content.codes VALUES ('{code}', '{title}')")

    assert any_case.run("codes")["error_message"] is None

    latest = {"code": versions[-1][0], "title": versions[-1][1]}
    assert any_case.sql(f"SELECT code, title FROM analytics.codes WHERE code = '{versions[-1][0]}'") == [latest]


@pytest.mark.parametrize("few", [0, 1_000])
def test_keys_that_are_one_by_the_collation_of_the_mart_are_refused(
    any_case: Workbench, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(target, "FEW_ROWS", few)
    any_case.pipeline("codes", "SELECT code, title FROM content.codes", target_key=["code"])
    assert any_case.run("codes")["error_message"] is None
    any_case.sql("INSERT INTO content.codes VALUES ('A', 'another')")

    run = any_case.run("codes")

    assert (run["error_code"], run["attempts"]) == ("bad_key", 1)
    assert any_case.sql("SELECT code, title FROM analytics.codes") == [{"code": "a", "title": "first"}]


def test_a_row_that_another_session_inserts_meanwhile_is_merged(bench: Workbench) -> None:
    """The other session commits while the merge waits for its key."""
    bench.sql(CHANGES)
    assert bench.settings.admin_url
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as other:
        other.execute("INSERT INTO analytics.films VALUES (103, 'By hand', now())")
        running = threading.Thread(target=bench.run, args=("films",))
        running.start()
        until(lambda: bench.sql(WAITING) == [{"waits": True}])
        other.commit()
        running.join(60)

    run = bench.last_run("films")
    assert (run["error_message"], run["rows_written"]) == (None, 15)
    assert bench.differences(QUERY, "analytics.films", "id, title") == 0


def test_rows_that_a_trigger_adds_are_not_counted(bench: Workbench) -> None:
    bench.sql(ECHO)
    bench.sql(CHANGES)

    run = bench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 15)
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 105 + 15}]


@pytest.mark.parametrize("mode", ["incremental", "full"])
def test_a_mart_may_have_children_with_rows_at_the_same_positions(bench: Workbench, mode: str) -> None:
    bench.sql("CREATE TABLE analytics.more () INHERITS (analytics.films)")
    bench.sql("INSERT INTO analytics.more VALUES (101, 'Old', now())")
    if mode == "full":
        bench.change("films", mode="full", incremental_key=None)
    bench.sql(CHANGES)

    run = bench.run("films")

    assert (run["error_message"], run["rows_written"]) == (None, 15)
    assert bench.differences(QUERY, "analytics.films", "id, title") == 0
    assert bench.sql("SELECT title FROM ONLY analytics.more") == [{"title": "Film 101"}]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("text COLLATE content.any_case", "'film'", "'FILM'"),
        ("varchar(20) COLLATE content.any_case", "'film'", "'FILM'"),
        ("numeric", "1.0", "1.00"),
        ("numeric(9,2)", "1.0", "NULL"),
        ("json", """'{"a":1}'""", """'{"a": 1}'"""),
        ("jsonb", """'{"a": 1.0}'""", """'{"a": 1.00}'"""),
        ("char(5)", "'a'", "'b'"),
        ("interval", "'1 day'", "'24 hours'"),
        ("timestamp(3)", "'2026-01-01'", "'2026-01-01 00:00:00.001'"),
        ("float8", "0", "'-0'"),
        ("text[]", "'{a}'", "'{b}'"),
        ("uuid", "NULL", "'00000000-0000-0000-0000-000000000000'"),
        ("boolean", "NULL", "false"),
    ],
)
def test_a_row_differs_when_its_image_does(bench: Workbench, kind: str, before: str, after: str) -> None:
    if "COLLATE" in kind:
        create_any_case(bench)
    bench.sql(
        f"CREATE TABLE content.kinds (id int, x {kind}, at timestamptz DEFAULT clock_timestamp());"
        f"INSERT INTO content.kinds SELECT i, {before} FROM generate_series(1, 2) AS i;"
        f"CREATE TABLE analytics.kinds (id int PRIMARY KEY, x {kind}, at timestamptz);"
        "GRANT SELECT ON content.kinds TO vitrina_reader; GRANT ALL ON analytics.kinds TO PUBLIC"
    )
    more = {"mode": "incremental", "incremental_key": "at", "options": {"stamps": ["at"]}}
    bench.pipeline("kinds", "SELECT id, x, at FROM content.kinds", target_key=["id"], **more)
    assert bench.run("kinds")["status"] == "SUCCESS"
    bench.sql(f"UPDATE content.kinds SET x = {after}, at = clock_timestamp() WHERE id = 2")
    bench.sql("UPDATE content.kinds SET at = clock_timestamp() WHERE id = 1")

    run = bench.run("kinds")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 1)
    # Byte by byte, whatever the column's collation holds for equal.
    exact = 'SELECT id, x::text COLLATE "C" AS x FROM {}.kinds'
    assert bench.differences(exact.format("content"), f"({exact.format('analytics')}) AS m") == 0
