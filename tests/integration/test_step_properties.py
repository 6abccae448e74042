"""Whatever happens to a pipeline with steps, its checkpoint covers nothing that is not in the mart."""

from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.postgres.load import MergeLoad
from vitrina.loads.run import RunFence
from vitrina.ports.batch import Part
from vitrina.ports.target import Done
from vitrina.store import recovery
from vitrina.transforms import transform

# Rows that the step cannot stand at the moment.
HATED: set[int] = set()
BATCH = 4
_numbers = count()

POINTS = [
    "batch.filled",
    "merge.applied",
    "batch.fenced",
    "batch.committed",
    "pass.fenced",
    "publish.fenced",
    "run.concluding",
]


@transform("prop_step", rows=True)
def step(row: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]] | None:
    """Drops some rows, doubles others, and fails on the hated ones."""
    if row["id"] in HATED:
        raise ValueError("hated")
    if row["id"] % 5 == 0:
        return None
    first = {"id": row["id"], "part": 0, "title": row["title"].upper()}
    return [first, first | {"part": 1}] if row["id"] % 3 == 0 else first


def expected(table: str, covered: str = "true") -> str:
    return f"""
        SELECT id, part, upper(title) AS title FROM content.{table}
        CROSS JOIN generate_series(0, CASE WHEN id % 3 = 0 THEN 1 ELSE 0 END) AS part
        WHERE id % 5 <> 0 AND ({covered})"""


identifiers = st.integers(1, 30)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sets(identifiers, min_size=1, max_size=8)),
        st.tuples(st.just("hate"), st.sets(identifiers, max_size=2)),
        st.tuples(st.just("run"), st.none()),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("interrupt"), st.tuples(st.sampled_from(POINTS), st.integers(1, 4))),
        st.tuples(st.just("crash"), st.tuples(st.sampled_from(POINTS), st.integers(1, 4))),
    ),
    max_size=8,
)


class Story:
    """One pipeline, what is done to it, and what must hold in between."""

    def __init__(self, bench: Workbench, mode: str, on_error: str) -> None:
        self.bench = bench
        self.name = f"story_{next(_numbers)}"
        self.mode = mode
        self.title = 0
        HATED.clear()
        # Stories share a database; what an earlier one left undone is not part of this one.
        bench.sql("UPDATE etl.etl_pipelines SET enabled = false")
        bench.source(
            f"CREATE TABLE content.{self.name} (id int PRIMARY KEY, title text, modified timestamptz NOT NULL);"
            f"INSERT INTO content.{self.name} SELECT i, 'first', clock_timestamp() FROM generate_series(1, 20) AS i"
        )
        query = f"SELECT id, title, modified FROM content.{self.name}"
        bench.pipeline(
            self.name,
            "SELECT 1",
            tasks=[
                {"order_index": 0, "task_type": "SQL", "body": query},
                {"order_index": 1, "task_type": "PYTHON", "body": "prop_step", "params": {"on_error": on_error}},
            ],
            target_key=["id", "part"],
            mode=mode,
            incremental_key="modified" if mode == "incremental" else None,
            incremental_id_key="id" if mode == "incremental" else None,
            batch_size=BATCH,
            options={"allow_shrink": True, "allow_empty": True},
        )

    def play(self, action: str, detail: Any) -> None:
        if action == "change":
            self.change(detail)
        elif action == "hate":
            HATED.clear()
            HATED.update(detail)
        elif action == "pause":
            self.run_and_pause()
        elif action == "crash":
            self.crash(*detail)
        else:
            self.run(f"{detail[0]}:error:{detail[1]}" if detail else "")

    def change(self, numbers: set[int]) -> None:
        self.title += 1
        self.bench.sql(
            f"INSERT INTO content.{self.name} SELECT i, 'title {self.title}', clock_timestamp()"
            f" FROM unnest(ARRAY{sorted(numbers)}) AS i"
            " ON CONFLICT (id) DO UPDATE SET title = excluded.title, modified = excluded.modified"
        )

    def run(self, plan: str = "") -> dict[str, Any]:
        failpoints.configure(plan)
        try:
            return self.bench.run(self.name)
        finally:
            failpoints.configure("")

    def run_and_pause(self) -> None:
        self.bench.request(self.name)
        claim = self.bench.claim()
        self.bench.sql(f"UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED' WHERE name = '{self.name}'")
        self.bench.perform(claim)

    def crash(self, point: str, count: int) -> None:
        """The runner is gone without a word; when its lease is over, the request stands again."""
        self.bench.request(self.name)
        failpoints.configure(f"{point}:crash:{count}")
        try:
            with suppress(failpoints.Crashed):
                self.bench.perform(self.bench.claim())
        finally:
            failpoints.configure("")
        self.bench.sql("UPDATE etl.etl_pipelines SET lease_until = 'epoch' WHERE claim_id IS NOT NULL")
        recovery.recover_expired(self.bench.metastore, max_attempts=1000)

    def check_covered(self) -> None:
        """Every row that the checkpoint has passed by is in the mart, in the version that was passed by."""
        if self.mode == "full" or not self.bench.sql(f"SELECT to_regclass('analytics.{self.name}') AS t")[0]["t"]:
            return
        found = self.bench.checkpoint(self.name)
        conditions = []
        if found.safe_upto:
            conditions.append(f"modified < '{found.safe_upto}'")
        if found.last_key:
            conditions.append(f"(modified, id) <= ('{found.last_key}', {found.last_id})")
        # A row that was hated when it was passed by is in the dead letters instead.
        letters = (
            "SELECT document_id::int FROM etl.etl_dead_letters d JOIN etl.etl_pipelines p ON p.id = d.pipeline_id"
            f" WHERE p.name = '{self.name}' AND d.resolved_at IS NULL"
        )
        covered = expected(self.name, f"({' OR '.join(conditions) or 'false'}) AND id NOT IN ({letters})")
        assert self.bench.sql(f"{covered} EXCEPT SELECT id, part, title FROM analytics.{self.name}") == []

    def check_arrived(self) -> None:
        assert self.bench.differences(expected(self.name), f"analytics.{self.name}") == 0


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.settings = workbench.settings.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 1})
    return workbench


@pytest.mark.timeout(600)
@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
@pytest.mark.parametrize("mode", ["incremental", "full"])
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(story=actions)
def test_the_checkpoint_passes_by_nothing(
    bench: Workbench, mode: str, on_error: str, story: list[tuple[str, Any]]
) -> None:
    told = Story(bench, mode, on_error)
    for action, detail in story:
        told.play(action, detail)
        told.check_covered()
    HATED.clear()
    # What was left behind as a dead letter comes again when it changes.
    told.change(set(range(1, 31)))
    for _ in range(2):  # an interrupted load is finished first; what changed behind it waits for the next
        assert told.run()["error_message"] is None
    assert bench.sql("SELECT * FROM etl.etl_dead_letters WHERE resolved_at IS NULL") == []
    told.check_covered()
    told.check_arrived()


def test_a_checkpoint_that_does_not_wait_for_the_data_is_noticed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the checkpoint moves in a transaction of its own, before the merge."""
    commit = MergeLoad.commit

    def hasty(load: MergeLoad, part: Part, fence: RunFence) -> None:
        checkpoint = fence._move(Done())
        fence._run.record("hurrying", checkpoint)
        monkeypatch.setattr(fence, "_move", lambda done: checkpoint)
        commit(load, part, fence)

    told = Story(bench, "incremental", "fail")
    told.run("merge.applied:error:2")
    told.check_covered()
    monkeypatch.setattr(MergeLoad, "commit", hasty)
    told.run("merge.applied:error:2")
    with pytest.raises(AssertionError):
        told.check_covered()
