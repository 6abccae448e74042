"""The SQL guard against PostgreSQL's own parser: both must see the same tables and functions in what is accepted."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pgparse
import pytest
from hypothesis import HealthCheck, given, settings

from tests.corpus import queries
from tests.integration.test_sqlguard_fuzz import exchanged
from vitrina.errors import InvalidQuery
from vitrina.sqlguard import Judged, SqlPolicy, judge, render

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


def statements_of(tree: Any) -> list[str]:
    return [next(iter(one["stmt"])) for one in tree]


def disagreement(judged: Judged) -> str | None:
    """What the two see differently; None when they agree."""
    tree = parsed(render(judged, PARAMETERS))
    if statements_of(tree) != ["SelectStmt"]:
        return f"statements {statements_of(tree)}"
    if tables_of(tree) != set(judged.tables):
        return f"tables {tables_of(tree) ^ set(judged.tables)}"
    called = {name.removeprefix("pg_catalog.") for name in functions_of(tree)}
    seen = {name.removeprefix("pg_catalog.") for name in judged.functions}
    unseen = called - seen - _OF_SYNTAX
    return f"functions {unseen}" if unseen else None


def is_unreadable(judged: Judged) -> bool:
    try:
        parsed(render(judged, PARAMETERS))
    except pgparse.PGQueryError:
        return True
    return False


def test_both_see_the_same_in_every_legitimate_query() -> None:
    judged = [(query, judge(query.sql, POLICY)) for query in queries.legitimate()]
    unreadable = [query.title for query, one in judged if is_unreadable(one)]
    found = {query.title: disagreement(one) for query, one in judged if query.title not in unreadable}
    assert {title: what for title, what in found.items() if what} == {}
    # The library keeps comments as tokens, so that these two strings are not one to it, as they are to the server.
    assert unreadable == ["strings with a comment between them"]


def test_a_guard_with_a_hole_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that agreement means something: a guard that forgets tables, or functions, is told."""
    judged = judge("SELECT lower(title) AS t FROM content.film_work", POLICY)
    assert disagreement(judged) is None
    assert "tables" in str(disagreement(replace(judged, tables=())))
    assert "functions" in str(disagreement(replace(judged, functions=frozenset())))
    assert "statements" in str(disagreement(replace(judged, text=judged.text + "; SELECT 1")))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(exchanged())
def test_both_see_the_same_in_what_the_fuzzer_makes(text: str) -> None:
    try:
        judged = judge(text, POLICY)
    except InvalidQuery:
        return
    if not is_unreadable(judged):
        assert disagreement(judged) is None, text
