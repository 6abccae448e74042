"""What every source and every target has to keep, as tests that a connector's own test suite inherits.

    from vitrina.testing import TargetContract

    class TestMyTarget(TargetContract):
        def open_target(self, epoch: int) -> Target: ...
        def visible(self) -> dict[int, str]: ...

They talk to the connector alone: no database, no runner. That whole runs work is for a test with a real runner.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from vitrina.errors import LeaseLost, VitrinaError
from vitrina.ports.batch import Counts, Part, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Work
from vitrina.ports.schema import Column
from vitrina.ports.source import Source, Window
from vitrina.ports.target import DONE, Done, Load, Loading, Removes, Scans, Target, Wanted
from vitrina.testing.openings import work_of

Rows = dict[int, str]

FIRST: Rows = {1: "Alien", 2: "Brazil", 3: "Casablanca"}
SECOND: Rows = {2: "Brazil", 3: "Casablanca (1942)", 4: "Diva"}


class ContractFence:
    """Stand for the metastore's checkpoint: it moves when the fence is passed, once, and not after a takeover."""

    def __init__(self, attempt: "Attempt", move: Callable[[Done], Checkpoint]) -> None:
        self._attempt = attempt
        self._move = move
        self.passed = 0

    @property
    def found(self) -> Checkpoint:
        return self._attempt.ledger.checkpoint

    @property
    def record(self) -> bytes:
        return repr(self._move(DONE)).encode()

    def inside(self, connection: Any, done: Done = DONE) -> None:
        self.after(done)

    def after(self, done: Done = DONE) -> None:
        self.passed += 1
        assert self.passed == 1, "a fence is passed once"
        if self._attempt.ledger.epoch != self._attempt.epoch:
            raise LeaseLost(f"epoch {self._attempt.epoch} was overtaken by {self._attempt.ledger.epoch}")
        moved = self._move(done)
        self._attempt.ledger.checkpoint = replace(moved, identity=moved.identity | dict(done.identity))


@dataclass
class Ledger:
    """What the metastore knows of one pipeline: its epoch and its checkpoint."""

    epoch: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


class Attempt:
    """One runner that writes to the target, as the loop of a run would."""

    def __init__(self, ledger: Ledger, target: Target, epoch: int, key: tuple[str, ...]) -> None:
        self.ledger = ledger
        self.epoch = epoch
        self.target = target
        self._load: Load | None = None
        ledger.epoch = epoch
        target.seize()
        columns = (Column("id", "bigint"), Column("title", "text"))
        self.prepared = target.prepare(Wanted(columns, key, found=ledger.checkpoint), create=True)

    @property
    def load(self) -> Load:
        assert self._load is not None, "no load is open"
        return self._load

    def begin(self, kind: str, *, deletes: bool = True) -> None:
        self._load = self.target.open_load(_loading(kind, deletes=deletes))

        def move(_: Done) -> Checkpoint:
            return replace(self.ledger.checkpoint.without_load(), stage=self.load.name)

        self.passing(self.load.begin, move)

    def resume(self, kind: str = "replace", *, deletes: bool = True) -> bool:
        """Resume the load that the checkpoint names; False when it is shown already."""
        name = self.ledger.checkpoint.stage
        self._load = self.target.open_load(_loading(kind, deletes=deletes, name=name))
        assert self.load.obstacle(self.ledger.checkpoint) is None
        left: list[bool] = []
        fence = ContractFence(self, lambda _: self.ledger.checkpoint)
        left.append(self.load.resume(fence))
        assert fence.passed <= 1
        return left[0]

    def write(self, number: int, rows: Rows) -> Part:
        """Send one part, which does not count yet."""
        with self.load.writer() as writer:
            written = writer.write(table(rows), PartId(self.epoch, number))()
        assert written.rows + len(written.letters) == len(rows), "every row has arrived or is a dead letter"
        return Part(number, len(rows), (str(max(rows, default=0)),), staged=written.rows, counts=written.counts)

    def commit(self, part: Part) -> None:
        def move(_: Done) -> Checkpoint:
            return self.ledger.checkpoint.accepting(PartId(self.epoch, part.number), part.staged_rows, None)

        self.passing(lambda fence: self.load.commit(part, fence), move)

    def add(self, number: int, rows: Rows) -> None:
        self.commit(self.write(number, rows))

    def publish(self) -> None:
        self.passing(self.load.publish, lambda _: self.ledger.checkpoint.without_load())
        self.load.discard()

    def passing(self, action: Callable[[ContractFence], object], move: Callable[[Done], Checkpoint]) -> None:
        fence = ContractFence(self, move)
        action(fence)
        assert fence.passed == 1, "what was done is not on record: the fence was not passed"


def _loading(kind: str, *, deletes: bool, name: str | None = None) -> Loading:
    return Loading("replace" if kind == "replace" else "merge", deletes=deletes and kind == "replace", name=name)


def table(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.int64()), "title": pa.array(list(rows.values()), pa.string())})


class TargetContract:
    """What a target promises: a load is seen whole or not at all, and a runner that lost its claim changes nothing.

    Implement `open_target` and `visible`; a fixture may prepare a fresh place for each test.
    """

    key: tuple[str, ...] = ("id",)

    def open_target(self, epoch: int) -> Target:
        """Open the same place as before, for the claim of this epoch (`vitrina.testing.openings` helps)."""
        raise NotImplementedError

    def visible(self) -> Rows:
        """Read what a reader of the target sees now: titles by id. Return nothing when there is no target yet."""
        raise NotImplementedError

    # --- helpers ---------------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        return Ledger()

    def attempt(self, ledger: Ledger, epoch: int) -> Attempt:
        return Attempt(ledger, self.open_target(epoch), epoch, self.key)

    def loaded(self, ledger: Ledger, epoch: int, rows: Rows, *, deletes: bool = True) -> Attempt:
        """Load everything, as a full run does."""
        attempt = self.attempt(ledger, epoch)
        attempt.begin("replace", deletes=deletes)
        attempt.add(ledger.checkpoint.batch_no + 1, rows)
        attempt.publish()
        return attempt

    # --- full loads ------------------------------------------------------------------------------------------------

    def test_a_load_is_seen_when_it_is_published_and_not_before(self) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        attempt.add(1, {1: "Alien"})
        attempt.add(2, {2: "Brazil", 3: "Casablanca"})
        if attempt.target.visible == "load":
            assert self.visible() == {}
        attempt.publish()
        assert self.visible() == FIRST

    def test_the_next_load_takes_its_place(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        assert (attempt.prepared.exists, attempt.prepared.is_empty) == (True, False)
        attempt.begin("replace")
        attempt.add(ledger.checkpoint.batch_no + 1, SECOND)
        if attempt.target.visible == "load":
            assert self.visible() == FIRST
        attempt.publish()
        assert self.visible() == SECOND

    def test_a_load_that_deletes_nothing_leaves_the_rows_of_others(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        self.loaded(ledger, 2, SECOND, deletes=False)
        assert self.visible() == FIRST | SECOND

    def test_a_load_without_rows_empties_the_target(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("replace")
        attempt.publish()
        assert self.visible() == {}

    def test_what_was_written_and_not_counted_is_not_published(self) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        attempt.add(1, {1: "Alien"})
        attempt.write(2, {9: "lost on its way"})
        attempt.add(3, {2: "Brazil", 3: "Casablanca"})
        attempt.publish()
        assert self.visible() == FIRST

    # --- interruptions ---------------------------------------------------------------------------------------------

    def test_an_interrupted_load_goes_on_with_what_counts(self) -> None:
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        first.add(1, {1: "Alien"})
        first.write(2, {9: "of the runner that was lost"})

        second = self.attempt(ledger, 2)
        if ledger.checkpoint.stage is None:
            return  # it has nothing to go on with but the position: the loop begins a new one
        assert second.resume()
        second.add(3, {2: "Brazil", 3: "Casablanca"})
        second.publish()
        assert self.visible() == FIRST

    def test_a_load_that_was_published_twice_is_published_once(self) -> None:
        """Lose the runner after the target was changed and before the checkpoint was moved."""
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        first.add(1, FIRST)
        unfinished = ledger.checkpoint
        first.passing(first.load.publish, lambda _: ledger.checkpoint.without_load())
        shown = self.visible()
        ledger.checkpoint = unfinished  # what the metastore has if it never heard of it

        second = self.attempt(ledger, 2)
        if unfinished.stage is None:
            return
        second.resume()
        second.publish()
        assert self.visible() == shown == FIRST

    def test_a_load_that_is_given_up_leaves_nothing_to_see(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        given_up = self.attempt(ledger, 2)
        given_up.begin("replace")
        given_up.add(ledger.checkpoint.batch_no + 1, {9: "of a load that was given up"})
        ledger.checkpoint = ledger.checkpoint.without_load()
        self.loaded(ledger, 3, SECOND)
        assert self.visible() == SECOND

    # --- zombies ---------------------------------------------------------------------------------------------------

    def test_a_runner_that_was_left_behind_publishes_nothing(self) -> None:
        ledger = self.ledger()
        zombie = self.attempt(ledger, 1)
        zombie.begin("replace")
        zombie.add(1, {7: "of the zombie"})
        of_the_zombie = ledger.checkpoint

        self.attempt(ledger, 2)  # it only seizes; from here on the zombie is too late
        believed = Ledger(1, of_the_zombie)
        zombie.ledger = believed  # it does not know
        with suppress(VitrinaError):
            zombie.add(2, {8: "of the zombie, later"})
        with suppress(VitrinaError):
            zombie.publish()
        assert self.visible() == {}

    def test_a_runner_that_was_left_behind_does_not_replace_what_came_after_it(self) -> None:
        ledger = self.ledger()
        zombie = self.attempt(ledger, 1)
        zombie.begin("replace")
        zombie.add(1, {7: "of the zombie"})
        of_the_zombie = ledger.checkpoint
        ledger.checkpoint = ledger.checkpoint.without_load()
        self.loaded(ledger, 2, SECOND)

        zombie.ledger = Ledger(1, of_the_zombie)
        with suppress(VitrinaError):
            zombie.add(2, {8: "of the zombie, later"})
        with suppress(VitrinaError):
            zombie.publish()
        assert self.visible() == SECOND

    def test_a_runner_that_was_left_behind_merges_nothing(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        zombie = self.attempt(ledger, 2)
        zombie.begin("merge")
        part = zombie.write(ledger.checkpoint.batch_no + 1, {1: "of the zombie", 7: "of the zombie"})
        self.attempt(ledger, 3).begin("merge")
        zombie.ledger = Ledger(2, ledger.checkpoint)
        with suppress(VitrinaError):
            zombie.commit(part)
        if zombie.target.visible == "load":
            assert self.visible() == FIRST

    # --- merges ----------------------------------------------------------------------------------------------------

    def test_a_merge_adds_and_changes_rows_part_by_part(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        attempt.add(ledger.checkpoint.batch_no + 1, {3: "Casablanca (1942)"})
        attempt.add(ledger.checkpoint.batch_no + 1, {4: "Diva"})
        attempt.publish()
        assert self.visible() == FIRST | SECOND

    def test_a_part_that_is_merged_twice_is_there_once(self) -> None:
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("merge")
        first.add(1, FIRST)
        second = self.attempt(ledger, 2)
        second.begin("merge")
        second.add(2, FIRST)
        second.publish()
        assert self.visible() == FIRST

    def test_rows_of_given_keys_are_removed(self) -> None:
        """Require removal of single rows from loads that support it; a repair needs it."""
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        load = attempt.load
        if not isinstance(load, Removes):
            return
        gone = [(str(key),) for key in (*list(FIRST)[:1], 999)]
        number = ledger.checkpoint.batch_no + 1
        removed: list[Counts] = []
        attempt.passing(
            lambda fence: removed.append(load.remove(gone, number, fence)),
            lambda _: replace(ledger.checkpoint, batch_no=number),
        )
        attempt.publish()
        assert self.visible() == dict(list(FIRST.items())[1:])
        assert removed[0].deleted == 1

    # --- looking ---------------------------------------------------------------------------------------------------

    def test_preparing_without_creating_changes_nothing(self) -> None:
        target = self.open_target(1)
        target.seize()
        columns = (Column("id", "bigint"), Column("title", "text"))
        prepared = target.prepare(Wanted(columns, self.key), create=False)
        assert prepared.is_empty
        assert self.visible() == {}

    def test_what_can_be_scanned_is_what_was_written(self) -> None:
        attempt = self.loaded(self.ledger(), 1, FIRST)
        target = attempt.target
        if not isinstance(target, Scans):
            return
        assert _rows(target.scan()) == _rows([target.as_written(table(FIRST))])
        some = [("2",), ("3",), ("404",)]
        assert _rows(target.scan(some)) == {key: FIRST[key] for key in (2, 3)}


def _rows(tables: Iterator[pa.Table] | Sequence[pa.Table]) -> Rows:
    return {row["id"]: row["title"] for found in tables for row in found.to_pylist()}


class SourceContract:
    """What a source promises: it says its columns, gives every row once, and resumes after the batch it came to.

    Implement `open_source` and `expected`.
    """

    batch_rows = 2

    def open_source(self) -> Source:
        """Open it again, as each run does."""
        raise NotImplementedError

    def expected(self) -> list[dict[str, Any]]:
        """List the rows that the source has, at least four of them."""
        raise NotImplementedError

    def window(self, **fields: Any) -> Window:
        return Window(**{"batch_rows": lambda: self.batch_rows} | fields)

    def read(self, source: Source, **fields: Any) -> list[list[dict[str, Any]]]:
        return [batch.take().to_pylist() for batch in source.read(self.window(**fields), "natural")]

    def test_there_is_enough_to_read(self) -> None:
        assert len(self.expected()) >= 2 * self.batch_rows

    def test_the_columns_are_told_before_the_rows(self) -> None:
        source = self.open_source()
        described = source.describe(self.window())
        named = [column.name for column in described.columns] or (described.schema.names if described.schema else [])
        assert named == list(self.expected()[0])

    def test_every_row_is_given_once(self) -> None:
        source = self.open_source()
        source.describe(self.window())
        batches = self.read(source)
        assert _sorted(row for batch in batches for row in batch) == _sorted(self.expected())

    def test_a_batch_is_no_larger_than_asked_for(self) -> None:
        assert max(map(len, self.read(self.open_source()))) <= self.batch_rows

    def test_reading_goes_on_after_each_batch(self) -> None:
        source = self.open_source()
        before: list[dict[str, Any]] = []
        for batch in source.read(self.window(), "natural"):
            before += batch.take().to_pylist()
            if batch.last is None:
                continue
            rest = [row for part in self.read(self.open_source(), after=batch.last) for row in part]
            assert _sorted(before + rest) == _sorted(self.expected()), f"after {batch.last}"

    def test_it_reads_the_same_again(self) -> None:
        assert self.read(self.open_source()) == self.read(self.open_source())

    def test_it_is_closed_from_another_thread(self) -> None:
        source = self.open_source()
        reading = source.read(self.window(), "natural")
        next(reading)
        closing = threading.Thread(target=source.close)
        closing.start()
        closing.join(timeout=60)
        assert not closing.is_alive()
        with suppress(VitrinaError, StopIteration):
            next(reading)


def _sorted(rows: Iterator[dict[str, Any]] | Sequence[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


__all__ = ["Attempt", "ContractFence", "Ledger", "SourceContract", "TargetContract", "Work", "table", "work_of"]
