"""Batches on their way through the steps: several at a time where workers run them, handed on in their order."""

import contextvars
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Protocol, TypeVar

import pyarrow as pa

from vitrina.ports.batch import Stopwatch
from vitrina.transforms.pipeline import RunsSteps, Taken


class Batch(Protocol):
    """What was read."""

    def take_table(self) -> pa.Table:
        """Take what was read, once: from then on the table is the caller's alone."""
        ...

    @property
    def size(self) -> int:
        """The bytes of it."""
        ...

    @property
    def number(self) -> int: ...

    @property
    def watch(self) -> Stopwatch: ...


B = TypeVar("B", bound=Batch)


def taken(
    batches: Generator[B, None, None], steps: RunsSteps | None, max_bytes: int, *, timed_as: str = "transform"
) -> Generator[tuple[B, Taken], None, None]:
    """Yield each batch with what the steps made of it, in the order of the batches.

    Workers go on with later batches while an earlier one is staged, as far as memory allows. `timed_as`: what the
    time counts as where rows are only converted.
    """
    with closing(batches):
        if steps is None:
            yield from ((batch, Taken(batch.take_table())) for batch in batches)
        elif not steps.parallel:
            yield from ((batch, _take(batch, steps, timed_as)) for batch in batches)
        else:
            yield from _in_workers(batches, steps, max_bytes)


def _take(batch: Batch, steps: RunsSteps, timed_as: str) -> Taken:
    with batch.watch.lap(timed_as):
        return steps.take(batch.take_table(), batch.number)


def _sent(batch: Batch, steps: RunsSteps) -> Taken:
    return steps.take(batch.take_table(), batch.number)


def _in_workers(batches: Iterator[B], steps: RunsSteps, max_bytes: int) -> Generator[tuple[B, Taken], None, None]:
    sent: deque[tuple[B, Future[Taken]]] = deque()
    pool = ThreadPoolExecutor(steps.parallel, thread_name_prefix="steps")
    failures: list[Exception] = []
    try:
        for batch in _until_failure(batches, failures):
            # With the run's names in its log lines.
            context = contextvars.copy_context()
            sent.append((batch, pool.submit(context.run, _sent, batch, steps)))
            while sent and (len(sent) > steps.parallel or _bytes(sent) > max_bytes):
                yield _arrived(sent)
        # A read that fails, fails when its turn comes: what was read before it is handed on first.
        while sent:
            yield _arrived(sent)
        if failures:
            raise failures[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _until_failure(batches: Iterator[B], failures: list[Exception]) -> Iterator[B]:
    try:
        yield from batches
    except Exception as exc:  # noqa: BLE001 - raised by the caller, later
        failures.append(exc)


def _arrived(sent: deque[tuple[B, Future[Taken]]]) -> tuple[B, Taken]:
    """Wait for the oldest batch; this wait is the time that the steps cost the run."""
    batch, made = sent.popleft()
    with batch.watch.lap("transform"):
        return batch, made.result()


def _bytes(sent: deque[tuple[B, Future[Taken]]]) -> int:
    return sum(batch.size for batch, _ in sent)
