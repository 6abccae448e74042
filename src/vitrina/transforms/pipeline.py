"""Between the reader and the stage: rows in their natural types, through the steps, into the types of the stage."""

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
    """A batch that is ready to be staged."""

    table: pa.Table
    letters: tuple[DeadLetter, ...] = ()
    delivered: frozenset[str] = frozenset()
    # Positions of rows that the steps left out, where it was asked for.
    filtered: tuple[int, ...] = ()


@dataclass(frozen=True)
class Learned:
    """What was found out about the steps of a run, for another process that runs them too."""

    # The columns after each step; empty where no row came to tell.
    expected: tuple[pa.Schema, ...]
    landings: dict[str, Landing]
    key: tuple[str, ...]


class RunsSteps(Protocol):
    """Where the steps of a run are run: in this process, or in workers."""

    # Columns that must be there, without NULL, behind the last step.
    key: tuple[str, ...]
    # Rows that were left behind, by name. None: nobody wants to know whether they come again.
    watched: set[str] | None
    # Whether it matters which rows the steps leave out.
    notes_filtered: bool
    # How each column is staged; known once the columns behind the last step are.
    landings: dict[str, Landing]
    # How many batches may be on their way through the steps at once.
    parallel: int

    # Whether there are any: rows may only have to be converted.
    @property
    def has_steps(self) -> bool: ...

    def discover(self, sample: pa.Table) -> pa.Schema:
        """Learn the columns after the last step. Raise NoRowsToTell when no row came through."""
        ...

    def take(self, table: pa.Table, number: int) -> Taken: ...

    def trace(self, sample: pa.Table, letters: list[DeadLetter] | None) -> list[pa.RecordBatch]: ...

    def learned(self) -> Learned: ...

    def adopt(self, learned: Learned) -> None:
        """Take over what another process found out."""
        ...

    def rejected(self) -> dict[int, int]:
        """Count the rows that each step has rejected so far, by its order index."""
        ...

    def close(self) -> None:
        """End what is running; called from another thread."""
        ...


class OwnSteps:
    """The steps of one run, run in this process."""

    parallel = 0

    def __init__(
        self, schema: pa.Schema, chain: Chain, *, comes_natural: bool = False, stays_natural: bool = False
    ) -> None:
        self._schema = schema
        self._chain = chain
        # Whether rows come in their natural types, and whether the target takes them in these.
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
                f"the steps give other columns in batch {number} than were found out before the load"
                f" ({', '.join(sorted(strange))}): name them in @transform(columns=...)"
            )
        if not passed.batch.num_rows:
            return Taken(pa.table({}), passed.letters, filtered=passed.filtered)
        return Taken(self._landed(passed.batch), passed.letters, passed.delivered, passed.filtered)

    def _landed(self, batch: pa.RecordBatch) -> pa.Table:
        """Convert the rows to the form that the target takes."""
        if not batch.num_rows:
            return pa.table({})
        return pa.Table.from_batches([batch]) if self._stays_natural else to_target.to_stage(batch, self.landings)

    def close(self) -> None:
        """Do nothing: steps in this process end by themselves."""

    def _naturalise(self, table: pa.Table) -> pa.Table:
        """Convert to natural types what was read; a result without a single row comes without columns."""
        if not table.num_rows:
            return arrow_types.no_rows(self._schema)
        return table if self._comes_natural else arrow_types.naturalise(table, self._schema)


class StepPipeline:
    """The steps of one run, fitted between a source's rows and a target. There may be none: rows are only converted."""

    def __init__(self, schema: pa.Schema, steps: RunsSteps, giver: str = "the source") -> None:
        self._schema = schema
        self._giver = giver
        self.steps = steps
        # Columns that differ in every run by nature: a row is not written anew because of them.
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
            where = f"there behind the steps ({given})" if self.steps.has_steps else f"given by {self._giver}"
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
        """Assume, when no row came through a row step, that columns keep their names, as far as the target has them."""
        if known is None:
            raise StepFailed(
                "no row came through the steps, so nobody can tell which columns they make: create the target table, or"
                " name the columns in @transform(columns=...)"
            ) from None
        names = {field.name for field in self._schema} | set(known.primary_key)
        return pa.schema([arrow_types.tagged(c.name, c.type) for c in known.columns if c.name in names])
