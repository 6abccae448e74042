"""First loads in ranges: a copy of the accepted rows becomes the mart where nothing is lost by it."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.postgres import bulk_load, first_load
from vitrina.connectors.postgres.stage import Stage
from vitrina.errors import TransientError

ROWS = 500
FILMS = f"""
CREATE TABLE content.films (id int PRIMARY KEY, title text, rating numeric(3, 1), modified timestamptz DEFAULT now());
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, {ROWS}) AS i;
ANALYZE content.films;
"""
QUERY = "SELECT id, title, rating, modified FROM content.films"
MART = """
CREATE TABLE analytics.films (
    id int CONSTRAINT "the key" PRIMARY KEY, title text, rating numeric(3, 1), modified timestamptz, later date,
    CONSTRAINT one_title UNIQUE (title)
);
CREATE INDEX "by Rating" ON analytics.films (rating DESC NULLS LAST) INCLUDE (title) WHERE rating > 1;
COMMENT ON TABLE analytics.films IS 'all ''films''';
ALTER TABLE analytics.films OWNER TO vitrina_app;
GRANT SELECT ON analytics.films TO PUBLIC;
GRANT SELECT, UPDATE ON analytics.films TO vitrina_reader WITH GRANT OPTION;
"""
OBSTACLES = {
    "a view": "CREATE VIEW analytics.seen AS SELECT id FROM analytics.films",
    "a length": "ALTER TABLE analytics.films ALTER title TYPE varchar(20)",
    "a default": "ALTER TABLE analytics.films ALTER title SET DEFAULT 'none'",
    "a collation": 'ALTER TABLE analytics.films ALTER title TYPE text COLLATE "C"',
    "a commented column": "COMMENT ON COLUMN analytics.films.title IS 'as shown'",
    "a column that must have a value": "ALTER TABLE analytics.films ALTER title SET NOT NULL",
    "another storage": "ALTER TABLE analytics.films ALTER title SET STORAGE EXTERNAL",
}
# Everything that a table of that name has, whichever table it is.
DESCRIBED = """
SELECT attname::text AS name,
       concat_ws(' ', format_type(atttypid, atttypmod), attnotnull, attstorage, attcollation) AS what
FROM pg_attribute WHERE attrelid = 'analytics.films'::regclass AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'analytics' AND tablename = 'films'
UNION ALL
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'analytics.films'::regclass
UNION ALL
SELECT format('%s %s', grantee::regrole, privilege_type), is_grantable::text
FROM pg_class, aclexplode(relacl) WHERE pg_class.oid = 'analytics.films'::regclass AND grantee <> relowner
UNION ALL
SELECT format('%s %s', relowner::regrole, relpersistence), obj_description(oid, 'pg_class')
FROM pg_class WHERE oid = 'analytics.films'::regclass
ORDER BY 1, 2
"""


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(bulk_load, "WORTHWHILE_ROWS", 1)
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    workbench.sql(MART)
    return workbench


def run(bench: Workbench, query: str = QUERY) -> dict[str, Any]:
    options = {"parallel": 2, "checkpoint_rows": 100, "route": "arrow"}
    bench.pipeline("films", query, target_key=["id"], batch_size=50, options=options)
    found: dict[str, Any] = bench.run("films")
    assert found["metrics"]["paging"] == "key ranges"
    return found


def oid(bench: Workbench) -> int:
    return int(bench.sql("SELECT 'analytics.films'::regclass::oid AS oid")[0]["oid"])


def stages(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql(
        "SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname LIKE 'p\\_%'"
    )


def difference(bench: Workbench) -> list[dict[str, Any]]:
    mart = QUERY.replace("content", "analytics")
    return bench.sql(f"({QUERY} EXCEPT ALL {mart}) UNION ALL ({mart} EXCEPT ALL {QUERY})")


def test_a_copy_becomes_the_mart_and_looks_like_it(bench: Workbench) -> None:
    before, old = bench.sql(DESCRIBED), oid(bench)

    found = run(bench)

    assert (found["status"], found["error_message"], found["metrics"]["inserted"]) == ("SUCCESS", None, ROWS)
    assert oid(bench) != old
    assert bench.sql(DESCRIBED) == before
    assert difference(bench) == []
    assert stages(bench) == []
    new = oid(bench)
    bench.sql("UPDATE content.films SET title = 'New' WHERE id = 7")
    assert bench.run("films")["metrics"]["updated"] == 1
    assert oid(bench) == new


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_rows_are_inserted_where_a_copy_would_lack_something(bench: Workbench, obstacle: str) -> None:
    bench.sql(obstacle)
    before, old = bench.sql(DESCRIBED), oid(bench)

    found = run(bench)

    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    assert oid(bench) == old
    assert bench.sql(DESCRIBED) == before
    assert difference(bench) == []
    assert stages(bench) == []


def test_who_reads_the_mart_is_not_waited_for(bench: Workbench) -> None:
    old = oid(bench)
    assert bench.settings.admin_url
    with psycopg.connect(bench.settings.admin_url.get_secret_value()) as session:
        session.execute("SELECT * FROM analytics.films")
        found = run(bench)
    assert (found["status"], oid(bench)) == ("SUCCESS", old)
    assert difference(bench) == []


def test_repeated_keys_are_refused_and_the_mart_is_as_it_was(bench: Workbench) -> None:
    old = oid(bench)
    bench.source("ALTER TABLE content.films DROP CONSTRAINT films_pkey; CREATE INDEX ON content.films (id)")
    bench.source("INSERT INTO content.films VALUES (7, 'Again', 1); ANALYZE content.films")

    found = run(bench)

    assert found["status"] == "FAILED"
    assert "id" in found["error_message"]
    assert "7" in found["error_message"]
    assert (oid(bench), bench.sql("SELECT count(*) AS n FROM analytics.films")) == (old, [{"n": 0}])


def once(action: Callable[..., None]) -> Callable[..., None]:
    """Do something at the first call only."""
    calls: list[Any] = []

    def wrapped(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            action(*given)

    return wrapped


def test_a_row_that_the_stage_has_lost_is_noticed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = first_load.copy_in_place

    def lose(connection: Any, stage: Stage, *_: Any) -> None:
        bench.sql(f'DELETE FROM etl_stage."{stage.name}" WHERE id = 7')

    losing, counts = once(lose), []

    def copied(*given: Any) -> int | None:
        losing(*given)
        counts.append(copy(*given))
        return counts[-1]

    monkeypatch.setattr(first_load, "copy_in_place", copied)

    found = run(bench)

    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    assert counts == [ROWS - 1, ROWS]
    assert difference(bench) == []


def test_a_publish_that_fails_leaves_nothing_and_is_repeated(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise TransientError("lost")

    failing = once(fail)
    monkeypatch.setattr(failpoints, "hit", lambda name: failing(name) if name == "publish.fenced" else None)
    old = oid(bench)

    found = run(bench)

    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    assert found["rows_read"] == ROWS  # accepted ranges are not read again
    assert oid(bench) != old
    assert difference(bench) == []
    assert stages(bench) == []
