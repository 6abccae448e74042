"""How a load is cut: in one statement up to a minute of work, in chunks of about ten seconds beyond."""

from dataclasses import replace

import pytest

from vitrina.definition import Definition
from vitrina.loads.plan import Capabilities, Plan, asked_workers, count_ranges, plan, why_not_cut
from vitrina.ports.ranges import Cut


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


INCREMENTAL: dict[str, object] = {"mode": "incremental", "incremental_key": "id"}


def cut(
    rows: int,
    *,
    parallel: int | str = 4,
    known: dict[str, object] | None = None,
    fields: dict[str, object] | None = None,
    **options: object,
) -> Plan:
    definition = Definition.model_validate(
        {
            "name": "films",
            "source_query": "SELECT id FROM content.films",
            "target_table": "analytics.films",
            "target_key": ["id"],
            "options": {"parallel": parallel, **options},
            **(fields or {}),
        }
    )
    usual = {
        "same_database": False,
        "has_steps": True,
        "pageable": True,
        "key": ("id",),
        "workers": 4,
        "compare_sessions": 4,
    }
    found = Capabilities(**{"estimated_rows": rows, **usual, **(known or {})})  # type: ignore[arg-type]
    asked = replace(found, cut=None if why_not_cut(definition, found) else Cut(count_ranges(definition, found)))
    return plan(definition, asked)


@pytest.mark.parametrize(("rows", "ranges"), [(200_000, 8), (1_000_000, 10), (9_000_001, 91), (500_000_000, 256)])
def test_a_range_has_a_hundred_thousand_rows_and_there_are_not_too_many(rows: int, ranges: int) -> None:
    chosen = cut(rows)
    assert (chosen.paging, chosen.ranges, chosen.workers) == ("key ranges", ranges, 4)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"key_is_read": False}, "no column of the key"),
        ({"no_ranges_because": "the index is written by one"}, "the index is written by one"),
        ({"has_steps": False, "same_database": True}, "Postgres moves the rows in one statement"),
        ({"has_steps": False}, "one stream loads about 1000000 rows"),
    ],
)
def test_a_load_that_is_not_cut_says_why(known: dict[str, object], said: str) -> None:
    chosen = cut(1_000_000, known=known)
    assert (chosen.paging != "key ranges", chosen.workers) == (True, 1)
    assert said in " ".join(chosen.reasons)


def test_few_rows_are_not_cut_unless_a_load_was_cut_before() -> None:
    assert cut(199_999).paging == "ordered stream"
    assert cut(199_999, checkpoint_rows=1_000).ranges == 200
    assert cut(10, known={"has_ranges_left": True}).paging == "key ranges"


def test_a_first_pass_with_steps_is_loaded_at_once_where_it_is_cut() -> None:
    empty: dict[str, object] = {"target_is_empty": True}
    assert cut(1_000_000, fields=INCREMENTAL, known=empty).paging == "key ranges"
    assert cut(1_000_000, fields=INCREMENTAL).paging == "ordered stream"
    # One process merges, batch by batch, as in later passes: steps may make several rows with one key.
    assert not cut(199_999, fields=INCREMENTAL, known=empty).loads_at_once
    assert not cut(1_000_000, parallel=1, fields=INCREMENTAL, known=empty).loads_at_once


def test_a_plan_says_what_one_process_does_where_a_load_is_cut() -> None:
    said = "later incremental runs and backfills use one process"
    assert said in cut(1_000_000, fields=INCREMENTAL, known={"target_is_empty": True}).reasons
    assert "`vitrina reconcile` uses up to 4 sessions on each side" in cut(1_000_000).reasons


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_plan_promises_no_sessions_that_a_comparison_does_not_open(engine: str) -> None:
    """A comparison uses the sessions of the runner, not those of executors, and one where a connection is limited."""
    asked: dict[str, object] = {"workers": 8}
    assert "up to 2 sessions" in " ".join(cut(1_000_000, engine=engine, known=asked | {"compare_sessions": 2}).reasons)
    alone = cut(1_000_000, engine=engine, known=asked | {"compare_sessions": 1})
    assert alone.paging == "key ranges"
    assert "vitrina reconcile" not in " ".join(alone.reasons)


def test_one_process_hears_nothing_of_ranges() -> None:
    chosen = cut(10_000_000, parallel=1)
    assert chosen.paging == "ordered stream"
    assert "ranges" not in " ".join(chosen.reasons)


@pytest.mark.parametrize(("parallel", "at_once"), [(1, 10), ("auto", 10), (4, 4)])
def test_a_cluster_is_given_all_ranges_unless_it_is_told_how_many(parallel: int | str, at_once: int) -> None:
    options = {"parallel": parallel, "engine": "spark"}
    definition = Definition.model_validate(
        {"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.films", "options": options}
    )
    workers = asked_workers(definition, 1_000_000, parallel if isinstance(parallel, int) else 2)
    assert workers == at_once

    chosen = cut(1_000_000, parallel=parallel, engine="spark", known={"workers": workers})
    assert (chosen.paging, chosen.ranges, chosen.workers) == ("key ranges", 10, at_once)
    assert "executors of spark" in " ".join(chosen.reasons)


@pytest.mark.parametrize(
    ("rows", "rate", "slower"),
    [(300_000, None, True), (5_000_000, None, False), (300_000, 1_000.0, False), (5_000_000, 1e6, True)],
)
def test_a_cluster_that_would_take_longer_than_one_stream_is_warned_of(
    rows: int, rate: float | None, slower: bool
) -> None:
    chosen = cut(rows, engine="spark", known={"rows_per_second": rate})
    assert ("before its first row" in " ".join(chosen.warnings)) is slower
    assert cut(rows, known={"rows_per_second": rate}).warnings == ()


@pytest.mark.parametrize(("processors", "slower"), [(1, False), (2, False), (16, True)])
def test_a_cluster_is_compared_with_all_processors_of_the_runner(processors: int, slower: bool) -> None:
    chosen = cut(5_000_000, engine="spark", known={"processors": processors})
    assert (f"on its {processors} processor(s)" in " ".join(chosen.warnings)) is slower


def test_an_engine_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="'ray' is not installed here; available: local, spark"):
        cut(1_000_000, engine="ray")
