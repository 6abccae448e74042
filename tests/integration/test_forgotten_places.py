"""A place to go on from is believed only by who left it there: not by another mode, source, target or cursor."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from tests.conftest import url_of
from tests.support.ahead import Ahead
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.transforms import SourceContext, source

FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, at timestamptz NOT NULL, seen timestamptz NOT NULL);
INSERT INTO content.films
SELECT i, 'Film ' || i, timestamptz '2024-01-01' + make_interval(mins => i), '2023-01-01'
FROM generate_series(1, 100) AS i;
"""
QUERY = "SELECT id, title, at, seen FROM content.films"
INCREMENTAL = {"mode": "incremental", "incremental_key": "at", "target_key": ["id"]}


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 1})
    workbench.source(FILMS)
    return workbench


def run(bench: Workbench, name: str = "films") -> dict[str, Any]:
    found = bench.run(name)
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    return found


# --- a full load in between ------------------------------------------------------------------------------------------


def test_passes_behind_a_full_load_of_fewer_rows_miss_none(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.change("films", mode="full", source_query=f"{QUERY} WHERE id > 60", options={"allow_shrink": True})
    run(bench)

    bench.change("films", mode="incremental", source_query=QUERY)
    run(bench)

    assert bench.differences(QUERY, "analytics.films") == 0


@pytest.mark.parametrize(
    "change", [{"target_table": "analytics.others"}, {"incremental_key": "seen"}], ids=["target", "cursor"]
)
def test_passes_behind_a_full_load_begin_anew_with_another(bench: Workbench, change: dict[str, Any]) -> None:
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.change("films", mode="full")
    run(bench)
    bench.sql("INSERT INTO content.films VALUES (101, 'late', '2023-06-01', '2023-06-01')")

    bench.change("films", mode="incremental", **change)
    run(bench)

    assert bench.differences(QUERY, change.get("target_table", "analytics.films")) == 0


# --- a load that was refused -----------------------------------------------------------------------------------------


def test_a_mart_whose_refilling_was_refused_is_filled_whole_by_the_next_run(bench: Workbench) -> None:
    bench.sql(
        "CREATE TABLE analytics.films (id int PRIMARY KEY, title text CHECK (title <> 'bad'), at timestamptz,"
        " seen timestamptz); ALTER TABLE analytics.films OWNER TO vitrina_app"
    )
    bench.pipeline("films", QUERY, **INCREMENTAL)
    run(bench)
    bench.sql("DELETE FROM analytics.films; UPDATE content.films SET title = 'bad' WHERE id = 3")
    assert "reads the source again" in bench.run("films")["error_message"]

    bench.sql("UPDATE content.films SET title = 'good' WHERE id = 3")
    run(bench)

    assert bench.differences(QUERY, "analytics.films") == 0


# --- the source ------------------------------------------------------------------------------------------------------


def test_a_connection_that_was_pointed_to_another_database_is_read_from_the_beginning(
    bench: Workbench, server: TemporaryServer, copies: Ahead[str]
) -> None:
    elsewhere = copies.take()
    with psycopg.connect(url_of(server.urls.admin, elsewhere), autocommit=True) as other:
        other.execute(FILMS)
        other.execute("UPDATE content.films SET title = 'another', at = at - interval '1 year'")
        other.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")
    point(bench, bench.settings.reader_url)
    bench.pipeline("films", QUERY, source_connection="crm", **INCREMENTAL)
    run(bench)
    assert "started_over" not in run(bench)["metrics"]

    point(bench, SecretStr(url_of(server.urls.reader, elsewhere)))

    assert "leads to a different database" in run(bench)["metrics"]["started_over"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.films WHERE title = 'another'") == [{"rows": 100}]


def point(bench: Workbench, url: SecretStr | None) -> None:
    bench.settings = bench.settings.model_copy(update={"connections": {"crm": url}})


def test_numbers_that_began_again_are_warned_of(bench: Workbench) -> None:
    bench.source("CREATE TABLE content.events (id bigserial PRIMARY KEY, what text)")
    bench.sql("INSERT INTO content.events (what) SELECT 'old' FROM generate_series(1, 100)")
    fields = {"incremental_key": "id", "options": {"cursor_clock": "database"}}
    bench.pipeline("events", "SELECT id, what FROM content.events", **INCREMENTAL | fields)
    run(bench, "events")
    bench.sql("TRUNCATE content.events RESTART IDENTITY")
    bench.sql("INSERT INTO content.events (what) SELECT 'new' FROM generate_series(1, 50)")

    warnings = run(bench, "events")["metrics"]["plan"]["warnings"]

    assert any("is 50, below the checkpoint 100" in warning for warning in warnings)


# --- Python sources --------------------------------------------------------------------------------------------------


def numbers(context: SourceContext, last: int) -> Iterator[Any]:
    """The checkpoint is a bare number, which a cursor may be as well."""
    start = context.checkpoint or 0
    if start < last:
        context.checkpoint = last
        yield [{"id": n, "title": f"{last}"} for n in range(start + 1, last + 1)]


@source("it_ten")
def ten(context: SourceContext) -> Iterator[Any]:
    """Ten rows."""
    yield from numbers(context, 10)


@source("it_twelve")
def twelve(context: SourceContext) -> Iterator[Any]:
    """Twelve rows, the first ten of which have other titles than those of `it_ten`."""
    yield from numbers(context, 12)


def make(bench: Workbench) -> None:
    bench.pipeline("numbers", "", type="PYTHON", python_task="it_ten", mode="incremental", target_key=["id"])
    run(bench, "numbers")


def test_a_source_that_fills_another_mart_begins_anew(bench: Workbench) -> None:
    make(bench)
    bench.sql("CREATE TABLE analytics.others (LIKE analytics.numbers INCLUDING ALL)")
    bench.sql("ALTER TABLE analytics.others OWNER TO vitrina_app")

    bench.change("numbers", target_table="analytics.others")

    assert "has changed since the last checkpoint" in run(bench, "numbers")["metrics"]["started_over"]
    assert bench.differences("SELECT * FROM analytics.numbers", "analytics.others") == 0
    assert "started_over" not in run(bench, "numbers")["metrics"]


def test_another_source_does_not_go_on_where_the_last_one_stood(bench: Workbench) -> None:
    make(bench)

    bench.change("numbers", python_task="it_twelve")

    assert "has changed since the last checkpoint" in run(bench, "numbers")["metrics"]["started_over"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.numbers WHERE title = '12'") == [{"rows": 12}]


def test_a_query_does_not_go_on_where_a_source_stood(bench: Workbench) -> None:
    make(bench)
    fields = {"type": "SQL", "python_task": None, "source_query": "SELECT id::bigint, title FROM content.films"}

    bench.change("numbers", **fields, incremental_key="id")

    assert "has changed since the last checkpoint" in run(bench, "numbers")["metrics"]["started_over"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.numbers WHERE title LIKE 'Film%'") == [{"rows": 100}]


def test_a_source_does_not_go_on_where_a_query_stood(bench: Workbench) -> None:
    bench.pipeline("numbers", "SELECT id::bigint, title FROM content.films", **INCREMENTAL | {"incremental_key": "id"})
    run(bench, "numbers")

    bench.change("numbers", type="PYTHON", python_task="it_twelve", source_query=None)

    assert "has changed since the last checkpoint" in run(bench, "numbers")["metrics"]["started_over"]
    assert bench.sql("SELECT count(*) AS rows FROM analytics.numbers WHERE title = '12'") == [{"rows": 12}]


def test_a_source_whose_full_load_was_interrupted_is_followed_from_its_beginning(bench: Workbench) -> None:
    make(bench)
    bench.change("numbers", mode="full", python_task="it_twelve")
    bench.request("numbers")
    bench.lose_a_runner("batch.committed:crash:1")
    bench.recover()

    bench.change("numbers", mode="incremental")
    bench.perform(bench.claim())

    assert bench.sql("SELECT count(*) AS rows FROM analytics.numbers WHERE title = '12'") == [{"rows": 12}]
    assert bench.checkpoint("numbers").stage is None
