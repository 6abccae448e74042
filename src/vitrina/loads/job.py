"""Hold the state of one run: opened (sessions, source, target, checkpoint), then inspected (columns, key, plan)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from vitrina.definition import Definition
from vitrina.inside.queries import Reader
from vitrina.loads.plan import Plan
from vitrina.loads.recomputed import Recomputed
from vitrina.loads.steps import Fitted, PlannedSteps, StepEnvironment
from vitrina.ports.batch import Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.live import Derivation
from vitrina.ports.schema import Column
from vitrina.ports.source import Description, Form, Source
from vitrina.ports.target import Prepared, Shortcut, Target
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Hold what one run has opened. The ExitStack that opened the sessions closes them."""

    settings: Settings
    claim: Claim
    definition: Definition
    judged: CheckedQuery | None  # None if no query is read
    metastore: Connection
    reader: Reader
    source: Source
    target: Target
    ledger: Ledger
    checkpoint: Checkpoint
    steps: PlannedSteps = field(default_factory=PlannedSteps)
    starts_over_because: str | None = None
    # Answers the reference queries of steps, running each once.
    reference: "Callable[[str], pa.Table]"

    @property
    def backfill(self) -> dict[str, Any] | None:
        """Return the requested range, if any; the checkpoint does not move."""
        asked: dict[str, Any] | None = self.claim.row["requested_range"]
        return asked if self.definition.mode == "incremental" else None

    @property
    def run_id(self) -> UUID:
        return self.claim.run_id

    @property
    def step_environment(self) -> StepEnvironment:
        return StepEnvironment(self.definition, self.settings, self.run_id, self.steps, self.reference)


@dataclass(frozen=True, kw_only=True)
class Job(Opened):
    """Add what was found by inspection: everything that moving the rows depends on."""

    described: Description
    fitted: Fitted
    prepared: Prepared
    plan: Plan
    shortcut: Shortcut | None = None
    # For a live pipeline: how changes of its tables lead to keys of the target.
    derivation: Derivation | None = None
    # False if there were no rows and there is no target yet. Only the source's checkpoint may have to be saved.
    has_target: bool = True

    @property
    def output(self) -> tuple[Column, ...]:
        return self.fitted.output

    @property
    def key(self) -> tuple[str, ...]:
        return self.prepared.key

    @property
    def reading_key(self) -> tuple[str, ...]:
        """Return the part of the key that the source has. A load can be read, and resumed, in its order."""
        given = {column.name for column in self.described.columns}
        return tuple(name for name in self.key if name in given)

    @property
    def pipeline_id(self) -> UUID:
        return self.claim.pipeline_id

    @property
    def has_steps(self) -> bool:
        return bool(self.steps)

    @property
    def stamps(self) -> frozenset[str]:
        """Return the columns whose values differ in every run."""
        return frozenset(self.definition.options.stamps) | self.fitted.stamps

    @property
    def arrives_as(self) -> dict[str, str] | None:
        return self.fitted.arrives_as

    def rows(
        self, found: Checkpoint, *, in_order: bool = False, sample: int | None = None, form: Form = "exact"
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Read the source again, for a comparison (`ports.compare.Looked`)."""
        recomputed = Recomputed(self.source, self.fitted.step_pipeline, self.definition.batch_size)
        return recomputed.rows(found, in_order=in_order, sample=sample, form=form)

    @property
    def code_digests(self) -> list[str]:
        """Return digests of the Python functions that the run uses; they change with the code."""
        found = [step.digest for step in self.steps]
        return found + ([self.described.digest] if self.described.digest else [])


def resume_point(found: Checkpoint) -> Position | None:
    """Find where an interrupted load resumes."""
    return tuple(json.loads(found.last_key)) if found.last_key else None
