"""Define loads that are split into ranges of the key: the source, the load, the engine and the workers' handles."""

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

# `vitrina.settings.Settings`, a layer above the ports. A process that opens a handle resolves connections with them.
Settings = Any


@dataclass(frozen=True)
class KeyRange:
    """Select the rows with `after` < key <= `upto`; None: no bound on that side. NULL sorts after every bound."""

    after: Position | None = None
    upto: Position | None = None

    @property
    def name(self) -> str:
        """Return a name for logs and metrics, which must not show values of keys."""
        return sha256(json.dumps([self.after, self.upto]).encode()).hexdigest()[:8]

    def cut_at(self, bounds: Sequence[Position]) -> list["KeyRange"]:
        """Split the range at sorted bounds inside it."""
        edges = [self.after, *bounds, self.upto]
        return [KeyRange(after, upto) for after, upto in pairwise(edges)]


@dataclass(frozen=True)
class Task:
    """Describe one attempt at one range. Its part number is reserved for it and never used by another attempt.

    An engine that retries by itself uses a new number for each try, from those it has reserved.
    """

    range: KeyRange
    number: int
    # A snapshot that the runner has exported and holds. None: each worker reads the current state.
    snapshot: str | None
    batch_rows: int
    # Stop at the first change of the key after so many rows; the rest of the range is split again.
    most_rows: int


@dataclass(frozen=True)
class FilledRange:
    """Report what an attempt copied. It does not count until the runner accepts the part."""

    part: Part
    # The last key that was read, if the attempt stopped before the end of the range.
    reached: Position | None = None
    # How many rows each step rejected, by its order index.
    rejected: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Result:
    """Report the end of one attempt: what it copied, or why it failed."""

    task: Task
    filled: FilledRange | None = None
    error: BaseException | None = None
    # The worker ended without an answer: the range may be tried again with another part number.
    is_lost: bool = False
    # The attempt was recalled and is to be repeated.
    is_recalled: bool = False


class Engine(Protocol):
    """Run attempts in processes of this machine or on a cluster."""

    def submit(self, task: Task) -> None:
        """Accept an attempt. It starts when a worker is free."""
        ...

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        """Yield each attempt as it ends, in any order, until none is left; then let the workers exit by themselves.

        `check` is called several times a second; an exception from it ends the iteration. When it returns True, the
        snapshot is too old: attempts that could wait for hours are returned as recalled, running ones may finish.
        """
        ...

    def cancel(self) -> None:
        """End the workers and their sessions at once. It may be called from any thread, and more than once."""
        ...


@runtime_checkable
class WaitsForCluster(Protocol):
    """Define an engine whose cluster may be stopped, starting or busy."""

    def await_accepted(self, check: Callable[[], object]) -> None:
        """Return when the cluster has begun to work for this load. The run calls it before it takes a snapshot.

        `check` is called several times a second; an exception from it ends the wait.
        """
        ...


class Filler(Protocol):
    """Fill ranges, one after the other, with a handle that was opened in a worker."""

    def fill(self, task: Task, progressed: Callable[[int], None]) -> FilledRange:
        """Copy the rows of one range as one part. `progressed` receives the rows of each batch as a heartbeat."""
        ...

    def close(self) -> None: ...


class FillHandle(Protocol):
    """Describe what a worker opens. It can be pickled: it names connections and holds no secret."""

    # Modules that opening and filling import. Workers may be forked from a process that has imported them.
    @property
    def modules(self) -> tuple[str, ...]: ...

    def open(self, settings: Settings) -> Filler: ...


class Progress(Protocol):
    """Receive how far attempts are before they end. Any thread may call it."""

    def read(self, number: int, rows: int) -> None:
        """Note that the attempt with this part number has read so many more rows."""
        ...

    def running(self, tasks: int) -> None:
        """Note how many of the submitted tasks a cluster runs now; the others wait there."""
        ...

    def sent(self) -> None:
        """Note that a cluster was sent a job, and has not said yet how many of its tasks it runs."""
        ...


class _Unwatched:
    def read(self, number: int, rows: int) -> None:
        """Do nothing."""

    def running(self, tasks: int) -> None:
        """Do nothing."""

    def sent(self) -> None:
        """Do nothing."""


UNWATCHED: Progress = _Unwatched()


@dataclass(frozen=True)
class EngineOpening:
    """Hold what the engine of a connector receives."""

    handle: FillHandle
    settings: Settings = field(repr=False)
    # The URL of the connection that the pipeline names for it.
    url: str = field(repr=False)
    # Reserves so many part numbers in the checkpoint and returns the one before the first. Called by the run's thread.
    reserve: Callable[[int], int]
    # Builds the function that masks secrets in text, from a worker's settings. A named function, so it can be pickled.
    redactor_of: Callable[[Settings], Callable[[str], str]]
    progress: Progress = UNWATCHED


class RangeSource(Protocol):
    """Read windows with both bounds in one snapshot, in a worker."""

    def read(self, window: "Window", form: "Form") -> "Iterator[Any]": ...

    def look_up(self, query: str) -> "pa.Table":
        """Run a reference query of a step."""
        ...

    def close(self) -> None: ...


class SourceHandle(Protocol):
    """Open a source in a worker; see `FillHandle`."""

    @property
    def modules(self) -> tuple[str, ...]: ...

    def open(self, settings: Settings) -> "Source": ...


class WriterHandle(Protocol):
    """Open a load's writer in a worker; see `FillHandle`."""

    def open(self, settings: Settings) -> AbstractContextManager["Writer"]: ...


class SharedSnapshot(Protocol):
    """Hold a snapshot in the runner for its workers."""

    @property
    def name(self) -> str: ...

    @property
    def is_old(self) -> bool:
        """Return whether it has been held for so long that the next range should be read in another one."""
        ...

    def is_held(self) -> bool:
        """Return whether it can still be read on the server that the runner reaches."""
        ...

    def renew(self) -> bool:
        """Take a snapshot if there is none or it is old; return True if an earlier one was released."""
        ...


@dataclass(frozen=True)
class Cut:
    """Report how many ranges a load may be split into, or why it cannot be."""

    ranges: int = 0
    obstacle: str | None = None


@runtime_checkable
class Splits(Protocol):
    """Define a source that several processes can read in ranges of a key, in one snapshot."""

    def plan_cut(self, order: Sequence[str], ranges: int, workers: int) -> Cut:
        """Return into how many ranges it pays to split the rows. Nothing large is read."""
        ...

    def split(self, order: Sequence[str], within: KeyRange, ranges: int) -> list[KeyRange]:
        """Split a range into about so many of about the same size; every key is in exactly one of them."""
        ...

    def share(self, window: "Window") -> AbstractContextManager[SharedSnapshot]:
        """Hold a snapshot that other sessions can read, until the block ends."""
        ...

    def handle(self, window: "Window") -> SourceHandle: ...


@runtime_checkable
class TakesRanges(Protocol):
    """Define a load that several processes can write to at once."""

    def handle(self) -> WriterHandle: ...


@runtime_checkable
class ShortcutForRanges(Protocol):
    """Define a shortcut that workers can take, each for one range."""

    def handle(self, load: "Load", window: "Window", route: "Route") -> FillHandle: ...
