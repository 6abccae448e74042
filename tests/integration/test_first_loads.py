"""First loads: the stage becomes the mart where nothing is lost by it, and the rows are copied everywhere else."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import bulk_load
from vitrina.loads import full

FILMS = """
CREATE TABLE content.films (id int, title text, rating numeric(3, 1), modified timestamptz DEFAULT now());
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, 500) AS i;
"""
QUERY = "SELECT id, title, rating, modified FROM content.films"
MART = """
CREATE TABLE analytics.films (
    id int CONSTRAINT "the key" PRIMARY KEY, title text COLLATE "C", rating numeric(3, 1) DEFAULT 5,
    modified timestamptz,
    CONSTRAINT one_title UNIQUE (title)
);
CREATE INDEX "by Rating" ON analytics.films (rating DESC NULLS LAST) INCLUDE (title) WHERE rating > 1;
CREATE INDEX lowered ON analytics.films (lower(title));
COMMENT ON TABLE analytics.films IS 'all ''films''';
COMMENT ON COLUMN analytics.films.title IS 'as shown';
ALTER TABLE analytics.films ALTER title SET STORAGE EXTERNAL;
ALTER TABLE analytics.films OWNER TO vitrina_app;
GRANT SELECT ON analytics.films TO PUBLIC;
GRANT SELECT, UPDATE ON analytics.films TO vitrina_reader WITH GRANT OPTION;
"""
# What a table like it would not have, or what would still name the old one.
OBSTACLES = {
    "a view": "CREATE VIEW analytics.seen AS SELECT id FROM analytics.films",
    "a view of its rows": "CREATE VIEW analytics.seen AS SELECT f FROM analytics.films AS f",
    "a function of its row type": (
        "CREATE FUNCTION analytics.shown(analytics.films) RETURNS text LANGUAGE sql AS 'SELECT $1.title'"
    ),
    "a column of its row type": "CREATE TABLE analytics.other (films analytics.films[])",
    "a trigger": (
        "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER t AFTER INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION public.nothing()"
    ),
    "a rule": "CREATE RULE r AS ON DELETE TO analytics.films DO ALSO NOTHING",
    "a policy": "ALTER TABLE analytics.films ENABLE ROW LEVEL SECURITY",
    "a foreign key to it": "CREATE TABLE analytics.votes (film_id int REFERENCES analytics.films)",
    "a foreign key": "ALTER TABLE analytics.films ADD FOREIGN KEY (id) REFERENCES content.ids",
    "a check": "ALTER TABLE analytics.films ADD CHECK (id > 0)",
    "a publication": "CREATE PUBLICATION p FOR TABLE analytics.films",
    "a publication of its schema": "CREATE PUBLICATION p FOR TABLES IN SCHEMA analytics",
    "a publication of everything": "CREATE PUBLICATION p FOR ALL TABLES",
    "statistics": "CREATE STATISTICS analytics.s (dependencies) ON id, title FROM analytics.films",
    "a storage parameter": "ALTER TABLE analytics.films SET (fillfactor = 70)",
    "a replica identity": "ALTER TABLE analytics.films REPLICA IDENTITY FULL",
    "an index to cluster by": "ALTER TABLE analytics.films CLUSTER ON lowered",
    "a commented constraint": "COMMENT ON CONSTRAINT one_title ON analytics.films IS 'for search'",
    "a right on its row type": "REVOKE USAGE ON TYPE analytics.films FROM PUBLIC",
    "a commented index": "COMMENT ON INDEX analytics.lowered IS 'for search'",
    "another owner": "ALTER TABLE analytics.films OWNER TO CURRENT_USER; GRANT ALL ON analytics.films TO vitrina_app",
    "a column that must have a value": "ALTER TABLE analytics.films ALTER title SET NOT NULL",
    "a column of its own": "ALTER TABLE analytics.films ADD loaded timestamptz DEFAULT now()",
    "an identity column": "ALTER TABLE analytics.films ADD number int GENERATED ALWAYS AS IDENTITY",
    "a generated column": "ALTER TABLE analytics.films ADD twice numeric GENERATED ALWAYS AS (rating * 2) STORED",
    "a right on a column": "GRANT UPDATE (title) ON analytics.films TO vitrina_reader",
    "an inheriting table": "CREATE TABLE analytics.more () INHERITS (analytics.films)",
    "an unlogged table": "ALTER TABLE analytics.films SET UNLOGGED",
}


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(bulk_load, "WORTHWHILE_ROWS", 1)
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    return workbench


def oid(bench: Workbench) -> int:
    return int(bench.sql("SELECT 'analytics.films'::regclass::oid AS oid")[0]["oid"])


def stages(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql(
        "SELECT relname FROM pg_class WHERE relnamespace = 'etl_stage'::regnamespace AND relname LIKE 'p\\_%'"
    )


def described(bench: Workbench) -> dict[str, list[dict[str, Any]]]:
    """Everything that a table of that name has, whichever table it is."""
    asked = {
        "columns": """
            SELECT attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attcollation,
                   col_description(attrelid, attnum), pg_get_expr(adbin, adrelid)
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = 'analytics.films'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname""",
        "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'analytics' AND tablename = 'films' ORDER BY 1",
        "constraints": """
            SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid = 'analytics.films'::regclass ORDER BY 1""",
        "table": """
            SELECT relowner::regrole::text, relpersistence, obj_description(oid, 'pg_class'),
                   (SELECT string_agg(format('%s %s %s', grantee::regrole, privilege_type, is_grantable), ', '
                                      ORDER BY grantee, privilege_type)
                    FROM aclexplode(relacl) WHERE grantee <> relowner)
            FROM pg_class WHERE oid = 'analytics.films'::regclass""",
    }  # fmt: skip
    return {name: bench.sql(statement) for name, statement in asked.items()}


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_the_stage_becomes_a_mart_that_the_run_has_made(bench: Workbench, mode: str) -> None:
    follows = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    bench.pipeline("films", QUERY, target_key=["id"], mode=mode, **follows)

    run = bench.run("films")

    assert (run["status"], run["error_message"], run["metrics"]["inserted"]) == ("SUCCESS", None, 500)
    assert bench.differences(QUERY, "analytics.films") == 0
    assert stages(bench) == []
    [primary] = described(bench)["indexes"]
    assert "UNIQUE INDEX films_pkey" in primary["indexdef"]
    bench.sql("UPDATE content.films SET title = 'New', modified = clock_timestamp() WHERE id = 7")
    before = oid(bench)
    assert bench.run("films")["metrics"]["updated"] == 1
    assert oid(bench) == before
    assert bench.differences(QUERY, "analytics.films") == 0


def test_a_mart_that_was_there_stays_what_it_was(bench: Workbench) -> None:
    bench.sql(MART)
    before, old = described(bench), oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])

    assert bench.run("films")["status"] == "SUCCESS"

    assert oid(bench) != old
    assert described(bench) == before
    assert bench.differences(QUERY, "analytics.films") == 0
    assert bench.sql("SELECT has_table_privilege('vitrina_reader', 'analytics.films', 'INSERT') AS may") == [
        {"may": False}
    ]


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_rows_are_copied_where_something_hangs_on_the_mart(bench: Workbench, obstacle: str) -> None:
    bench.sql(MART)
    bench.sql("CREATE TABLE content.ids AS SELECT id FROM content.films; ALTER TABLE content.ids ADD PRIMARY KEY (id)")
    bench.sql("GRANT ALL ON content.ids TO vitrina_app; GRANT USAGE ON SCHEMA content TO vitrina_app")
    bench.sql(OBSTACLES[obstacle])
    before, old = described(bench), oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (oid(bench), described(bench)) == (old, before)
    assert bench.differences(QUERY, "analytics.films", "id, title, rating, modified") == 0


@pytest.fixture
def subscribed(bench: Workbench) -> Iterator[Workbench]:
    """Let a subscription know the mart, without a publisher."""
    bench.sql(MART)
    bench.sql("CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)")
    bench.sql("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
    bench.sql("INSERT INTO pg_subscription_rel SELECT oid, 'analytics.films'::regclass, 'r' FROM pg_subscription")
    yield bench
    bench.sql("DROP SUBSCRIPTION s")


def test_rows_are_copied_into_a_table_of_a_subscription(subscribed: Workbench) -> None:
    """It has no dependency on the table, and DROP TABLE would make it forget the table."""
    old = oid(subscribed)
    subscribed.pipeline("films", QUERY, target_key=["id"])

    assert subscribed.run("films")["error_message"] is None

    assert subscribed.sql("SELECT srrelid FROM pg_subscription_rel") == [{"srrelid": old}]
    assert (oid(subscribed), subscribed.differences(QUERY, "analytics.films")) == (old, 0)


def test_rows_are_copied_where_an_event_trigger_refuses_with_a_code_of_its_own(bench: Workbench) -> None:
    bench.sql(MART)
    bench.sql(
        """
        CREATE FUNCTION public.keep() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
            IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() WHERE object_identity = 'analytics.films') THEN
                RAISE EXCEPTION 'marts are kept' USING ERRCODE = 'VT001';
            END IF;
        END $$;
        CREATE EVENT TRIGGER keep ON sql_drop EXECUTE FUNCTION public.keep()
        """
    )
    old = oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])

    assert bench.run("films")["error_message"] is None

    assert (oid(bench), bench.differences(QUERY, "analytics.films")) == (old, 0)


@pytest.fixture
def counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what was read before it is published, as a load does that reads for longer."""
    monkeypatch.setattr(full, "READ_AGAIN_SECONDS", 0.0)


@pytest.mark.usefixtures("counted_first")
def test_rows_are_copied_where_something_came_to_hang_on_it_meanwhile(bench: Workbench) -> None:
    bench.sql(MART)
    old = oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:1")
    bench.sql("CREATE VIEW analytics.seen AS SELECT id FROM analytics.films")
    bench.recover()
    bench.perform(bench.claim())

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert oid(bench) == old
    assert bench.sql("SELECT count(*) AS rows FROM analytics.seen") == [{"rows": 500}]


def test_who_reads_the_mart_is_not_waited_for(bench: Workbench) -> None:
    bench.sql(MART)
    old = oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])
    with bench.admin.transaction():
        assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]
        assert bench.run("films")["status"] == "SUCCESS"
    assert oid(bench) == old
    assert bench.differences(QUERY, "analytics.films") == 0


@pytest.mark.parametrize(
    "at", ["load.begun:crash:1", "batch.filled:crash:1", "batch.committed:crash:1", "publish.applied:crash:1",
           "publish.fenced:crash:1", "publish.committed:crash:1"]
)  # fmt: skip
@pytest.mark.parametrize("repeated_seconds", [0.0, full.READ_AGAIN_SECONDS], ids=["counted", "read-again"])
def test_a_lost_runner_loses_and_doubles_nothing(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, at: str, repeated_seconds: float
) -> None:
    monkeypatch.setattr(full, "READ_AGAIN_SECONDS", repeated_seconds)
    bench.sql(MART)
    before = described(bench)
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.request("films")
    bench.lose_a_runner(at)
    bench.recover()
    while (claim := bench.claim_or_none()) is not None:
        bench.perform(claim)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0
    assert described(bench) == before
    assert stages(bench) == []


@pytest.mark.usefixtures("counted_first")
def test_rows_that_a_runner_left_behind_adds_are_not_published(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:1")
    [stage] = stages(bench)
    bench.sql(f"INSERT INTO etl_stage.{stage['relname']} (id, title) VALUES (9999, 'late')")
    bench.recover()
    while (claim := bench.claim_or_none()) is not None:
        bench.perform(claim)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


def test_repeated_keys_are_refused_and_the_mart_is_as_it_was(bench: Workbench) -> None:
    bench.sql(MART)
    before, old = described(bench), oid(bench)
    bench.sql("INSERT INTO content.films VALUES (7, 'Again', 1)")
    bench.pipeline("films", QUERY, target_key=["id"])

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_key"), run["error_message"]
    assert "7" in run["error_message"]
    assert (oid(bench), described(bench)) == (old, before)


def test_several_versions_of_a_row_are_merged_by_a_first_pass(bench: Workbench) -> None:
    bench.sql("INSERT INTO content.films VALUES (7, 'Again', 1, clock_timestamp())")
    bench.pipeline(
        "films", QUERY, target_key=["id"], mode="incremental", incremental_key="modified", incremental_id_key="id"
    )

    run = bench.run("films")

    assert run["status"] == "SUCCESS", run["error_message"]
    assert bench.sql("SELECT title FROM analytics.films WHERE id = 7") == [{"title": "Again"}]


def test_another_unique_key_of_the_mart_is_kept(bench: Workbench) -> None:
    bench.sql(MART)
    old = oid(bench)
    bench.sql("UPDATE content.films SET title = 'Film 1' WHERE id = 2")
    bench.pipeline("films", QUERY, target_key=["id"])

    run = bench.run("films")

    assert run["status"] == "FAILED"
    assert "one_title" in run["error_message"]
    assert oid(bench) == old
