"""Fill the next batch while the current one is written."""

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self

from vitrina.errors import Disconnected, TransientError
from vitrina.ports.batch import Filling, Part, Position
from vitrina.sentences import say

_LOOK_UP_SECONDS = 0.25
# How long to wait for the filling thread to stop. Its session may never answer, so it is abandoned then.
_PATIENCE_SECONDS = 10.0


class Ahead:
    """Iterate over a source's batches; a thread keeps exactly one batch ahead of the consumer.

    With two alternating stages this also keeps them apart: batch n + 2 begins only when n is finished.
    """

    def __init__(
        self,
        source: Filling,
        first_number: int,
        after: Position | None,
        *,
        check: Callable[[], None],
        silence_limit_seconds: float,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._source = source
        self._batches = source.parts(first_number, after)
        # Called while waiting, so that a lost lease or a shutdown does not wait for a long query.
        self._check = check
        self._silence_limit = silence_limit_seconds
        self._on_wait = on_wait
        self._ready: queue.Queue[Part | BaseException | None] = queue.Queue()
        self._permits = threading.Semaphore(1)
        self._closing = threading.Event()
        # Keep the run's names in log lines of the thread.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=[self._produce], name="fill", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the filling thread to end: only then may its batch number be used again."""
        self._closing.set()
        self._permits.release()
        if self._thread.is_alive():
            self._source.close()
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive() and (error is None or isinstance(error, TransientError)):
            # Its rows carry this epoch, so only another epoch may continue from here.
            raise Disconnected("the source does not answer, not even to a request to stop") from error

    def __iter__(self) -> Iterator[Part]:
        while True:
            started = time.monotonic()
            item = self._next()
            self._on_wait(time.monotonic() - started)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
            self._permits.release()

    def _next(self) -> Part | BaseException | None:
        end = time.monotonic() + self._silence_limit
        while time.monotonic() < end:
            try:
                return self._ready.get(timeout=_LOOK_UP_SECONDS)
            except queue.Empty:
                self._check()
        raise Disconnected(say("run.source_silent", seconds=self._silence_limit))

    def _produce(self) -> None:
        try:
            for filled in self._batches:
                self._ready.put(filled)
                self._permits.acquire()
                if self._closing.is_set():
                    return
            self._ready.put(None)
        except BaseException as exc:  # noqa: BLE001 - passed to the consumer, which raises it
            self._ready.put(exc)
        finally:
            if isinstance(self._batches, Generator):
                self._batches.close()  # in this thread, which owns its sessions
