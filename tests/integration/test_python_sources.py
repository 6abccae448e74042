"""Pipelines whose rows a registered Python source makes: their checkpoint moves with the data, or not at all."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.checks import previews
from vitrina.store import pipelines
from vitrina.transforms import SourceContext, source, transform


class Feed(BaseModel):
    """A made-up feed of numbered events, a batch at a time."""

    size: int = 10
    batch: int = 3


# What the outside world holds, and how often it was asked from where.
WORLD: dict[str, Any] = {}


@source("it_feed", params=Feed)
def feed(context: SourceContext) -> Iterator[Any]:
    """Numbers from the checkpoint on."""
    assert isinstance(context.params, Feed)
    WORLD.setdefault("asked", []).append(context.checkpoint)
    start = (context.checkpoint or {}).get("after", 0)
    end = WORLD.get("end", context.params.size)
    while start < end:
        stop = min(start + context.params.batch, end)
        context.checkpoint = {"after": stop}
        # Rows differ each time that they are asked for: one that is written twice shows.
        told = f"told in answer {len(WORLD['asked'])}"
        yield pa.RecordBatch.from_pylist([{"n": n, "name": told} for n in range(start + 1, stop + 1)])
        if WORLD.get("fail_after") == stop:
            del WORLD["fail_after"]
            raise ConnectionResetError("the feed hung up")
        start = stop


@source("it_forgetful")
def forgetful(context: SourceContext) -> Iterator[Any]:
    """Sets no checkpoint."""
    assert context.checkpoint is None
    for n in range(5):
        yield [{"n": n}]


@source("it_silent")
def silent(context: SourceContext) -> Iterator[Any]:
    """Yields nothing but moves on."""
    context.checkpoint = {"seen": (context.checkpoint or {}).get("seen", 0) + 1}
    yield from ()


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    WORLD.clear()
    return workbench


def make(bench: Workbench, name: str, mode: str, task: str = "it_feed", **fields: Any) -> None:
    fields = {"target_key": ["n"], **fields}
    bench.pipeline(name, "", type="PYTHON", python_task=task, mode=mode, **fields)


def numbers(bench: Workbench, table: str = "analytics.feed") -> list[int]:
    return [row["n"] for row in bench.sql(f"SELECT n FROM {table} ORDER BY n")]


def test_a_full_load_from_a_source(bench: Workbench) -> None:
    make(bench, "feed", "full", options={"params": {"size": 7}})

    run = bench.run("feed")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_read"], run["rows_written"], run["batches"]) == (7, 7, 3)
    assert numbers(bench) == list(range(1, 8))
    WORLD["end"] = 6
    assert bench.run("feed")["rows_deleted"] == 1
    assert WORLD["asked"] == [None, None]


def test_an_incremental_source_gets_its_checkpoint_back(bench: Workbench) -> None:
    make(bench, "feed", "incremental")
    assert bench.run("feed")["rows_written"] == 10
    assert bench.checkpoint("feed").safe_upto == '{"after": 10}'
    WORLD["end"] = 12

    run = bench.run("feed")

    assert (run["rows_read"], run["rows_written"]) == (2, 2)
    assert WORLD["asked"] == [None, {"after": 10}]
    assert numbers(bench) == list(range(1, 13))


def test_a_source_that_hangs_up_goes_on_from_its_last_batch(bench: Workbench) -> None:
    make(bench, "feed", "incremental")
    WORLD["fail_after"] = 6

    run = bench.run("feed")

    assert (run["status"], run["attempts"], run["rows_written"]) == ("SUCCESS", 2, 10)
    assert WORLD["asked"] == [None, {"after": 6}]


def test_an_interrupted_load_goes_on_from_its_last_batch(bench: Workbench) -> None:
    make(bench, "feed", "full")
    WORLD["fail_after"] = 6

    run = bench.run("feed")

    assert (run["status"], run["attempts"], run["rows_written"]) == ("SUCCESS", 2, 10)
    assert WORLD["asked"] == [None, {"after": 6}]
    assert numbers(bench) == list(range(1, 11))


POINTS = ["batch.filled", "batch.fenced", "batch.committed", "publish.fenced", "run.concluding"]


@pytest.mark.parametrize(
    ("mode", "point"),
    # A full load that is published but not concluded is loaded again, as it should be.
    [(mode, point) for mode in ("full", "incremental") for point in POINTS if (mode, point) != ("full", POINTS[-1])],
)
def test_each_row_arrives_once_wherever_it_is_interrupted(bench: Workbench, mode: str, point: str) -> None:
    bench.sql(
        "CREATE TABLE analytics.feed (n bigint PRIMARY KEY, name text, writes int DEFAULT 1);"
        "ALTER TABLE analytics.feed OWNER TO vitrina_app;"
        "CREATE FUNCTION analytics.count_writes() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.writes := OLD.writes + 1; RETURN NEW; END $$;"
        "CREATE TRIGGER count_writes BEFORE UPDATE ON analytics.feed FOR EACH ROW"
        " EXECUTE FUNCTION analytics.count_writes()"
    )
    make(bench, "feed", mode)
    failpoints.configure(f"{point}:error:2,{point}:error:4")
    try:
        run = bench.run("feed")
    finally:
        failpoints.configure("")
    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert bench.sql("SELECT n, writes FROM analytics.feed ORDER BY n") == [{"n": n, "writes": 1} for n in range(1, 11)]


def test_a_load_without_checkpoint_starts_over(bench: Workbench) -> None:
    make(bench, "feed", "full", task="it_forgetful")
    failpoints.configure("batch.committed:error:3")
    try:
        run = bench.run("feed")
    finally:
        failpoints.configure("")
    assert (run["status"], run["rows_written"]) == ("SUCCESS", 5)
    assert run["metrics"]["started_over"] == "the source sets no checkpoint"


def test_a_source_may_move_on_without_rows(bench: Workbench) -> None:
    make(bench, "feed", "incremental", task="it_silent")
    for seen in (1, 2):
        assert bench.run("feed")["status"] == "SUCCESS"
        assert bench.checkpoint("feed").safe_upto == f'{{"seen": {seen}}}'
    assert bench.sql("SELECT to_regclass('analytics.feed') AS t") == [{"t": None}]


def test_a_pause_comes_between_batches(bench: Workbench) -> None:
    make(bench, "feed", "incremental")
    bench.request("feed")
    claim = bench.claim()
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
    bench.perform(claim)
    assert (bench.status("feed"), numbers(bench)) == ("PAUSED", [1, 2, 3])
    bench.run("feed")
    assert (bench.status("feed"), numbers(bench)) == ("IDLE", list(range(1, 11)))


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("it_nowhere", {}, "there is no Python source 'it_nowhere' here; there are: "),
        ("keep_rows", {}, "there is no Python source 'keep_rows'"),
        ("it_feed", {"params": {"size": "many"}}, "source it_feed: params.size"),
        ("it_forgetful", {"params": {"x": 1}}, "takes no params"),
    ],
)
def test_a_wrong_source_is_named(bench: Workbench, task: str, options: dict[str, Any], words: str) -> None:
    make(bench, "feed", "full", task=task, options=options)
    run = bench.run("feed")
    assert (run["status"], run["error_code"]) == ("FAILED", "invalid")
    assert words in run["error_message"]


def test_the_key_must_be_among_the_columns(bench: Workbench) -> None:
    make(bench, "feed", "full", target_key=["id"])
    assert "'id' is not given by source it_feed" in bench.run("feed")["error_message"]


def test_the_time_of_a_run_is_told_by_stages(bench: Workbench) -> None:
    make(bench, "feed", "full")
    make(bench, "events", "incremental")

    loaded = bench.run("feed")["metrics"]["stage_seconds"]
    passed = bench.run("events")["metrics"]["stage_seconds"]

    assert loaded.keys() == {"plan", "read", "stage", "merge", "publish", "wait"}
    assert passed.keys() == {"plan", "read", "stage", "merge", "wait"}
    assert min(*loaded.values(), *passed.values()) > 0


def test_a_source_that_gives_nothing_has_been_read_all_the_same(bench: Workbench) -> None:
    make(bench, "feed", "incremental", task="it_silent")

    assert bench.run("feed")["metrics"]["stage_seconds"].keys() == {"plan", "read"}


def test_a_mart_that_was_replaced_is_filled_from_the_beginning(bench: Workbench) -> None:
    make(bench, "feed", "incremental")
    bench.run("feed")
    bench.sql("TRUNCATE analytics.feed; INSERT INTO analytics.feed (n) VALUES (100)")

    run = bench.run("feed")

    assert "by hand" in run["metrics"]["started_over"]
    assert numbers(bench) == [*range(1, 11), 100]


# --- steps after a source ---------------------------------------------------------------------------------------------

SHIPPED = [
    {"order_index": 1, "task_type": "PYTHON", "body": "rename_columns", "params": {"names": {"name": "said"}}},
    {
        "order_index": 2,
        "task_type": "PYTHON",
        "body": "drop_rows",
        "params": {"where": {"column": "n", "op": "eq", "value": 4}},
    },
]
OWN = [{"order_index": 1, "task_type": "PYTHON", "body": "it_squares", "params": {"on_error": "dead_letter"}}]


@transform("it_squares", rows=True)
def squares(row: dict[str, Any]) -> dict[str, Any]:
    """Fails on seven, as long as the world says so."""
    if row["n"] == 7 and WORLD.get("hates_seven"):
        raise ValueError("not seven")
    return {"n": row["n"], "square": row["n"] ** 2}


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_steps_after_a_source(bench: Workbench, mode: str) -> None:
    make(bench, "feed", mode, tasks=SHIPPED)

    run = bench.run("feed")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert (run["rows_read"], run["rows_written"]) == (10, 9)
    assert numbers(bench) == [n for n in range(1, 11) if n != 4]
    assert bench.sql("SELECT DISTINCT said FROM analytics.feed") == [{"said": "told in answer 1"}]
    assert WORLD["asked"] == [None], "the rows that the steps were tried with are not asked for again"
    WORLD["end"] = 12
    assert bench.run("feed")["status"] == "SUCCESS"
    assert numbers(bench) == [n for n in range(1, 13) if n != 4]


def test_rows_that_a_step_rejects_wait_until_the_source_gives_them_again(bench: Workbench) -> None:
    WORLD["hates_seven"] = True
    make(bench, "feed", "full", tasks=OWN)

    run = bench.run("feed")

    assert (run["status"], run["rows_rejected"], run["rows_written"]) == ("SUCCESS", 1, 9)
    [letter] = bench.sql("SELECT document_id, document FROM etl.etl_dead_letters WHERE resolved_at IS NULL")
    assert (letter["document_id"], letter["document"]["n"]) == ("7", 7)
    WORLD["hates_seven"] = False
    assert bench.run("feed")["rows_written"] == 1
    assert bench.sql("SELECT square FROM analytics.feed WHERE n = 7") == [{"square": 49}]
    assert bench.sql("SELECT * FROM etl.etl_dead_letters WHERE resolved_at IS NULL") == []


def test_a_source_with_steps_goes_on_from_its_last_batch(bench: Workbench) -> None:
    make(bench, "feed", "incremental", tasks=OWN)
    WORLD["fail_after"] = 6

    run = bench.run("feed")

    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert WORLD["asked"] == [None, {"after": 6}]
    assert numbers(bench) == list(range(1, 11))


def test_what_steps_make_of_a_source_is_shown_and_compared(bench: Workbench) -> None:
    make(bench, "feed", "full", tasks=OWN)
    bench.run("feed")
    row = pipelines.find(bench.metastore, "feed")
    assert row is not None

    shown = previews.preview(pipelines.definition_of(row), bench.settings, 2)

    assert [column["name"] for column in shown["columns"]] == ["n", "square"]
    assert shown["rows"] == [{"n": 1, "square": 1}, {"n": 2, "square": 4}]
    assert [column["name"] for column in shown["before"]["columns"]] == ["n", "name"]
    assert bench.reconcile("feed")["differences"] == 0
    bench.sql("UPDATE analytics.feed SET square = 5 WHERE n = 2")
    assert bench.reconcile("feed")["differences"] == 1
