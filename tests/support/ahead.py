"""Things that take a while to make: one is always ready, because the next is made while the last is in use."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Hands out what `make` makes; a failure is that of whoever gets it, and not of those who come later."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._maker = ThreadPoolExecutor(1)
        self._next: Future[T] | None = None

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maker.shutdown()

    def take(self) -> T:
        ready = self._next or self._maker.submit(self._make)
        self._next = self._maker.submit(self._make)
        return ready.result()
