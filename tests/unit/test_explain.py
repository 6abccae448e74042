"""What is read out of a plan: relations, functions outside of pg_catalog, and whether rows can be paged."""

from collections.abc import Mapping

import pytest

from vitrina.explain import explain_functions_outside_catalog, explain_relations, is_pageable, outline


def plan(*children: Mapping[str, object], **top: object) -> list[dict[str, object]]:
    return [{"Plan": {"Node Type": "Result", **top, "Plans": list(children)}}]


def scan(schema: str, name: str, **more: object) -> dict[str, object]:
    return {"Node Type": "Seq Scan", "Relation Name": name, "Schema": schema, "Alias": name, **more}


def test_relations_of_all_depths() -> None:
    nested = {"Node Type": "Hash", "Plans": [scan("ugc", "ratings", Plans=[scan("etl", "runs")])]}
    assert explain_relations(plan(scan("content", "Film"), nested)) == {
        ("content", "Film"),
        ("ugc", "ratings"),
        ("etl", "runs"),
    }


def test_a_relation_without_schema_is_nobodys() -> None:
    assert explain_relations(plan({"Node Type": "Seq Scan", "Relation Name": "x"})) == {("", "x")}


def test_relations_that_another_server_joins() -> None:
    foreign = {"Node Type": "Foreign Scan", "Relations": '(content.a) INNER JOIN ((etl."B b" r2) LEFT JOIN (ugc.c r3))'}
    assert explain_relations(plan(foreign)) == {("content", "a"), ("etl", "B b"), ("ugc", "c")}
    unreadable = {"Node Type": "Foreign Scan", "Relations": "Aggregate on something"}
    assert explain_relations(plan(unreadable)) == {("", "Aggregate on something")}


def test_functions_operators_and_types_outside_of_the_catalog() -> None:
    node = scan(
        "content",
        "film",
        Output=["public.f(film.id)", "lower(film.title)", "'etl.g(1)'::text", "(film.id)::content.score"],
        Filter='((film.a OPERATOR(public.=) 1) AND (pg_catalog.now() > film.b) AND ("Odd"."F("(1) > 2))',
    )
    assert explain_functions_outside_catalog(plan(node)) == {
        "public.f",
        "content.score",
        "public.=",
        '"Odd"."F("',
    }


def test_functions_in_from_and_in_window_frames() -> None:
    function_scan = {"Node Type": "Function Scan", "Function Name": "spy", "Schema": "public", "Alias": "s"}
    grouping = {"Node Type": "Aggregate", "Grouping Sets": [{"Group Keys": [["etl.h(film.id)"]]}]}
    catalog = {"Node Type": "Function Scan", "Function Name": "unnest", "Schema": "pg_catalog", "Alias": "u"}
    assert explain_functions_outside_catalog(plan(function_scan, grouping, catalog)) == {"public.spy", "etl.h"}


def test_names_and_other_servers_sql_are_not_functions() -> None:
    foreign = {"Node Type": "Foreign Scan", "Remote SQL": "SELECT public.f(1)", "Alias": "public.g(", "Schema": "a.b("}
    assert explain_functions_outside_catalog(plan(foreign)) == set()


@pytest.mark.parametrize(
    "node",
    ["Aggregate", "CTE Scan", "Group", "Incremental Sort", "Limit", "LockRows", "ModifyTable", "Recursive Union",
     "Sample Scan", "SetOp", "Sort", "Unique", "WindowAgg", "WorkTable Scan", "Something New"],
)  # fmt: skip
def test_nodes_that_see_all_rows_first_cannot_be_paged(node: str) -> None:
    assert not is_pageable(plan({"Node Type": node, "Plans": [scan("content", "film")]}))


def test_scans_and_joins_can_be_paged() -> None:
    join = {"Node Type": "Hash Join", "Plans": [scan("a", "b"), {"Node Type": "Hash", "Plans": [scan("a", "c")]}]}
    assert is_pageable(plan(join))


def test_subqueries_per_row_do_not_matter_for_paging() -> None:
    counted = {"Node Type": "Aggregate", "Parent Relationship": "SubPlan", "Plans": [scan("a", "c")]}
    assert is_pageable(plan(scan("a", "b", Plans=[counted])))
    assert not is_pageable(plan(scan("a", "b", Plans=[{**counted, "Parent Relationship": "Inner"}])))


@pytest.mark.parametrize("wrong", [[], {}, "plan", [{"Plan": 1}], [{"Plan": {}}, {"Plan": {}}], None])
def test_what_is_not_a_plan_is_an_error(wrong: object) -> None:
    for question in (explain_relations, explain_functions_outside_catalog, is_pageable):
        with pytest.raises(ValueError, match="EXPLAIN"):
            question(wrong)


def test_an_outline_has_what_people_look_for() -> None:
    child = {"Node Type": "Seq Scan", "Schema": "ugc", "Relation Name": "ratings", "Plan Rows": 7, "Total Cost": 1.5}
    index = {"Node Type": "Index Scan", "Index Name": "films_pkey", "Plan Rows": 1, "Total Cost": 0.5}
    top = {"Node Type": "Hash Join", "Plan Rows": 9, "Total Cost": 3.25, "Plans": [child, index]}
    found = outline([{"Plan": top}])
    assert (found["cost"], found["rows"], found["complete"]) == (3.25, 9, True)
    assert found["steps"] == [
        {"depth": 0, "node": "Hash Join", "relation": None, "index": None, "rows": 9, "cost": 3.25},
        {"depth": 1, "node": "Seq Scan", "relation": "ugc.ratings", "index": None, "rows": 7, "cost": 1.5},
        {"depth": 1, "node": "Index Scan", "relation": None, "index": "films_pkey", "rows": 1, "cost": 0.5},
    ]
    assert outline([{"Plan": top}], limit=2)["complete"] is False
