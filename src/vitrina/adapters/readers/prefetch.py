"""Reading on while what was read is being written: a thread stays a few pieces ahead of its consumer."""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

# Pieces of about two megabytes each: enough to keep the source busy, little enough to keep memory flat.
PIECES_AHEAD = 4


def prefetched(pieces: Iterator[T]) -> Generator[T, None, None]:
    """The same pieces in the same order. Errors of the source are raised where the piece would have come."""
    ready: queue.Queue[T | _End] = queue.Queue(PIECES_AHEAD)
    closing = threading.Event()

    def read() -> None:
        end = _End()
        try:
            for piece in pieces:
                if not _put(ready, piece, closing):
                    return
        except BaseException as exc:  # noqa: BLE001 - handed to the consumer, which raises it
            end = _End(exc)
        _put(ready, end, closing)

    thread = threading.Thread(target=read, name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(piece := ready.get(), _End):
            yield piece
        if piece.error is not None:
            raise piece.error
    finally:
        closing.set()
        thread.join()


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _put(ready: "queue.Queue[T | _End]", item: "T | _End", closing: threading.Event) -> bool:
    """False when nobody waits for it any more."""
    while not closing.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
