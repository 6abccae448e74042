"""Which transactions a snapshot shows, and how far a batch of changes reaches."""

from datetime import UTC, datetime

import pytest

from vitrina.connectors.postgres.following import Snapshot
from vitrina.loads.live import Gathered
from vitrina.ports.live import Change

EPOCH_3 = 3 << 32


@pytest.mark.parametrize(
    ("snapshot", "xid", "shown"),
    [
        ("100:110:105", 99, True),
        ("100:110:105", 105, False),
        ("100:110:105", 109, True),
        ("100:110:105", 110, False),
        # The log says 782, the snapshot 12884902670.
        (f"{EPOCH_3 + 780}:{EPOCH_3 + 783}:{EPOCH_3 + 782}", 782, False),
        (f"{EPOCH_3 + 780}:{EPOCH_3 + 783}:{EPOCH_3 + 782}", 781, True),
        (f"{EPOCH_3 + 780}:{EPOCH_3 + 783}:", 783, False),
        # Around the wrap itself: 4294967290 is older than 5 of the next epoch.
        (f"{EPOCH_3 - 6}:{EPOCH_3 + 5}:", (1 << 32) - 6, True),
        (f"{EPOCH_3 - 6}:{EPOCH_3 + 5}:{EPOCH_3 - 6}", (1 << 32) - 6, False),
        (f"{EPOCH_3 - 9}:{EPOCH_3 - 1}:", 3, False),
    ],
)
def test_a_committed_transaction_is_shown_or_not(snapshot: str, xid: int, shown: bool) -> None:
    assert Snapshot.parse(snapshot).shows(xid) is shown


class At:
    """A moment whose snapshot shows all transactions but some."""

    at = datetime(2026, 1, 1, tzinfo=UTC)
    catalog = ""

    def __init__(self, lsn: int, *invisible: int) -> None:
        self.lsn = lsn
        self._invisible = invisible

    def sees(self, xid: int) -> bool:
        return xid not in self._invisible


def change(lsn: int, xid: int, relation: str = "content.film") -> Change:
    return Change(lsn, 0, xid, relation, "insert", None, {"id": "1"})


def test_the_position_stops_before_the_first_transaction_that_is_left() -> None:
    gathered = Gathered(At(1000, 7), frozenset({"content.film"}))  # type: ignore[arg-type]
    gathered.add([change(100, 6), change(200, 7), change(300, 8)])
    assert [found.xid for found in gathered.changes] == [6, 8]
    assert gathered.upto == 199


def test_changes_after_the_snapshot_and_of_other_tables_are_of_the_next_batch() -> None:
    gathered = Gathered(At(250), frozenset({"content.film"}))  # type: ignore[arg-type]
    gathered.add([change(100, 6), change(200, 7, "content.other"), change(300, 8)])
    assert [found.xid for found in gathered.changes] == [6]
    assert gathered.upto == 250
