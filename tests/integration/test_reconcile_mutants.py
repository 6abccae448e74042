"""The tests of reconciling are tested: with one of its rules taken away, the same check must turn red."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg.sql import SQL, Composed

from tests.integration.test_reconcile import counts, films, key
from tests.support.workbench import Workbench
from vitrina.checks import compare, reconcile
from vitrina.checks.compare import Comparison, Confirmation
from vitrina.connectors.postgres import rescan
from vitrina.connectors.postgres.compare import TableSide, one_form
from vitrina.loads.job import Job


def null_is_not_an_empty_text(bench: Workbench) -> None:
    films(bench)
    bench.sql(f"UPDATE analytics.films SET title = NULL WHERE id = {key(4)}")  # '' in the source
    assert counts(bench.reconcile("films")) == (0, 0, 1, 0)


def arrays_have_an_order(bench: Workbench) -> None:
    films(bench)
    bench.sql(f"UPDATE analytics.films SET genres = ARRAY[genres[2], genres[1]] WHERE id = {key(6)}")
    assert counts(bench.reconcile("films")) == (0, 0, 1, 0)


def a_passing_difference_is_none(bench: Workbench) -> None:
    """It is gone at the second look."""
    films(bench)
    bench.sql(f"DELETE FROM analytics.films WHERE id = {key(1)}")
    back = f"INSERT INTO analytics.films SELECT * FROM content.film_work WHERE id = {key(1)}"
    with _between_the_looks(lambda: bench.sql(back)):
        assert counts(bench.reconcile("films")) == (0, 0, 0, 1)


def a_changing_row_is_in_flight(bench: Workbench) -> None:
    """Without a cursor, a row of the source that differs from itself is on the move."""
    films(bench)
    change = f"UPDATE content.film_work SET title = title || '!' WHERE id = {key(1)}"
    bench.sql(change)
    with _between_the_looks(lambda: bench.sql(change)):
        assert counts(bench.reconcile("films")) == (0, 0, 0, 1)


def what_no_pass_has_read_is_in_flight(bench: Workbench) -> None:
    films(bench, mode="incremental")
    bench.sql(f"UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = {key(1)}")
    assert counts(bench.reconcile("films")) == (0, 0, 0, 1)


@contextmanager
def _between_the_looks(happening: Callable[[], object]) -> Iterator[None]:
    ask = reconcile._is_pending

    def is_pending(job: Job) -> bool:
        happening()
        return ask(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "_is_pending", is_pending)
        yield


def _null_blind(self: TableSide) -> Composed:
    texts = [SQL("coalesce(({})::text, '')").format(field.expression) for field in (*self.key, *self.columns)]
    return SQL('hashtextextended(({}) COLLATE "C", 0)').format(SQL(" || ',' || ").join(texts))


def _order_blind(self: TableSide) -> Composed:
    parts = [
        SQL("(SELECT array_agg(e ORDER BY e) FROM unnest({}) AS e)").format(field.expression)
        if field.type.endswith("[]")
        else one_form(field)
        for field in (*self.key, *self.columns)
    ]
    return SQL('hashtextextended((ROW({})::text) COLLATE "C", 0)').format(SQL(", ").join(parts))


def _first_look_counts(first: Comparison, *_: Any, **__: Any) -> Confirmation:
    verdict = Confirmation(confirmed=first.differences)
    for difference in first.differences:
        verdict.counts[difference.kind] += 1
    return verdict


def _nothing_moves(job: Job, *, pending: bool) -> Callable[..., bool]:
    return lambda before, again: False


Mutant = tuple[object, str, object]
CHECKS: list[tuple[Callable[[Workbench], None], Mutant]] = [
    (null_is_not_an_empty_text, (TableSide, "_image", _null_blind)),
    (arrays_have_an_order, (TableSide, "_image", _order_blind)),
    (a_passing_difference_is_none, (compare, "confirm", _first_look_counts)),
    (a_changing_row_is_in_flight, (reconcile, "_movement", _nothing_moves)),
    (what_no_pass_has_read_is_in_flight, (rescan, "in_flight", lambda source, found: SQL("false"))),
]


@pytest.mark.parametrize(("check", "mutant"), CHECKS, ids=[check.__name__ for check, _ in CHECKS])
def test_a_rule_holds_and_its_absence_is_found(
    workbench: Workbench, check: Callable[[Workbench], None], mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(workbench)

    workbench.sql("DROP TABLE content.film_work; DROP TABLE analytics.films; DELETE FROM etl.etl_pipelines")
    monkeypatch.setattr(*mutant)
    with pytest.raises(AssertionError):
        check(workbench)
