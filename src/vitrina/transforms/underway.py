"""Pass batches through the steps, several at a time where workers run them, and yield them in order."""

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
    """Hold a batch that was read."""

    def take_table(self) -> pa.Table:
        """Return the table that was read, once; then it belongs to the caller alone."""
        ...

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        ...

    @property
    def number(self) -> int: ...

    @property
    def watch(self) -> Stopwatch: ...


B = TypeVar("B", bound=Batch)


def taken(
    batches: Generator[B, None, None], steps: RunsSteps | None, max_bytes: int, *, timed_as: str = "transform"
) -> Generator[tuple[B, Taken], None, None]:
    """Yield each batch with the result of the steps, in the order of the batches.

    Workers process later batches while an earlier one is staged, as far as memory allows. `timed_as` names the phase
    that conversion is counted under if there are no steps.
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
            # Keep the run's names in log lines of the threads.
            context = contextvars.copy_context()
            sent.append((batch, pool.submit(context.run, _sent, batch, steps)))
            while sent and (len(sent) > steps.parallel or _bytes(sent) > max_bytes):
                yield _arrived(sent)
        # A failed read is raised in its turn, after the batches that were read before it.
        while sent:
            yield _arrived(sent)
        if failures:
            raise failures[0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _until_failure(batches: Iterator[B], failures: list[Exception]) -> Iterator[B]:
    try:
        yield from batches
    except Exception as exc:  # noqa: BLE001 - raised later, in the caller's thread
        failures.append(exc)


def _arrived(sent: deque[tuple[B, Future[Taken]]]) -> tuple[B, Taken]:
    """Wait for the oldest batch. This wait is the time that the steps cost the run."""
    batch, made = sent.popleft()
    with batch.watch.lap("transform"):
        return batch, made.result()


def _bytes(sent: deque[tuple[B, Future[Taken]]]) -> int:
    return sum(batch.size for batch, _ in sent)
