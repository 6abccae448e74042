"""Statements that are prepared once in a session find what the driver's own way finds, and survive what sessions do."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina.api.pool import make_pool
from vitrina.settings import Settings
from vitrina.store import pipelines, prepared, runs
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement


@pytest.fixture
def session(database: Settings) -> Iterator[Connection]:
    with make_pool(database) as pool, pool.connection() as connection:
        yield connection


def prepared_in(session: Connection) -> int:
    row = session.execute("SELECT count(*) AS found FROM pg_prepared_statements").fetchone()
    assert row is not None
    return int(row["found"])


def test_rows_are_those_of_the_driver(session: Connection) -> None:
    text = b"""
        SELECT %(word)s::text || %(word)s AS twice, %(none)s::int AS none, ARRAY['a', NULL, %(word)s] AS list,
               '{}'::jsonb AS empty, '[1, {"a": 1.5, "b": null}]'::jsonb AS json, 'infinity'::timestamptz AS never,
               '2026-01-02 03:04:05.6+02'::timestamptz AS at, gen_random_uuid() IS NULL AS no, 50 %% 7 AS rest,
               %(id)s::uuid AS id, %(bytes)s::bytea AS bytes
    """
    values = {
        "word": 'it\'s \\ "so"',
        "none": None,
        "id": "0190c5a2-0000-7000-8000-000000000001",
        "bytes": b"\x00\xff",
        "unused": object(),
    }
    wanted = {name: value for name, value in values.items() if name != "unused"}
    expected = session.execute(text, wanted).fetchall()
    assert [Statement(text).fetch_all(session, values) for _ in range(3)] == [expected] * 3
    assert prepared_in(session) == 1


def test_a_rollback_forgets_nothing(session: Connection) -> None:
    found = Statement(b"SELECT %s::int AS number")
    with session.transaction(force_rollback=True):
        assert found.fetch_one(session, [1]) == {"number": 1}
    for _ in range(10):  # the driver would have prepared this one, too, and deallocated both
        session.execute("SELECT 1")
    with session.transaction(force_rollback=True):
        session.execute("SELECT 1")
    assert found.fetch_one(session, [2]) == {"number": 2}


def test_errors_keep_their_kind_and_the_session_goes_on(session: Connection) -> None:
    divide = Statement(b"SELECT 1 / %s::int AS part")
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
        divide.fetch_all(session, [0])
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        divide.fetch_all(session, ["one"])
    with pytest.raises(psycopg.DataError, match="NUL"):
        Statement(b"SELECT %s::text AS word").fetch_all(session, ["a\x00b"])
    with pytest.raises(psycopg.errors.UndefinedTable):
        Statement(b"SELECT * FROM etl.nowhere").fetch_all(session, [])
    assert divide.fetch_one(session, [1]) == {"part": 1}


def test_a_lost_session_is_an_operational_error(session: Connection, metastore: Connection) -> None:
    found = Statement(b"SELECT %s::int AS number")
    found.fetch_one(session, [1])
    metastore.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        found.fetch_one(session, [1])
    assert session.broken


def test_a_session_prepares_only_so_many(session: Connection) -> None:
    for number in range(prepared.MAX_PREPARED + 20):
        assert Statement(b"SELECT %d + %%s::int AS sum" % number).fetch_one(session, [1]) == {"sum": number + 1}
    assert prepared_in(session) == prepared.MAX_PREPARED


def test_a_migration_adds_a_column(session: Connection, metastore: Connection) -> None:
    metastore.execute("CREATE TABLE etl.things AS SELECT 1 AS id")
    found = Statement(b"SELECT * FROM etl.things")
    assert found.fetch_all(session, []) == [{"id": 1}]
    metastore.execute("ALTER TABLE etl.things ADD COLUMN name text DEFAULT 'new'")
    assert found.fetch_all(session, []) == [{"id": 1, "name": "new"}]
    metastore.execute("ALTER TABLE etl.things DROP COLUMN id")
    # Whoever retries transactions retries this one.
    with (
        pytest.raises(psycopg.errors.SerializationFailure, match="execute the transaction again"),
        session.transaction(),
    ):
        found.fetch_all(session, [])
    assert found.fetch_all(session, []) == [{"name": "new"}]


def test_after_a_migration_a_process_fails_once_at_most(database: Settings, metastore: Connection) -> None:
    """Require that neither other statements nor other sessions fail after the first failure in a transaction."""
    statements = [Statement(b"SELECT * FROM etl.etl_runners"), Statement(b"SELECT *, 1 AS one FROM etl.etl_runners")]
    with make_pool(database) as pool, pool.connection() as one, pool.connection(timeout=60) as other:
        for connection in (one, other):
            for statement in statements:
                statement.fetch_all(connection, [])
        metastore.execute("ALTER TABLE etl.etl_runners ADD COLUMN later int")
        with pytest.raises(psycopg.errors.SerializationFailure), one.transaction():
            statements[0].fetch_all(one, [])
        for connection in (one, other):
            with connection.transaction():
                assert [statement.fetch_all(connection, []) for statement in statements] == [[], []]


def test_a_change_counts_its_rows(session: Connection, metastore: Connection) -> None:
    metastore.execute("CREATE TABLE etl.things AS SELECT n AS id FROM generate_series(1, 5) n")
    delete = Statement(b"DELETE FROM etl.things WHERE id <= %s")
    assert [delete.execute(session, [2]), delete.execute(session, [2]), delete.execute(metastore, [3])] == [2, 0, 1]


def test_every_filter_of_a_list_can_be_prepared(session: Connection, workbench: Workbench) -> None:
    """Types of parameters are found by the server from their places: each condition must say enough."""
    workbench.pipeline("films", "SELECT 1 AS id", target_key=["id"])
    workbench.metastore.execute("""UPDATE etl.etl_pipelines SET managed_by = 'git', labels = '{"team": "core"}'""")
    row = pipelines.find(workbench.metastore, "films")
    assert row is not None
    narrowed = pipelines.Filter(
        ["IDLE"], True, "FILM", row["target_table"], row["updated_at"], "git", ["team=core", "team"]
    )
    for sort in pipelines.SORTABLE:
        for descending in (False, True):
            found = pipelines.list_page(session, narrowed, limit=2, sort=sort, descending=descending)
            assert [each["name"] for each in found] == ["films"]
            after = (row[sort], row["id"])
            assert pipelines.list_page(session, narrowed, limit=2, sort=sort, descending=descending, after=after) == []
    each_of: dict[str, Any] = {
        "status": ["SUCCESS"],
        "trigger": ["api"],
        "since": row["created_at"],
        "until": row["created_at"],
    }
    for pipeline_id in (None, row["id"]):
        for oldest_first in (False, True):
            after = (row["created_at"], row["id"])
            more: dict[str, Any] = {"labels": ["team"], "after": after, "oldest_first": oldest_first, "limit": 5}
            assert runs.list_page(session, pipeline_id=pipeline_id, **each_of, **more) == []


def test_what_the_server_does_not_support_is_said_once(session: Connection, metastore: Connection) -> None:
    metastore.execute(
        """
        CREATE FUNCTION etl.unsupported() RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN RAISE feature_not_supported USING MESSAGE = 'not here'; END $$
        """
    )
    asked = Statement(b"SELECT etl.unsupported() AS number")
    for _ in range(2):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="not here"):
            asked.fetch_all(session, [])


def test_a_statement_follows_the_role_and_the_path_of_its_session(session: Connection, workbench: Workbench) -> None:
    """What a name means is asked again when either has changed since the statement was prepared."""
    workbench.sql(
        "CREATE ROLE other_path; GRANT other_path TO vitrina_app; CREATE SCHEMA one; CREATE SCHEMA two;"
        " CREATE TABLE one.words AS SELECT 'one' AS word; CREATE TABLE two.words AS SELECT 'two' AS word;"
        " GRANT USAGE ON SCHEMA one, two TO vitrina_app, other_path; GRANT SELECT ON one.words TO vitrina_app;"
        " GRANT SELECT ON two.words TO other_path"
    )
    try:
        asked = Statement(b"SELECT word, current_user::text AS role FROM words")
        session.execute("SET search_path = one")
        assert asked.fetch_all(session, []) == [{"word": "one", "role": "vitrina_app"}]
        session.execute("SET search_path = two; SET ROLE other_path")
        assert asked.fetch_all(session, []) == [{"word": "two", "role": "other_path"}]
        session.execute("SET search_path = one")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked.fetch_all(session, [])
    finally:
        session.execute("RESET ROLE; RESET search_path")
        workbench.sql("DROP SCHEMA one, two CASCADE; DROP ROLE other_path")
