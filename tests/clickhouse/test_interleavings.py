"""A late runner against its successor, move by move; replies that are lost; a reader that looks all the time."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.clickhouse.places import Place
from tests.support.clickhouse_process import ClickHouseProcess
from vitrina.connectors.clickhouse import client
from vitrina.connectors.clickhouse.client import Busy, Session
from vitrina.connectors.clickhouse.target import ClickHouseTarget
from vitrina.errors import DuplicateKeys, LeaseLost, VitrinaError
from vitrina.ports.batch import Part, PartId
from vitrina.ports.target import Loading
from vitrina.testing.contracts import FIRST, SECOND, Attempt, Ledger, table
from vitrina.testing.openings import CalmContext

OF_THE_ZOMBIE = {7: "of the zombie", 8: "of the zombie"}
# Statements of the longest of these moves, and some more: beyond the last, the other runner acts afterwards.
MOVES = 24


class Claimed(CalmContext):
    """A run that asks the metastore: a claim that was taken over is not held."""

    def __init__(self, ledger: Ledger, epoch: int) -> None:
        super().__init__()
        self._ledger, self._epoch = ledger, epoch

    def require_held(self) -> None:
        if self._ledger.epoch != self._epoch:
            raise LeaseLost(f"epoch {self._epoch} was overtaken by {self._ledger.epoch}")


def attempt(place: Place, ledger: Ledger, epoch: int, **how: Any) -> Attempt:
    return Attempt(ledger, place.target(epoch, context=Claimed(ledger, epoch), **how), epoch, ("id",))


def loaded(place: Place, ledger: Ledger, epoch: int, rows: dict[int, str], **how: Any) -> Attempt:
    made = attempt(place, ledger, epoch, **how)
    made.begin("replace")
    made.add(ledger.checkpoint.batch_no + 1, rows)
    made.publish()
    return made


def interrupt(target: ClickHouseTarget, at: int, act: Callable[[], object]) -> "Interruption":
    return Interruption(target.server, at, act)


class Interruption:
    """Lets somebody else act before the n-th statement of a session."""

    def __init__(self, session: Session, at: int, act: Callable[[], object]) -> None:
        self._left, self._act, self.has_acted = at, act, False
        for name in ("command", "rows", "insert"):
            setattr(session, name, self._wrapped(getattr(session, name)))

    def _wrapped(self, statement: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted(*values: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.finish()
            return statement(*values, **more)

        return interrupted

    def finish(self) -> None:
        if not self.has_acted:
            self.has_acted = True
            self._act()


# --- move by move ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, MOVES))
def test_a_successor_takes_over_at_any_move_of_a_late_switch(place: Place, at: int) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    zombie = attempt(place, ledger, 2)
    zombie.begin("replace")
    zombie.add(9, OF_THE_ZOMBIE)
    believed = Ledger(2, ledger.checkpoint)

    def take_over() -> None:
        ledger.checkpoint = ledger.checkpoint.without_load()
        loaded(place, ledger, 3, SECOND)
        assert place.titles() == SECOND

    zombie.ledger = believed
    other = interrupt(zombie.target, at, take_over)  # type: ignore[arg-type]
    with suppress(VitrinaError):
        zombie.publish()
    other.finish()
    assert place.titles() == SECOND


@pytest.mark.parametrize("at", range(1, 14))
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "begins again"])
@pytest.mark.parametrize("confirmed", [True, False], ids=["under way", "begun"])
def test_a_late_switch_comes_at_any_move_of_taking_over(
    place: Place, faults: ClickHouseProcess, at: int, goes_on: bool, confirmed: bool
) -> None:
    """The zombie's load is complete: its switch may still win while the successor takes over, and never afterwards.

    `confirmed`: its claim was still held when it asked, and its EXCHANGE arrives late.
    """
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    zombie = attempt(place, ledger, 2)
    zombie.begin("replace")
    zombie.add(9, OF_THE_ZOMBIE)
    zombie.ledger = Ledger(2, ledger.checkpoint)
    late = threading.Thread(target=_quietly, args=(zombie.publish,))
    if confirmed:
        faults.fault("EXCHANGE TABLES", "hold")
        late.start()
        faults.until_met()

    def switch_late() -> None:
        if confirmed:
            faults.release()
        else:
            late.start()
        late.join()

    ledger.epoch = 3
    target = place.target(3, context=Claimed(ledger, 3))
    other = interrupt(target, at, switch_late)
    successor = Attempt(ledger, target, 3, ("id",))
    seized = place.titles()
    assert seized in (FIRST, OF_THE_ZOMBIE)
    stage = ledger.checkpoint.stage
    if goes_on and target.open_load(Loading("replace", True, stage)).obstacle(ledger.checkpoint) is None:
        successor.resume()
        other.finish()
        assert place.titles() == seized, "it was seen after the successor had taken over"
        successor.publish()
        assert place.titles() == OF_THE_ZOMBIE
        return
    ledger.checkpoint = ledger.checkpoint.without_load()
    successor.begin("replace")
    successor.add(10, SECOND)
    other.finish()
    assert place.titles() == seized, "it was seen after the successor had taken over"
    successor.publish()
    assert place.titles() == SECOND


@pytest.mark.parametrize("at", range(1, 12))
def test_a_successor_takes_over_at_any_move_of_a_late_merge(place: Place, at: int) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    zombie = attempt(place, ledger, 2)
    zombie.begin("merge")
    part = zombie.write(9, {1: "of the zombie", 7: "of the zombie"})
    zombie.ledger = Ledger(2, ledger.checkpoint)
    seen: list[dict[int, str]] = []

    def take_over() -> None:
        successor = attempt(place, ledger, 3)
        seen.append(place.titles())
        successor.begin("merge")
        successor.add(10, {1: "Alien (1979)"})
        successor.publish()

    other = interrupt(zombie.target, at, take_over)  # type: ignore[arg-type]
    with suppress(VitrinaError):
        zombie.commit(part)
    other.finish()
    # What was seen when the successor had taken over is what stays, apart from what it wrote itself.
    assert place.titles() == seen[0] | {1: "Alien (1979)"}


def test_an_insert_that_is_under_way_ends_with_the_takeover(place: Place, faults: ClickHouseProcess) -> None:
    """Held in the server until the successor has gone on with the load: it finds no table of its name."""
    ledger = Ledger()
    zombie = attempt(place, ledger, 1)
    zombie.begin("replace")
    zombie.add(1, {1: "Alien"})
    faults.fault("INSERT INTO", "hold")
    late = threading.Thread(target=_quietly, args=(lambda: zombie.write(2, OF_THE_ZOMBIE),))
    late.start()
    faults.until_met()
    successor = attempt(place, ledger, 2)
    assert successor.resume()
    faults.release()
    late.join()
    successor.add(3, {2: "Brazil", 3: "Casablanca"})
    successor.publish()
    assert place.titles() == FIRST


def test_a_switch_that_is_under_way_is_too_late(place: Place, faults: ClickHouseProcess) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    zombie = attempt(place, ledger, 2)
    zombie.begin("replace")
    zombie.add(9, OF_THE_ZOMBIE)
    zombie.ledger = Ledger(2, ledger.checkpoint)
    faults.fault("EXCHANGE TABLES", "hold")
    late = threading.Thread(target=_quietly, args=(zombie.publish,))
    late.start()
    faults.until_met()
    ledger.checkpoint = ledger.checkpoint.without_load()
    loaded(place, ledger, 3, SECOND)
    faults.release()
    late.join()
    assert place.titles() == SECOND


def _quietly(act: Callable[[], object]) -> None:
    with suppress(VitrinaError):
        act()


# --- replies that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["lose_reply", "lose_request", "refuse"])
@pytest.mark.parametrize("on", ["EXCHANGE TABLES", "CREATE VIEW", "INSERT INTO", "CREATE TABLE", "DROP TABLE"])
@pytest.mark.parametrize("engine", ["ReplacingMergeTree", "MergeTree"])
def test_a_load_survives_what_is_lost(place: Place, faults: ClickHouseProcess, on: str, do: str, engine: str) -> None:
    ledger, how = Ledger(), {"clickhouse": {"engine": engine}}
    loaded(place, ledger, 1, FIRST, **how)
    faults.fault(on, do)
    loaded(place, ledger, 2, SECOND, **how)
    assert faults.met() == 1
    assert place.titles() == SECOND
    assert len(place.rows()) == len(SECOND)


@pytest.mark.parametrize("do", ["lose_reply", "lose_request", "refuse"])
@pytest.mark.parametrize("on", ["ATTACH PARTITION", "INSERT INTO", "CREATE TABLE"])
def test_a_merge_survives_what_is_lost(place: Place, faults: ClickHouseProcess, on: str, do: str) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    made = attempt(place, ledger, 2)
    made.begin("merge")
    faults.fault(on, do)
    made.add(9, {3: "Casablanca (1942)", 4: "Diva"})
    made.publish()
    assert faults.met() == 1
    assert place.titles() == FIRST | SECOND


def test_a_switch_that_fails_leaves_the_old_table_readable(
    place: Place, faults: ClickHouseProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    made = attempt(place, ledger, 2)
    made.begin("replace")
    made.add(9, SECOND)
    monkeypatch.setattr(client, "PATIENCE_SECONDS", -1)
    faults.fault("EXCHANGE TABLES", "refuse")
    with pytest.raises(Busy, match="Too many parts"):
        made.publish()
    assert place.titles() == FIRST
    monkeypatch.undo()
    again = attempt(place, ledger, 2)
    assert again.resume()
    again.publish()
    assert place.titles() == SECOND


# --- readers ---------------------------------------------------------------------------------------------------------


def test_a_reader_sees_the_old_rows_or_the_new_ones(place: Place) -> None:
    ledger, over = Ledger(), threading.Event()
    loaded(place, ledger, 1, dict.fromkeys(range(1000), "1"))
    reader = Session(place.url)
    seen: list[tuple[int, int]] = []
    broken: list[Exception] = []

    def look() -> None:
        while not over.is_set():
            try:
                [(rows, titles)] = reader.rows(f"SELECT count(), uniqExact(title) FROM {place.database}.films")
                seen.append((rows, titles))
            except VitrinaError as exc:
                broken.append(exc)

    looking = threading.Thread(target=look)
    looking.start()
    for epoch in range(2, 8):
        loaded(place, ledger, epoch, dict.fromkeys(range(1000), str(epoch)))
    over.set()
    looking.join()
    reader.close()
    assert not broken
    assert set(seen) == {(1000, 1)}


# --- versions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def merged(place: Place) -> tuple[Ledger, Attempt]:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    made = attempt(place, ledger, 5)
    made.begin("merge")
    made.add(1, {1: "Alien (1979)"})
    return ledger, made


def test_rows_of_an_older_claim_lose_however_late_they_come(place: Place, merged: tuple[Ledger, Attempt]) -> None:
    shown = place.target(5).tables.shown()
    assert shown
    place.session.command(
        f"INSERT INTO {place.database}.`{shown.generation}` VALUES (1, 'of the zombie', {4 << 22 | 4_000_000}, 0)"
    )
    assert place.titles() == FIRST | {1: "Alien (1979)"}


def test_rows_that_are_removed_stay_removed(place: Place, merged: tuple[Ledger, Attempt]) -> None:
    ledger, made = merged
    made.passing(lambda fence: made.load.remove([("2",), ("404",)], 2, fence), lambda _: ledger.checkpoint)  # type: ignore[attr-defined]
    assert place.titles() == {1: "Alien (1979)", 3: "Casablanca"}
    made.add(3, {2: "Brazil (1985)"})
    assert place.titles() == {1: "Alien (1979)", 2: "Brazil (1985)", 3: "Casablanca"}


def test_old_tombstones_are_cleaned_and_nothing_is_seen_again(place: Place, merged: tuple[Ledger, Attempt]) -> None:
    ledger, made = merged
    made.passing(lambda fence: made.load.remove([("2",)], 2, fence), lambda _: ledger.checkpoint)  # type: ignore[attr-defined]
    tables = place.target(9).tables
    shown = tables.shown()
    assert shown
    path = f"{place.database}.`{shown.generation}`"
    assert tables.clean_tombstones(shown, 5, 1) == 0, "it is of this claim"
    assert tables.clean_tombstones(shown, 9, 2) == 0, "it is not worth the work"
    assert tables.clean_tombstones(shown, 9, 1) == 1
    assert place.session.value(f"SELECT count() FROM {path} WHERE id = 2") == 0
    assert place.titles() == {1: "Alien (1979)", 3: "Casablanca"}


def test_a_key_that_is_deleted_and_written_again_is_not_cleaned(place: Place, merged: tuple[Ledger, Attempt]) -> None:
    ledger, made = merged
    made.passing(lambda fence: made.load.remove([("2",)], 2, fence), lambda _: ledger.checkpoint)  # type: ignore[attr-defined]
    made.add(3, {2: "Brazil (1985)"})
    tables = place.target(9).tables
    shown = tables.shown()
    assert shown
    tables.clean_tombstones(shown, 9, 1)
    assert place.titles() == {1: "Alien (1979)", 2: "Brazil (1985)", 3: "Casablanca"}


def test_of_several_rows_with_one_key_the_last_counts(place: Place) -> None:
    ledger = Ledger()
    made = attempt(place, ledger, 1)
    made.begin("merge")
    with made.load.writer() as writer:
        rows = table({1: "a"}).to_pylist() + table({2: "b"}).to_pylist() + table({1: "c"}).to_pylist()
        written = writer.write(table({}).from_pylist(rows, schema=table({}).schema), PartId(1, 1))()
    assert written.rows == 2
    made.commit(Part(1, 3, ("1",), staged=written.rows))
    assert place.titles() == {1: "c", 2: "b"}


@pytest.mark.parametrize("engine", ["ReplacingMergeTree", "MergeTree"])
def test_a_full_load_refuses_rows_that_share_a_key(place: Place, engine: str) -> None:
    ledger = Ledger()
    made = attempt(place, ledger, 1, clickhouse={"engine": engine})
    made._load = made.target.open_load(Loading("replace", True, refuses_repeats=True))
    made.passing(made.load.begin, lambda _: ledger.checkpoint)
    made.add(1, {1: "a", 2: "b"})
    made.add(2, {2: "c"})
    with pytest.raises(DuplicateKeys, match=r"1 row\(s\) share their key \(id\)"):
        made.publish()
    assert place.titles() == {}
