"""Whatever the SQL guard accepts reads only allowed tables, calls only allowed functions and changes nothing.

The queries run in a read-write transaction of a role that may read, write and signal nearly everything: here the guard
stands alone.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.corpus import queries
from tests.integration import sqlguard_oracle
from vitrina import sqlguard
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import InvalidQuery
from vitrina.explain import explain_relations
from vitrina.sqlguard import SqlPolicy, calls, check, expressions, render, tables, types, vocabulary
from vitrina.sqlguard.parser import Scope

POLICY = SqlPolicy(frozenset({"content", "ugc"}))
PARAMETERS = {"since": "'2024-01-01'::timestamptz", "until": "'2025-01-01'::timestamptz"}
BEHIND = {
    ("ugc", "views"): {("ugc", "views_2024"), ("ugc", "views_2025")},
    ("content", "films_and_genres"): {("content", "film_work"), ("content", "genre"), ("content", "genre_film_work")},
}


class Verdict(Enum):
    REFUSED = "refused by the guard"
    FAILED = "accepted, but wrong or too slow to the server"
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

    def try_out_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.try_out(text)

    def _verdict(self, text: str) -> Verdict:
        try:
            judged = check(text, POLICY)
        except InvalidQuery:
            return Verdict.REFUSED
        rendered = render(judged, PARAMETERS)
        tables_seen = set(judged.tables)
        self._compare_parse_trees(rendered, tables_seen)
        return self._run(rendered, tables_seen)

    def _compare_parse_trees(self, text: str, tables_seen: set[tuple[str, str]]) -> None:
        try:
            with self.session.transaction(force_rollback=True):
                seen = sqlguard_oracle.seen_by_server(self.session, text)
        except psycopg.Error:
            return  # no query to the server, or not one that a view can hold: running it will tell
        assert seen.relations <= tables_seen, f"reads {seen.relations}: {text}"
        assert {schema for schema, _ in seen.relations} <= POLICY.allowed_schemas, text
        assert seen.functions_not_allowed == set(), f"calls {seen.functions_not_allowed}: {text}"
        assert seen.types_not_allowed == set(), f"uses {seen.types_not_allowed}: {text}"

    def _run(self, text: str, tables_seen: set[tuple[str, str]]) -> Verdict:
        verdict = Verdict.RAN
        with self.session.transaction(force_rollback=True):
            try:
                with self.session.transaction():
                    plan = self.session.execute(f"EXPLAIN (VERBOSE, FORMAT JSON) {text}".encode()).fetchone()
                    self.session.execute(text.encode())
            except psycopg.Error:
                verdict = Verdict.FAILED
            else:
                behind = {relation for table in tables_seen for relation in BEHIND.get(table, ())}
                assert explain_relations(plan and plan[0]) <= tables_seen | behind, text
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
        options = "-c search_path= -c statement_timeout=1s -c lock_timeout=1s -c work_mem=4MB"
        login = make_conninfo(url, user="fuzz", password="fuzz", options=options)
        with psycopg.connect(login, autocommit=True) as session:
            yield Arena(session)
        with psycopg.connect(url, autocommit=True) as administrator:
            administrator.execute("DROP OWNED BY fuzz; DROP ROLE fuzz")


FUZZ = settings(
    max_examples=600,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


# --- from a grammar -----------------------------------------------------------------------------------------------

# fmt: off
COLUMNS = ["f.title", "f.title", "f.type", "f.description", "f.id::text", "f.mood::text", "f.tags[1]", "f::text"]
STRANGE_COLUMNS = ["f.*", "*", "f", "x.n", "n", "x.pg_sleep", "xmin", "f.version", "f.ctid", "x", "y.id", "tableoid"]
CONSTANTS = ["'x'", "E'\\''", "$$;$$", "now()::text", ":since::text", "'pg_class'", "''''", "1::text", "NULL", "'--'"]
STRANGE_CONSTANTS = ["1", "'\\'", "U&'x'", "$1", "?", "-1.5e3", "true", "current_user", "date '2024-01-01'", "DEFAULT"]
FUNCTIONS = ["lower", "coalesce", "concat", "upper", "md5", "pg_catalog.lower", '"lower"', "initcap", "reverse"]
STRANGE_FUNCTIONS = [
    "pg_sleep", "nextval", "pg_read_file", "set_config", "content.delete_everything", "regclass", "version", "count",
    "lo_import", "max", "query_to_xml", "pg_notify", "public.run_as_owner", "unnest", "generate_series", "ts_stat",
    "to_json",
]
TYPES = ["text", "text", "varchar(5)", "pg_catalog.text", "character varying"]
STRANGE_TYPES = [
    "text[]", "content.mood", "jsonb", "timestamptz", "regclass", "etl.t", "xml", "pg_catalog.pg_class", "int",
    "pg_catalog.regproc",
]
OPERATORS = ["||"]
STRANGE_OPERATORS = [
    "=", "<", "LIKE", "IS DISTINCT FROM", "~", "OPERATOR(pg_catalog.||)", "+", "->", "%", "AND", "@>", "-", "?",
]
TABLES = ["content.film_work", "content.genre", "content.film_work", "content.films_and_genres", "ugc.ratings"]
STRANGE_TABLES = [
    "x", "y", "f", "pg_class", "etl.etl_api_tokens", "pg_catalog.pg_class", "public.secrets", '"content"."genre"',
    "ONLY content.person", "ugc.views", "film_work", "vitrina.content.genre",
]
CTE_NAMES = ["x", "y", "pg_class", "f"]
WRITES = ["DELETE FROM content.genre RETURNING *", "INSERT INTO etl.etl_runs VALUES (1) RETURNING *"]
BLANKS = [" ", " ", " ", "\n", " /* ; */ ", " -- '\n", "\t"]
# fmt: on


class Author:
    """Writes a query by chance: mostly what an author writes, now and then what an attacker does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.strangeness = self.random.choice([0, 0.02, 0.05, 0.15])
        self.depth = 0

    def statement(self) -> str:
        return self.query() + self.maybe(";") + self.rarely("; SELECT 1", "; DROP TABLE content.genre")

    def query(self) -> str:
        self.depth += 1
        kinds = [self.select] * 6 + ([self.values, self.table] if self.depth > 1 else [])
        if self.depth < 4:
            kinds += [self.with_query, self.with_query, self.set_operation, self.in_parentheses]
        text = self.random.choice(kinds)()
        self.depth -= 1
        return text

    def select(self) -> str:
        first = "content.film_work AS f" if self.random.random() >= self.strangeness else self.from_item()
        return self.phrase(
            "SELECT", self.maybe("DISTINCT", "ALL"), self.targets(), self.rarely("INTO content.t"),
            "FROM", first, self.maybe(self.phrase(",", self.from_item())), self.maybe(self.join()),
            self.maybe(self.phrase("WHERE", self.condition())),
            self.rarely(self.phrase("GROUP BY", self.listed(self.expression))),
            self.rarely(self.phrase("ORDER BY", self.listed(self.expression))),
            self.maybe("LIMIT 1", "LIMIT ALL", "OFFSET (SELECT 1)", "FETCH FIRST ROW ONLY"),
            self.rarely("FOR UPDATE", "FOR SHARE"),
        )  # fmt: skip

    def values(self) -> str:
        return self.phrase("VALUES (", self.listed(self.expression), ")")

    def table(self) -> str:
        return self.phrase("TABLE", self.table_name())

    def in_parentheses(self) -> str:
        return self.phrase("(", self.query(), ")")

    def set_operation(self) -> str:
        return self.phrase(
            self.query(), self.random.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]), self.query()
        )

    def with_query(self) -> str:
        return self.phrase("WITH", self.maybe("RECURSIVE"), self.listed(self.common_table), self.query())

    def common_table(self) -> str:
        content = self.query() if self.random.random() >= self.strangeness else self.random.choice(WRITES)
        return self.phrase(
            self.random.choice(CTE_NAMES), self.maybe("(n)"), "AS", self.maybe("MATERIALIZED"), "(", content, ")"
        )

    def join(self) -> str:
        kind = self.random.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
        condition = self.random.choice(["ON true", "ON true", f"ON {self.condition()}"])
        return self.phrase(kind, self.from_item(), condition)

    def condition(self) -> str:
        operator = self.random.choice(["=", "<>", "<", "LIKE", "IS DISTINCT FROM", "ILIKE", "NOT LIKE"])
        return self.phrase(self.expression(), operator, self.expression())

    def from_item(self) -> str:
        lateral = self.maybe("LATERAL")
        match self.random.randrange(8 if self.depth < 4 else 5):
            case 0 | 1 | 2:
                return self.phrase(self.table_name(), "AS", self.alias(), self.maybe("(n)"))
            case 3:
                return self.phrase(
                    lateral, self.function(), "(", self.listed(self.expression), ") AS x", self.maybe("(n)")
                )
            case 4:
                return self.phrase("ROWS FROM (", self.function(), "(", self.expression(), ") ) AS", self.alias())
            case 5:
                return self.phrase("(", self.table_name(), "AS", self.alias(), "CROSS JOIN", self.from_item(), ")")
            case _:
                return self.phrase(lateral, "(", self.query(), ") AS", self.alias(), self.maybe("(n)"))

    def targets(self) -> str:
        return self.listed(self.target) if self.depth == 1 or self.random.random() < self.strangeness else self.target()

    def target(self) -> str:
        return self.phrase(self.expression(), self.maybe("AS n", "AS id", "label"))

    def expression(self) -> str:
        self.depth += 1
        text = self.simple() if self.depth > 5 or self.random.random() < 0.5 else self.composed()
        self.depth -= 1
        return text

    def simple(self) -> str:
        if self.random.random() < 0.6:
            return self.pick(COLUMNS, STRANGE_COLUMNS)
        return self.pick(CONSTANTS, STRANGE_CONSTANTS)

    def composed(self) -> str:
        kind = self.pick(TYPES, STRANGE_TYPES)
        match self.random.randrange(11):
            case 0 | 1:
                return self.phrase(self.expression(), self.pick(OPERATORS, STRANGE_OPERATORS), self.expression())
            case 2 | 3:
                return self.phrase(self.function(), "(", self.listed(self.expression), ")", self.rarely("OVER ()"))
            case 4:
                suffix = self.rarely(".id", ".pg_sleep", "[1]", ".title", ".nextval", ".version")
                return self.phrase("(", self.expression(), ")", suffix)
            case 5:
                return self.phrase(self.expression(), "::", kind)
            case 6:
                return self.phrase("CAST (", self.expression(), "AS", kind, ")")
            case 7:
                return self.phrase("CASE WHEN", self.condition(), "THEN", self.expression(), "END")
            case 8:
                return self.phrase(self.random.choice(["EXISTS (", "ARRAY (", "("]), self.query(), ") ::text")
            case 9:
                return self.phrase("(", self.expression(), "IN (", self.query(), ") ) ::text")
            case _:
                return self.phrase("(ARRAY [", self.listed(self.expression), "] ) [1]")

    def alias(self) -> str:
        return self.pick([f"a{self.random.randrange(1000)}"], ["x", "f", "pg_class"])

    def table_name(self) -> str:
        return self.pick(TABLES, STRANGE_TABLES)

    def function(self) -> str:
        return self.pick(FUNCTIONS, STRANGE_FUNCTIONS)

    def pick(self, usual: list[str], strange: list[str]) -> str:
        return self.random.choice(usual if self.random.random() >= self.strangeness else strange)

    def phrase(self, *parts: str) -> str:
        """Parts with white space or comments between them."""
        return "".join(part + self.random.choice(BLANKS) for part in parts)

    def maybe(self, *parts: str) -> str:
        return self.random.choice(parts) if self.random.random() < 0.3 else ""

    def rarely(self, *parts: str) -> str:
        return self.random.choice(parts) if self.random.random() < self.strangeness else ""

    def listed(self, item: Callable[[], str]) -> str:
        return ", ".join(item() for _ in range(self.random.choice([1, 1, 2])))


@FUZZ
@given(seed=st.integers(0, 2**64))
def test_queries_from_a_grammar(arena: Arena, seed: int) -> None:
    arena.try_out(Author(seed).statement())


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


# --- would a hole be found? ---------------------------------------------------------------------------------------


def nothing(*_: object) -> None:
    """A check that is not made."""


def everything_is_seen(scope: Scope, name: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("owner", "check", "hole"),
    [
        (calls, "_check_function", nothing),
        (types, "_check", nothing),
        (expressions, "check_field", nothing),
        (tables, "refuse_unresolved", nothing),
        (Scope, "sees", everything_is_seen),
        (vocabulary, "FIELD_NAMES_REFUSED", frozenset()),
        (vocabulary, "FIELD_BEGINNINGS_REFUSED", ("binary_upgrade_",)),
        (vocabulary, "FUNCTIONS", vocabulary.FUNCTIONS | {"nextval"}),
        (vocabulary, "FUNCTIONS", vocabulary.FUNCTIONS | {"ts_stat"}),
        (vocabulary, "TYPES", vocabulary.TYPES | {"regclass"}),
        (sqlguard, "_refuse_second_statement", nothing),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_guard_with_a_hole_is_found_out(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, owner: object, check: str, hole: object
) -> None:
    """The same trial lets the hostile corpus loose on a guard that lacks one check."""
    monkeypatch.setattr(owner, check, hole)
    with pytest.raises(AssertionError):
        arena.try_out_all(query.sql for query in queries.hostile())


def test_enough_was_accepted_to_prove_something(arena: Arena) -> None:
    """Runs last: a fuzzer whose queries are all refused, or all invalid, has shown nothing."""
    assert arena.verdicts[Verdict.REFUSED] > 200
    assert arena.verdicts[Verdict.RAN] > 200, arena.verdicts
