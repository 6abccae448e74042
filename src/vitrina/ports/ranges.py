"""Loads that are cut into ranges of the key: what a source, a load and an engine are to them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from vitrina.ports.batch import Part, Position

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.ports.source import Form, Source, Window
    from vitrina.ports.target import Load, Route, Writer

# `vitrina.settings.Settings`, which stand above the ports. A process that opens a handle resolves connections by them.
Settings = Any


@dataclass(frozen=True)
class KeyRange:
    """The rows with `after` < key <= `upto`; None: no bound on that side. NULL comes last, above every bound."""

    after: Position | None = None
    upto: Position | None = None

    @property
    def name(self) -> str:
        """Name the range in logs and metrics, which show no values of keys."""
        return sha256(json.dumps([self.after, self.upto]).encode()).hexdigest()[:8]

    def cut_at(self, bounds: Sequence[Position]) -> list["KeyRange"]:
        """Cut the range at bounds inside it, which are sorted."""
        edges = [self.after, *bounds, self.upto]
        return [KeyRange(after, upto) for after, upto in pairwise(edges)]


@dataclass(frozen=True)
class Task:
    """One attempt at one range. Its part number is drawn for it alone: no other attempt ever has it.

    An engine that tries again by itself draws a number for each try, of those that it has reserved.
    """

    range: KeyRange
    number: int
    # A snapshot that the runner has exported and holds. None: the engine's workers read what is there.
    snapshot: str | None
    batch_rows: int
    # Stop at the first change of the key after so many rows; what is left is cut again.
    most_rows: int


@dataclass(frozen=True)
class FilledRange:
    """What an attempt has brought. It does not count until the runner accepts the part."""

    part: Part
    # The last key that was read, where the attempt stopped before the end of the range.
    reached: Position | None = None
    # Rows that each step rejected, by its order index.
    rejected: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Result:
    """The end of one attempt: what it has brought, or why it has not."""

    task: Task
    filled: FilledRange | None = None
    error: BaseException | None = None
    # The worker ended without an answer: the range may be tried again, under another number.
    is_lost: bool = False
    # The attempt was recalled, and is to be made again.
    is_recalled: bool = False


class Engine(Protocol):
    """Where attempts are run: processes of this machine, or a cluster."""

    def submit(self, task: Task) -> None:
        """Accept an attempt. It begins when a worker is free."""
        ...

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        """Yield each attempt as it ends, in any order, until none is left; then let the workers end by themselves.

        `check` is called several times a second meanwhile; what it raises ends the iteration. When it returns True, the
        snapshot is too old: attempts that could wait for hours are given back as recalled, those under way may end.
        """
        ...

    def cancel(self) -> None:
        """End the workers and their sessions at once; from any thread, and more than once."""
        ...


class Filler(Protocol):
    """A handle that was opened in a worker: fills ranges, one after the other."""

    def fill(self, task: Task, progressed: Callable[[int], None]) -> FilledRange:
        """Bring the rows of one range as one part. `progressed` is told the rows of each batch: a sign of life."""
        ...

    def close(self) -> None: ...


class FillHandle(Protocol):
    """What a worker opens. It can be pickled; it names connections and holds no secret."""

    # What opening it and filling with it imports: workers may be forked from a process that has done so.
    @property
    def modules(self) -> tuple[str, ...]: ...

    def open(self, settings: Settings) -> Filler: ...


@dataclass(frozen=True)
class EngineOpening:
    """What an engine of a connector is given."""

    handle: FillHandle
    settings: Settings = field(repr=False)
    # Of the connection that the pipeline names for it.
    url: str = field(repr=False)
    # Reserve so many part numbers in the checkpoint, and return the one before the first; for the run's own thread.
    reserve: Callable[[int], int]
    # Make what masks secrets in texts, of the settings that a worker has. A function with a name: it can be pickled.
    redactor_of: Callable[[Settings], Callable[[str], str]]


class RangeSource(Protocol):
    """A source as a worker has it: it reads windows with both bounds, in one snapshot."""

    def read(self, window: "Window", form: "Form") -> "Iterator[Any]": ...

    def look_up(self, query: str) -> "pa.Table":
        """Answer a reference query of a step."""
        ...

    def close(self) -> None: ...


class SourceHandle(Protocol):
    """A source for workers; see `FillHandle`."""

    @property
    def modules(self) -> tuple[str, ...]: ...

    def open(self, settings: Settings) -> "Source": ...


class WriterHandle(Protocol):
    """A load for workers; see `FillHandle`."""

    def open(self, settings: Settings) -> AbstractContextManager["Writer"]: ...


class SharedSnapshot(Protocol):
    """A snapshot that the runner holds for its workers."""

    @property
    def name(self) -> str: ...

    @property
    def is_old(self) -> bool:
        """Tell whether it has been held for so long that the next range should be read in another one."""
        ...

    def is_held(self) -> bool:
        """Tell whether it can still be read in, on the server that the runner reaches."""
        ...

    def renew(self) -> bool:
        """Take a snapshot where there is none or it is old; True if an earlier one was given up."""
        ...


@dataclass(frozen=True)
class Cut:
    """How many ranges a load may be cut into, or why it is not."""

    ranges: int = 0
    obstacle: str | None = None


@runtime_checkable
class Splits(Protocol):
    """A source that can be read in ranges of a key, by several processes in one snapshot."""

    def plan_cut(self, order: Sequence[str], ranges: int, workers: int) -> Cut:
        """Say into how many ranges the rows can be cut at a price that is worth it. Nothing large is read."""
        ...

    def split(self, order: Sequence[str], within: KeyRange, ranges: int) -> list[KeyRange]:
        """Cut a range into about so many of about the same size; every key is in exactly one of them."""
        ...

    def share(self, window: "Window") -> AbstractContextManager[SharedSnapshot]:
        """Hold a snapshot that other sessions can read in, for as long as the block."""
        ...

    def handle(self, window: "Window") -> SourceHandle: ...


@runtime_checkable
class TakesRanges(Protocol):
    """A load that several processes can write to at once."""

    def handle(self) -> WriterHandle: ...


@runtime_checkable
class ShortcutForRanges(Protocol):
    """A shortcut that workers can take, each with a range."""

    def handle(self, load: "Load", window: "Window", route: "Route") -> FillHandle: ...
