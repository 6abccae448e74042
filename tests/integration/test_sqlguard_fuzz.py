"""Whatever the SQL guard accepts reads only allowed tables, calls only allowed functions and changes nothing.

The queries run in a read-write transaction of a role that may read, write and signal nearly everything: here the guard
stands alone.
"""

import re
from collections.abc import Iterator
from enum import Enum

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.corpus import queries
from tests.integration import sqlguard_oracle
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import InvalidQuery
from vitrina.explain import explain_relations
from vitrina.sqlguard import SqlPolicy, judge, render

POLICY = SqlPolicy(frozenset({"content", "ugc"}))
PARAMETERS = {"since": "'2024-01-01'::timestamptz", "until": "'2025-01-01'::timestamptz"}
BEHIND = {
    ("ugc", "views"): {("ugc", "views_2024"), ("ugc", "views_2025")},
    ("content", "films_and_genres"): {("content", "film_work"), ("content", "genre"), ("content", "genre_film_work")},
}


class Verdict(Enum):
    REFUSED = "refused by the guard"
    INVALID = "accepted, but no query to the server"
    FAILED = "accepted, failed while it ran"
    RAN = "accepted and ran"


class Arena:
    """A server on which accepted queries are let loose."""

    def __init__(self, session: psycopg.Connection) -> None:
        self.session = session
        self.verdicts = dict.fromkeys(Verdict, 0)
        with session.transaction():
            self.untouched = sqlguard_oracle.fingerprint(session)

    def try_out(self, text: str) -> None:
        self.verdicts[self._verdict(text)] += 1

    def _verdict(self, text: str) -> Verdict:
        try:
            judged = judge(text, POLICY)
        except InvalidQuery:
            return Verdict.REFUSED
        rendered = render(judged, PARAMETERS)
        try:
            with self.session.transaction(force_rollback=True):
                seen = sqlguard_oracle.seen_by_server(self.session, rendered)
        except psycopg.Error:
            return Verdict.INVALID
        assert seen.relations <= set(judged.tables), f"reads {seen.relations}: {text}"
        assert {schema for schema, _ in seen.relations} <= POLICY.allowed_schemas, text
        assert seen.functions_not_allowed == set(), f"calls {seen.functions_not_allowed}: {text}"
        return self._run(rendered, set(judged.tables))

    def _run(self, text: str, tables: set[tuple[str, str]]) -> Verdict:
        verdict = Verdict.RAN
        with self.session.transaction(force_rollback=True):
            try:
                with self.session.transaction():
                    plan = self.session.execute(f"EXPLAIN (VERBOSE, FORMAT JSON) {text}".encode()).fetchone()
                    self.session.execute(text.encode())
            except psycopg.Error:
                verdict = Verdict.FAILED
            else:
                assert plan
                behind = {relation for table in tables for relation in BEHIND.get(table, ())}
                assert explain_relations(plan[0]) <= tables | behind, text
            assert sqlguard_oracle.fingerprint(self.session) == self.untouched, f"left a trace: {text}"
        return verdict


@pytest.fixture(scope="module")
def arena(server: TemporaryServer) -> Iterator[Arena]:
    with sqlguard_oracle.scratch_database(server, "sqlguard_fuzz") as url:
        with psycopg.connect(url, autocommit=True) as administrator:
            database = sql.Identifier("sqlguard_fuzz")
            administrator.execute("CREATE ROLE fuzz LOGIN PASSWORD 'fuzz' CREATEROLE BYPASSRLS")
            administrator.execute(
                "GRANT pg_read_all_data, pg_write_all_data, pg_signal_backend, pg_read_server_files, "
                "pg_write_server_files, pg_monitor TO fuzz"
            )
            administrator.execute(sql.SQL("GRANT ALL ON DATABASE {} TO fuzz").format(database))
            administrator.execute("GRANT ALL ON SCHEMA content, ugc, etl, public TO fuzz")
            administrator.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA content TO fuzz")
        options = "-c search_path= -c statement_timeout=2s -c lock_timeout=1s -c work_mem=4MB"
        login = make_conninfo(url, user="fuzz", password="fuzz", options=options)
        with psycopg.connect(login, autocommit=True) as session:
            yield Arena(session)
        with psycopg.connect(url, autocommit=True) as administrator:
            administrator.execute("DROP OWNED BY fuzz; DROP ROLE fuzz")


FUZZ = settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


# --- from a grammar -----------------------------------------------------------------------------------------------

# fmt: off
COLUMNS = [
    "id", "title", "f.id", "f.title", "rating", "f.*", "*", "f", "tags", "attributes", "x.n", "n", "x.pg_sleep", "xmin",
]
CONSTANTS = [
    "1", "NULL", "'x'", "E'\\''", "$$;$$", "true", "now()", ":since", "'pg_class'", "date '2024-01-01'", "-1.5e3",
    "''''",
]
FUNCTIONS = [
    "lower", "count", "coalesce", "array_agg", "abs", "to_json", "now", "generate_series", "unnest", "pg_sleep",
    "nextval", "pg_read_file", "set_config", "pg_catalog.lower", "content.delete_everything", "regclass", '"lower"',
    "version",
]
TYPES = [
    "int", "text", "numeric(5, 2)", "text[]", "regclass", "content.mood", "jsonb", "pg_catalog.int4", "etl.t",
    "timestamptz",
]
OPERATORS = [
    "+", "=", "||", "<", "AND", "OR", "IS DISTINCT FROM", "->", "%", "LIKE", "@>", "OPERATOR(pg_catalog.+)", "~", "-",
]
TABLES = [
    "content.film_work", "content.genre", "ugc.ratings", "ugc.views", "x", "y", "pg_class", "etl.etl_api_tokens", "f",
    "pg_catalog.pg_class", "public.secrets", "content.films_and_genres", '"content"."genre"', "ONLY content.person",
]
CTE_NAMES = ["x", "y", "pg_class", "f"]
WRITES = ["DELETE FROM content.genre RETURNING *", "INSERT INTO etl.etl_runs VALUES (1) RETURNING *"]
BLANKS = [" ", " ", " ", "\n", " /* ; */ ", " -- '\n", "\t"]
# fmt: on

blank = st.sampled_from(BLANKS)


def phrase(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Parts with white space or comments between them."""
    pieces: list[st.SearchStrategy[str]] = []
    for part in parts:
        pieces += [st.just(part) if isinstance(part, str) else part, blank]
    return st.tuples(*pieces).map("".join)


def maybe(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), st.just(""), part)


def listed(part: st.SearchStrategy[str], most: int = 2) -> st.SearchStrategy[str]:
    return st.lists(part, min_size=1, max_size=most).map(", ".join)


def one_of_words(words: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(words)


query = st.deferred(lambda: QUERY)
expression = st.deferred(lambda: EXPRESSION)

EXPRESSION: st.SearchStrategy[str] = st.one_of(
    one_of_words(CONSTANTS),
    one_of_words(COLUMNS),
    one_of_words(COLUMNS),
    phrase(expression, one_of_words(OPERATORS), expression),
    phrase(one_of_words(FUNCTIONS), "(", listed(expression), ")", maybe(st.just("OVER ()"))),
    phrase("(", expression, ")", maybe(one_of_words([".id", ".pg_sleep", "[1]", "::text", ".title", ".nextval"]))),
    phrase(expression, "::", one_of_words(TYPES)),
    phrase("CAST (", expression, "AS", one_of_words(TYPES), ")"),
    phrase("CASE WHEN", expression, "THEN", expression, "END"),
    phrase("(", query, ")"),
    phrase("EXISTS (", query, ")"),
    phrase(expression, "IN (", query, ")"),
    phrase("ARRAY [", listed(expression), "]"),
    phrase("ARRAY (", query, ")"),
)
FROM_ITEM: st.SearchStrategy[str] = st.one_of(
    phrase(one_of_words(TABLES), maybe(one_of_words(["f", "AS f", "AS x (n)", "AS f (id, title)"]))),
    phrase(one_of_words(TABLES), "AS f"),
    phrase(maybe(st.just("LATERAL")), "(", query, ")", one_of_words(["AS x", "AS x (n)", "f", ""])),
    phrase(
        maybe(st.just("LATERAL")),
        one_of_words(FUNCTIONS),
        "(",
        listed(expression),
        ")",
        one_of_words(["AS x", "AS x (n)", ""]),
    ),
    phrase("(", one_of_words(TABLES), "AS f CROSS JOIN", one_of_words(TABLES), "AS x )", maybe(st.just("AS j"))),
    phrase("ROWS FROM (", one_of_words(FUNCTIONS), "(", expression, ") ) AS x"),
)
TARGET = phrase(expression, maybe(one_of_words(["AS n", "AS id"])))
JOIN = phrase(one_of_words(["JOIN", "LEFT JOIN", "NATURAL JOIN"]), FROM_ITEM, "ON", expression)
SELECT = phrase(
    "SELECT",
    maybe(one_of_words(["DISTINCT", "ALL", "DISTINCT ON (1)"])),
    listed(TARGET),
    maybe(st.just("INTO content.t")),
    "FROM",
    listed(FROM_ITEM),
    maybe(JOIN),
    maybe(phrase("WHERE", expression)),
    maybe(phrase("GROUP BY", listed(expression))),
    maybe(phrase("HAVING", expression)),
    maybe(phrase("ORDER BY", listed(expression))),
    maybe(phrase("LIMIT", one_of_words(["1", "ALL", ":since", "(SELECT 1)"]))),
    maybe(one_of_words(["FOR UPDATE", "FOR SHARE"])),
)
CONTENT_OF_WITH = st.one_of(query, query, query, one_of_words(WRITES))
COMMON_TABLE = phrase(one_of_words(CTE_NAMES), maybe(st.just("(n)")), "AS", "(", CONTENT_OF_WITH, ")")
QUERY: st.SearchStrategy[str] = st.one_of(
    SELECT,
    SELECT,
    phrase("VALUES (", listed(expression), ")"),
    phrase("(", query, ")"),
    phrase("TABLE", one_of_words(TABLES)),
    phrase(query, one_of_words(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]), query),
    phrase("WITH", maybe(st.just("RECURSIVE")), listed(COMMON_TABLE), query),
)
STATEMENT = st.one_of(
    query, query, phrase(query, ";"), phrase(query, ";", one_of_words(["SELECT 1", "DROP TABLE content.genre"]))
)


@FUZZ
@given(text=STATEMENT)
def test_queries_from_a_grammar(arena: Arena, text: str) -> None:
    arena.try_out(text)


# --- from the corpus, with parts exchanged ------------------------------------------------------------------------

_PIECES = re.compile(r"\s+|--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$\w*\$|\w+|::|[^\w\s]", re.DOTALL)
CORPUS = [list(_PIECES.findall(one.sql)) for one in queries.legitimate() + queries.hostile() if len(one.sql) < 700]
POOL = sorted({piece for pieces in CORPUS for piece in pieces})
LONGER_PIECES = sorted({"".join(pieces[n : n + 4]) for pieces in CORPUS for n in range(0, len(pieces), 3)})


@st.composite
def exchanged(draw: st.DrawFn) -> str:
    pieces = list(draw(st.sampled_from(CORPUS)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(pieces) - 1, 0)))
        match draw(st.integers(0, 5)):
            case 0:
                pieces[place : place + 1] = [draw(st.sampled_from(POOL))]
            case 1:
                pieces.insert(place, draw(st.sampled_from(POOL)))
            case 2:
                del pieces[place : place + draw(st.integers(1, 3))]
            case 3:
                pieces[place : place + draw(st.integers(0, 2))] = [draw(st.sampled_from(LONGER_PIECES))]
            case 4:
                other = draw(st.sampled_from(CORPUS))
                pieces[place:] = other[draw(st.integers(0, len(other))) :]
            case _:
                end = draw(st.integers(place, len(pieces)))
                pieces[place:place] = pieces[place:end]
    return "".join(pieces)


@FUZZ
@given(text=exchanged())
def test_queries_of_the_corpus_with_parts_exchanged(arena: Arena, text: str) -> None:
    arena.try_out(text)


# --- noise around quotes and comments -----------------------------------------------------------------------------

# fmt: off
NOISE = [
    "'", "''", "\\", "\\'", '"', "E'", "e'", "U&'", 'U&"', "B'", "N'", "$$", "$a$", "$1", "--", "\n", "\r", "/*", "*/",
    ";", ":", "::", ":since", "(", ")", ",", " ", "pg_sleep(0)", "version()", "a", "1", ".", "-", "+", "*", "/", "@",
    "\u00a0", "\u200b", "\x0b", "||", "AS",
]
# fmt: on


@FUZZ
@given(before=st.lists(st.sampled_from(NOISE), max_size=8), after=st.lists(st.sampled_from(NOISE), max_size=8))
def test_noise_around_a_refused_function(arena: Arena, before: list[str], after: list[str]) -> None:
    arena.try_out(f"SELECT {''.join(before)}, version() {''.join(after)}")
    arena.try_out(f"SELECT 1 AS a {''.join(before)} , 'x' {''.join(after)} FROM content.genre")


def test_enough_was_accepted_to_prove_something(arena: Arena) -> None:
    """Runs last: a fuzzer whose queries are all refused, or all invalid, has shown nothing."""
    assert arena.verdicts[Verdict.REFUSED] > 200
    assert arena.verdicts[Verdict.RAN] > 50, arena.verdicts
