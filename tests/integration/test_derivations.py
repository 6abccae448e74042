"""What cannot be followed is refused by name; what the log lacks, the author states, and asking for keys costs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from tests.support import followed
from vitrina import sqlguard
from vitrina.connectors.postgres import followed_catalog, key_estimates, keyed
from vitrina.connectors.postgres.derive.derivation import QueryDerivation, derive
from vitrina.connectors.postgres.derive.tables import unsized
from vitrina.connectors.postgres.keyed import KeyedQuery
from vitrina.connectors.postgres.source import Query, SqlReader
from vitrina.errors import ConfigError, SourceQueryFailed
from vitrina.loads import plan
from vitrina.ports.live import Change, FollowedTable, Stale
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

POLICY = sqlguard.SqlPolicy(frozenset({"content"}))


@pytest.fixture
def source(database: Settings) -> Iterator[Connection]:
    assert database.admin_url is not None
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-derivations") as session:
        session.execute("SET search_path = ''")
        followed.set_up(session)
        yield session


def derived(session: Connection, text: str, key: str = "id", **more: Any) -> QueryDerivation:
    names, types = followed.described(session, text)
    return derive(session, text, [(name, types[names.index(name)]) for name in key.split()], **more)


def reader_of(session: Connection) -> SqlReader:
    return SqlReader(session, session.info.dsn, "vitrina:test")


REFUSED = {
    "SELECT id FROM content.film ORDER BY id LIMIT 3": "LIMIT or OFFSET of the whole query",
    "SELECT id FROM content.film TABLESAMPLE system (10)": "TABLESAMPLE",
    "WITH RECURSIVE b AS (SELECT id FROM content.person UNION SELECT p.id FROM content.person p"
    " JOIN b ON b.id = p.boss_id) SELECT id FROM b": "WITH RECURSIVE",
    "SELECT id, ctid::text AS place FROM content.film": "the system column ctid",
    "SELECT id, random() < 0.5 AS half FROM content.film": "the volatile function random()",
    "SELECT id FROM content.vote WHERE at > extract(year FROM now())": "now() in a condition",
    "SELECT id FROM content.vote WHERE at > extract(year FROM current_date)": "current_date in a condition",
    "SELECT id, age(to_timestamp(at)) AS age FROM content.vote": "age() in a condition or a value",
    "SELECT id FROM content.vote WHERE to_timestamp(at) > 'yesterday'": "the text 'yesterday'",
    "SELECT id FROM content.kept": "content.kept is a materialized view",
    "SELECT id FROM content.fast": "content.fast is an unlogged table",
    "SELECT id FROM content.old_films": "content.old_films is a table that inherits",
    "SELECT oid AS id FROM pg_catalog.pg_class": "a table of the server itself",
    "SELECT id, content.best(id) AS best FROM content.film": "content.best(), which is not IMMUTABLE and may read",
    "SELECT max(id) AS id FROM content.film": "changes of content.film cannot be traced to keys",
    "SELECT n AS id, count(*) AS c FROM (SELECT count(*) AS n FROM content.vote GROUP BY film_id) t GROUP BY n": (
        "changes of content.vote cannot be traced to keys"
    ),
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM content.film": (
        "changes of content.film cannot be traced to keys"
    ),
    "SELECT json_arrayagg(id) AS id FROM content.film": "changes of content.film cannot be traced to keys",
    "SELECT 1 AS id": "the query reads no table",
    "SELECT twice AS id FROM content.film": "changes of content.film cannot be traced to keys",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(source: Connection, text: str) -> None:
    source.execute(
        "CREATE MATERIALIZED VIEW content.kept AS SELECT id FROM content.film;"
        "CREATE UNLOGGED TABLE content.fast (id int PRIMARY KEY);"
        "CREATE TABLE content.old_films () INHERITS (content.film);"
        "CREATE FUNCTION content.best(int) RETURNS int STABLE LANGUAGE sql AS"
        " 'SELECT max(score) FROM content.vote WHERE film_id = $1'"
    )
    if "content.film" in text and "INHERITS" not in text:
        source.execute("ALTER TABLE content.old_films NO INHERIT content.film")
    if "json_arrayagg" in text and source.info.server_version < 160000:
        pytest.skip("this server has no json_arrayagg")
    with pytest.raises(SourceQueryFailed) as raised:
        derived(source, text)
    assert REFUSED[text] in str(raised.value)


def test_a_query_of_the_clock_is_followed_where_it_is_reloaded(source: Connection) -> None:
    text = "SELECT id FROM content.vote WHERE at > extract(year FROM now())"
    assert derived(source, text, reloads=True).columns == ("id",)


def test_a_stamp_is_no_reason(source: Connection) -> None:
    text = "SELECT id, now() AS loaded_at FROM content.film"
    assert derived(source, text, stamps=sqlguard.check(text, POLICY).volatile_columns).columns == ("id",)


def test_without_the_parser_it_is_said_what_to_install(source: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pgparse", None)
    with pytest.raises(ConfigError, match=r"install vitrina\[live\]"):
        derived(source, "SELECT id FROM content.film")


# --- what the log carries --------------------------------------------------------------------------------------------


def test_old_values_that_the_log_lacks_are_asked_for_with_the_statement(source: Connection) -> None:
    source.execute("ALTER TABLE content.visit_b REPLICA IDENTITY DEFAULT")
    text = "SELECT film_id, count(*) AS n FROM content.visit GROUP BY film_id"
    with pytest.raises(SourceQueryFailed, match=r"film_id of content.visit.*ALTER TABLE content.visit_b REPLICA IDENT"):
        derived(source, text, "film_id")


def test_a_primary_key_is_enough_where_keys_depend_on_nothing_else(source: Connection) -> None:
    source.execute("ALTER TABLE content.film REPLICA IDENTITY DEFAULT")
    found = derived(source, "SELECT id, title FROM content.film")
    assert [(table.relation, table.columns, table.old_columns) for table in found.tables] == [
        ("content.film", ("id",), ("id",))
    ]
    changed = [Change(1, 0, 1, "content.film", "update", None, {"id": "4", "title": "b"})]
    assert found.stale(source, changed).keys == [("4",)]


def test_a_value_that_no_image_has_means_every_key(source: Connection) -> None:
    found = derived(source, "SELECT kind AS id, count(*) AS n FROM content.film GROUP BY kind")
    changed = [Change(1, 0, 1, "content.film", "update", {"id": "4"}, {"id": "4"})]
    stale = found.stale(source, changed)
    assert stale.everything
    assert "content.film" in stale.why


def test_a_large_value_that_did_not_change_is_taken_from_the_old_image(source: Connection) -> None:
    found = derived(source, "SELECT code AS id, count(*) AS n FROM content.film GROUP BY code")
    changed = [Change(1, 0, 1, "content.film", "update", {"id": "4", "code": "long"}, {"id": "4"})]
    assert found.stale(source, changed).keys == [("long",)]


def test_truncate_means_every_key(source: Connection) -> None:
    stale = derived(source, "SELECT id FROM content.film").stale(source, [Change(1, 0, 1, "content.film", "truncate")])
    assert stale.everything
    assert stale.why == "content.film was truncated"


def test_a_partition_is_followed_as_its_root(source: Connection) -> None:
    found = derived(source, "SELECT film_id AS id, count(*) AS n FROM content.visit_a GROUP BY film_id")
    assert [table.relation for table in found.tables] == ["content.visit"]


def test_warnings_name_what_may_be_written_differently(source: Connection) -> None:
    source.execute("ALTER TABLE content.vote ADD weight float8")
    text = "SELECT film_id AS id, sum(weight) AS w, string_agg('x', ',') AS t FROM content.vote GROUP BY film_id"
    warnings = derived(source, text).warnings
    assert [warning.partition(":")[0] for warning in warnings] == ["sum() over floats", "string_agg() without ORDER BY"]


def test_a_table_behind_a_view_must_be_readable(database: Settings, source: Connection) -> None:
    source.execute(
        "CREATE VIEW content.named AS"
        " SELECT f.id, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id"
    )
    source.execute("REVOKE ALL ON content.film FROM PUBLIC, vitrina_reader; GRANT SELECT ON content.named TO PUBLIC")
    assert database.reader_url is not None
    url, said = database.reader_url.get_secret_value(), r"needs SELECT on content\.film"
    with postgres.connect(url, "vitrina:test") as reader, pytest.raises(SourceQueryFailed, match=said):
        derived(reader, "SELECT id, name FROM content.named")


@pytest.mark.parametrize(
    ("sized", "bare"),
    [
        ("numeric(4,2)", "numeric"),
        ("character(3)", "bpchar"),
        ("character varying(9)", "character varying"),
        ("timestamp(3) with time zone", "timestamp with time zone"),
        ("bit(3)", "bit(3)"),
        ("integer", "integer"),
    ],
)
def test_a_key_is_cast_without_its_size(sized: str, bare: str) -> None:
    assert unsized(sized) == bare


def test_a_value_that_no_key_can_have_is_no_error(source: Connection) -> None:
    source.execute(
        "CREATE TABLE content.price (id numeric(4, 2) PRIMARY KEY);"
        "CREATE TABLE content.sale (id int PRIMARY KEY, price numeric);"
        "ALTER TABLE content.sale REPLICA IDENTITY FULL"
    )
    text = "SELECT p.id, count(s.id) AS n FROM content.price p LEFT JOIN content.sale s ON s.price = p.id GROUP BY p.id"
    found = derive(source, text, [("id", "numeric(4,2)")])
    changed = [Change(1, 0, 1, "content.sale", "insert", None, {"id": "1", "price": "123456.70"})]
    assert found.stale(source, changed).keys == [("123456.7",)]


# --- what the author states ------------------------------------------------------------------------------------------

RANGE = (
    "SELECT f.id, count(v.id) AS lower FROM content.film f LEFT JOIN content.vote v ON v.score < f.rating GROUP BY f.id"
)


def admit(text: str) -> object:
    return sqlguard.check(text, POLICY)


def test_the_author_states_what_a_change_affects(source: Connection) -> None:
    affects = {"content.vote": "SELECT f.id FROM content.film f WHERE f.rating > :score /* 100 % */ AND ':at' <> ''"}
    found = derived(source, RANGE, affects=affects, admit=admit)
    assert [table.every_key for table in found.tables] == [False, False]
    source.execute("INSERT INTO content.film (id, kind, rating) VALUES (1, 'm', 1), (2, 'm', 2), (3, 'm', 3)")
    changed = [Change(1, 0, 1, "content.vote", "update", {"id": "1", "score": "2"}, {"id": "1", "score": None})]
    assert found.stale(source, changed).keys == [("3",)]


@pytest.mark.parametrize(
    ("table", "query", "said"),
    [
        ("content.vote", "SELECT id FROM content.film", "must use columns of that table as parameters"),
        ("content.vote", "SELECT id FROM content.film WHERE id = :nothing", "found 'nothing'"),
        ("content.vote", "SELECT id FROM content.nowhere WHERE id = :id", "cannot run"),
        (
            "content.vote",
            "SELECT id, id FROM content.film WHERE id = :id",
            "must return id in this order, not 2 columns",
        ),
        ("content.genre", "SELECT id FROM content.film WHERE id = :id", "which the query does not read"),
    ],
)
def test_a_wrong_statement_is_refused(source: Connection, table: str, query: str, said: str) -> None:
    with pytest.raises(SourceQueryFailed, match=said):
        derived(source, RANGE, affects={table: query}, admit=admit)


def test_a_statement_is_judged_as_queries_are(source: Connection) -> None:
    with pytest.raises(Exception, match="pg_read_file"):
        derived(source, RANGE, affects={"content.vote": "SELECT pg_read_file('x')::int WHERE :id > 0"}, admit=admit)


# --- asking for keys -------------------------------------------------------------------------------------------------


def keyed_query(text: str, **types: str) -> KeyedQuery:
    return KeyedQuery(Query(sqlguard.check(text, POLICY)), tuple(types), types)


@pytest.fixture
def many(source: Connection) -> Connection:
    source.execute("ALTER TABLE content.film DISABLE TRIGGER ALL; ALTER TABLE content.vote DISABLE TRIGGER ALL")
    source.execute(
        "INSERT INTO content.film (id, kind, studio_id) SELECT n, 'm', n % 50 FROM generate_series(1, 3000) n"
    )
    source.execute(
        "INSERT INTO content.vote (id, film_id, score, at) SELECT n, n % 3000, n % 5, 1 FROM generate_series(1, 6000) n"
    )
    source.execute("ANALYZE content.film, content.vote")
    return source


VOTES = (
    "SELECT f.id, f.kind, v.n FROM content.film f LEFT JOIN"
    " (SELECT film_id, count(*) AS n FROM content.vote GROUP BY film_id) v ON v.film_id = f.id"
)


def test_asking_gives_the_rows_of_the_keys_alone(many: Connection) -> None:
    asked = keyed_query(VOTES, id="integer")
    rows = asked.ask(many, Stale(("id",), [("7",), ("3000",), ("9999",), ("7",)]))
    assert sorted(rows) == [(7, "m", 2), (3000, "m", None)]


def test_a_scan_for_each_key_is_refused_until_there_is_an_index(many: Connection) -> None:
    with pytest.raises(SourceQueryFailed, match=r"all of content\.vote is read for each key; add an index"):
        keyed_query(VOTES, id="integer").refuse_scans(reader_of(many), ["id"])
    many.execute("CREATE INDEX ON content.vote (film_id)")
    keyed_query(VOTES, id="integer").refuse_scans(reader_of(many), ["id"])


def test_a_small_table_may_be_scanned(many: Connection) -> None:
    many.execute(
        "INSERT INTO content.studio (id, name) SELECT n, 'x' || n FROM generate_series(1, 50) n; ANALYZE content.studio"
    )
    text = "SELECT f.id, s.id AS studio FROM content.film f JOIN content.studio s ON lower(s.name) = 'x' || f.studio_id"
    keyed_query(text, id="integer").refuse_scans(reader_of(many), ["id"])


def test_a_plan_says_about_how_many_keys_a_changed_row_concerns(many: Connection) -> None:
    many.execute("INSERT INTO content.studio (id, name) SELECT n, 'x' || n FROM generate_series(1, 49) n")
    many.execute("DELETE FROM content.film WHERE studio_id = 0; ANALYZE content.studio, content.film")
    text = "SELECT f.id, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id"

    def costs() -> dict[str, FollowedTable]:
        found = derived(many, text)
        found.estimate(partial(key_estimates.estimate, reader_of(many)))
        return {table.relation: table for table in found.tables}

    found = costs()
    assert (found["content.film"].keys_per_row, found["content.film"].scans) == (1, ())
    assert 50 <= (found["content.studio"].keys_per_row or 0) <= 70, "sixty films have one studio"
    assert found["content.studio"].scans == ("content.film",)
    [said] = plan._cost(found["content.studio"])
    assert "about" in said
    assert "add an index" in said
    many.execute("CREATE INDEX ON content.film (studio_id)")
    assert costs()["content.studio"].scans == ()


def test_a_query_that_is_computed_whole_is_refused(many: Connection) -> None:
    many.execute("CREATE INDEX ON content.vote (film_id)")
    text = (
        "WITH n AS (SELECT film_id, count(*) AS n FROM content.vote GROUP BY film_id)"
        " SELECT f.id, a.n, b.n AS other FROM content.film f LEFT JOIN n a ON a.film_id = f.id"
        " LEFT JOIN n b ON b.film_id = f.studio_id"
    )
    with pytest.raises(SourceQueryFailed, match="a WITH query that is computed whole"):
        keyed_query(text, id="integer").refuse_scans(reader_of(many), ["id"])


def test_only_the_rows_asked_for_are_computed(many: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition outside of the query would compute all groups: the plan of LATERAL does not."""
    many.execute("CREATE INDEX ON content.vote (film_id)")
    statement = keyed_query(VOTES, id="integer").select([SQL("q.*")], Stale(("id",), [("7",)]))
    plan = reader_of(many).explain(statement).plan[0]["Plan"]
    scanned = [node for node in keyed.nodes(plan) if node.get("Relation Name") == "vote"]
    assert scanned
    assert all(node["Plan Rows"] < 20 for node in scanned)


# --- what the log does not say ---------------------------------------------------------------------------------------

UNSAID = {
    "a partition is detached": "ALTER TABLE content.visit DETACH PARTITION content.visit_a",
    "a partition is attached": (
        "CREATE TABLE content.more (LIKE content.visit INCLUDING ALL);"
        "ALTER TABLE content.visit ATTACH PARTITION content.more FOR VALUES IN (99)"
    ),
    "a partition is dropped": "DROP TABLE content.visit_a",
    "a type is altered": "ALTER TABLE content.film ALTER studio_id TYPE bigint USING studio_id + 1",
    "a table is exchanged": (
        "CREATE TABLE content.film_new (LIKE content.film INCLUDING ALL);"
        "ALTER TABLE content.film RENAME TO film_old; ALTER TABLE content.film_new RENAME TO film"
    ),
    "a view is replaced": (
        "CREATE OR REPLACE VIEW content.acted AS SELECT p.film_id AS film, n.name AS actor, n.id AS person"
        " FROM content.part p JOIN content.person n ON n.id = p.person_id"
    ),
    "the identity changes": "ALTER TABLE content.film REPLICA IDENTITY DEFAULT",
    "a partition's identity changes": "ALTER TABLE content.visit_b REPLICA IDENTITY DEFAULT",
    "a column is added": "ALTER TABLE content.film ADD more text",
    "a column is dropped": "ALTER TABLE content.film DROP title",
    "a table is rewritten": "TRUNCATE content.film",
    "a publication takes a table": "CREATE PUBLICATION p FOR TABLE content.film",
    "a table is dropped": "DROP TABLE content.film",
}
NAMED = ["content.film", "content.visit", "content.acted"]


@pytest.mark.parametrize("what", UNSAID)
def test_the_fingerprint_differs_when(source: Connection, what: str) -> None:
    before = followed_catalog.fingerprint(source, NAMED)
    assert followed_catalog.fingerprint(source, NAMED) == before
    source.execute(UNSAID[what])
    assert followed_catalog.fingerprint(source, NAMED) != before


def test_rows_and_other_tables_leave_the_fingerprint_as_it_is(source: Connection) -> None:
    before = followed_catalog.fingerprint(source, NAMED)
    source.execute("INSERT INTO content.film (id, kind) VALUES (1, 'm'); ALTER TABLE content.genre ADD more text")
    source.execute("ANALYZE content.film; CREATE INDEX ON content.film (title)")
    assert followed_catalog.fingerprint(source, NAMED) == before


def test_every_name_of_a_query_is_known_for_the_fingerprint(source: Connection) -> None:
    found = derived(
        source, "SELECT a.film AS id, l.score FROM content.acted a JOIN content.latest_vote l ON l.film_id = a.film"
    )
    names = {name.replace('"', "") for name in found.names}
    assert names == {"content.acted", "content.part", "content.person", "content.latest_vote", "content.vote"}


def test_a_reader_may_ask_for_the_fingerprint(database: Settings, source: Connection) -> None:
    assert database.reader_url is not None
    before = followed_catalog.fingerprint(source, NAMED)
    with psycopg.connect(database.reader_url.get_secret_value()) as reader:
        assert followed_catalog.fingerprint(reader, NAMED) == before
