"""Checks in a definition: their names, their limits, and what is refused with words that help."""

from typing import Any

import pytest
from pydantic import ValidationError

from vitrina.data_checks import RowCount
from vitrina.definition import Definition
from vitrina.ports.checks import Checks
from vitrina.services import policy
from vitrina.settings import Settings


def define(*checks: dict[str, Any], **fields: Any) -> Definition:
    fields = {"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.films", **fields}
    return Definition.model_validate(fields | {"checks": list(checks)})


def test_a_check_is_called_by_its_kind_and_columns_unless_it_has_a_name() -> None:
    definition = define(
        {"kind": "not_null", "column": "title"},
        {"kind": "unique", "columns": ["slug", "year"]},
        {"kind": "row_count", "min": 1},
        {"kind": "not_null", "column": "Full name"},
        {"kind": "select", "query": "SELECT 1 FROM staged", "name": "nothing"},
    )

    called = [check.called for check in definition.checks]
    assert called == ["not_null_title", "unique_slug_year", "row_count", "not_null_Full_name", "nothing"]


def test_a_definition_gives_checks_back_as_they_were_written() -> None:
    written = [{"kind": "freshness", "column": "updated_at", "max_age": "6h", "severity": "warn"}]

    definition = define(*written)
    assert definition.model_dump(mode="json")["checks"] == written
    assert Definition.model_validate(definition.model_dump()).checks == definition.checks


@pytest.mark.parametrize(
    ("check", "fields", "told"),
    [
        ({"kind": "row_count"}, {}, "a row_count check needs min, max or last_runs"),
        ({"kind": "row_count", "min": 5, "max": 2}, {}, "min 5 is greater than max 2"),
        ({"kind": "freshness", "column": "at", "max_age": "soon"}, {}, "max_age 'soon' is not a duration"),
        ({"kind": "relationship", "column": "id", "to": "genre"}, {}, "'genre'"),
        ({"kind": "not_null", "column": "a", "name": "shrink"}, {}, "check name 'shrink' is reserved"),
        ({"kind": "unique", "columns": ["a"], "severity": "reject"}, {}, "'fail' or 'warn'"),
        ({"kind": "expression", "expression": "a > 0"}, {"target_table": "es:films"}, "only for a table in Postgres"),
        ({"kind": "select", "query": "x"}, {"options": {"target_connection": "dwh"}}, "connection 'dwh' has none"),
        ({"kind": "not_null", "colum": "a"}, {}, "colum"),
        ({"kind": "no_nulls", "column": "a"}, {}, "no_nulls"),
    ],
)
def test_what_no_run_could_judge_is_refused(check: dict[str, Any], fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        define(check, **fields)


def test_two_checks_need_two_names() -> None:
    with pytest.raises(ValidationError, match="two checks are named 'not_null_a'"):
        define({"kind": "not_null", "column": "a"}, {"kind": "not_null", "column": "a", "severity": "warn"})


def test_the_limit_of_the_shrink_guard_can_be_said_and_is_half_unless_it_is() -> None:
    assert define().options.shrink_limit == 0.5
    assert define({"kind": "shrink", "max": 0.1}).options.shrink_limit == 0.1
    assert define({"kind": "shrink", "max": 0.1}, options={"allow_shrink": True}).options.shrink_limit == 1.0


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ({"kind": "select", "query": "SELECT * FROM etl.etl_tokens"}, "etl.etl_tokens"),
        ({"kind": "select", "query": "DELETE FROM staged"}, "DELETE"),
        ({"kind": "select", "query": "SELECT 1 FROM staged; SELECT 2"}, "second statement"),
        ({"kind": "expression", "expression": "true) OR (pg_read_file('x') = ''"}, "pg_read_file"),
        ({"kind": "expression", "expression": "true) IS FALSE; SELECT (1"}, "second statement"),
        ({"kind": "relationship", "column": "id", "to": "etl.etl_tokens"}, "etl.etl_tokens"),
    ],
)
def test_sql_of_checks_is_judged_like_a_source_query(check: dict[str, Any], told: str) -> None:
    settings = Settings(allowed_source_schemas="content", allowed_targets="analytics.*")

    [problem] = policy.problems(define(check), settings)
    assert problem.path == "checks.0"
    assert told in problem.message


@pytest.mark.parametrize(
    "check",
    [
        {"kind": "select", "query": "WITH n AS (SELECT id FROM staged) SELECT id FROM n JOIN target USING (id)"},
        {"kind": "select", "query": "SELECT s.id FROM staged s LEFT JOIN content.genre g ON g.id = s.genre_id;"},
        {"kind": "expression", "expression": "rating BETWEEN 0 AND 10 -- of ten"},
        {"kind": "relationship", "column": "id", "to": 'content."Genre"', "to_column": "Key"},
    ],
)
def test_sql_of_checks_may_name_the_rows_that_it_judges(check: dict[str, Any]) -> None:
    assert (
        policy.problems(define(check), Settings(allowed_source_schemas="content", allowed_targets="analytics.*")) == []
    )


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min": 5, "max": 1_000}, "3 rows; expected: from 5 to 1,000"),
        ({"min": 5}, "3 rows; expected: 5 or more"),
        ({"max": 1_000}, "3 rows; expected: 1,000 or fewer"),
        ({"last_runs": 3}, "3 rows; there are no earlier runs to compare with"),
    ],
)
def test_a_number_of_rows_is_told_with_the_limits_that_there_are(limits: dict[str, int], said: str) -> None:
    check = RowCount.model_validate({"kind": "row_count"} | limits)
    assert Checks("films", "analytics.films", [check]).count(check, 3).message == said
