"""Model users, transactions and dying runners: whatever they do in whatever order, the marts are right in the end."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.chaos import mutants
from tests.chaos.arena import Arena
from tests.chaos.conftest import LONG, say
from vitrina import failpoints
from vitrina.errors import TransientError
from vitrina.loads.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, recovery
from vitrina.store.leases import Claim

KINDS = ("full_pages", "inc_pages")
LEASE_SECONDS = 1000.0
ids = st.integers(1, 400)
kinds = st.sampled_from(KINDS)
points = st.sampled_from(failpoints.POINTS)
counts = st.integers(1, 3)


class Life(RuleBasedStateMachine):
    """Reuse one database: every example starts with the marts as the last one left them, and new sources."""

    arena: Arena
    settings: Settings

    def __init__(self) -> None:
        super().__init__()
        self.late: database.Connection | None = None
        self.asleep: list[Claim] = []
        self.arena.sql(
            """
            TRUNCATE content.item, audit.applied, analytics.full_pages, analytics.inc_pages;
            DELETE FROM etl.etl_runs; DELETE FROM etl.etl_state;
            UPDATE etl.etl_pipelines SET status = 'IDLE', claim_id = NULL, runner_id = NULL, lease_until = NULL,
                holds_target = NULL, attempts = 0, run_requested_at = NULL, enabled = true;
            INSERT INTO content.item SELECT i, 1 FROM generate_series(1, 400) AS i
            """
        )

    def teardown(self) -> None:
        failpoints.configure("")
        if self.late is not None:
            self.late.close()

    @rule(first=ids, rows=st.integers(1, 300))
    def update(self, first: int, rows: int) -> None:
        self.arena.sql(
            "UPDATE content.item SET version = version + 1, updated_at = clock_timestamp()"
            f" WHERE id BETWEEN {first} AND {first + rows}"
        )

    @rule(first=ids, rows=st.integers(1, 50))
    def insert(self, first: int, rows: int) -> None:
        self.arena.sql(
            f"INSERT INTO content.item SELECT i, 1 FROM generate_series({first}, {first + rows}) AS i"
            " ON CONFLICT DO NOTHING"
        )

    @rule(identity=ids)
    def delete(self, identity: int) -> None:
        self.arena.sql(f"DELETE FROM content.item WHERE id = {identity}")

    @precondition(lambda self: self.late is None)
    @rule()
    def begin_a_late_transaction(self) -> None:
        """Stamp a row now and commit it later, when a plain cursor would have passed it."""
        assert self.settings.admin_url is not None
        self.late = database.connect(self.settings.admin_url.get_secret_value(), "someone")
        self.late.execute("BEGIN")
        self.late.execute(
            "INSERT INTO content.item AS i VALUES (9999, 1) ON CONFLICT (id) DO UPDATE"
            " SET version = i.version + 1, updated_at = clock_timestamp()"
        )

    @precondition(lambda self: self.late is not None)
    @rule(keep=st.booleans())
    def end_the_late_transaction(self, keep: bool) -> None:
        assert self.late is not None
        self.late.execute("COMMIT" if keep else "ROLLBACK")
        self.late.close()
        self.late = None

    @rule(kind=kinds)
    def run(self, kind: str) -> None:
        self.request(kind)
        self.work()
        self.expect_up_to_date(kind)

    @rule(kind=kinds, point=points, count=counts)
    def crash(self, kind: str, point: str, count: int) -> None:
        self.request(kind)
        failpoints.configure(f"{point}:crash:{count}")
        self.work()
        failpoints.configure("")

    @rule(kind=kinds, point=points, count=counts)
    def fail_once(self, kind: str, point: str, count: int) -> None:
        self.request(kind)
        failpoints.configure(f"{point}:error:{count}")
        self.work()
        failpoints.configure("")
        self.expect_up_to_date(kind)

    @rule(kind=kinds, count=counts)
    def pause_at_a_batch(self, kind: str, count: int) -> None:
        self.request(kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "hit", self.at("batch.filled", count, lambda: self.pause(kind)))
            self.work()

    @rule(kind=kinds)
    def pause(self, kind: str) -> None:
        pipelines.request_pause(self.arena.admin, self.arena.ids[kind])
        recovery.pause_unclaimed(self.arena.admin)

    @rule(kind=kinds)
    def fall_asleep_with_a_claim(self, kind: str) -> None:
        self.request(kind)
        claim = self.claim()
        if claim:
            self.asleep.append(claim)

    @precondition(lambda self: self.asleep)
    @rule()
    def beat_in_time(self) -> None:
        """Send a heartbeat when the lease is nearly over, then check for expired leases."""
        held = [c for c in self.asleep if leases.find_status(self.arena.admin, c)]
        self.arena.sql("UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() WHERE claim_id IS NOT NULL")
        leases.extend(self.arena.admin, self.current_claims(), LEASE_SECONDS)
        assert recovery.recover_expired(self.arena.admin, max_attempts=1000) == []
        assert all(leases.find_status(self.arena.admin, claim) for claim in held)

    @precondition(lambda self: self.asleep)
    @rule()
    def wake_up_late(self) -> None:
        """Continue a claim that may have been taken over: a valid one does its work, another changes nothing."""
        self.perform(self.asleep.pop(0))

    @rule()
    def take_over(self) -> None:
        assert recovery.recover_expired(self.arena.admin, max_attempts=1000) == [], "a live lease was taken away"
        self.arena.sql("UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() WHERE claim_id IS NOT NULL")
        recovery.recover_expired(self.arena.admin, max_attempts=1000)
        self.work()

    @rule()
    def come_to_rest(self) -> None:
        """Resume all pipelines and run them to the end."""
        self.take_over()
        for kind in KINDS:
            self.request(kind)
        self.work()
        for kind in KINDS:
            self.expect_up_to_date(kind)

    @invariant()
    def nothing_doubled(self) -> None:
        assert [*self.arena._doubled(), *self.arena._late()] == []

    def request(self, kind: str) -> None:
        pipelines.request_run(self.arena.admin, self.arena.ids[kind], trigger=Trigger.API)

    def claim(self) -> Claim | None:
        return leases.claim_next(self.arena.admin, uuid4(), LEASE_SECONDS)

    def current_claims(self) -> list[Any]:
        rows = self.arena.sql("SELECT claim_id FROM etl.etl_pipelines WHERE claim_id IS NOT NULL")
        return [row["claim_id"] for row in rows]

    def work(self) -> None:
        while claim := self.claim():
            self.perform(claim)

    def perform(self, claim: Claim) -> None:
        control = RunControl(LEASE_SECONDS, threading.Event())
        try:
            failpoints.hit("claim.taken")
        except (failpoints.Crashed, TransientError):
            return  # the process ends between the claim and the work
        with suppress(failpoints.Crashed):
            PipelineDispatcher(self.settings).work(claim, control)

    def at(self, point: str, count: int, action: Callable[[], None]) -> Callable[[str], None]:
        left = [count]

        def hit(name: str) -> None:
            if name == point:
                left[0] -= 1
                if left[0] == 0:
                    action()

        return hit

    def expect_up_to_date(self, kind: str) -> None:
        """Require that an idle pipeline's mart has everything committed before an accepted run."""
        if self.arena.status(kind) == "IDLE":
            assert list(self.arena._lost([kind])) == []
        assert self.arena.status(kind) != "FAILED", self.arena._row(kind)["last_error"]


@pytest.fixture
def life(database: Settings, tmp_path: Path) -> Any:
    settings = database.model_copy(update={"backoff_seconds": (0.01,), "max_attempts": 5})
    with Arena(settings, tmp_path) as arena:
        arena.prepare(KINDS, batch_size=100)
        Life.arena, Life.settings = arena, settings
        yield Life


@pytest.mark.chaos
@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("seed", range(3) if LONG else (5,))
def test_any_life_ends_well(life: type[Life], seed: int) -> None:
    chosen = hypothesis.seed(seed)(life)
    run_state_machine_as_test(chosen, settings=_settings(50 if LONG else 6, steps=30 if LONG else 15))


# Short sequences that need the protection. Random search would find them too, but not in the time of a test.
LIVES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "fence_off": [
        ("run", {"kind": "inc_pages"}),
        ("update", {"first": 1, "rows": 300}),
        ("fall_asleep_with_a_claim", {"kind": "inc_pages"}),
        ("take_over", {}),
        ("wake_up_late", {}),
        ("nothing_doubled", {}),
    ],
    "checkpoint_apart": [
        ("run", {"kind": "inc_pages"}),
        ("update", {"first": 1, "rows": 400}),
        ("crash", {"kind": "inc_pages", "point": "batch.committed", "count": 2}),
        ("take_over", {}),
        ("nothing_doubled", {}),
    ],
    "lease_ignored": [("fall_asleep_with_a_claim", {"kind": "full_pages"}), ("take_over", {})],
    "heartbeat_never": [("fall_asleep_with_a_claim", {"kind": "full_pages"}), ("beat_in_time", {})],
}


def live(life: type[Life], steps: list[tuple[str, dict[str, Any]]]) -> None:
    machine = life()
    try:
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
    finally:
        machine.teardown()


@pytest.mark.chaos
@pytest.mark.parametrize("mutant", mutants.NAMES)
def test_a_missing_protection_is_found(life: type[Life], mutant: str) -> None:
    live(life, LIVES[mutant])
    with mutants.applied(mutant), pytest.raises(AssertionError) as caught:
        live(life, LIVES[mutant])
    say(f"{mutant}: {caught.value}")


def _settings(examples: int, *, steps: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # shrinking a failure takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
