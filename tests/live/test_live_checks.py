"""Checks of a mart that follows its source: rows that break one are not written, by the full load or by a change."""

from typing import Any

import pytest

from tests.live.marts import ACCOUNTS, Marts
from vitrina.store import dead_letters

POSITIVE = {"kind": "expression", "name": "positive", "expression": "balance >= 0"}
BY_STEPS = [
    {"order_index": 0, "task_type": "SQL", "body": ACCOUNTS},
    {"order_index": 1, "task_type": "PYTHON", "body": "cast_columns", "params": {"types": {"balance": "integer"}}},
]
WAYS = pytest.mark.parametrize("read", [{}, {"tasks": BY_STEPS}], ids=["plain", "steps"])


def balance(marts: Marts, number: int) -> int | None:
    found = marts.sql(f"SELECT balance FROM analytics.accounts WHERE id = {number}")
    return found[0]["balance"] if found else None


@WAYS
def test_a_change_that_breaks_a_check_is_rejected_and_comes_when_it_is_mended(
    marts: Marts, read: dict[str, Any]
) -> None:
    marts.live("accounts", ACCOUNTS, checks=[POSITIVE | {"severity": "reject"}], **read)
    marts.start_runner()
    marts.await_following("accounts")

    marts.sql(
        "UPDATE content.account SET balance = -1 WHERE id = 1; UPDATE content.account SET balance = 5 WHERE id = 2"
    )
    marts.await_true("the other change is there", lambda: balance(marts, 2) == 5)
    marts.settle("accounts")

    assert balance(marts, 1) == 100
    [letter] = dead_letters.list_open(marts.metastore, marts.row("accounts")["id"])
    assert letter["document"] == {"id": 1, "balance": -1}
    marts.sql("UPDATE content.account SET balance = 7 WHERE id = 1")
    marts.await_equal("accounts", ACCOUNTS)
    assert dead_letters.list_open(marts.metastore, marts.row("accounts")["id"]) == []


@WAYS
def test_a_change_that_fails_a_check_stops_the_pipeline_until_it_is_accepted(
    marts: Marts, read: dict[str, Any]
) -> None:
    marts.live("accounts", ACCOUNTS, checks=[POSITIVE], **read)
    marts.start_runner()
    marts.await_following("accounts")

    marts.sql("UPDATE content.account SET balance = -1 WHERE id = 1")
    marts.await_failed("accounts")

    assert balance(marts, 1) == 100
    assert "vitrina run accounts --accept positive" in marts.row("accounts")["last_error"]
    marts.request("accounts", accepts=["positive"])
    marts.await_following("accounts")
    assert balance(marts, 1) == -1


def test_checks_of_all_rows_look_at_the_target_while_it_follows(marts: Marts) -> None:
    marts.mutants = ("_JUDGED_SECONDS=0.1",)
    owed = {"kind": "select", "name": "total", "query": "SELECT sum(balance) FROM staged HAVING sum(balance) < 0"}
    marts.live("accounts", ACCOUNTS, checks=[owed, {"kind": "row_count", "min": 150}])
    marts.start_runner()
    marts.await_following("accounts")
    marts.sql("UPDATE content.account SET balance = balance + 1 WHERE id <= 3")
    marts.await_equal("accounts", ACCOUNTS)

    marts.sql("UPDATE content.account SET balance = -1000000 WHERE id = 1")
    marts.await_failed("accounts")

    assert balance(marts, 1) == -1000000
    assert "check total failed: 1 row(s) violate it" in marts.row("accounts")["last_error"]
    assert "are already in analytics.accounts" in marts.row("accounts")["last_error"]
    marts.request("accounts", accepts=["total"])
    marts.await_following("accounts")
