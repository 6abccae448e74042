"""The task-plan contract v1: each violation has its own message, place and code."""

from typing import Any

import pytest

from vitrina import taskplan
from vitrina.definition import Definition, Task
from vitrina.errors import Invalid
from vitrina.targets import TargetPolicy

POLICY = TargetPolicy.of(["analytics.*"])
FORBIDDEN = (
    "target_table 'public.users' is not allowed here; allowed: analytics.* (the operator sets VITRINA_ALLOWED_TARGETS)"
)
SQL = {"task_type": "SQL", "body": "SELECT 1 AS id"}
STEP = {"task_type": "PYTHON", "body": "title_case"}


def definition(*tasks: dict[str, Any], **fields: Any) -> Definition:
    return Definition.model_validate(
        {"name": "films", "target_table": "analytics.films", "tasks": list(tasks)} | fields
    )


@pytest.mark.parametrize("first", [0, 1])
def test_a_sound_plan_passes(first: int) -> None:
    plan = definition(
        SQL | {"order_index": first},
        STEP | {"order_index": first + 1},
        STEP | {"order_index": first + 2, "target_table": "analytics.other"},
    )
    taskplan.check(plan, POLICY)


def test_the_order_of_writing_does_not_matter() -> None:
    taskplan.check(definition(STEP | {"order_index": 1}, SQL | {"order_index": 0}), POLICY)


def test_a_pipeline_without_tasks_answers_for_its_target_only() -> None:
    taskplan.check(definition(source_query="SELECT 1 AS id"), POLICY)
    with pytest.raises(Invalid, match=r"target of films: target_table 'public\.users' is not allowed here"):
        taskplan.check(definition(source_query="SELECT 1 AS id", target_table="public.users"), POLICY)


@pytest.mark.parametrize(
    ("tasks", "path", "code", "message"),
    [
        (
            [SQL | {"order_index": 0}, STEP | {"order_index": 0}],
            "tasks.1.order_index",
            "task_order_repeated",
            "order_index 0 is used by 2 steps; each step needs its own",
        ),
        (
            [SQL | {"order_index": 0}, STEP | {"order_index": 2}],
            "tasks.1.order_index",
            "task_order_gap",
            "order_index 1 is missing; number the steps without gaps",
        ),
        (
            [SQL | {"order_index": 5}, STEP | {"order_index": 6}],
            "tasks.0.order_index",
            "task_order_start",
            "order_index begins at 5; begin at 0 or 1",
        ),
        (
            [STEP | {"order_index": 0}],
            "tasks.0.task_type",
            "task_first_not_sql",
            "the first step must be SQL (it reads the source), not PYTHON",
        ),
        (
            [SQL | {"order_index": 0}, SQL | {"order_index": 1}],
            "tasks.1.task_type",
            "task_not_python",
            "step 1 must be PYTHON: only the first step is SQL",
        ),
        ([SQL | {"order_index": 0, "body": "  "}], "tasks.0.body", "body_empty", "step 0 has no body"),
        (
            [SQL | {"order_index": 0, "target_table": "analytics.x"}, STEP | {"order_index": 1}],
            "tasks.0.target_table",
            "task_target_not_last",
            "step 0 sets target_table 'analytics.x', which only the last step may do",
        ),
        (
            [SQL | {"order_index": 0}, STEP | {"order_index": 1, "target_table": "public.users"}],
            "tasks.1.target_table",
            "forbidden_target",
            FORBIDDEN,
        ),
    ],
)
def test_each_violation_is_named(tasks: list[dict[str, Any]], path: str, code: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        taskplan.check(definition(*tasks), POLICY)
    assert [(error.path, error.code, error.message) for error in caught.value.fields] == [(path, code, message)]
    assert str(caught.value) == f"task plan of films: {message}"


def test_a_row_written_with_psql_may_lack_even_its_type() -> None:
    fields: dict[str, Any] = {"order_index": 0, "task_type": "", "body": "", "target_table": None}
    odd = Task.model_construct(**fields)
    found = taskplan.violations([odd])
    assert [error.code for error in found] == ["task_type_empty", "body_empty", "task_first_not_sql"]


def test_everything_wrong_is_said_at_once() -> None:
    plan = definition(STEP | {"order_index": 0}, SQL | {"order_index": 2}, target_table="public.users")
    with pytest.raises(Invalid) as caught:
        taskplan.check(plan, POLICY)
    assert [error.code for error in caught.value.fields] == [
        "task_order_gap",
        "task_first_not_sql",
        "task_not_python",
        "forbidden_target",
    ]
