"""Read ahead while earlier pieces are being written: a thread stays a few pieces ahead of its consumer."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

# Pieces of about two megabytes each: enough to keep the source busy, little enough to limit memory.
PIECES_AHEAD = 4
# A piece with a large value is consumed before the next is read.
BYTES_AHEAD = 16 << 20


def prefetched(pieces: Iterator[T], size_of: Callable[[T], int] = lambda _: 0) -> Generator[T, None, None]:
    """Yield the same pieces in the same order. An error of the source is raised in place of the piece that failed."""
    ready: queue.Queue[T | _End] = queue.Queue(PIECES_AHEAD)
    closing = threading.Event()
    under_way = _UnderWay(closing)

    def read() -> None:
        end = _End()
        try:
            while under_way.waits_for_room() and not isinstance(piece := next(pieces, end), _End):
                under_way.add(size_of(piece))
                if not _put(ready, piece, closing):
                    return
                del piece  # only the consumer may hold it from now on
        except BaseException as exc:  # noqa: BLE001 - handed to the consumer, which raises it
            end = _End(exc)
        _put(ready, end, closing)

    thread = threading.Thread(target=read, name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(piece := ready.get(), _End):
            size = size_of(piece)
            yield piece
            del piece
            under_way.add(-size)
        if piece.error is not None:
            raise piece.error
    finally:
        closing.set()
        under_way.add(0)
        thread.join()


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _UnderWay:
    """Count the bytes that have been read and that the consumer has not finished with."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._bytes = 0
        self._changed = threading.Condition()

    def add(self, size: int) -> None:
        with self._changed:
            self._bytes += size
            self._changed.notify_all()

    def waits_for_room(self) -> bool:
        """Wait until there is room for more. Return False if the consumer has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing.is_set() or self._bytes < BYTES_AHEAD)
        return not self._closing.is_set()


def _put(ready: "queue.Queue[T | _End]", item: "T | _End", closing: threading.Event) -> bool:
    """Put the item into the queue. Return False if the consumer has stopped."""
    while not closing.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
