"""Batches of a load are inserted together, and what an insert leaves unmerged is told apart all the same."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.clickhouse.places import Place
from tests.clickhouse.test_interleavings import attempt
from tests.support.waiting import until
from vitrina.connectors.clickhouse import types, writer
from vitrina.connectors.clickhouse.options import ClickHouseOptions
from vitrina.connectors.clickhouse.tables import Layout
from vitrina.connectors.clickhouse.writer import Converter, GroupingWriter, Inserting
from vitrina.errors import DuplicateKeys, ShrinkRefused
from vitrina.ports.batch import Part, PartId
from vitrina.ports.schema import Column
from vitrina.ports.target import Loading
from vitrina.testing.contracts import Attempt, Ledger, table

PART = PartId(1, 1)


def begun(place: Place, ledger: Ledger) -> Attempt:
    made = attempt(place, ledger, 1)
    made._load = made.target.open_load(Loading("replace", True, refuses_repeats=True))
    made.passing(made.load.begin, lambda _: ledger.checkpoint)
    return made


def write(made: Attempt, *batches: pa.Table) -> None:
    """Send the batches ahead, wait for them, and count them as one part."""
    with made.load.writer() as sender:
        receipts = [sender.write(batch, PART) for batch in batches]
        rows = sum(receipt().rows for receipt in receipts)
    made.commit(Part(1, rows, ("1",), staged=rows))


def parts(place: Place) -> list[tuple[int, int]]:
    """Levels and rows of the server's parts; of a part that was merged the level is above 0."""
    statement = "SELECT level, rows FROM system.parts WHERE database = {db:String} AND active ORDER BY name"
    return [(level, rows) for level, rows in place.session.rows(statement, {"db": place.database})]


def test_a_small_load_becomes_one_part_that_readers_need_not_merge(place: Place) -> None:
    made = begun(place, Ledger())
    write(made, *(table({key: "a"}) for key in range(5)))
    assert parts(place) == [(1, 5)]
    made.publish()
    assert len(place.titles()) == 5


def test_a_large_load_is_not_merged_by_its_inserts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_GROUP_BYTES", 1)
    made = begun(place, Ledger())
    write(made, table({1: "a", 2: "b"}), table({3: "c"}))
    assert parts(place) == [(0, 2), (0, 1)]
    made.publish()
    assert place.titles() == {1: "a", 2: "b", 3: "c"}


def test_repeated_keys_are_found_where_no_insert_merges(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_GROUP_BYTES", 1)
    made = begun(place, Ledger())
    write(made, pa.concat_tables([table({1: "a", 2: "b"}), table({2: "c"})]), table({1: "d"}))
    assert parts(place) == [(0, 3), (0, 1)]
    with pytest.raises(DuplicateKeys, match=r"2 row\(s\) share their key"):
        made.publish()
    assert place.titles() == {}


def test_versions_of_a_row_do_not_count_as_rows_that_a_load_would_lose(place: Place) -> None:
    careful: dict[str, Any] = {"options": {"allow_shrink": False, "allow_empty": False}}
    ledger = Ledger()
    for epoch, kind in enumerate(["replace", "merge", "merge", "replace"], start=1):
        made = attempt(place, ledger, epoch, **careful)
        made.begin(kind)
        made.add(epoch, {1: f"a{epoch}", 2: f"b{epoch}"})
        made.publish()
        ledger.checkpoint = ledger.checkpoint.without_load()
    assert place.titles() == {1: "a4", 2: "b4"}
    made = attempt(place, ledger, 5, **careful)
    made.begin("replace")
    with pytest.raises(ShrinkRefused, match="shows 2;"):
        made.publish()


# --- when a group is sent --------------------------------------------------------------------------------------------


class Inserts:
    """Stand for the server: the first insert waits until it is released."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.released = threading.Event()

    def __call__(self, what: Inserting) -> None:
        self.seen.append(what.rows.num_rows)
        self.released.wait()


def grouping(inserts: Inserts) -> GroupingWriter:
    fields = types.fields_of([Column("id", "bigint"), Column("title", "text")], ["id"], [])
    converter = Converter(Layout(fields, ("id",), ClickHouseOptions()), None, merges=False)
    return GroupingWriter(converter, inserts, ahead=16, groups=True)


def test_waiting_for_a_batch_that_is_being_inserted_sends_no_other_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_GROUP_BYTES", 200)
    inserts = Inserts()
    sender = grouping(inserts)
    large = sender.write(table(dict.fromkeys(range(7), "a" * 100)), PART)
    until(lambda: inserts.seen == [7])
    sender.write(table({8: "b"}), PART)
    waiting = threading.Thread(target=large)
    waiting.start()
    until(lambda: sender._queue.qsize() == 2)
    last = sender.write(table({9: "c"}), PART)
    inserts.released.set()
    assert last().rows == 1
    waiting.join()
    sender.drain()
    assert inserts.seen == [7, 2]


def test_what_was_sent_is_inserted_when_the_writer_ends() -> None:
    inserts = Inserts()
    inserts.released.set()
    sender = grouping(inserts)
    sender.write(table({1: "a"}), PART)
    receipt = sender.write(table({2: "b"}), PART)
    sender.drain()
    assert inserts.seen == [2]
    assert receipt().rows == 1
