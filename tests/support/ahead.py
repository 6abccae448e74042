"""Prepare slow fixtures in advance: the next is made while the last is in use."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Hand out what `make` makes. A failure is raised to the caller that gets the failed item, not to later ones."""

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
