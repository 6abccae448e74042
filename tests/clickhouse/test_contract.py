"""The target keeps the contract that Vitrina ships, and each protection that is taken away is noticed."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.clickhouse.places import Place
from vitrina.connectors.clickhouse import load, tables
from vitrina.errors import StageLost
from vitrina.ports.batch import Counts
from vitrina.ports.target import Done, Target
from vitrina.testing import TargetContract


class TestClickHouse(TargetContract):
    """A table with versions."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _place(self, place: Place) -> None:
        self.place = place

    def open_target(self, epoch: int) -> Target:
        return self.place.target(epoch, clickhouse=self.options)

    def visible(self) -> dict[int, str]:
        return self.place.titles()


class TestPartitioned(TestClickHouse):
    """In partitions by a column that is not of the key: versions of a row may be in several."""

    options: ClassVar[dict[str, Any]] = {"partition_by": "title"}


# --- a contract that cannot be broken says nothing ------------------------------------------------------------------


def keeps_uncounted(self: Any, name: object, accepted: object) -> int:
    return 0


def shows_while_loading(self: Any, part: Any, fence: Any) -> None:
    self._switch()
    fence.after(Done(part.counts))


def seizes_nothing(self: Any) -> None:
    """Older tries keep what they have."""


def passes_no_fence(self: Any, part: Any, fence: Any) -> None:
    self._merge(part.number, pieces=1)


def merges_when_written(self: Any, what: Any) -> None:
    self._target.server.insert(self._tables.path(self._current_shown.generation), what.rows, token=what.token)


def publishes_nothing(self: Any, fence: Any) -> Counts:
    fence.after()
    return Counts()


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "uncounted": (
        tables.Tables,
        "discard_uncounted",
        keeps_uncounted,
        "test_what_was_written_and_not_counted_is_not_published",
    ),
    "early": (
        load.GenerationLoad,
        "commit",
        shows_while_loading,
        "test_a_load_is_seen_when_it_is_published_and_not_before",
    ),
    "late": (tables.Tables, "seize", seizes_nothing, "test_a_runner_that_was_left_behind_publishes_nothing"),
    "zombie": (
        tables.Tables,
        "seize",
        seizes_nothing,
        "test_a_runner_that_was_left_behind_does_not_replace_what_came_after_it",
    ),
    "zombie merge": (tables.Tables, "seize", seizes_nothing, "test_a_runner_that_was_left_behind_merges_nothing"),
    "merge unstaged": (
        load.MergeLoad,
        "_insert",
        merges_when_written,
        "test_a_runner_that_was_left_behind_merges_nothing",
    ),
    "no fence": (load.MergeLoad, "commit", passes_no_fence, "test_a_merge_adds_and_changes_rows_part_by_part"),
    "not published": (
        load.GenerationLoad,
        "publish",
        publishes_nothing,
        "test_the_next_load_takes_its_place",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protection_that_is_taken_away_is_noticed(mutant: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, replacement, noticed_by = MUTANTS[mutant]
    suite = TestClickHouse()
    suite.place = place
    monkeypatch.setattr(kind, method, replacement)
    if replacement is seizes_nothing:
        # What a load leaves it drops at its end, too: a zombie's generation would be gone by luck.
        monkeypatch.setattr(tables.Tables, "discard_unshown", lambda self: [])
    # Rows that should not be there are also noticed by their number.
    with pytest.raises((AssertionError, StageLost)):
        getattr(suite, noticed_by)()
