"""The SQL guard refuses the hostile corpus with words that help, accepts the legitimate one, and says what it uses."""

import inspect
import re
import sys
import time

import pytest

from tests.corpus import queries
from vitrina.errors import InvalidQuery
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery, SqlPolicy, check, render, render_parts

POLICY = SqlPolicy(frozenset({"content", "ugc"}))
HOSTILE = queries.hostile()
LEGITIMATE = queries.legitimate()


def refusal(sql: str, policy: SqlPolicy = POLICY) -> InvalidQuery:
    with pytest.raises(InvalidQuery) as caught:
        check(sql, policy)
    return caught.value


def accepted(sql: str, policy: SqlPolicy = POLICY) -> CheckedQuery:
    return check(sql, policy)


# --- the corpus ---------------------------------------------------------------------------------------------------


def test_the_corpus_is_large_enough() -> None:
    assert len({query.sql for query in HOSTILE}) >= 430
    assert len({query.sql for query in LEGITIMATE}) >= 300


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: query.sql[:60].replace("\n", " "))
def test_hostile_query_is_refused_for_the_right_reason(query: queries.Query) -> None:
    error = refusal(query.sql)
    assert error.construct == query.title
    assert error.message.startswith(f"line {error.line}, column {error.column}: ")
    # It names the setting that would allow it, or says that none does.
    named = set(re.findall(r"VITRINA_(\w+)", error.message))
    assert bool(named) != ("no setting" in error.message)
    assert {name.lower() for name in named} <= set(Settings.model_fields)


@pytest.mark.parametrize("query", LEGITIMATE, ids=lambda query: query.title)
def test_legitimate_query_is_accepted(query: queries.Query) -> None:
    judged = accepted(query.sql)
    assert judged.text in query.sql
    assert all(schema in POLICY.allowed_schemas for schema, _ in judged.tables)


@pytest.mark.parametrize("query", LEGITIMATE, ids=lambda query: query.title)
def test_accepted_text_means_the_same_without_its_ends(query: queries.Query) -> None:
    judged = accepted(query.sql)
    again = accepted(judged.text)
    assert (again.text, again.tables, again.functions) == (judged.text, judged.tables, judged.functions)


@pytest.mark.parametrize("query", LEGITIMATE, ids=lambda query: query.title)
def test_accepted_text_can_be_wrapped(query: queries.Query) -> None:
    judged = accepted(query.sql)
    assert accepted(f"SELECT * FROM ({judged.text}) AS q").tables == judged.tables
    with_clause, body = render_parts(judged, {"since": ":since", "until": ":until"})
    assert with_clause + body == judged.text
    assert accepted(f"{with_clause}SELECT * FROM ({body}) AS q WHERE true").tables == judged.tables


# --- characters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("SELECT 1\0", "character"),
        ("SELECT '\0'", "character"),
        ("SELECT '\ud800'", "character"),
        ("SELECT\u00a01", "character"),
        ("SELECT\u2003pg_sleep(1)", "character"),
        ("SELECT\u200bpg_sleep(1)", "character"),
        ("\ufeffSELECT 1", "character"),
        ("SELECT 1\u2028DROP TABLE content.genre", "number"),
        ("SELECT\v1", "character"),
        ("SELECT\x1c1", "character"),
        ("SELECT\x851", "character"),
        ("SELECT \u2018x\u2019", "character"),
        ("SELECT 1\uff1b DROP TABLE content.genre", "number"),
        ("SELECT \uff50g_sleep(1)", "function \uff50g_sleep"),
        ("SELECT pg_\u017fleep(1)", "function pg_\u017fleep"),
        ("SELECT * FROM \u212bontent.x", "table \u212bontent.x"),
        ("SELECT * FROM content\u00ad.genre", "character"),
        ('SELECT * FROM "content\u200b".genre', "identifier"),
        ("SELECT 1 --\u2028, pg_sleep(1)\n, pg_sleep(2)", "function pg_sleep"),
        ("SELECT 1 --\r, pg_sleep(1)", "function pg_sleep"),
        ("SELECT 1 --\x85, pg_sleep(1)\r\n", None),
    ],
)
def test_strange_characters(sql: str, construct: str | None) -> None:
    if construct is None:
        accepted(sql)
    else:
        assert refusal(sql).construct == construct


def test_only_latin_letters_are_folded() -> None:
    assert accepted("WITH \u0416 AS (SELECT 1 AS a) SELECT A FROM \u0416").tables == ()
    assert refusal("WITH \u0416 AS (SELECT 1 AS a) SELECT A FROM \u0436").construct == "table \u0436"


# --- limits -------------------------------------------------------------------------------------------------------


def test_length_is_limited() -> None:
    policy = SqlPolicy(frozenset({"content"}), max_length=20)
    accepted("SELECT 1", policy)
    assert refusal("SELECT 1" + " " * 20, policy).construct == "length"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "(SELECT " * 3000 + "1" + ")" * 3000,
        "SELECT * FROM " + "(" * 5000 + "content.genre" + ")" * 5000,
        "(" * 9000 + "SELECT 1" + ")" * 9000,
        "SELECT " + "CASE WHEN true THEN " * 3000 + "1" + " END" * 3000,
        "SELECT " + "ARRAY[" * 5000 + "1" + "]" * 5000,
        "SELECT " + "abs(" * 5000 + "1" + ")" * 5000,
        "WITH a AS (" * 3000 + "SELECT 1" + ") SELECT 1" * 3000,
        "SELECT 1 GROUP BY " + "ROLLUP (" * 5000 + "1" + ")" * 5000,
        "SELECT json_array(" * 3000 + "1" + ")" * 3000,
        "SELECT x" + "[1" * 5000 + "]" * 5000,
        "SELECT " + "trim(BOTH " * 5000 + "1" + ")" * 5000,
        "SELECT " + "count(*) OVER (PARTITION BY " * 3000 + "1" + ")" * 3000,
        "SELECT * FROM json_table('{}', '$' COLUMNS (" + "NESTED PATH 'x' COLUMNS (" * 3000 + ")" * 3001,
    ],
    ids=lambda sql: sql[:24],
)
def test_nesting_is_limited_before_the_stack_is(sql: str) -> None:
    frames_of_the_caller = len(inspect.stack(0))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(frames_of_the_caller + 5_300)
    try:
        assert refusal(sql).construct == "nesting"
    finally:
        sys.setrecursionlimit(limit)


def test_nesting_of_real_queries_is_far_from_the_limit() -> None:
    accepted("SELECT " + "coalesce(" * 200 + "1" + ")" * 200)
    letters = "абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"
    calls = "replace(" * len(letters) + "title" + "".join(f", '{letter}', 'x')" for letter in letters)
    accepted(f"SELECT {calls} AS slug FROM content.film_work")
    accepted("SELECT * FROM (" * 15 + "SELECT 1" + ") AS x" * 15)
    accepted("SELECT " + "CASE WHEN true THEN 1 ELSE " * 20 + "1" + " END" * 20)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "- " * 20_000 + "1",
        "SELECT " + "NOT " * 20_000 + "true",
        "SELECT 1" + " + 1" * 20_000,
        "SELECT 1" + "::int" * 15_000,
        "SELECT 1" + " UNION SELECT 1" * 5_000,
        "SELECT 1 FROM content.genre" + " CROSS JOIN content.genre" * 3_000,
        "SELECT '" + "''" * 45_000 + "'",
        "SELECT 1 /*" + "/*" * 20_000 + "*/" * 20_001,
        "WITH " + ", ".join(f"a{n} AS (SELECT 1)" for n in range(900)) + " SELECT 1",
        "SELECT " + "x" + "[1]" * 20_000 + " FROM content.genre",
        "SELECT " + "((SELECT " * 12 + "1" + ") + 1)" * 12,
        "SELECT '" + "\\" * 95_000 + "x'",
        "WITH " + ", ".join(f"a{n} AS (SELECT 1)" for n in range(4_000)) + " SELECT 1 FROM a0",
        "SELECT *, * FROM (" * 30 + "SELECT 1 AS a" + ") AS x" * 30,
        "SELECT " + ", ".join(["a"] * 12_000) + " FROM (SELECT " + ", ".join(["1 a"] * 9_000) + ") AS x",
        "SELECT " + "x.*, " * 12_000 + "1 FROM (SELECT " + ", ".join(["1 a"] * 1_000) + ") AS x",
    ],
    ids=lambda sql: sql[:24],
)
def test_long_queries_are_judged_quickly(sql: str) -> None:
    started = time.process_time()
    accepted(sql)
    assert time.process_time() - started < 5


def test_a_typical_query_is_judged_within_milliseconds() -> None:
    sql = LEGITIMATE[0].sql
    accepted(sql)
    started = time.process_time()
    for _ in range(50):
        accepted(sql)
    assert (time.process_time() - started) / 50 < 0.005


# --- policy -------------------------------------------------------------------------------------------------------


def test_the_operator_opens_schemas() -> None:
    sql = "SELECT * FROM public.t"
    assert refusal(sql).construct == "table public.t"
    assert accepted(sql, SqlPolicy(frozenset({"public"}))).tables == (("public", "t"),)


@pytest.mark.parametrize("schema", ["pg_catalog", "information_schema", "pg_toast", "pg_temp_3"])
def test_the_schemas_of_the_server_cannot_be_opened(schema: str) -> None:
    with pytest.raises(ValueError, match=schema):
        SqlPolicy(frozenset({schema}))


def test_no_schema_is_open_by_default() -> None:
    error = refusal("SELECT * FROM content.genre", SqlPolicy(frozenset()))
    assert error.construct == "table content.genre"
    accepted("SELECT 1", SqlPolicy(frozenset()))


def test_the_operator_adds_functions() -> None:
    policy = SqlPolicy(frozenset({"content"}), extra_functions=frozenset({"similarity", "public.levenshtein"}))
    judged = accepted("SELECT similarity(a, b), public.levenshtein(a, b) FROM content.t", policy)
    assert judged.functions == {"similarity", "public.levenshtein"}
    assert refusal("SELECT levenshtein('a', 'b')", policy).construct == "function levenshtein"
    assert refusal("SELECT public.similarity('a', 'b')", policy).construct == "function public.similarity"
    assert refusal('SELECT "public.levenshtein"(1)', policy).construct == "function public.levenshtein"
    assert refusal('SELECT "Similarity"(1)', policy).construct == "function Similarity"


# --- what a query uses --------------------------------------------------------------------------------------------


def test_tables_in_order_of_appearance_without_names_of_with() -> None:
    judged = accepted(
        "WITH g AS (SELECT * FROM content.genre) SELECT * FROM g, ugc.ratings, content.genre, content.film_work"
    )
    assert judged.tables == (("content", "genre"), ("ugc", "ratings"), ("content", "film_work"))


def test_functions_by_name() -> None:
    judged = accepted("SELECT lower(a), pg_catalog.upper(b), coalesce(c, now()), current_date FROM content.genre")
    assert judged.functions == {"lower", "pg_catalog.upper", "coalesce", "now", "current_date"}


@pytest.mark.parametrize(
    ("sql", "stamps"),
    [
        ("SELECT now() AS loaded_at, id FROM content.genre", {"loaded_at"}),
        ("SELECT now(), random() r, gen_random_uuid(), current_timestamp, clock_timestamp() AS c", {
            "now", "r", "gen_random_uuid", "current_timestamp", "c"}),
        ("SELECT now()::date AS d, now() AT TIME ZONE 'UTC' AS u, date_trunc('day', now()) AS t", {"d", "u", "t"}),
        ("SELECT (now()) AS a, CAST(now() AS text), md5(random()::text || 'x') AS salt", {"a", "now", "salt"}),
        ("SELECT pg_catalog.now() AS a", {"a"}),
        ("SELECT f.*, now() AS loaded_at FROM content.film_work AS f", {"loaded_at"}),
        # About the row, so a change of it must reach the mart.
        ("SELECT expires_at > now() AS is_active, now() - created_at AS age FROM content.film_work", set()),
        ("SELECT coalesce(updated_at, now()) AS u FROM content.film_work", set()),
        ("SELECT (SELECT max(a) FROM content.genre WHERE b < now()) AS m, count(*) + random() AS c", set()),
        ("SELECT row_number() OVER () + random() AS n FROM content.genre", set()),
        ("SELECT current_date AS as_of, 1 AS one", set()),
        ("SELECT id FROM content.genre WHERE created_at < now()", set()),
        # Through subqueries and WITH.
        ("SELECT x.l, x.id FROM (SELECT now() AS l, id FROM content.genre) AS x", {"l"}),
        ("SELECT l AS stamp, id FROM (SELECT now() AS l, id FROM content.genre) AS x", {"stamp"}),
        ("SELECT * FROM (SELECT now() AS l, id FROM content.genre) AS x", {"l"}),
        ("SELECT x.* FROM (SELECT now() AS l FROM content.genre) AS x, content.person", {"l"}),
        ("WITH x AS (SELECT now() AS l, id FROM content.genre) SELECT l, id FROM x", {"l"}),
        ("WITH x (a, b) AS (SELECT now(), id FROM content.genre) SELECT a, b FROM x", {"a"}),
        ("SELECT y.p FROM (SELECT now(), 1) AS y (p, q)", {"p"}),
        ("SELECT f.id, s.at FROM content.film_work AS f CROSS JOIN (SELECT now() AS at) AS s", {"at"}),
        ("SELECT f.at FROM content.film_work AS f CROSS JOIN (SELECT now() AS at) AS s", set()),
        ("SELECT l > created_at AS x FROM (SELECT now() AS l, created_at FROM content.genre) AS y", set()),
        # Set operations: a stamp only if both sides are.
        ("SELECT now() AS a, 1 AS b UNION ALL SELECT now(), 2", {"a"}),
        ("SELECT now() AS a UNION ALL SELECT updated_at FROM content.genre", set()),
        ("SELECT f.*, now() AS a FROM content.genre f UNION ALL SELECT g.*, g.b FROM content.genre g", set()),
        ("(SELECT now() AS a) ORDER BY 1 LIMIT 1", {"a"}),
    ],
)  # fmt: skip
def test_columns_that_only_tell_when_the_row_was_made(sql: str, stamps: set[str]) -> None:
    assert accepted(sql).volatile_columns == stamps


# --- parameters ---------------------------------------------------------------------------------------------------


def test_parameters_are_replaced_where_they_are_tokens_and_nowhere_else() -> None:
    sql = """SELECT ':since' AS a, b::date, '%' || c % 2 FROM content.genre -- :since
        WHERE d>=<since> AND e < <until> /* :until */ AND <since>::date IS NULL"""
    judged = accepted(sql.replace("<since>", ":since").replace("<until>", ":until"))
    assert judged.parameters == {"since", "until"}
    rendered = render(judged, {"since": "$1::timestamptz", "until": "$2"})
    assert rendered == sql.replace("<since>", "$1::timestamptz").replace("<until>", "$2")


def test_a_query_without_parameters_is_rendered_as_it_is() -> None:
    judged = accepted('  SELECT 100 % 3 AS "50%" ; ; -- done')
    assert judged.parameters == frozenset()
    assert render(judged, {}) == 'SELECT 100 % 3 AS "50%"'


def test_with_is_parted_from_the_query_behind_it() -> None:
    judged = accepted("/* c */ WITH a AS (SELECT :since AS s) -- x\nSELECT * FROM a WHERE s < :until;")
    assert judged.has_with
    assert render_parts(judged, {"since": "$1", "until": "$2"}) == (
        "WITH a AS (SELECT $1 AS s) -- x\n", "SELECT * FROM a WHERE s < $2")  # fmt: skip
    assert render_parts(accepted("SELECT 1"), {}) == ("", "SELECT 1")
    inner = accepted("(WITH a AS (SELECT 1) SELECT * FROM a)")
    assert not inner.has_with
    assert render_parts(inner, {})[0] == ""


# --- errors -------------------------------------------------------------------------------------------------------


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = refusal("SELECT id,\n       pg_read_file('/etc/passwd')\nFROM content.genre")
    assert (error.line, error.column) == (2, 8)
    assert error.message == (
        "line 2, column 8: queries may not call the function pg_read_file."
        " Use another one; the operator may allow it with VITRINA_ALLOWED_FUNCTIONS=pg_read_file."
    )
    assert error.fields[0].path == "source_query"


def test_positions_count_characters_of_the_authors_text() -> None:
    error = refusal("-- комментарий\n/* 'ё' */ SELECT 'жизнь', * FROM etl.runs")
    assert (error.line, error.column) == (2, 34)
