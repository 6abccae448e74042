"""Pass the reader's rows through the steps and convert them to the types of the stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from vitrina.errors import StepFailed, TargetMismatch
from vitrina.ports.batch import DeadLetter
from vitrina.ports.schema import Column, Known
from vitrina.transforms import arrow_types, call, to_target
from vitrina.transforms.chain import Chain
from vitrina.transforms.to_target import Landing


@dataclass(frozen=True)
class Taken:
    """Hold a batch that is ready to be staged."""

    table: pa.Table
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()
    # Positions of rows that the steps dropped, if requested.
    filtered: tuple[int, ...] = ()


@dataclass(frozen=True)
class Learned:
    """Hold what was learned about the steps of a run, for another process that runs them too."""

    # The columns after each step; empty if no row passed.
    expected: tuple[pa.Schema, ...]
    landings: dict[str, Landing]
    key: tuple[str, ...]


class RunsSteps(Protocol):
    """Define how the steps of a run are run: in this process, or in workers."""

    # Columns that must exist, without NULL, after the last step.
    key: tuple[str, ...]
    # Keys of rows that were rejected; None if it does not matter whether they pass later.
    watched: set[str] | None
    # Whether to record which rows the steps drop.
    notes_filtered: bool
    # How each column is staged; set once the columns after the last step are known.
    landings: dict[str, Landing]
    # How many batches may pass through the steps at once.
    parallel: int

    # False if rows only have to be converted.
    @property
    def has_steps(self) -> bool: ...

    def discover(self, sample: pa.Table) -> pa.Schema:
        """Learn the columns after the last step. Raise NoRowsToTell if no row passed."""
        ...

    def take(self, table: pa.Table, number: int) -> Taken: ...

    def trace(self, sample: pa.Table, letters: list[DeadLetter] | None) -> list[pa.RecordBatch]: ...

    def learned(self) -> Learned: ...

    def adopt(self, learned: Learned) -> None:
        """Take over what another process learned."""
        ...

    def rejected(self) -> dict[int, int]:
        """Count the rows that each step has rejected so far, by its order index."""
        ...

    def close(self) -> None:
        """End what is running. Called from another thread."""
        ...


class OwnSteps:
    """Run the steps of one run in this process."""

    parallel = 0

    def __init__(
        self, schema: pa.Schema, chain: Chain, *, comes_natural: bool = False, stays_natural: bool = False
    ) -> None:
        self._schema = schema
        self._chain = chain
        # Whether the reader delivers, and the target accepts, the types of `arrow_types.arrow_type`.
        self._comes_natural = comes_natural
        self._stays_natural = stays_natural
        self.landings: dict[str, Landing] = {}

    @property
    def has_steps(self) -> bool:
        return bool(self._chain.steps)

    @property
    def key(self) -> tuple[str, ...]:
        return self._chain.key

    @key.setter
    def key(self, key: tuple[str, ...]) -> None:
        self._chain.key = key

    @property
    def watched(self) -> set[str] | None:
        return self._chain.watched

    @watched.setter
    def watched(self, watched: set[str] | None) -> None:
        self._chain.watched = watched

    @property
    def notes_filtered(self) -> bool:
        return self._chain.notes_filtered

    @notes_filtered.setter
    def notes_filtered(self, notes: bool) -> None:
        self._chain.notes_filtered = notes

    def discover(self, sample: pa.Table) -> pa.Schema:
        return self._chain.discover(self._naturalise(sample), 1)

    def learned(self) -> Learned:
        found = [step.expected for step in self._chain.steps]
        return Learned(tuple(known for known in found if known is not None), self.landings, self.key)

    def adopt(self, learned: Learned) -> None:
        self.landings, self.key = learned.landings, learned.key
        for step, expected in zip(self._chain.steps, learned.expected, strict=False):
            step.expected = expected

    def rejected(self) -> dict[int, int]:
        return {step.order_index: step.letters for step in self._chain.steps}

    def trace(self, sample: pa.Table, letters: list[DeadLetter] | None) -> list[pa.RecordBatch]:
        """Return the input and the output of each step."""
        return self._chain.trace(self._naturalise(sample), letters)

    def take(self, table: pa.Table, number: int) -> Taken:
        """Prepare one batch of the reader for the stage."""
        if not self._chain.steps:
            return Taken(self._landed(call.one_batch(self._naturalise(table))))
        passed = self._chain.apply(self._naturalise(table), number)
        strange = set(passed.batch.schema.names) ^ set(self.landings)
        if strange and passed.batch.num_rows:
            raise StepFailed(
                f"the steps give other columns in batch {number} than were found before the load"
                f" ({', '.join(sorted(strange))}): name them in @transform(columns=...)"
            )
        if not passed.batch.num_rows:
            return Taken(pa.table({}), passed.letters, filtered=passed.filtered)
        return Taken(self._landed(passed.batch), passed.letters, passed.delivered, passed.filtered)

    def _landed(self, batch: pa.RecordBatch) -> pa.Table:
        """Convert the rows to the form that the target accepts."""
        if not batch.num_rows:
            return pa.table({})
        return pa.Table.from_batches([batch]) if self._stays_natural else to_target.to_stage(batch, self.landings)

    def close(self) -> None:
        """Do nothing: steps in this process end by themselves."""

    def _naturalise(self, table: pa.Table) -> pa.Table:
        """Convert what was read to the types of the schema. A result without rows comes without columns."""
        if not table.num_rows:
            return arrow_types.no_rows(self._schema)
        return table if self._comes_natural else arrow_types.naturalise(table, self._schema)


class StepPipeline:
    """Run the steps of one run between a source's rows and a target. Without steps, rows are only converted."""

    def __init__(self, schema: pa.Schema, steps: RunsSteps, giver: str = "the source") -> None:
        self._schema = schema
        self._giver = giver
        self.steps = steps
        # Columns that differ in every run by design; a row is not rewritten because of them.
        self.stamps: frozenset[str] = frozenset()

    @property
    def landings(self) -> dict[str, Landing]:
        return self.steps.landings

    def settle(self, sample: pa.Table, known: Known | None, wanted_key: Sequence[str] | None) -> list[Column]:
        """Run the steps on a sample to learn the output columns and their target types."""
        schema = self._discover(sample, known)
        missing = [name for name in wanted_key or () if name not in schema.names]
        if missing:
            given = f"they give: {', '.join(schema.names)}"
            where = f"there after the steps ({given})" if self.steps.has_steps else f"given by {self._giver}"
            raise TargetMismatch(f"target_key column {missing[0]!r} is not {where}")
        settled = to_target.settle(schema, known)
        self.steps.landings = to_target.landings(schema, settled)
        self.stamps = frozenset(field.name for field in schema if arrow_types.is_stamp(field))
        return settled

    def _discover(self, sample: pa.Table, known: Known | None) -> pa.Schema:
        try:
            return self.steps.discover(sample)
        except call.NoRowsToTell:
            return self._guess(known)

    def _guess(self, known: Known | None) -> pa.Schema:
        """Assume, if no row passed a row step, that columns keep their names, as far as the target has them."""
        if known is None:
            raise StepFailed(
                "no row came through the steps, so the columns they make are unknown: create the target table, or"
                " name the columns in @transform(columns=...)"
            ) from None
        names = {field.name for field in self._schema} | set(known.primary_key)
        return pa.schema([arrow_types.tagged(c.name, c.type) for c in known.columns if c.name in names])
