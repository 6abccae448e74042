"""Run calls that wait for servers side by side, until all of them have ended."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Answer = TypeVar("Answer")

# How often calls that have not ended are cancelled again: one may have begun its next statement meanwhile.
_CANCEL_SECONDS = 0.2


def side_by_side(calls: Sequence[Callable[[], Answer]], cancel: Callable[[], None]) -> list[Answer]:
    """Return the answers in the order of the calls.

    If a call fails or the caller is interrupted, cancel the others, wait for their end and raise the first error.
    """
    with ThreadPoolExecutor(len(calls), thread_name_prefix="beside") as threads:
        futures = [threads.submit(call) for call in calls]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            _raise_error(futures)
        except BaseException:
            while wait(futures, timeout=_CANCEL_SECONDS).not_done:
                cancel()
            raise
    return [future.result() for future in futures]


def _raise_error(futures: Sequence[Future[Answer]]) -> None:
    """Raise the error of a call that has failed by itself, before others fail because they are cancelled."""
    for future in futures:
        if future.done():
            future.result()
