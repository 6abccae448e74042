"""Types with operators of their own, such as citext: with an empty search_path a comparison would be one of text."""

import pytest

from tests.support.workbench import Workbench

# What the extension citext does, for servers that have no extensions: text under another name, equal in either case.
CITEXT = """
CREATE TYPE public.citext;
CREATE FUNCTION public.citextin(cstring) RETURNS public.citext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION public.citextout(public.citext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE public.citext (INPUT = public.citextin, OUTPUT = public.citextout, LIKE = text, CATEGORY = 'S',
    COLLATABLE = true);
CREATE CAST (public.citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS public.citext) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE FUNCTION public.citext_eq(public.citext, public.citext) RETURNS bool LANGUAGE sql IMMUTABLE STRICT
AS 'SELECT pg_catalog.lower($1::text) OPERATOR(pg_catalog.=) pg_catalog.lower($2::text)';
CREATE OPERATOR public.= (LEFTARG = public.citext, RIGHTARG = public.citext, FUNCTION = public.citext_eq);
CREATE FUNCTION public.strpos(public.citext, public.citext) RETURNS int LANGUAGE sql IMMUTABLE STRICT
AS 'SELECT pg_catalog.strpos(pg_catalog.lower($1::text), pg_catalog.lower($2::text))';
CREATE DOMAIN public.login AS public.citext;
CREATE TABLE content.people (id int PRIMARY KEY, name public.citext, login public.login, city text);
INSERT INTO content.people VALUES (1, 'ABC', 'ABC', 'Omsk'), (2, 'other', 'other', 'Omsk')
"""
FROM = "FROM content.people"


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(CITEXT)
    return workbench


@pytest.mark.parametrize(
    ("query", "operator", "column"),
    [
        (f"SELECT id, city {FROM} WHERE name = 'abc'", "=", "name"),
        (f"SELECT id, city {FROM} p WHERE 'abc' = (p.name)", "=", "name"),
        (f"SELECT id, name {FROM} WHERE login = 'abc'", "=", "login"),
        (f"SELECT id, city {FROM} WHERE name IN ('abc', 'def')", "=", "name"),
        (f"SELECT id, city {FROM} WHERE coalesce(name, 'abc') = 'abc'", "=", "name"),
        (f"SELECT id, city {FROM} WHERE name IS DISTINCT FROM 'abc'", "=", "name"),
        (f"SELECT id, CASE name WHEN 'abc' THEN 1 END AS n {FROM}", "=", "name"),
        (f"SELECT id, nullif(name, 'abc') AS n {FROM}", "=", "name"),
        (f"SELECT p.id, p.city {FROM} p JOIN content.people o USING (name)", "=", "name"),
        (f"WITH x AS MATERIALIZED (SELECT id, name AS n {FROM}) SELECT id FROM x WHERE n = 'abc'", "=", "name"),
        (f"SELECT id, city {FROM} WHERE strpos(name, 'abc') > 0", "strpos()", "name"),
    ],
)
def test_a_comparison_that_would_be_one_of_text_is_refused(
    bench: Workbench, query: str, operator: str, column: str
) -> None:
    bench.pipeline("people", query, target_key=["id"])

    run = bench.run("people")

    assert run["status"] == "FAILED"
    assert f"uses {operator} on the column {column}, whose type public.citext" in run["error_message"]
    assert f"Write {column}::text where that is meant" in run["error_message"]


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT id, name, city {FROM}",
        f"SELECT id, city {FROM} WHERE name::text = 'ABC'",
        f"SELECT id, city {FROM} WHERE CAST(name AS text) = 'ABC'",
        f"SELECT id, name {FROM} WHERE lower(name) = 'abc' AND name IS NOT NULL",
        f"SELECT id, city {FROM} WHERE city = 'Omsk' AND length(name) = 3",
        f"SELECT id, name || city AS place {FROM} ORDER BY name::text",
    ],
)
def test_what_means_the_same_everywhere_is_not(bench: Workbench, query: str) -> None:
    bench.pipeline("people", query, target_key=["id"])

    run = bench.run("people")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.differences(query, "analytics.people") == 0
