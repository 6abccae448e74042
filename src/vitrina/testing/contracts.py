"""Provide the contract of every source and target as tests that a connector's own test suite inherits.

    from vitrina.testing import TargetContract

    class TestMyTarget(TargetContract):
        def open_target(self, epoch: int) -> Target: ...
        def visible(self) -> list[tuple[int, str]]: ...

They call only the connector: no database, no runner. Test whole runs with a real runner. As in a run, another thread
than the one that opens, commits and publishes reads and writes rows.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from vitrina.errors import LeaseLost, VitrinaError
from vitrina.ports.batch import Counts, Part, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Work
from vitrina.ports.schema import Column
from vitrina.ports.source import Rereads, Source, Window
from vitrina.ports.target import DONE, Done, Load, Loading, Removes, Scans, Target, Wanted
from vitrina.testing.openings import work_of

T = TypeVar("T")
Rows = dict[int, str]

FIRST: Rows = {1: "Alien", 2: "Brazil", 3: "Casablanca"}
SECOND: Rows = {2: "Brazil", 3: "Casablanca (1942)", 4: "Diva"}


class ContractFence:
    """Stand in for the metastore's checkpoint: it moves when the fence is called, once, and not after a takeover."""

    def __init__(
        self, attempt: "Attempt", move: Callable[[Done], Checkpoint], before: Callable[[], object] = lambda: None
    ) -> None:
        self._attempt = attempt
        self._move = move
        # Inspects the target at the moment when the data must be in it.
        self._before = before
        self.passed = 0

    @property
    def found(self) -> Checkpoint:
        return self._attempt.ledger.checkpoint

    @property
    def record(self) -> bytes:
        return repr(self._move(DONE)).encode()

    def inside(self, connection: Any, done: Done = DONE) -> None:
        session = self._attempt.target.session
        assert session is not None, "fence.inside is for a PostgreSQL transaction, in the target's `session`"
        assert connection is session, "the checkpoint moves in a transaction of the target's `session`, or after"
        self._pass(done)

    def after(self, done: Done = DONE) -> None:
        self._before()
        self._pass(done)

    def _pass(self, done: Done) -> None:
        self.passed += 1
        assert self.passed == 1, "a fence is passed once"
        if self._attempt.ledger.epoch != self._attempt.epoch:
            raise LeaseLost(f"epoch {self._attempt.epoch} was overtaken by {self._attempt.ledger.epoch}")
        moved = self._move(done)
        self._attempt.ledger.checkpoint = replace(moved, identity=moved.identity | dict(done.identity))
        self._attempt.counts += done.counts


@dataclass
class Ledger:
    """Hold what the metastore knows of one pipeline: its epoch and its checkpoint."""

    epoch: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


class Attempt:
    """Write to the target as the loop of one run would."""

    # The counts that it reported to its fences.
    counts = Counts()

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
        """Resume the load that the checkpoint names; return False if it is published already."""
        name = self.ledger.checkpoint.stage
        self._load = self.target.open_load(_loading(kind, deletes=deletes, name=name))
        assert self.load.obstacle(self.ledger.checkpoint) is None
        left: list[bool] = []
        fence = ContractFence(self, lambda _: self.ledger.checkpoint)
        left.append(self.load.resume(fence))
        assert fence.passed <= 1
        return left[0]

    def write(self, number: int, *pieces: Rows) -> Part:
        """Send one part, in one piece or several. It does not count yet."""
        part = PartId(self.epoch, number)
        with self.load.writer() as writer:
            answers = in_another_thread(lambda: [writer.write(table(rows), part)() for rows in pieces])
        for rows, written in zip(pieces, answers, strict=True):
            assert written.rows + len(written.letters) == len(rows), "every row has arrived or is a dead letter"
        last = (str(max((key for rows in pieces for key in rows), default=0)),)
        staged, counts = sum(one.rows for one in answers), sum((one.counts for one in answers), start=Counts())
        return Part(number, sum(map(len, pieces)), last, staged=staged, counts=counts)

    def commit(self, part: Part, before: Callable[[], object] = lambda: None) -> None:
        def move(_: Done) -> Checkpoint:
            return self.ledger.checkpoint.accepting(PartId(self.epoch, part.number), part.staged_rows, None)

        self.passing(lambda fence: self.load.commit(part, fence), move, before)

    def add(self, number: int, rows: Rows) -> None:
        self.commit(self.write(number, rows))

    def publish(self, before: Callable[[], object] = lambda: None) -> None:
        self.passing(self.load.publish, lambda _: self.ledger.checkpoint.without_load(), before)
        self.load.discard()

    def passing(
        self,
        action: Callable[[ContractFence], object],
        move: Callable[[Done], Checkpoint],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        fence = ContractFence(self, move, before)
        action(fence)
        assert fence.passed == 1, "what was done is not on record: the fence was not passed"


def _loading(kind: str, *, deletes: bool, name: str | None = None) -> Loading:
    return Loading("replace" if kind == "replace" else "merge", deletes=deletes and kind == "replace", name=name)


def in_another_thread(work: Callable[[], T]) -> T:
    """Call `work` beside the run's own thread, as a run does to fill a load."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def table(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.int64()), "title": pa.array(list(rows.values()), pa.string())})


class TargetContract:
    """Test a target: a load is visible whole or not at all, and a runner that lost its claim changes nothing.

    Implement `open_target` and `visible`; a fixture may prepare a fresh place for each test.
    """

    key: tuple[str, ...] = ("id",)

    def open_target(self, epoch: int) -> Target:
        """Open the same place as before, for the claim of this epoch (`vitrina.testing.openings` helps)."""
        raise NotImplementedError

    def visible(self) -> Rows | Sequence[tuple[int, str]]:
        """Return what a reader of the target sees now: id and title of each row; no rows if the target does not exist.

        Return a list of pairs, not a dict, unless the target cannot hold two rows with one key: a dict would hide
        duplicates.
        """
        raise NotImplementedError

    def shown(self) -> Rows:
        """Return what is visible; fail if a row occurs twice."""
        found = self.visible()
        pairs = list(found.items() if isinstance(found, Mapping) else found)
        assert len(pairs) == len(dict(pairs)), f"rows are doubled: {pairs}"
        return dict(pairs)

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

    def test_a_load_is_seen_when_it_is_published_and_not_before(self) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        attempt.add(1, {1: "Alien"})
        attempt.add(2, {2: "Brazil", 3: "Casablanca"})
        if attempt.target.visible == "load":
            assert self.shown() == {}
        attempt.publish()
        assert self.shown() == FIRST

    def test_the_next_load_takes_its_place(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        assert (attempt.prepared.exists, attempt.prepared.is_empty) == (True, False)
        attempt.begin("replace")
        attempt.add(ledger.checkpoint.batch_no + 1, SECOND)
        if attempt.target.visible == "load":
            assert self.shown() == FIRST
        attempt.publish()
        assert self.shown() == SECOND

    def test_a_load_that_deletes_nothing_leaves_the_rows_of_others(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        self.loaded(ledger, 2, SECOND, deletes=False)
        assert self.shown() == FIRST | SECOND

    def test_a_load_without_rows_empties_the_target(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("replace")
        attempt.publish()
        assert self.shown() == {}

    def test_what_was_written_and_not_counted_is_not_published(self) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        attempt.add(1, {1: "Alien"})
        attempt.write(2, {9: "lost in transit"})
        attempt.add(3, {2: "Brazil", 3: "Casablanca"})
        attempt.publish()
        assert self.shown() == FIRST

    def test_a_part_may_come_in_several_pieces(self) -> None:
        """A source that cannot resume delivers all rows as one part, in as many pieces as it has batches."""
        ledger = self.ledger()
        attempt = self.attempt(ledger, 1)
        attempt.begin("replace")
        attempt.commit(attempt.write(1, {1: "Alien"}, {2: "Brazil"}, {3: "Casablanca"}))
        attempt.publish()
        assert self.shown() == FIRST
        merging = self.attempt(ledger, 2)
        merging.begin("merge")
        merging.commit(merging.write(ledger.checkpoint.batch_no + 1, {4: "Diva"}, {5: "Eraserhead"}))
        merging.publish()
        assert self.shown() == FIRST | {4: "Diva", 5: "Eraserhead"}

    def test_a_load_is_published_before_its_fence_is_passed(self) -> None:
        """If the checkpoint moved first, a runner that dies in between would lose the load."""
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        attempt.add(1, FIRST)
        attempt.publish(before=lambda: self._require(FIRST))

    def test_no_more_is_counted_than_was_written(self) -> None:
        attempt = self.loaded(self.ledger(), 1, FIRST)
        counts = attempt.counts
        assert counts.inserted + counts.updated + counts.unchanged <= len(FIRST)
        assert counts.deleted == 0

    def _require(self, rows: Rows) -> None:
        assert self.shown() == rows, "the fence is passed before the data is in the target"

    def test_an_interrupted_load_goes_on_with_what_counts(self) -> None:
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        first.add(1, {1: "Alien"})
        first.write(2, {9: "of the runner that was lost"})

        second = self.attempt(ledger, 2)
        if ledger.checkpoint.stage is None:
            return  # only the position could be resumed: the loop begins a new load
        assert second.resume()
        second.add(3, {2: "Brazil", 3: "Casablanca"})
        second.publish()
        assert self.shown() == FIRST

    def test_a_number_that_a_failed_try_used_is_used_again(self) -> None:
        """A run that is tried again keeps its claim, so epoch and number equal those of what the failed try wrote."""
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        first.add(1, {1: "Alien"})
        first.write(2, {9: "of the try that failed"})

        again = self.attempt(ledger, 1)
        if ledger.checkpoint.stage is not None:
            assert again.resume()
            again.add(2, {2: "Brazil", 3: "Casablanca"})
            again.publish()
            assert self.shown() == FIRST

    def test_a_load_that_was_published_twice_is_published_once(self) -> None:
        """Lose the runner after the target was changed and before the checkpoint was moved."""
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        first.add(1, FIRST)
        unfinished = ledger.checkpoint
        first.passing(first.load.publish, lambda _: ledger.checkpoint.without_load())
        shown = self.shown()
        ledger.checkpoint = unfinished  # the metastore's state if the runner died in between

        second = self.attempt(ledger, 2)
        if unfinished.stage is None:
            return
        second.resume()
        second.publish()
        assert self.shown() == shown == FIRST

    def test_a_load_that_is_given_up_leaves_nothing_to_see(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        given_up = self.attempt(ledger, 2)
        given_up.begin("replace")
        given_up.add(ledger.checkpoint.batch_no + 1, {9: "of an abandoned load"})
        ledger.checkpoint = ledger.checkpoint.without_load()
        self.loaded(ledger, 3, SECOND)
        assert self.shown() == SECOND

    def test_a_runner_that_was_left_behind_publishes_nothing(self) -> None:
        ledger = self.ledger()
        zombie = self.attempt(ledger, 1)
        zombie.begin("replace")
        zombie.add(1, {7: "of the zombie"})
        of_the_zombie = ledger.checkpoint

        self.attempt(ledger, 2)  # seizes the target, so from now on the zombie is too late
        believed = Ledger(1, of_the_zombie)
        zombie.ledger = believed  # it does not know of the takeover
        with suppress(VitrinaError):
            zombie.add(2, {8: "of the zombie, later"})
        with suppress(VitrinaError):
            zombie.publish()
        assert self.shown() == {}

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
        assert self.shown() == SECOND

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
            assert self.shown() == FIRST

    def test_a_runner_that_was_left_behind_seizes_nothing_back(self) -> None:
        """It was stopped right before it seized the target, and resumes after a newer one has seized it."""
        ledger = self.ledger()
        late = self.open_target(1)
        attempt = self.attempt(ledger, 2)
        attempt.begin("replace")
        attempt.add(1, {2: "Brazil"})
        with suppress(VitrinaError):
            zombie = Attempt(Ledger(), late, 1, self.key)  # it does not know of the other
            zombie.begin("merge")
            zombie.add(1, {7: "of the zombie"})
        attempt.add(2, {3: "Casablanca (1942)", 4: "Diva"})
        if attempt.target.visible == "load":
            assert self.shown() == {}
        attempt.publish()
        assert self.shown() == SECOND

    def test_a_merge_adds_and_changes_rows_part_by_part(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        attempt.add(ledger.checkpoint.batch_no + 1, {3: "Casablanca (1942)"})
        attempt.add(ledger.checkpoint.batch_no + 1, {4: "Diva"})
        attempt.publish()
        assert self.shown() == FIRST | SECOND

    def test_a_part_is_merged_before_its_fence_is_passed(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        part = attempt.write(ledger.checkpoint.batch_no + 1, {4: "Diva"})
        attempt.commit(part, before=lambda: self._require(FIRST | {4: "Diva"}))

    def test_what_was_written_and_not_counted_is_not_merged(self) -> None:
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        number = ledger.checkpoint.batch_no + 1
        attempt.write(number, {9: "lost in transit"})
        attempt.add(number + 1, {4: "Diva"})
        attempt.publish()
        if attempt.target.visible == "load":
            assert self.shown() == FIRST | {4: "Diva"}

    def test_a_part_that_is_merged_twice_is_there_once(self) -> None:
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("merge")
        first.add(1, FIRST)
        second = self.attempt(ledger, 2)
        second.begin("merge")
        second.add(2, FIRST)
        second.publish()
        assert self.shown() == FIRST

    def test_rows_of_given_keys_are_removed(self) -> None:
        """A repair removes single rows, if the load supports it."""
        ledger = self.ledger()
        self.loaded(ledger, 1, FIRST)
        attempt = self.attempt(ledger, 2)
        attempt.begin("merge")
        load = attempt.load
        if not isinstance(load, Removes):
            return
        keys = [(str(key),) for key in (*list(FIRST)[:1], 999)]
        number = ledger.checkpoint.batch_no + 1
        removed: list[Counts] = []
        attempt.passing(
            lambda fence: removed.append(load.remove(keys, number, fence)),
            lambda _: replace(ledger.checkpoint, batch_no=number),
            lambda: self._require(dict(list(FIRST.items())[1:])),
        )
        attempt.publish()
        assert self.shown() == dict(list(FIRST.items())[1:])
        assert removed[0].deleted == 1

    def test_preparing_without_creating_changes_nothing(self) -> None:
        target = self.open_target(1)
        target.seize()
        columns = (Column("id", "bigint"), Column("title", "text"))
        prepared = target.prepare(Wanted(columns, self.key), create=False)
        assert prepared.is_empty
        assert self.shown() == {}

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
    """Test a source: it describes its columns, delivers every row once, and resumes after any batch.

    Implement `open_source` and `expected`, and `add_row` if it has marks, to test passes as well.
    """

    batch_rows = 2
    # The columns that identify a row, for a source that can be asked for single rows (`Rereads`).
    key: tuple[str, ...] = ("id",)

    def open_source(self) -> Source:
        """Open the source again, as each run does."""
        raise NotImplementedError

    def expected(self) -> list[dict[str, Any]]:
        """Return the rows that the source has, at least four of them."""
        raise NotImplementedError

    def add_row(self) -> dict[str, Any] | None:
        """Add a row that a later pass has to find, and return it. Return None if the source is read whole each time."""
        return None

    def window(self, **fields: Any) -> Window:
        return Window(**{"batch_rows": lambda: self.batch_rows} | fields)

    def read(self, source: Source, **fields: Any) -> list[list[dict[str, Any]]]:
        """Read as a run does: on another thread than the one that described the source."""
        window = self.window(**fields)
        return in_another_thread(lambda: [batch.take().to_pylist() for batch in source.read(window, "natural")])

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

    def test_passes_miss_nothing(self) -> None:
        """A mark is taken before a pass reads; the next pass reads what comes after the mark."""
        first = self.open_source()
        mark = first.mark(None).mark
        added = self.add_row()
        if added is None:
            return
        assert mark is not None, "a source with `add_row` marks how far a pass comes"
        found = [row for batch in self.read(first, until=mark) for row in batch]
        second = self.open_source()
        upto = second.mark(mark).mark
        later = [row for batch in self.read(second, since=mark, until=upto) for row in batch]
        assert added in later
        assert {*map(repr, found), *map(repr, later)} == {*map(repr, self.expected()), repr(added)}
        assert len(later) < len(self.expected()), "a pass reads what is new, not everything"

    def test_rows_of_given_keys_are_read_again(self) -> None:
        source = self.open_source()
        if not isinstance(source, Rereads):
            return
        source.describe(self.window())
        source.refuse_keys(self.key)
        wanted = self.expected()[1:3]
        known = [tuple(str(row[name]) for name in self.key) for row in wanted]
        asked = source.canonical(self.key, [*known, ("404",) * len(self.key)])
        present = source.present(self.key, asked)
        assert present == set(asked[:-1])
        batches = self.read(source, order=self.key, keys=sorted(present))
        assert _sorted(row for batch in batches for row in batch) == _sorted(wanted)

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
