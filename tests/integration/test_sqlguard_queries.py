"""The SQL guard against a real server: what it accepts runs, what it trusts is harmless, what it reads is what runs."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.corpus import queries
from tests.integration import sqlguard_oracle
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import InvalidQuery
from vitrina.explain import explain_functions_outside_catalog, explain_relations, is_pageable
from vitrina.sqlguard import CheckedQuery, SqlPolicy, check, render, vocabulary
from vitrina.sqlguard.tokens import Kind, tokenize

POLICY = SqlPolicy(frozenset({"content", "ugc"}))
PARAMETERS = {"since": "'2024-01-01'::timestamptz", "until": "'2025-01-01'::timestamptz"}
VIEWS = {("content", "films_and_genres"): {"film_work", "genre_film_work", "genre"}}


@pytest.fixture(scope="module")
def session(server: TemporaryServer) -> Iterator[psycopg.Connection]:
    with (
        sqlguard_oracle.scratch_database(server, "sqlguard_corpus") as url,
        psycopg.connect(url, autocommit=True, options="-c search_path=") as connection,
    ):
        yield connection


def runnable(session: psycopg.Connection) -> list[tuple[queries.Query, CheckedQuery]]:
    """The legitimate queries that this version of the server knows."""
    version = session.info.server_version // 10_000
    judged = [
        (query, check(query.sql, POLICY))
        for query in queries.legitimate()
        if has_libxml(session) or not query.sql.startswith("-- needs libxml\n")
    ]
    return [(query, one) for query, one in judged if version >= needed_version(query)]


def has_libxml(session: psycopg.Connection) -> bool:
    """The embedded server was built without."""
    try:
        session.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def needed_version(query: queries.Query) -> int:
    return next((version for version in (16, 17, 18) if query.sql.startswith(f"-- needs {version}\n")), 15)


def fetch(session: psycopg.Connection, text: str) -> list[tuple[object, ...]]:
    return session.execute(text.encode()).fetchall()


def plan_of(session: psycopg.Connection, text: str) -> object:
    return fetch(session, f"EXPLAIN (VERBOSE, FORMAT JSON) {text}")[0][0]


# --- what is accepted ---------------------------------------------------------------------------------------------


def test_every_legitimate_query_runs(session: psycopg.Connection) -> None:
    ran = runnable(session)
    for query, judged in ran:
        rows = session.execute(render(judged, PARAMETERS).encode()).rowcount
        assert rows >= 0, query.title
    assert len(queries.legitimate()) >= 300
    assert len(ran) >= 290


def test_every_legitimate_query_runs_wrapped(session: psycopg.Connection) -> None:
    for query, judged in runnable(session):
        text = render(judged, PARAMETERS)
        names = session.execute(f"SELECT * FROM ({text}) AS q LIMIT 0".encode()).description
        assert names is not None, query.title


def test_the_plan_reads_only_what_the_guard_has_seen(session: psycopg.Connection) -> None:
    for query, judged in runnable(session):
        plan = plan_of(session, render(judged, PARAMETERS))
        partitions = {("ugc", "views_2024"), ("ugc", "views_2025")} if ("ugc", "views") in judged.tables else set()
        behind_views = {("content", table) for view in judged.tables for table in VIEWS.get(view, ())}
        assert explain_relations(plan) <= {*judged.tables, *partitions, *behind_views}, query.title


def test_the_server_sees_the_tables_and_functions_that_the_guard_sees(session: psycopg.Connection) -> None:
    """Told from the server's own parse tree, before any planning."""
    for query, judged in runnable(session):
        with session.transaction(force_rollback=True):
            seen = sqlguard_oracle.seen_by_server(session, render(judged, PARAMETERS))
        assert seen.relations == set(judged.tables), query.title
        assert seen.functions_not_allowed == set(), query.title
        assert seen.types_not_allowed == set(), query.title


def test_stamps_are_columns_of_the_result(session: psycopg.Connection) -> None:
    for query, judged in runnable(session):
        description = session.execute(render(judged, PARAMETERS).encode()).description or []
        assert judged.volatile_columns <= {column.name for column in description}, query.title


# --- what is trusted ----------------------------------------------------------------------------------------------


def test_allowed_functions_are_the_servers_own_and_change_nothing(session: psycopg.Connection) -> None:
    """Volatile only where it reads the clock or the random generator; nothing runs text, reads files or catalogs."""
    volatile = fetch(
        session,
        """SELECT DISTINCT proname FROM pg_catalog.pg_proc
           WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile = 'v' AND prokind <> 'p'""",
    )
    allowed_volatile = {str(name) for (name,) in volatile} & vocabulary.FUNCTIONS
    assert allowed_volatile <= vocabulary.STAMPS


def test_allowed_functions_cannot_write_even_for_the_superuser(session: psycopg.Connection) -> None:
    """Functions that may write are marked parallel unsafe; the random generator's state makes a few `restricted`."""
    unsafe = fetch(
        session,
        """SELECT DISTINCT proname FROM pg_catalog.pg_proc
           WHERE pronamespace = 'pg_catalog'::regnamespace AND proparallel = 'u' AND prokind <> 'p'""",
    )
    assert {str(name) for (name,) in unsafe} & vocabulary.FUNCTIONS == set()


def test_allowed_functions_return_and_take_no_catalog_types(session: psycopg.Connection) -> None:
    """A value of a reg* type compared with a string looks the string up in the catalogs."""
    rows = fetch(
        session,
        """SELECT DISTINCT p.proname, t.typname FROM pg_catalog.pg_proc AS p
           CROSS JOIN LATERAL unnest(p.proargtypes::oid[] || p.prorettype) AS type_oid
           JOIN pg_catalog.pg_type AS t ON t.oid = type_oid
           WHERE p.pronamespace = 'pg_catalog'::regnamespace
             AND (t.typname ~ '^reg' OR t.typname IN ('aclitem', 'xml', 'refcursor', 'internal', 'cstring'))""",
    )
    found = {(str(function), str(kind)) for function, kind in rows if function in vocabulary.FUNCTIONS}
    # Text search by a configuration's or dictionary's name tells only whether that name exists.
    assert {kind for _, kind in found - {("text", "xml")}} <= {"regconfig", "regdictionary", "regtype", "xml"}, found


def test_every_function_that_a_field_name_could_call_is_refused(session: psycopg.Connection) -> None:
    """`(x).f` calls f(x): whatever takes one argument and does more than compute must not pass as a field."""
    rows = fetch(
        session,
        """SELECT DISTINCT p.proname FROM pg_catalog.pg_proc AS p
           WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provolatile <> 'i'
             AND p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1
             AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'internal'::regtype)
             AND 'internal'::regtype <> ALL (p.proargtypes::oid[])
             -- Text and binary forms of values only convert them.
             AND NOT (p.prorettype IN ('cstring'::regtype, 'bytea'::regtype) AND p.proname ~ '(out|send)$')
             AND p.proargtypes[0] <> 'cstring'::regtype""",
    )
    candidates = {str(name) for (name,) in rows} - vocabulary.FUNCTIONS - vocabulary.TYPES
    assert len(candidates) > 200
    assert accepted_as_fields(candidates) == set()


def test_no_field_name_can_look_names_up_in_the_catalogs(session: psycopg.Connection) -> None:
    """Not by functions that take or return reg* types and the like, nor by casts to them: `('x').regclass`."""
    rows = fetch(
        session,
        """WITH looking_up AS (
               SELECT oid, typname FROM pg_catalog.pg_type
               WHERE typnamespace = 'pg_catalog'::regnamespace AND typname ~ '^_?(reg[a-z]+|aclitem|xml)$'
           )
           SELECT typname FROM looking_up
           UNION
           SELECT p.proname FROM pg_catalog.pg_proc AS p
           WHERE p.pronamespace = 'pg_catalog'::regnamespace
             AND p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1
             AND 'internal'::regtype <> ALL (p.proargtypes::oid[])
             AND EXISTS (SELECT FROM looking_up WHERE oid = p.prorettype OR oid = ANY (p.proargtypes::oid[]))""",
    )
    candidates = {str(name) for (name,) in rows} - vocabulary.FUNCTIONS
    assert len(candidates) > 50
    assert accepted_as_fields(candidates) == set()


def accepted_as_fields(names: set[str]) -> set[str]:
    return {name for name in names if is_accepted(f"SELECT ('x').{name}") or is_accepted(f"SELECT a.{name}")}


def test_known_keywords_are_the_servers(session: psycopg.Connection) -> None:
    """A keyword of another class than the guard believes would be read as something else."""
    rows = fetch(session, "SELECT word, catcode, barelabel FROM pg_catalog.pg_get_keywords()")
    classes = {
        "R": vocabulary.RESERVED,
        "T": vocabulary.FUNCTION_OR_TYPE_KEYWORDS,
        "C": vocabulary.COLUMN_NAME_KEYWORDS,
    }
    for word, code, is_bare_label in rows:
        for other, words in classes.items():
            if other == code:
                assert word in words, f"{word} is of class {code}"
            elif word in words:
                # Words of later versions may be ordinary ones here: being stricter is harmless.
                assert code == "U", f"{word} is of class {code}, not {other}"
        assert is_bare_label or word in vocabulary.LABELS_NEEDING_AS, word


def test_known_operators_are_the_servers(session: psycopg.Connection) -> None:
    rows = fetch(session, "SELECT DISTINCT oprname FROM pg_catalog.pg_operator WHERE oprnamespace = 11")
    assert vocabulary.OPERATORS - {"!="} <= {str(name) for (name,) in rows}


def test_operators_call_nothing_that_writes(session: psycopg.Connection) -> None:
    rows = fetch(
        session,
        """SELECT o.oprname, p.proname FROM pg_catalog.pg_operator AS o
           JOIN pg_catalog.pg_proc AS p ON p.oid = o.oprcode
           WHERE o.oprnamespace = 11 AND (p.provolatile = 'v' OR p.proparallel = 'u')""",
    )
    assert rows == []


def is_accepted(text: str) -> bool:
    try:
        check(text, POLICY)
    except InvalidQuery:
        return False
    return True


# --- how text is cut into tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        "'a''b'", "E'a\\'b'", "E'a\\\\'", "'C:\\dir'", "$$a$$", "$x$a$$b$x$", "$x$a$y$b$x$", "N'a'", "e'\\x41\\u0042'",
        "'a' /* /* ' */ */", "'--'", "'/*' || '*/'", "'a'||'b'", "'a'-- ' /*\n||'b'", '\'a\' AS "x""y"',
        "$\u044f$a$\u044f$", "'\u00a0'", "E'a\n\\\nb'",
    ],
)  # fmt: skip
def test_strings_end_where_the_server_ends_them(session: psycopg.Connection, spelling: str) -> None:
    """The probe behind the string is seen by both, or the string was cut differently."""
    text = f"SELECT {spelling}, 'probe' AS probe"
    check(text, POLICY)
    assert fetch(session, text)[0][-1] == "probe"


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("1+-1", "+ -"), ("1 - -1", "- -"), ("2*-1", "* -"), ("1<-1", "< -"), ("1--1\n+1", "+"), ("1+/**/1", "+"),
        ("4//* */2", "/"), ("3>=-1", ">= -"), ("5-+1", "- +"), ("2@ -1", "@ -"), ("1!=-1", "!=-"), ("1<>-1", "<> -"),
        ("2^-1", "^-"), ("7%-2", "%-"), ("|/4", "|/"), ("- - 1", "- -"), ("1::int-1", "-"), ("@-5", "@-"),
        ("5#-1", "#-"), ("1*/**/1", "*"), ("1|/ 4", "|/"), ("1=-+1", "= - +"), ("1*-- \n2", "*"), ("1</*x*/-2", "< -"),
        ("1+@5", "+@"), ("2||-1", "||-"), ("1<@-1", "<@-"), ("3-@ 1", "-@"), ("1+++1", "+ + +"), ("1&-1", "&-"),
    ],
)  # fmt: skip
def test_operators_end_where_the_server_ends_them(session: psycopg.Connection, text: str, operators: str) -> None:
    cut = [token.value for token in tokenize(f"SELECT {text}") if token.kind is Kind.OPERATOR]
    assert " ".join(cut) == operators
    complaint = complaint_about_operator(session, f"SELECT {text}")
    assert not complaint or any(f" {operator} " in complaint for operator in cut)


def complaint_about_operator(session: psycopg.Connection, text: str) -> str:
    """`operator does not exist: integer !=- integer` names what the server has cut."""
    try:
        fetch(session, text)
    except psycopg.errors.UndefinedFunction as error:
        return f"{error.diag.message_primary} "
    return ""


# --- the attacks are real -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        "SELECT ('PG_VERSION'::text).pg_read_file",
        "SELECT (ARRAY['PG_VERSION'::text])[1].pg_read_file",
        "SELECT p.pg_read_file FROM cast('PG_VERSION' AS text) AS p",
        "SELECT ('etl.etl_api_tokens').regclass",
        "SELECT x._regclass FROM lower('{etl.etl_api_tokens}') AS x",
        "SELECT * FROM ts_stat('SELECT token_hash::tsvector FROM etl.etl_api_tokens')",
        "SELECT ('content.numbers').nextval",
        "SELECT content.delete_everything()",
        'SELECT * FROM U&"\\0065tl".etl_api_tokens',
        "SELECT coalesce(pg_typeof(1), 'etl.etl_api_tokens')",
    ],
)
def test_attack_works_without_the_guard(session: psycopg.Connection, attack: str) -> None:
    with session.transaction(force_rollback=True):
        assert len(fetch(session, attack)) == 1
    assert not is_accepted(attack)


# --- plans of a real server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pageable"),
    [
        ("SELECT * FROM content.film_work", True),
        (
            "SELECT f.id, g.genre_id FROM content.film_work f JOIN content.genre_film_work g ON g.film_work_id = f.id",
            True,
        ),
        ("SELECT id, (SELECT count(*) FROM ugc.ratings r WHERE r.film_id = f.id) FROM content.film_work f", True),
        ("SELECT unnest(tags) FROM content.film_work", True),
        ("SELECT id FROM content.film_work UNION ALL SELECT id FROM content.genre", True),
        ("SELECT film_id, avg(rating) FROM ugc.ratings GROUP BY film_id", False),
        ("SELECT * FROM content.film_work ORDER BY title", False),
        ("SELECT id, row_number() OVER () FROM content.film_work", False),
        ("SELECT DISTINCT type FROM content.film_work", False),
        ("SELECT id FROM content.film_work UNION SELECT id FROM content.genre", False),
        ("SELECT id FROM content.film_work LIMIT 5", False),
        ("WITH x AS MATERIALIZED (SELECT id FROM content.film_work) SELECT * FROM x", False),
        ("WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT n FROM t", False),
    ],
)
def test_which_queries_can_be_paged(session: psycopg.Connection, text: str, pageable: bool) -> None:
    assert is_pageable(plan_of(session, text)) is pageable


def test_functions_outside_of_the_catalog_show_in_real_plans(session: psycopg.Connection) -> None:
    def found(text: str) -> set[str]:
        return explain_functions_outside_catalog(plan_of(session, text))

    assert found("SELECT lower(title), now() FROM content.film_work WHERE title = 'etl.f(x)'") == set()
    assert found("SELECT content.delete_everything()") == {"content.delete_everything"}
    assert found("SELECT * FROM content.delete_everything()") == {"content.delete_everything"}
    assert found("SELECT id FROM content.genre GROUP BY id, public.run_as_owner(name)::text") == {"public.run_as_owner"}
    assert found("SELECT id FROM content.genre WHERE public.run_as_owner(name) IS NULL") == {"public.run_as_owner"}
    assert found("SELECT 5 + id::int::content.score FROM etl.etl_runs") == {"content.score"}


def test_relations_show_in_real_plans(session: psycopg.Connection) -> None:
    def found(text: str) -> set[tuple[str, str]]:
        return explain_relations(plan_of(session, text))

    assert found("SELECT (SELECT count(*) FROM etl.etl_runs), id FROM content.genre") == {
        ("etl", "etl_runs"),
        ("content", "genre"),
    }
    assert found("DELETE FROM content.genre WHERE id IN (SELECT genre_id FROM content.genre_film_work)") == {
        ("content", "genre"),
        ("content", "genre_film_work"),
    }
    assert ("pg_catalog", "pg_class") in found("SELECT * FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace")
