"""First loads against what happens to a mart while its stage is filled, and what is asked of it from outside."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support import waiting
from tests.support.workbench import Workbench
from vitrina.connectors.postgres import bulk_load

FILMS = """
CREATE TABLE content.films (id int, title text, rating numeric(3, 1));
INSERT INTO content.films SELECT i, 'Film ' || i, (i % 100) / 10.0 FROM generate_series(1, 500) AS i;
"""
QUERY = "SELECT id, title, rating FROM content.films"
MART = """
CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric(3, 1));
ALTER TABLE analytics.films OWNER TO vitrina_app;
"""
GATE = 4242
# Waits until the gate is open.
GATED = f"""
CREATE FUNCTION public.gated(text) RETURNS text IMMUTABLE LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared({GATE}); RETURN $1; END'
"""


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(bulk_load, "WORTHWHILE_ROWS", 1)
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,)})
    workbench.source(FILMS)
    workbench.sql(MART)
    return workbench


def oid(bench: Workbench) -> int:
    return int(bench.sql("SELECT 'analytics.films'::regclass::oid AS oid")[0]["oid"])


def columns(bench: Workbench) -> list[dict[str, Any]]:
    return bench.sql(
        """
        SELECT attname, format_type(atttypid, atttypmod), attcollation, attstorage, attcompression,
               col_description(attrelid, attnum), pg_get_expr(adbin, adrelid)
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = 'analytics.films'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
        """
    )


@contextmanager
def while_indexing(bench: Workbench) -> Iterator[None]:
    """Run the pipeline in another thread as far as the index over the staged rows; it goes on after the block."""
    bench.sql(f"{GATED}; CREATE INDEX gated ON analytics.films (public.gated(title))")
    with running(bench, QUERY):
        yield


@contextmanager
def while_filling(bench: Workbench) -> Iterator[None]:
    """Run the pipeline in another thread as far as reading the source; it goes on after the block."""
    view = "CREATE VIEW content.gated AS SELECT id, public.gated(title) AS title, rating FROM content.films"
    bench.source(f"{GATED}; {view}")
    with running(bench, "SELECT id, title, rating FROM content.gated"):
        yield


@contextmanager
def running(bench: Workbench, query: str) -> Iterator[None]:
    # Rows that came by hand are no reason to refuse the load.
    bench.pipeline("films", query, target_key=["id"], options={"allow_shrink": True})
    bench.sql(f"SELECT pg_advisory_lock({GATE})")
    thread = threading.Thread(target=bench.run, args=["films"])
    thread.start()
    try:
        waiting.until(lambda: bool(bench.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")))
        yield
    finally:
        bench.sql(f"SELECT pg_advisory_unlock({GATE})")
        thread.join()


# --- what happens to the mart meanwhile ------------------------------------------------------------------------------

CHANGES = {
    "a new column": "ALTER TABLE analytics.films ADD note text",
    "a wider type": "ALTER TABLE analytics.films ALTER id TYPE bigint",
    "a default": "ALTER TABLE analytics.films ALTER rating SET DEFAULT 7",
    "a comment": "COMMENT ON COLUMN analytics.films.title IS 'as shown'",
    "a collation": 'ALTER TABLE analytics.films ALTER title TYPE text COLLATE "C"',
    "a storage": "ALTER TABLE analytics.films ALTER title SET STORAGE EXTERNAL",
    "a compression": "ALTER TABLE analytics.films ALTER title SET COMPRESSION pglz",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_column_that_was_changed_meanwhile_stays_changed(bench: Workbench, change: str) -> None:
    with while_filling(bench):
        bench.sql(CHANGES[change])
        changed = columns(bench)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert columns(bench) == changed
    assert bench.differences(QUERY, "analytics.films", "id, title, rating") == 0


def test_a_column_that_came_between_two_attempts_stays(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:1")
    bench.sql(CHANGES["a new column"])
    changed = columns(bench)
    bench.recover()
    bench.perform(bench.claim())

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert columns(bench) == changed


def test_an_index_that_came_meanwhile_stays(bench: Workbench) -> None:
    asked = "SELECT indexname FROM pg_indexes WHERE schemaname = 'analytics' ORDER BY 1"
    with while_indexing(bench):
        bench.sql("CREATE INDEX by_rating ON analytics.films (rating)")
        indexes = bench.sql(asked)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.sql(asked) == indexes


def test_a_unique_key_that_came_meanwhile_holds(bench: Workbench) -> None:
    with while_indexing(bench):
        bench.sql("CREATE UNIQUE INDEX one_rating ON analytics.films (rating)")

    assert bench.sql("SELECT 1 AS there FROM pg_indexes WHERE indexname = 'one_rating'") == [{"there": 1}]
    assert bench.last_run("films")["status"] == "FAILED"


def test_a_table_that_took_the_name_of_the_mart_keeps_its_triggers(bench: Workbench) -> None:
    with while_filling(bench):
        bench.sql(
            """
            CREATE SCHEMA archive; GRANT USAGE ON SCHEMA archive TO vitrina_app;
            ALTER TABLE analytics.films SET SCHEMA archive;
            CREATE TABLE analytics.films (id int PRIMARY KEY, title text, rating numeric(3, 1), more text DEFAULT 'm');
            ALTER TABLE analytics.films OWNER TO vitrina_app;
            CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER audit AFTER INSERT ON analytics.films FOR EACH ROW EXECUTE FUNCTION public.nothing();
            """
        )
        made, changed = oid(bench), columns(bench)

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert (oid(bench), columns(bench)) == (made, changed)
    assert bench.sql("SELECT tgname FROM pg_trigger WHERE tgrelid = 'analytics.films'::regclass") == [
        {"tgname": "audit"}
    ]


def test_rows_that_came_meanwhile_are_no_rows_of_the_mart(bench: Workbench) -> None:
    with while_indexing(bench):
        bench.sql("INSERT INTO analytics.films VALUES (9999, 'by hand', 1)")

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.differences(QUERY, "analytics.films") == 0


# --- what hangs on the mart without naming it ------------------------------------------------------------------------


@pytest.mark.parametrize("tables", ["ALL TABLES", "TABLES IN SCHEMA analytics"])
def test_subscribers_of_every_table_get_the_rows(bench: Workbench, tables: str) -> None:
    bench.sql(f"CREATE PUBLICATION everything FOR {tables}")
    bench.sql("SELECT pg_create_logical_replication_slot('attack3', 'pgoutput')")
    try:
        bench.pipeline("films", QUERY, target_key=["id"])
        assert bench.run("films")["status"] == "SUCCESS"
        messages = bench.sql(
            """
            SELECT data FROM pg_logical_slot_get_binary_changes(
                'attack3', NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')
            """
        )
    finally:
        bench.sql("SELECT pg_drop_replication_slot('attack3')")
    relations = {
        bytes(m["data"])[1:5]: bytes(m["data"])[5:].split(b"\0")[:2] for m in messages if m["data"][:1] == b"R"
    }
    inserts = [relations[bytes(m["data"])[1:5]] for m in messages if m["data"][:1] == b"I"]
    assert inserts.count([b"analytics", b"films"]) == 500
    assert not [name for name in relations.values() if name[1].startswith(b"p_")]


# --- rows, rights ----------------------------------------------------------------------------------------------------


def test_a_row_without_a_key_is_refused_where_the_key_is_unique_only(bench: Workbench) -> None:
    bench.sql(
        "ALTER TABLE analytics.films DROP CONSTRAINT films_pkey; ALTER TABLE analytics.films ALTER id DROP NOT NULL;"
        "ALTER TABLE analytics.films ADD UNIQUE (id); INSERT INTO content.films VALUES (NULL, 'a', 1), (NULL, 'b', 1)"
    )
    bench.pipeline("films", QUERY, target_key=["id"])

    run = bench.run("films")

    assert (run["status"], run["error_code"]) == ("FAILED", "bad_key")
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films") == [{"rows": 0}]


def test_a_grant_can_still_be_revoked_by_who_gave_it(bench: Workbench) -> None:
    bench.sql(
        """
        DROP ROLE IF EXISTS attack3_lead; DROP ROLE IF EXISTS attack3_guest;
        CREATE ROLE attack3_lead; CREATE ROLE attack3_guest;
        GRANT USAGE ON SCHEMA analytics TO attack3_lead, attack3_guest;
        GRANT SELECT ON analytics.films TO attack3_lead WITH GRANT OPTION;
        SET ROLE attack3_lead; GRANT SELECT ON analytics.films TO attack3_guest; RESET ROLE
        """
    )
    try:
        bench.pipeline("films", QUERY, target_key=["id"])
        assert bench.run("films")["status"] == "SUCCESS"
        bench.sql("SET ROLE attack3_lead; REVOKE SELECT ON analytics.films FROM attack3_guest; RESET ROLE")
        assert bench.sql("SELECT has_table_privilege('attack3_guest', 'analytics.films', 'SELECT') AS may") == [
            {"may": False}
        ]
    finally:
        bench.sql("DROP OWNED BY attack3_lead CASCADE; DROP OWNED BY attack3_guest CASCADE")
        bench.sql("DROP ROLE attack3_lead; DROP ROLE attack3_guest")


def test_what_the_owner_may_not_do_stays(bench: Workbench) -> None:
    bench.sql("REVOKE TRUNCATE ON analytics.films FROM vitrina_app")
    bench.pipeline("films", QUERY, target_key=["id"])

    assert bench.run("films")["status"] == "SUCCESS"

    assert bench.sql("SELECT has_table_privilege('vitrina_app', 'analytics.films', 'TRUNCATE') AS may") == [
        {"may": False}
    ]


def test_the_default_of_a_domain_is_computed_by_who_owns_the_mart(bench: Workbench) -> None:
    bench.sql("CREATE DOMAIN analytics.writer AS text DEFAULT current_user")
    bench.sql("ALTER TABLE analytics.films ADD written_by analytics.writer")
    bench.pipeline("films", QUERY, target_key=["id"])

    assert bench.run("films")["status"] == "SUCCESS"

    assert bench.sql("SELECT DISTINCT written_by FROM analytics.films") == [{"written_by": "vitrina_app"}]


def test_a_slot_that_knows_no_publications_gets_the_rows(bench: Workbench) -> None:
    try:
        bench.sql("SELECT pg_create_logical_replication_slot('attack3', 'test_decoding')")
    except psycopg.errors.UndefinedFile:
        pytest.skip("the server has no test_decoding")
    try:
        bench.pipeline("films", QUERY, target_key=["id"])
        assert bench.run("films")["status"] == "SUCCESS"
        messages = bench.sql("SELECT data FROM pg_logical_slot_get_changes('attack3', NULL, NULL)")
    finally:
        bench.sql("SELECT pg_drop_replication_slot('attack3')")
    assert sum(row["data"].startswith("table analytics.films: INSERT") for row in messages) == 500


def test_a_grant_that_is_not_committed_yet_makes_no_reader_wait(bench: Workbench) -> None:
    assert bench.settings.admin_url
    url = bench.settings.admin_url.get_secret_value()
    bench.pipeline("films", QUERY, target_key=["id"])
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as reader:
        other.execute("GRANT SELECT ON analytics.films TO vitrina_reader")
        reader.execute("SET statement_timeout = 4000")
        thread = threading.Thread(target=bench.run, args=["films"])
        thread.start()
        try:
            for _ in range(30):
                reader.execute("SELECT count(*) FROM analytics.films")
                thread.join(0.1)
        finally:
            other.commit()
            thread.join()
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bench.sql("SELECT has_table_privilege('vitrina_reader', 'analytics.films', 'SELECT') AS may") == [
        {"may": True}
    ]


def test_statistics_of_an_index_stay(bench: Workbench) -> None:
    bench.sql(
        "CREATE INDEX lowered ON analytics.films (lower(title));"
        "ALTER INDEX analytics.lowered ALTER COLUMN 1 SET STATISTICS 500"
    )
    bench.pipeline("films", QUERY, target_key=["id"])

    assert bench.run("films")["status"] == "SUCCESS"

    asked = "SELECT attstattarget AS kept FROM pg_attribute WHERE attrelid = 'analytics.lowered'::regclass"
    assert bench.sql(asked) == [{"kept": 500}]


def test_a_mart_stays_in_its_tablespace(bench: Workbench) -> None:
    bench.sql("SET allow_in_place_tablespaces = on")
    bench.sql("CREATE TABLESPACE attack3 LOCATION ''")
    bench.sql("GRANT CREATE ON TABLESPACE attack3 TO vitrina_app")
    bench.sql("ALTER ROLE vitrina_app SET default_tablespace = attack3")
    try:
        bench.pipeline("films", QUERY, target_key=["id"])
        assert bench.run("films")["status"] == "SUCCESS"
        asked = "SELECT reltablespace AS place FROM pg_class WHERE oid = 'analytics.films'::regclass"
        assert bench.sql(asked) == [{"place": 0}]
    finally:
        bench.sql("ALTER ROLE vitrina_app RESET default_tablespace; DROP TABLE analytics.films")
        bench.sql("DROP TABLESPACE attack3")


# What the application may not do, or what nobody may: the rows can be copied all the same.
OBSTACLES = {
    "a schema to use only": (
        "ALTER SCHEMA analytics OWNER TO CURRENT_USER; REVOKE CREATE ON SCHEMA analytics FROM vitrina_app;"
        "GRANT USAGE ON SCHEMA analytics TO vitrina_app"
    ),
    "a guard of tables": (
        """
        CREATE FUNCTION public.guard() RETURNS event_trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects()
                       WHERE object_type = 'table' AND schema_name = 'analytics') THEN
                RAISE EXCEPTION 'nobody drops marts';
            END IF;
        END $$;
        CREATE EVENT TRIGGER guard ON sql_drop EXECUTE FUNCTION public.guard()
        """
    ),
    "an index of a function in another schema": (
        "CREATE SCHEMA hidden; CREATE FUNCTION hidden.upper(text) RETURNS text IMMUTABLE LANGUAGE sql"
        " AS 'SELECT pg_catalog.upper($1)'; CREATE INDEX hidden ON analytics.films (hidden.upper(title))"
    ),
    "an odd name of an index": 'CREATE INDEX "a ON analytics.films USING b" ON analytics.films (rating)',
}  # fmt: skip


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_rows_are_copied_where_tables_cannot_be_exchanged(bench: Workbench, obstacle: str) -> None:
    bench.sql(OBSTACLES[obstacle])
    old = oid(bench)
    bench.pipeline("films", QUERY, target_key=["id"])

    run = bench.run("films")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert oid(bench) == old
    assert bench.differences(QUERY, "analytics.films") == 0
