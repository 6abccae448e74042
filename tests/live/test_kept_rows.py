"""Live pipelines whose marts keep rows that left the source: as states of a history, or marked as deleted."""

from typing import Any

import pytest

from tests.live.marts import Marts

ACCOUNTS = "SELECT id, balance FROM content.account WHERE id <= 20"
BY_STEPS = [
    {"order_index": 0, "task_type": "SQL", "body": ACCOUNTS},
    {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": {"types": {"balance": "integer"}}},
]
CURRENT = "(SELECT id, balance FROM analytics.accounts WHERE {})"


def await_current(marts: Marts, condition: str) -> None:
    """Wait until the rows that count equal the query's."""
    kept = CURRENT.format(condition)
    differ = f"(({ACCOUNTS}) EXCEPT ALL {kept}) UNION ALL ({kept} EXCEPT ALL ({ACCOUNTS}))"
    marts.await_true("current rows equal the query", lambda: not marts.sql(differ))


def as_of(marts: Marts, moment: object) -> dict[int, int]:
    found = marts.sql(
        "SELECT id, balance FROM analytics.accounts"
        f" WHERE valid_from <= '{moment}' AND (valid_to > '{moment}' OR valid_to IS NULL)"
    )
    return {row["id"]: row["balance"] for row in found}


@pytest.mark.parametrize("read", [{}, {"tasks": BY_STEPS}], ids=["unopened", "steps"])
@pytest.mark.parametrize("unique_by", ["valid_from", "valid_to"])
def test_every_state_that_a_snapshot_saw_is_kept(marts: Marts, read: dict[str, Any], unique_by: str) -> None:
    marts.live("accounts", ACCOUNTS, options={"history": {"exclusion": True, "unique_by": unique_by}}, **read)
    marts.start_runner()
    marts.await_following("accounts")
    runs, seen = marts.count_runs("accounts"), []
    for statement in (
        "UPDATE content.account SET balance = 1 WHERE id = 1",
        "DELETE FROM content.account WHERE id = 2",
        "UPDATE content.account SET balance = 2 WHERE id = 1",
        "INSERT INTO content.account VALUES (2, 7)",
    ):
        marts.sql(statement)
        await_current(marts, "valid_to IS NULL")
        now = marts.sql("SELECT clock_timestamp() AS now")[0]["now"]
        seen.append((now, {row["id"]: row["balance"] for row in marts.sql(ACCOUNTS)}))
    for moment, expected in seen:
        assert as_of(marts, moment) == expected
    kept = marts.sql("SELECT id, balance FROM analytics.accounts WHERE id < 4 ORDER BY id, valid_from")
    assert [(row["id"], row["balance"]) for row in kept] == [(1, 100), (1, 1), (1, 2), (2, 100), (2, 7), (3, 100)]
    assert marts.count_runs("accounts") == runs, "all of it came by following, none by a full load"
    assert marts.reconcile("accounts")["differences"] == 0


@pytest.mark.parametrize(
    ("point", "unique_by"),
    [("batch.filled", "valid_from"), ("batch.fenced", "valid_to"), ("batch.committed", "valid_to")],
)
def test_a_killed_batch_adds_each_state_once(marts: Marts, point: str, unique_by: str) -> None:
    marts.live("accounts", ACCOUNTS, options={"history": {"exclusion": True, "unique_by": unique_by}})
    marts.start_runner()
    marts.await_following("accounts")
    marts.plan(f"{point}:kill:1")
    marts.sql("UPDATE content.account SET balance = 1 WHERE id = 1; DELETE FROM content.account WHERE id = 2")
    marts.runners[0].wait(timeout=60)
    marts.start_runner()
    marts.settle("accounts")
    await_current(marts, "valid_to IS NULL")
    kept = marts.sql("SELECT id, balance FROM analytics.accounts WHERE id < 4 ORDER BY id, valid_from")
    assert [(row["id"], row["balance"]) for row in kept] == [(1, 100), (1, 1), (2, 100), (3, 100)]


def test_rows_that_left_are_marked_and_come_back(marts: Marts) -> None:
    marts.live("accounts", ACCOUNTS, options={"deletes": {"soft": "gone"}})
    marts.start_runner()
    marts.await_following("accounts")
    marts.sql("DELETE FROM content.account WHERE id = 2")
    await_current(marts, "gone IS NULL")
    [row] = marts.sql("SELECT balance, gone FROM analytics.accounts WHERE id = 2")
    assert row["balance"] == 100
    assert row["gone"] is not None
    marts.sql("INSERT INTO content.account VALUES (2, 100)")
    await_current(marts, "gone IS NULL")
    [row] = marts.sql("SELECT gone FROM analytics.accounts WHERE id = 2")
    assert row["gone"] is None
