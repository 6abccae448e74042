"""Filling the next batch while the current one is written."""

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from vitrina.ports import Filled, Source


class Ahead:
    """Iterates over a source's batches; a thread keeps exactly one batch ahead of the consumer.

    With two stages taking turns this also keeps them apart: batch n + 2 is begun only when n has been dealt with.
    """

    def __init__(self, source: Source, first_number: int, after: tuple[str, ...] | None) -> None:
        self._source = source
        self._batches = source.batches(first_number, after)
        self._ready: queue.Queue[Filled | BaseException | None] = queue.Queue()
        self._permits = threading.Semaphore(1)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="fill", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The filling thread is gone before anybody tries again: its batch number may then be used anew."""
        self._closing.set()
        self._permits.release()
        if self._thread.is_alive():
            self._source.close()
        self._thread.join()

    def __iter__(self) -> Iterator[Filled]:
        while True:
            item = self._ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
            self._permits.release()

    def _produce(self) -> None:
        try:
            for filled in self._batches:
                self._ready.put(filled)
                self._permits.acquire()
                if self._closing.is_set():
                    return
            self._ready.put(None)
        except BaseException as exc:  # noqa: BLE001 - handed to the consumer, which raises it
            self._ready.put(exc)
