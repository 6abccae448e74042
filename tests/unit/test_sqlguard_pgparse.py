"""The SQL guard against PostgreSQL's own parser: both see the same tables, functions and types in what is accepted."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pgparse
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.corpus import queries
from tests.integration.test_sqlguard_fuzz import Author, exchanged
from vitrina.errors import InvalidQuery
from vitrina.sqlguard import CheckedQuery, SqlPolicy, check, render, vocabulary

POLICY = SqlPolicy(frozenset({"content", "ugc"}))
PARAMETERS = {"since": "'2024-01-01'", "until": "'2025-01-01'"}
# Syntax has functions of its own; the parser writes them as calls or as nodes.
_OF_SYNTAX = {
    "array", "btrim", "coalesce", "current_date", "current_time", "current_timestamp", "exists", "extract", "greatest",
    "grouping", "is_normalized", "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg",
    "json_query", "json_scalar", "json_serialize", "json_value", "least", "like_escape", "localtime", "localtimestamp",
    "ltrim", "normalize", "nullif", "overlaps", "overlay", "position", "row", "rtrim", "similar_to_escape", "substring",
    "timezone", "trim", "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlparse", "xmlserialize",
}  # fmt: skip


def nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every node of the tree with its kind."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from ((kind, inner) for kind, inner in value.items() if isinstance(inner, dict))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def parsed(text: str) -> Any:
    return pgparse.parse(text)


def tables_of(tree: Any) -> set[tuple[str, str]]:
    found = (node for kind, node in nodes(tree) if kind == "RangeVar")
    return {(node["schemaname"], node["relname"]) for node in found if "schemaname" in node}


def functions_of(tree: Any) -> set[str]:
    calls = (node for kind, node in nodes(tree) if kind == "FuncCall")
    return {".".join(part["String"]["sval"] for part in node["funcname"]) for node in calls}


def types_of(tree: Any) -> set[str]:
    named = (node for kind, node in nodes(tree) if kind in ("TypeName", "typeName"))
    return {".".join(part["String"]["sval"] for part in node["names"]) for node in named if "names" in node}


def is_allowed_type(name: str) -> bool:
    """By the guard's list, or of a schema that queries may read."""
    schema, _, bare = name.rpartition(".")
    return schema in POLICY.allowed_schemas or (schema in ("", "pg_catalog") and bare in vocabulary.TYPES)


def statements_of(tree: Any) -> list[str]:
    return [next(iter(one["stmt"])) for one in tree]


def disagreement(judged: CheckedQuery) -> str | None:
    """What the two see differently; None when they agree."""
    tree = parsed(render(judged, PARAMETERS))
    if statements_of(tree) != ["SelectStmt"]:
        return f"statements {statements_of(tree)}"
    if tables_of(tree) != set(judged.tables):
        return f"tables {tables_of(tree) ^ set(judged.tables)}"
    called = {name.removeprefix("pg_catalog.") for name in functions_of(tree)}
    seen = {name.removeprefix("pg_catalog.") for name in judged.functions}
    unseen = called - seen - _OF_SYNTAX
    if unseen:
        return f"functions {unseen}"
    strange = {name for name in types_of(tree) if not is_allowed_type(name)}
    return f"types {strange}" if strange else None


def is_unreadable(judged: CheckedQuery) -> bool:
    try:
        parsed(render(judged, PARAMETERS))
    except pgparse.PGQueryError:
        return True
    return False


def test_both_see_the_same_in_every_legitimate_query() -> None:
    judged = [(query, check(query.sql, POLICY)) for query in queries.legitimate()]
    unreadable = [query.title for query, one in judged if is_unreadable(one)]
    found = {query.title: disagreement(one) for query, one in judged if query.title not in unreadable}
    assert {title: what for title, what in found.items() if what} == {}
    # The library keeps comments as tokens, so that these two strings are not one to it, as they are to the server.
    assert unreadable == ["strings with a comment between them"]


def test_a_guard_with_a_hole_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that agreement means something: a guard that forgets tables, or functions, is told."""
    judged = check("SELECT lower(title) AS t FROM content.film_work", POLICY)
    assert disagreement(judged) is None
    assert "tables" in str(disagreement(replace(judged, tables=())))
    assert "functions" in str(disagreement(replace(judged, functions=frozenset())))
    monkeypatch.setattr(vocabulary, "TYPES", vocabulary.TYPES | {"regclass"})
    cast = check("SELECT 'etl.etl_runs'::regclass AS x FROM content.film_work", POLICY)
    monkeypatch.undo()
    assert "types {'regclass'}" in str(disagreement(cast))
    assert "statements" in str(disagreement(replace(judged, text=judged.text + "; SELECT 1")))


# What is refused although the parser sees one SELECT of allowed tables, functions and types: why a tree is no judge.
_NOT_IN_A_TREE = {
    # (x).f is a call of f(x) when x has no such field, which only the server's catalog knows.
    "called by way of a field": r"function (pg_\w+|\w*reg\w+|_aclitem|nextval|current_setting|lo_import|ts_stat|xml)",
    "functions that the grammar has as nodes": r"function (current_\w+|session_user|user|treat|merge_action|xml\w+)",
    "system columns": r"column (tableoid|xmin|cmax)",
    "operators, by name and by schema": r"operator .*|OPERATOR\(\)|function operator|ORDER BY USING",
    "a name that one WITH hides from another": r"table pg_(class|authid)",
    "sampling methods and collations": r"function (system_rows|public)|collation .*",
    "parameters": r"placeholder",
    "what no later stage accepts": r"FOR READ|type setof|unicode escape|string|identifier|column|syntax at \w+",
}


def says_the_parser(text: str) -> str | None:
    """Why the tree alone would refuse it; None when it would not."""
    try:
        tree = parsed(re.sub(r":(since|until)\b", "'2024-01-01'", text))
    except pgparse.PGQueryError:
        return "cannot be read"
    if statements_of(tree) != ["SelectStmt"]:
        return "is not one SELECT"
    named = {name.removeprefix("pg_catalog.") for name in functions_of(tree)} - _OF_SYNTAX
    ranges = [node for kind, node in nodes(tree) if kind == "RangeVar"]
    hidden = {node["ctename"] for kind, node in nodes(tree) if kind == "CommonTableExpr"}
    writes = {"LockingClause", "intoClause", "InsertStmt", "DeleteStmt", "UpdateStmt", "MergeStmt"}
    reasons = {
        "reads other tables": not all(is_allowed_range(node, hidden) for node in ranges),
        "calls other functions": not named <= vocabulary.FUNCTIONS,
        "uses other types": not all(map(is_allowed_type, types_of(tree))),
        "writes or locks": bool(writes & {kind for kind, _ in nodes(tree)}),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_allowed_range(node: Any, hidden: set[str]) -> bool:
    if "catalogname" in node:
        return False
    return node["schemaname"] in POLICY.allowed_schemas if "schemaname" in node else node["relname"] in hidden


def test_the_parser_knows_why_hostile_queries_are_refused_but_for_what_no_tree_shows() -> None:
    unexplained = {query.title for query in queries.hostile() if says_the_parser(query.sql) is None}
    known = re.compile("|".join(f"(?:{pattern})" for pattern in _NOT_IN_A_TREE.values()))
    assert {title for title in unexplained if not known.fullmatch(title)} == set()
    # So that the list does not outlive its reasons.
    stale = [why for why, pattern in _NOT_IN_A_TREE.items() if not any(re.fullmatch(pattern, t) for t in unexplained)]
    assert stale == []


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(exchanged())
def test_both_see_the_same_in_what_the_fuzzer_makes(text: str) -> None:
    compare(text)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**64))
def test_both_see_the_same_in_what_the_grammar_makes(seed: int) -> None:
    compare(Author(seed).statement())


def compare(text: str) -> None:
    try:
        judged = check(text, POLICY)
    except InvalidQuery:
        return
    if not is_unreadable(judged):
        assert disagreement(judged) is None, text
