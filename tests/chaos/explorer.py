"""Explore every order in which two runners can claim, beat, write, commit, expire, take over and crash.

The walk executes the real statements and covers all interleavings of atomic steps; each state is visited once. States
are distinguished by the content of the database and by what each runner believes. Before each step the database is
restored to the state that the step starts from.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.support.workbench import Workbench
from vitrina.errors import LeaseLost
from vitrina.ports.batch import PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, recovery
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger
from vitrina.store.runs import Counters

BATCHES = 2
TTL_SECONDS = 1000.0

# Saves and restores everything that the steps change, in one statement.
SETUP = """
CREATE TABLE content.item (id int PRIMARY KEY);
CREATE TABLE analytics.applied (n int, epoch bigint);
ALTER TABLE analytics.applied OWNER TO vitrina_app;
CREATE FUNCTION public.look(OUT doc jsonb, OUT expired boolean) LANGUAGE sql AS $$
    SELECT jsonb_build_object(
        'pipeline', (SELECT to_jsonb(p) FROM etl.etl_pipelines p),
        'state', (SELECT coalesce(jsonb_agg(to_jsonb(s)), '[]') FROM etl.etl_state s),
        'runs', (SELECT coalesce(jsonb_agg(to_jsonb(r)), '[]') FROM etl.etl_runs r),
        'applied', (SELECT coalesce(jsonb_agg(to_jsonb(a) ORDER BY a.n), '[]') FROM analytics.applied a)),
        (SELECT coalesce(lease_until < clock_timestamp(), false) FROM etl.etl_pipelines)
$$;
CREATE FUNCTION public.put_back(doc jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM etl.etl_state; DELETE FROM etl.etl_runs; DELETE FROM analytics.applied; DELETE FROM etl.etl_pipelines;
    INSERT INTO etl.etl_pipelines SELECT * FROM jsonb_populate_record(NULL::etl.etl_pipelines, doc -> 'pipeline');
    INSERT INTO etl.etl_state SELECT * FROM jsonb_populate_recordset(NULL::etl.etl_state, doc -> 'state');
    INSERT INTO etl.etl_runs SELECT * FROM jsonb_populate_recordset(NULL::etl.etl_runs, doc -> 'runs');
    INSERT INTO analytics.applied SELECT * FROM jsonb_populate_recordset(NULL::analytics.applied, doc -> 'applied');
END $$;
"""


class Violation(AssertionError):
    """Report a broken promise; the path that led there is the message."""


@dataclass
class Actor:
    """Hold one runner: its position in its run, and what it believes."""

    name: str
    connection: Connection
    runner_id: UUID = field(default_factory=uuid4)
    phase: str = "free"
    claim: Claim | None = None
    ledger: Ledger | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    transaction: Any = None

    def memory(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "claim": self.claim,
            "checkpoint": self.checkpoint,
            "ledger": dict(vars(self.ledger)) if self.ledger else None,
        }

    def remember(self, memory: dict[str, Any]) -> None:
        self.phase, self.claim, self.checkpoint = memory["phase"], memory["claim"], memory["checkpoint"]
        self.ledger = None
        if self.claim and memory["ledger"]:
            self.ledger = Ledger(self.claim, self.connection)
            vars(self.ledger).update(memory["ledger"])

    def belief(self, epochs: list[int]) -> tuple[object, ...]:
        epoch = epochs.index(self.claim.epoch) if self.claim else None
        return (self.phase, epoch, self.checkpoint.batch_no)


@dataclass
class Node:
    """Hold a state to continue from."""

    doc: dict[str, Any]
    memories: list[dict[str, Any]]
    left: dict[str, int]
    path: list[str]


class World:
    """Hold one pipeline, two runners, and a table with a row for every batch ever applied."""

    def __init__(self, bench: Workbench, *, budget: dict[str, int]) -> None:
        self._bench = bench
        bench.source(SETUP)
        self.pipeline_id = bench.pipeline("items", "SELECT id FROM content.item", target_table="analytics.applied")
        pipelines.request_run(bench.metastore, self.pipeline_id, trigger=Trigger.API)
        bench.sql("SET session_replication_role = replica")
        url = bench.settings.require_database_url()
        self.actors = [
            Actor(name, database.connect(url, f"vitrina:{name}", settings={"lock_timeout": "5s"})) for name in "AB"
        ]
        self.left = dict(budget)
        self.path: list[str] = []
        self._look()

    def close(self) -> None:
        for actor in self.actors:
            actor.connection.close()

    def save(self) -> Node:
        return Node(self._doc, [actor.memory() for actor in self.actors], dict(self.left), list(self.path))

    def restore(self, node: Node) -> None:
        for actor in self.actors:
            self._abort(actor)
        self._bench.admin.execute("SELECT public.put_back(%s)", [Jsonb(node.doc)])
        self.left, self.path = dict(node.left), list(node.path)
        for actor, memory in zip(self.actors, node.memories, strict=True):
            actor.remember(copy.copy(memory))
            if actor.phase == "written":
                self._write(actor)
        self._look()

    def take(self, name: str) -> None:
        """Execute one step and check all promises."""
        self.path.append(name)
        try:
            dict(self.steps())[name]()
            self._look()
            self.check()
        except Violation as exc:
            raise Violation(f"{exc}\n  after {' '.join(self.path)}") from exc

    def _look(self) -> None:
        [row] = self._bench.sql("SELECT * FROM public.look()")
        self._doc, self._expired = row["doc"], row["expired"]

    def _row(self) -> dict[str, Any]:
        return {**self._doc["pipeline"], "expired": self._expired}

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield what may happen next, in the order in which branches are tried."""
        row = self._row()
        for actor in self.actors:
            step = {
                "free": self._claim,
                "claimed": self._seize,
                "seized": self._conclude if actor.checkpoint.batch_no >= BATCHES else self._write,
                "written": self._commit,
                "committed": self._settle,
            }.get(actor.phase)
            if step and not (step == self._claim and row["status"] != "RUN_REQUESTED"):
                yield self._named(actor.phase, step, actor)
            if actor.claim and self.left["beat"] and actor.phase in ("claimed", "seized", "written"):
                yield self._named("beat", self._beat, actor)
            if actor.phase != "free" and self.left["crash"]:
                yield self._named("crash", self._crash, actor)
        if row["lease_until"] is not None and not row["expired"] and self.left["expire"]:
            yield "expire", self._expire
        if row["expired"] or row["claim_id"] is not None:
            yield "recover", self._recover
        if self.left["pause"] and row["status"] in ("RUN_REQUESTED", "RUNNING"):
            yield "pause", self._pause

    def _named(self, what: str, step: Callable[[Actor], None], actor: Actor) -> tuple[str, Callable[[], None]]:
        return f"{actor.name}:{what}", lambda: step(actor)

    def _claim(self, actor: Actor) -> None:
        claim = leases.claim_next(actor.connection, actor.runner_id, TTL_SECONDS)
        if claim is not None:
            actor.phase, actor.claim, actor.ledger = "claimed", claim, Ledger(claim, actor.connection)

    def _seize(self, actor: Actor) -> None:
        assert actor.ledger is not None
        try:
            actor.checkpoint = actor.ledger.seize()
            actor.phase = "seized"
        except LeaseLost:
            self._leave(actor)

    def _write(self, actor: Actor) -> None:
        assert actor.claim is not None
        actor.transaction = actor.connection.transaction()
        actor.transaction.__enter__()
        actor.connection.execute(
            "INSERT INTO analytics.applied VALUES (%s, %s)", [actor.checkpoint.batch_no + 1, actor.claim.epoch]
        )
        actor.phase = "written"

    def _commit(self, actor: Actor) -> None:
        assert actor.ledger is not None
        assert actor.claim is not None
        after = actor.checkpoint.accepting(PartId(actor.claim.epoch, actor.checkpoint.batch_no + 1), 1, None)
        try:
            actor.ledger.fence(after, Counters(), attempt=1)
        except LeaseLost:
            self._leave(actor)
            return
        transaction, actor.transaction = actor.transaction, None
        transaction.__exit__(None, None, None)
        actor.checkpoint, actor.phase = after, "committed"

    def _settle(self, actor: Actor) -> None:
        assert actor.ledger is not None
        status = actor.ledger.settle(actor.checkpoint, Counters(), attempt=1)
        actor.phase = "seized"
        if status == "PAUSE_REQUESTED":
            self._conclude(actor, boundary=actor.checkpoint.batch_no < BATCHES)

    def _conclude(self, actor: Actor, *, boundary: bool = False) -> None:
        assert actor.claim is not None
        with suppress(LeaseLost):
            leases.conclude_run(actor.connection, actor.claim, boundary=boundary)
        self._leave(actor)

    def _beat(self, actor: Actor) -> None:
        assert actor.claim is not None
        self.left["beat"] -= 1
        answer = leases.extend(self._bench.metastore, [actor.claim.claim_id], TTL_SECONDS)
        self._look()
        if actor.claim.claim_id not in answer.held:
            self._leave(actor)
        elif self._expired:
            raise Violation("a heartbeat was answered but the lease is over")

    def _expire(self) -> None:
        self.left["expire"] -= 1
        self._bench.sql("UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() - interval '1 second'")

    def _recover(self) -> None:
        recovered = recovery.recover_expired(self._bench.metastore, max_attempts=10)
        if recovered and not self._expired:
            raise Violation("a lease that was not over was taken away")

    def _pause(self) -> None:
        self.left["pause"] -= 1
        pipelines.request_pause(self._bench.metastore, self.pipeline_id)
        recovery.pause_unclaimed(self._bench.metastore)

    def _crash(self, actor: Actor) -> None:
        self.left["crash"] -= 1
        self._leave(actor)

    def _leave(self, actor: Actor) -> None:
        self._abort(actor)
        actor.phase, actor.claim, actor.ledger, actor.checkpoint = "free", None, None, Checkpoint()

    def _abort(self, actor: Actor) -> None:
        actor.transaction = None
        actor.connection.rollback()

    def check(self) -> None:
        """Check the promises after every step."""
        row, doc = self._row(), self._doc
        applied = [line["n"] for line in doc["applied"]]
        batch_no = max([state["batch_no"] for state in doc["state"]], default=0)
        if len(set(applied)) < len(applied):
            raise Violation(f"batches applied twice: {applied}")
        settling = any(actor.phase == "committed" for actor in self.actors)
        if applied != list(range(1, batch_no + 1)) and not settling:
            raise Violation(f"applied {applied}, but the checkpoint says {batch_no}")
        if (row["claim_id"] is not None) != (row["status"] in ("RUNNING", "PAUSE_REQUESTED")):
            raise Violation(f"claim {row['claim_id']} in status {row['status']}")
        if (row["claim_id"] is None) != (row["holds_target"] is None):
            raise Violation("a target is held without a claim, or the other way round")
        open_runs = [run for run in doc["runs"] if run["status"] == "RUNNING"]
        if len(open_runs) != int(row["claim_id"] is not None):
            raise Violation(f"{len(open_runs)} runs are RUNNING in status {row['status']}")

    def finish(self) -> None:
        """Let one healthy runner finish from the current state: nothing is stuck, nothing is missing."""
        for actor in self.actors:
            self._leave(actor)
        self._bench.sql(
            "UPDATE etl.etl_pipelines SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE lease_until IS NOT NULL"
        )
        recovery.recover_expired(self._bench.metastore, max_attempts=10)
        self._look()
        if self._row()["status"] in ("PAUSED", "IDLE"):
            pipelines.request_run(self._bench.metastore, self.pipeline_id, trigger=Trigger.API)
            self._look()
        healthy = self.actors[1]
        while self._row()["status"] != "IDLE" and f"B:{healthy.phase}" in dict(self.steps()):
            self.take(f"B:{healthy.phase}")
        if self._row()["status"] != "IDLE" or len(self._doc["applied"]) != BATCHES:
            raise Violation(f"a healthy runner ended with {self._row()['status']} and {self._doc['applied']}")

    def fingerprint(self) -> tuple[object, ...]:
        row = self._row()
        epochs = sorted({actor.claim.epoch for actor in self.actors if actor.claim} | {row["epoch"]})
        [state] = self._doc["state"] or [{"batch_no": 0, "epoch": 0}]
        holder = next((a.name for a in self.actors if a.claim and str(a.claim.claim_id) == row["claim_id"]), None)
        return (
            row["status"],
            row["expired"],
            row["claim_id"] is not None,
            holder,
            state["batch_no"],
            epochs.index(state["epoch"]) if state["epoch"] in epochs else None,
            tuple(actor.belief(epochs) for actor in self.actors),
            tuple(sorted(self.left.items())),
        )


@dataclass
class Explored:
    """Count what was visited."""

    states: int = 0
    steps: int = 0
    finished: int = 0


def explore(world: World, *, finish_every: int) -> Explored:
    """Visit every state that the budget allows; raise `Violation` with the path at the first bad one.

    From every `finish_every`-th state, and from every one in which nothing more can happen, a healthy runner finishes.
    """
    explored = Explored()
    seen = {world.fingerprint()}
    pending = [world.save()]
    while pending:
        node = pending.pop()
        world.restore(node)
        options = [name for name, _ in world.steps()]
        for name in options:
            world.restore(node)
            world.take(name)
            explored.steps += 1
            state = world.fingerprint()
            if state not in seen:
                seen.add(state)
                pending.append(world.save())
        explored.states += 1
        if not options or explored.states % finish_every == 0:
            world.restore(node)
            world.finish()
            explored.finished += 1
    return explored
