"""What a runner shows of a pipeline with Python steps before it runs: preview and validate; nothing is written."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import pytest

from tests.support.workbench import Workbench
from vitrina.loads.control import RunControl
from vitrina.runner import requests
from vitrina.runner.manager import PipelineManager
from vitrina.services import policy
from vitrina.store import pipelines, runners
from vitrina.store.leases import Claim
from vitrina.transforms import SourceContext, registry, source, transform

QUERY = "SELECT id, title, rating FROM content.film_work"


@source("preview_numbers")
def numbers(context: SourceContext) -> Iterator[Any]:
    """Two batches."""
    yield [{"n": 1}, {"n": 2}, {"n": 3}]
    raise AssertionError("a preview needs one batch only")


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(
        "CREATE TABLE content.film_work (id int PRIMARY KEY, title text, rating numeric(3,1));"
        "INSERT INTO content.film_work SELECT i, ' film ' || i, 7.0 FROM generate_series(1, 50) AS i"
    )
    return workbench


def ask(bench: Workbench, kind: str, name: str, **payload: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    row = pipelines.find(bench.metastore, name)
    assert row is not None
    request = {"id": uuid4(), "kind": kind, "pipeline_id": row["id"], "payload": payload}
    return requests.perform(request, bench.metastore, bench.settings, _no_lease_is_needed)


def _no_lease_is_needed(claim: Claim, claimed_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("looking needs no lease")


def with_steps(bench: Workbench, *steps: tuple[str, dict[str, Any]]) -> None:
    tasks: list[dict[str, Any]] = [{"order_index": 0, "task_type": "SQL", "body": QUERY}]
    tasks += [
        {"order_index": place, "task_type": "PYTHON", "body": name, "params": params}
        for place, (name, params) in enumerate(steps, 1)
    ]
    bench.pipeline("films", "SELECT 1", tasks=tasks, target_key=["id"])


def test_a_preview_shows_rows_behind_the_last_step(bench: Workbench) -> None:
    with_steps(
        bench,
        ("normalise_text", {"columns": ["title"], "case": "upper"}),
        ("add_columns", {"constants": {"country": "NL"}}),
    )
    result, error = ask(bench, "preview", "films", limit=2)
    assert error is None
    assert result is not None
    assert [column["name"] for column in result["columns"]] == ["id", "title", "rating", "country"]
    assert result["columns"][2]["type"] == "numeric(3,1)"
    assert result["rows"][0] == {"id": 1, "title": "FILM 1", "rating": 7.0, "country": "NL"}
    assert len(result["rows"]) == 2
    assert [column["name"] for column in result["before"]["columns"]] == ["id", "title", "rating"]
    assert result["before"]["rows"][0] == {"id": 1, "title": " film 1", "rating": 7.0}
    assert bench.sql("SELECT to_regclass('analytics.films') AS t") == [{"t": None}]


def test_a_preview_leaves_behind_what_a_run_would(bench: Workbench) -> None:
    bench.sql("UPDATE content.film_work SET title = id::text WHERE id > 1")
    with_steps(bench, ("cast_columns", {"types": {"title": "integer"}, "on_error": "dead_letter"}))
    result, error = ask(bench, "preview", "films", limit=1000)
    assert error is None
    assert result is not None
    assert (len(result["before"]["rows"]), len(result["rows"])) == (50, 49)
    assert len(result["rejected"]) == 1
    assert result["rejected"][0].startswith("step 1 (cast_columns): ")


@pytest.mark.parametrize("steps", [(), ("normalise_text",)])
def test_a_draft_without_a_target_is_previewed(bench: Workbench, steps: tuple[str, ...]) -> None:
    tasks = [{"order_index": 0, "task_type": "SQL", "body": QUERY}]
    tasks += [
        {"order_index": 1, "task_type": "PYTHON", "body": step, "params": {"columns": ["title"]}} for step in steps
    ]
    fields = {"tasks": tasks} if steps else {"source_query": QUERY}
    draft = policy.parse_for_reading(fields).model_dump(mode="json", exclude_unset=True)
    request = {"id": uuid4(), "kind": "preview", "pipeline_id": None, "payload": {"definition": draft, "limit": 2}}
    result, error = requests.perform(request, bench.metastore, bench.settings, _no_lease_is_needed)
    assert error is None
    assert result is not None
    assert len(result["rows"]) == 2


def test_a_preview_of_a_source_takes_one_batch(bench: Workbench) -> None:
    bench.pipeline("numbers", "", type="PYTHON", python_task="preview_numbers", target_key=["n"])
    result, error = ask(bench, "preview", "numbers", limit=2)
    assert error is None
    assert result == {"columns": [{"name": "n", "type": "bigint"}], "rows": [{"n": 1}, {"n": 2}]}


def test_validation_tries_the_steps_and_writes_nothing(bench: Workbench) -> None:
    with_steps(bench, ("select_columns", {"columns": ["id", "title"]}))
    result, error = ask(bench, "validate", "films")
    assert error is None
    assert result is not None
    assert result["columns"] == [{"name": "id", "type": "integer"}, {"name": "title", "type": "text"}]
    assert result["plan"]["route"] == "arrow"
    assert bench.sql("SELECT to_regclass('analytics.films') AS t") == [{"t": None}]


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        (("nowhere", {}), "invalid", "there is no Python step 'nowhere'"),
        (("keep_rows", {"where": "1 = 1"}), "invalid", "params.where"),
        (("explode", {"column": "title"}), "fatal", "not a list"),
        (("drop_columns", {"columns": ["id"]}), "target_mismatch", "'id' is not there after the steps"),
    ],
)
def test_validation_says_what_a_run_would_say(
    bench: Workbench, step: tuple[str, dict[str, Any]], code: str, words: str
) -> None:
    with_steps(bench, step)
    result, error = ask(bench, "validate", "films")
    assert result is None
    assert error is not None
    assert error["code"] == code
    assert words in error["message"]


def test_a_runner_tells_which_steps_it_has(bench: Workbench) -> None:
    # Without modules of the user a runner announces the steps that Vitrina ships, and loads none.
    manager = PipelineManager(bench.settings.model_copy(update={"transforms": __name__}))
    runner = threading.Thread(target=manager.run_forever)
    runner.start()
    try:
        listed = _listed(bench)
    finally:
        manager.stop()
        runner.join(timeout=30)
        manager._wakeup_recv.close()
        manager._wakeup_send.close()
    assert listed["keep_rows"]["kind"] == "transform"
    assert listed["keep_rows"]["params"]["properties"]["where"]
    assert listed["preview_numbers"]["kind"] == "source"
    assert {found.name for found in registry.load()} == set(listed) - {broken.name for broken in registry.load().broken}


def _listed(bench: Workbench) -> dict[str, dict[str, Any]]:
    """As soon as the runner has signed in."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if found := runners.list_transforms(bench.metastore, stale_after_seconds=60):
            return {row["name"]: row["described"] for row in found}
        time.sleep(0.05)
    raise AssertionError("no runner signed in")


@transform("preview_larger", rows=True)
def larger(row: dict[str, Any]) -> dict[str, Any]:
    """Makes a megabyte of each title."""
    return {**row, "title": "x" * (1 << 20)}


@source("preview_large")
def large(context: SourceContext) -> Iterator[Any]:
    """Rows of a megabyte."""
    yield [{"n": number, "x": "x" * (1 << 20)} for number in range(10)]


def test_a_preview_holds_no_more_than_eight_megabytes_before_and_behind_the_steps(bench: Workbench) -> None:
    with_steps(bench, ("preview_larger", {}))
    assert ask(bench, "preview", "films", limit=7)[1] is None
    _, error = ask(bench, "preview", "films", limit=9)
    assert error is not None
    assert error["message"].startswith("the first 9 rows of 1 preview_larger are more than 8 MB: ask for fewer")

    bench.sql("UPDATE content.film_work SET title = repeat('x', 1000000)")
    _, error = ask(bench, "preview", "films", limit=50)
    assert error is not None
    assert error["message"].startswith("the first 50 rows are more than 8 MB: ask for fewer")

    bench.pipeline("numbers", "", type="PYTHON", python_task="preview_large", target_key=["n"])
    _, error = ask(bench, "preview", "numbers", limit=10)
    assert error is not None
    assert error["message"].startswith("the first 10 rows of preview_large are more than 8 MB")
