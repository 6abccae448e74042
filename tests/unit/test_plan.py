"""How a load is cut: in one statement up to a minute of work, in chunks of about ten seconds beyond."""

import pytest

from vitrina.definition import Definition
from vitrina.loads.plan import Capabilities, Plan, plan


def planned(rows: int, rate: float | None = None, **options: object) -> Plan:
    definition = Definition.model_validate(
        {
            "name": "films",
            "source_query": "SELECT id FROM content.films",
            "target_table": "analytics.films",
            "target_key": ["id"],
            "options": options,
        }
    )
    known = Capabilities(
        same_database=True,
        has_steps=False,
        estimated_rows=rows,
        pageable=True,
        key=("id",),
        rows_per_second=rate,
    )
    return plan(definition, known)


@pytest.mark.parametrize(
    ("rows", "rate", "paging", "chunk"),
    [
        (19_000_000, None, "one statement", None),
        (21_000_000, None, "keyset pages", 3_330_000),
        (1_000_000, 20_000.0, "one statement", None),
        (1_300_000, 20_000.0, "keyset pages", 200_000),
        (50_000, 100.0, "keyset pages", 10_000),
        (50_000_000, 1_000_000.0, "one statement", None),
    ],
)
def test_a_minutes_work_is_one_statement_and_more_is_cut(
    rows: int, rate: float | None, paging: str, chunk: int | None
) -> None:
    chosen = planned(rows, rate)
    assert (chosen.paging, chosen.page_rows) == (paging, chunk)


def test_the_author_may_choose() -> None:
    assert planned(99, checkpoint_rows=100).paging == "one statement"
    assert planned(100, 1e9, checkpoint_rows=100).page_rows == 100
