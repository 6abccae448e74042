"""Move rows through the runner: read batches, pass them through the steps, write them in order."""

import operator
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from vitrina import failpoints
from vitrina.ports.batch import (
    MAX_BATCH_BYTES,
    Batch,
    Counts,
    DeadLetter,
    Part,
    PartId,
    Position,
    Stopwatch,
    delivered_in,
)
from vitrina.ports.source import Form, Source, Window
from vitrina.ports.target import Receipt, Writer
from vitrina.transforms import underway
from vitrina.transforms.pipeline import RunsSteps, Taken

if TYPE_CHECKING:
    from vitrina.loads.arrow_checks import RowGate
    from vitrina.ports.checks import Judgement


class Flow:
    """Move one window of a source to a writer. Later batches are started while earlier ones are written."""

    def __init__(
        self,
        source: Source,
        window: Window,
        steps: RunsSteps | None,
        writer: Writer,
        epoch: int,
        *,
        gate: "RowGate | None" = None,
    ) -> None:
        self._source = source
        self._window = window
        self._steps = steps
        self._writer = writer
        self._epoch = epoch
        # Checks the rows if the target cannot.
        self._gate = gate

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        """Yield the parts. Without an order to resume in, all rows form one part of any number of pieces."""
        pieces: list[Part] = []
        with closing(self._under_way(first_number, after)) as under_way:
            for part in arriving(under_way, lambda: self._writer.ahead):
                if part.last is None:
                    pieces.append(part)
                else:
                    yield part
        if pieces:
            yield _together(pieces)

    def close(self) -> None:
        if self._steps:
            self._steps.close()
        self._source.close()
        self._writer.close()

    def _under_way(self, first_number: int, after: Position | None) -> Generator["UnderWay", None, None]:
        timed_as = "transform" if self._steps and self._steps.has_steps else self._writer.timed_as
        source = self._read(first_number, after)
        with closing(underway.taken(source, self._steps, MAX_BATCH_BYTES, timed_as=timed_as)) as batches:
            for read, taken in batches:
                under_way = self._begin(read, taken)
                del taken  # do not keep it in memory while the next is read
                yield under_way
                del under_way

    def _read(self, first_number: int, after: Position | None) -> Generator["_Read", None, None]:
        form: Form = "natural" if self._steps else "exact"
        number = first_number
        with closing(self._source.read(replace(self._window, after=after), form)) as batches:
            for batch in batches:
                last = batch.last
                yield _Read(batch, number)
                del batch
                number += last is not None

    def _begin(self, read: "_Read", taken: Taken) -> "UnderWay":
        batch = read.batch
        rows, judged = self._gate.pass_on(taken.table) if self._gate else (taken.table, None)
        with batch.watch.lap(self._writer.timed_as):
            receipt = self._writer.write(rows, PartId(self._epoch, read.number))
        part = Part(
            read.number, batch.read, batch.last, reopened=batch.reopened, filtered=taken.filtered, judged=judged
        )
        letters = (*taken.letters, *judged.letters) if judged else taken.letters
        return UnderWay(part, letters, taken.delivered, batch.size, batch.watch, self._writer.timed_as, receipt)


@dataclass(frozen=True)
class _Read:
    """Hold a batch as it was read, with its number in the load."""

    batch: Batch
    number: int

    @property
    def size(self) -> int:
        return self.batch.size

    @property
    def watch(self) -> Stopwatch:
        return self.batch.watch

    def take_table(self) -> pa.Table:
        return self.batch.take()


@dataclass(frozen=True)
class UnderWay:
    """Hold a batch that is being written: what is known about it, and how to wait for the rest."""

    part: Part
    letters: tuple[DeadLetter, ...]
    delivered: frozenset[str]
    size: int
    watch: Stopwatch
    timed_as: str
    receipt: Receipt

    def arrived(self) -> Part:
        with self.watch.lap(self.timed_as):
            written = self.receipt()
        failpoints.hit("batch.filled")
        letters = (*self.letters, *written.letters)
        return replace(
            self.part,
            seconds=sum(lap.seconds for lap in self.watch.timings.values()),
            staged=written.rows,
            letters=letters,
            timings=self.watch.timings,
            delivered=delivered_in(letters, self.delivered, written.delivered),
            counts=written.counts,
        )


def arriving(under_way: Iterator[UnderWay], ahead: Callable[[], int]) -> Iterator[Part]:
    """Yield batches in order, each after `ahead` more, or as many as memory holds, were started."""
    waiting: deque[UnderWay] = deque()
    for batch in under_way:
        waiting.append(batch)
        del batch  # do not keep it in memory while the next is read
        while len(waiting) > ahead() or sum(one.size for one in waiting) > MAX_BATCH_BYTES:
            yield waiting.popleft().arrived()
    yield from (batch.arrived() for batch in waiting)


def _together(pieces: list[Part]) -> Part:
    letters = tuple(letter for piece in pieces for letter in piece.letters)
    return Part(
        pieces[0].number,
        sum(piece.rows for piece in pieces),
        None,
        pieces[-1].seconds,  # one stopwatch measured all of them
        sum(piece.staged_rows for piece in pieces),
        letters,
        pieces[-1].timings,
        delivered=delivered_in(letters, *(piece.delivered for piece in pieces)),
        counts=sum((piece.counts for piece in pieces), start=Counts()),
        judged=_judged_together(pieces),
        filtered=tuple(_filtered(pieces)),
    )


def _judged_together(pieces: list[Part]) -> "Judgement | None":
    found = [piece.judged for piece in pieces if piece.judged]
    return reduce(operator.add, found) if found else None


def _filtered(pieces: list[Part]) -> Iterator[int]:
    """Convert positions within pieces to positions within the part."""
    before = 0
    for piece in pieces:
        yield from (before + position for position in piece.filtered)
        before += piece.rows
