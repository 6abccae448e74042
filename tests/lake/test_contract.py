"""Files keep the contract of targets, in a folder and in a bucket, and each protection taken away is noticed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest

from tests.lake import readers
from tests.lake.conftest import Lake
from vitrina.connectors.files import connector, groups, load, manifest, writer
from vitrina.connectors.files.manifest import Ledger, Manifest
from vitrina.definition import Definition
from vitrina.errors import DuplicateKeys, VitrinaError
from vitrina.ports.batch import Part, PartId
from vitrina.ports.target import Loading, Target
from vitrina.testing import TargetContract
from vitrina.testing.contracts import FIRST, table
from vitrina.testing.openings import opening_of

RELAXED = {"allow_empty": True, "allow_shrink": True}


def open_files(url: str, epoch: int, name: str = "films", **options: Any) -> Target:
    """Open a target as a runner would, with guards against shrinking off."""
    opening = opening_of(connector, name, url, epoch=epoch, options=options)
    definition = opening.definition
    assert isinstance(definition, Definition)
    relaxed = definition.model_copy(update={"options": definition.options.model_copy(update=RELAXED)})
    assert connector.open_target
    return connector.open_target(replace(opening, definition=relaxed))


class TestFiles(TargetContract):
    """One target, read by DuckDB."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _place(self, lake: Lake) -> None:
        self.lake = lake

    def open_target(self, epoch: int) -> Target:
        return open_files(self.lake.url, epoch, **self.options)

    def visible(self) -> dict[int, str]:
        return readers.titles(self.lake.files("films"))

    def test_a_file_of_a_slow_source_is_ended_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt.begin("replace")
        with attempt.load.writer() as files:
            assert files.ahead > 100
            receipt = files.write(table(FIRST), PartId(1, 1))
            assert files.ahead > 100
            monkeypatch.setattr(writer, "SLOW_SECONDS", -1.0)
            assert files.ahead == 0
            receipt()
            assert files.ahead > 100

    def test_of_a_file_that_counts_in_part_the_rest_is_left_out(self) -> None:
        """The runner was lost between the commits of two batches that are in one file."""
        ledger = self.ledger()
        first = self.attempt(ledger, 1)
        first.begin("replace")
        parts = [{1: "Alien"}, {2: "Brazil", 8: "counted"}, {9: "not counted"}]
        with first.load.writer() as files:
            sent = [files.write(table(rows), PartId(1, number)) for number, rows in enumerate(parts, 1)]
            assert [receipt().rows for receipt in sent] == [1, 2, 1]
        first.commit(Part(1, 1, ("1",)))
        first.commit(Part(2, 2, ("8",)))

        second = self.attempt(ledger, 2)
        assert second.resume()
        second.add(3, {3: "Casablanca"})
        second.publish()
        assert self.visible() == FIRST | {8: "counted"}
        assert self.lake.manifest("films")["rows"] == 4
        assert self.lake.stored("films") == self.lake.named("films")

    def test_a_key_that_comes_again_in_a_later_piece_is_refused(self) -> None:
        attempt = self.attempt(self.ledger(), 1)
        attempt._load = attempt.target.open_load(Loading("replace", deletes=True, refuses_repeats=True))
        attempt.passing(attempt.load.begin, lambda _: replace(attempt.ledger.checkpoint, stage=attempt.load.name))
        attempt.commit(attempt.write(1, {1: "Alien", 2: "Brazil"}, {2: "Brazil", 3: "Casablanca"}))
        with pytest.raises(DuplicateKeys, match="id = 2"):
            attempt.publish()


class TestPartitions(TestFiles):
    """The same with a folder for each title."""

    options: ClassVar[dict[str, Any]] = {"partition_by": ["title"]}


# --- a contract that cannot be broken says nothing ------------------------------------------------------------------


def takes_whatever_is_there(self: Any, found: Any, checkpoint: Any) -> Any:
    return self._listed()


def keeps_all_of_it(self: Any, group: Any, counted: Any, sequences: Any) -> Any:
    return group


def shows_again(self: Any, manifest: Manifest, kept: Any, found: Any) -> Manifest:
    files = () if self._target.ledger.read().shown else tuple(file for group in kept for file in group.files)
    return replace(manifest, shown=replace(self._target.generation(self.name), files=files))


def shows_while_loading(self: Any, part: Any, fence: Any) -> None:
    files = tuple(file for group in self._groups for file in group.files)
    shown = replace(self._target.generation(self.name, "log"), files=files)
    self._target.ledger.change(lambda found: replace(found, shown=shown))
    fence.after()


def changes_without_asking(self: Ledger, make: Callable[[Manifest], Manifest], record: bytes = b"") -> Manifest:
    return self._change(make)


def passes_no_fence(self: Any, part: Any, fence: Any) -> None:
    """The checkpoint stays where it is."""


def gives_each_row_one_version(self: Any, number: int) -> int:
    return 1


MUTANTS: dict[str, tuple[Any, str, Any, str]] = {
    "uncounted": (
        load.ReplaceLoad,
        "_settled",
        takes_whatever_is_there,
        "test_what_was_written_and_not_counted_is_not_published",
    ),
    "uncounted of a lost runner": (
        load.ReplaceLoad,
        "_settled",
        takes_whatever_is_there,
        "test_an_interrupted_load_goes_on_with_what_counts",
    ),
    "counted in part": (
        groups.Keeper,
        "_trimmed",
        keeps_all_of_it,
        "test_of_a_file_that_counts_in_part_the_rest_is_left_out",
    ),
    "twice": (load.ReplaceLoad, "_shown", shows_again, "test_a_load_that_was_published_twice_is_published_once"),
    "early": (
        load.ReplaceLoad,
        "commit",
        shows_while_loading,
        "test_a_load_is_seen_when_it_is_published_and_not_before",
    ),
    "zombie": (
        manifest.Ledger,
        "change",
        changes_without_asking,
        "test_a_runner_that_was_left_behind_does_not_replace_what_came_after_it",
    ),
    "late": (
        manifest.Ledger,
        "change",
        changes_without_asking,
        "test_a_runner_that_was_left_behind_publishes_nothing",
    ),
    "zombie merge": (
        manifest.Ledger,
        "change",
        changes_without_asking,
        "test_a_runner_that_was_left_behind_merges_nothing",
    ),
    "no fence": (load.MergeLoad, "commit", passes_no_fence, "test_a_merge_adds_and_changes_rows_part_by_part"),
    "no version": (
        load.Begun,
        "sequence",
        gives_each_row_one_version,
        "test_a_merge_adds_and_changes_rows_part_by_part",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protection_that_is_taken_away_is_noticed(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, method, replacement, noticed_by = MUTANTS[mutant]
    suite = TestFiles()
    suite.lake = Lake(f"file://{tmp_path}", tmp_path)
    monkeypatch.setattr(kind, method, replacement)
    # Some have a second line of defence, which is taken away with the first.
    monkeypatch.setattr(load.ReplaceLoad, "_require_files", lambda *_: None)
    if mutant == "twice":
        monkeypatch.setattr(load.ReplaceLoad, "is_shown", False)
    # A zombie may also show files that were removed: then nobody can read at all.
    with pytest.raises((AssertionError, VitrinaError, duckdb.IOException)):
        getattr(suite, noticed_by)()
