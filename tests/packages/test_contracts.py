"""The packages keep the contracts that Vitrina ships, and each protection taken away is noticed by one of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrina.definition import Definition
from vitrina.ports import registry
from vitrina.ports.batch import Counts, Written
from vitrina.ports.source import Marked, Source
from vitrina.ports.target import Done, Target
from vitrina.testing import SourceContract, TargetContract
from vitrina.testing.openings import opening_of


class TestParquet(TargetContract):
    """Files in a directory."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, installed: registry.Installed) -> None:
        self.url = f"parquet://{tmp_path}"
        self.folder = tmp_path / "films"
        self.connector = installed.connectors["parquet"]

    def open_target(self, epoch: int) -> Target:
        assert self.connector.open_target
        return self.connector.open_target(opening_of(self.connector, "films", self.url, epoch=epoch))

    def visible(self) -> list[tuple[int, str]]:
        from vitrina_parquet.target import read

        manifest = self.folder / "manifest.json"
        found = read(self.folder, json.loads(manifest.read_text())) if manifest.exists() else None
        return [(row["id"], row["title"]) for row in found.to_pylist()] if found else []


class TestCsv(SourceContract):
    """A file."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path, installed: registry.Installed) -> None:
        (tmp_path / "films.csv").write_text("id;title\n" + "".join(f"{i};Film {i}\n" for i in range(1, 8)))
        self.url = f"csv://{tmp_path}"
        self.connector = installed.connectors["csv"]

    def open_source(self) -> Source:
        assert self.connector.open_source
        return self.connector.open_source(opening_of(self.connector, "films.csv", self.url, options={"delimiter": ";"}))

    def expected(self) -> list[dict[str, Any]]:
        return [{"id": i, "title": f"Film {i}"} for i in range(1, 8)]


class TestCsvPasses(TestCsv):
    """The same, read by what is new."""

    def open_source(self) -> Source:
        assert self.connector.open_source
        opening = opening_of(self.connector, "films.csv", self.url, options={"delimiter": ";"})
        assert isinstance(opening.definition, Definition)
        passes = opening.definition.model_copy(update={"mode": "incremental", "incremental_key": "id"})
        return self.connector.open_source(replace(opening, definition=passes))

    def add_row(self) -> dict[str, Any] | None:
        file = Path(self.url.removeprefix("csv://")) / "films.csv"
        file.write_text(file.read_text() + "8;Film 8\n")
        return {"id": 8, "title": "Film 8"}


# --- a contract that cannot be broken says nothing ------------------------------------------------------------------


def shows_whatever_was_written(load: Any, fence: Any) -> Counts:
    files = [f"parts/{file.name}" for file in sorted(load.target.place.glob("parts/*.parquet"))]
    load.target.show(files, load.name)
    fence.after()
    return Counts()


def shows_again(load: Any, fence: Any) -> Counts:
    """What is in the manifest counts as not shown: rows are added to themselves, without a key to tell."""
    manifest = load.target.manifest()
    files = [*manifest.get("files", []), *load._counted(fence.found)]
    load.target.show([] if manifest.get("load") == load.name else files, load.name)
    fence.after()
    return Counts()


def shows_while_loading(load: Any, part: Any, fence: Any) -> None:
    shown = load.target.manifest().get("files", [])
    load.target.show([*shown, f"parts/{load.target.epoch}-{part.number}.parquet"], None)
    fence.after(Done(part.counts))


def shows_without_asking(target: Any, files: list[str], load: str | None) -> None:
    (target.place / "manifest.json").write_text(json.dumps({"files": files, "load": load, "key": target.key}))


def removes_nothing(load: Any, keys: Any, number: int, fence: Any) -> Counts:
    counts = Counts(deleted=len(keys))
    fence.after(Done(counts))
    return counts


def counts_first(load: Any, part: Any, fence: Any) -> None:
    """A runner that dies after the fence loses the part."""
    fence.after(Done(part.counts))
    load.target.show([*load.target.files(), f"parts/{load.target.epoch}-{part.number}.parquet"], None)


def published_first(load: Any, fence: Any) -> Counts:
    files = load._counted(fence.found)
    fence.after()
    load.target.show(files, load.name)
    return Counts()


def keeps_the_last_piece(load: Any, rows: Any, part: Any) -> Any:
    import pyarrow.parquet as pq

    pq.write_table(rows, load.target.place / f"parts/{part.epoch}-{part.number}.parquet")
    return lambda: Written(rows.num_rows)


def makes_counts_up(load: Any, fence: Any) -> Counts:
    load.target.show(load._counted(fence.found), load.name)
    fence.after(Done(Counts(inserted=1_000)))
    return Counts()


def passes_inside(load: Any, part: Any, fence: Any) -> None:
    fence.inside(object(), Done(part.counts))


def seizes_anyway(target: Any) -> None:
    (target.place / "parts").mkdir(parents=True, exist_ok=True)
    (target.place / ".lock").write_text(f"{target.epoch}")


def merges_whatever_is_there(load: Any, part: Any, fence: Any) -> None:
    files = [f"parts/{file.name}" for file in sorted(load.target.place.glob("parts/*.parquet"))]
    load.target.show(files, None)
    fence.after(Done(part.counts))


def passes_no_fence(load: Any, part: Any, fence: Any) -> None:
    """The checkpoint stays where it is."""


MUTANTS: dict[str, tuple[str, str, Callable[..., Any], str]] = {
    "uncounted": (
        "ParquetLoad",
        "publish",
        shows_whatever_was_written,
        "test_what_was_written_and_not_counted_is_not_published",
    ),
    "twice": ("ParquetLoad", "publish", shows_again, "test_a_load_that_was_published_twice_is_published_once"),
    "early": ("ParquetLoad", "commit", shows_while_loading, "test_a_load_is_seen_when_it_is_published_and_not_before"),
    "zombie": (
        "ParquetTarget",
        "show",
        shows_without_asking,
        "test_a_runner_that_was_left_behind_does_not_replace_what_came_after_it",
    ),
    "late": ("ParquetTarget", "show", shows_without_asking, "test_a_runner_that_was_left_behind_publishes_nothing"),
    "zombie merge": (
        "ParquetTarget",
        "show",
        shows_without_asking,
        "test_a_runner_that_was_left_behind_merges_nothing",
    ),
    "stays": ("ParquetLoad", "remove", removes_nothing, "test_rows_of_given_keys_are_removed"),
    "fence first": ("ParquetLoad", "commit", counts_first, "test_a_part_is_merged_before_its_fence_is_passed"),
    "publish last": (
        "ParquetLoad",
        "publish",
        published_first,
        "test_a_load_is_published_before_its_fence_is_passed",
    ),
    "last piece": ("ParquetLoad", "write", keeps_the_last_piece, "test_a_part_may_come_in_several_pieces"),
    "made up": ("ParquetLoad", "publish", makes_counts_up, "test_no_more_is_counted_than_was_written"),
    "inside": ("ParquetLoad", "commit", passes_inside, "test_a_merge_adds_and_changes_rows_part_by_part"),
    "seizes back": (
        "ParquetTarget",
        "seize",
        seizes_anyway,
        "test_a_runner_that_was_left_behind_seizes_nothing_back",
    ),
    "merges all": (
        "ParquetLoad",
        "commit",
        merges_whatever_is_there,
        "test_what_was_written_and_not_counted_is_not_merged",
    ),
    "no fence": ("ParquetLoad", "commit", passes_no_fence, "test_a_merge_adds_and_changes_rows_part_by_part"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protection_that_is_taken_away_is_noticed(
    mutant: str, tmp_path: Path, installed: registry.Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrina_parquet import target as module

    kind, method, replacement, noticed_by = MUTANTS[mutant]
    suite = TestParquet()
    suite.url, suite.folder = f"parquet://{tmp_path}", tmp_path / "films"
    suite.connector = installed.connectors["parquet"]
    monkeypatch.setattr(getattr(module, kind), method, replacement)
    # A zombie may also show files that were removed: then nobody can read at all.
    with pytest.raises((AssertionError, FileNotFoundError)):
        getattr(suite, noticed_by)()


class Doubled(TestParquet):
    """A target in which a row comes twice."""

    __test__ = False

    def visible(self) -> list[tuple[int, str]]:
        return super().visible() * 2


def test_a_row_that_is_there_twice_is_noticed(tmp_path: Path, installed: registry.Installed) -> None:
    suite = Doubled()
    suite.url, suite.folder = f"parquet://{tmp_path}", tmp_path / "films"
    suite.connector = installed.connectors["parquet"]
    with pytest.raises(AssertionError, match="rows are doubled"):
        suite.test_a_load_is_seen_when_it_is_published_and_not_before()


def marks_too_far(source: Any, last: Any) -> Marked:
    return Marked("1000")


def says_all_are_there(source: Any, names: Any, keys: Any) -> set[Any]:
    return set(keys)


def reads_all_keys(read: Any) -> Any:
    return lambda source, window, form: read(source, replace(window, keys=None), form)


SOURCE_MUTANTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "too far": ("mark", lambda _: marks_too_far, "test_passes_miss_nothing"),
    "all there": ("present", lambda _: says_all_are_there, "test_rows_of_given_keys_are_read_again"),
    "all keys": ("read", reads_all_keys, "test_rows_of_given_keys_are_read_again"),
}


@pytest.mark.parametrize("mutant", SOURCE_MUTANTS)
def test_a_source_that_breaks_a_promise_is_noticed(
    mutant: str, tmp_path: Path, installed: registry.Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrina_csv.source import CsvSource

    method, wrong, noticed_by = SOURCE_MUTANTS[mutant]
    (tmp_path / "films.csv").write_text("id;title\n" + "".join(f"{i};Film {i}\n" for i in range(1, 8)))
    suite = TestCsvPasses()
    suite.url, suite.connector = f"csv://{tmp_path}", installed.connectors["csv"]
    monkeypatch.setattr(CsvSource, method, wrong(getattr(CsvSource, method)))
    with pytest.raises(AssertionError):
        getattr(suite, noticed_by)()


class Repeats(TestCsv):
    """A source that goes on at the row it came to, instead of after it."""

    __test__ = False

    def open_source(self) -> Source:
        source: Any = super().open_source()
        read = source.read

        def again(window: Any, form: Any) -> Any:
            for batch in read(window, form):
                batch.last = (str(int(batch.last[0]) - 1),)
                yield batch

        source.read = again
        found: Source = source
        return found


def test_a_source_that_repeats_rows_is_noticed(tmp_path: Path, installed: registry.Installed) -> None:
    (tmp_path / "films.csv").write_text("id;title\n" + "".join(f"{i};Film {i}\n" for i in range(1, 8)))
    suite = Repeats()
    suite.url, suite.connector = f"csv://{tmp_path}", installed.connectors["csv"]
    with pytest.raises(AssertionError):
        suite.test_reading_goes_on_after_each_batch()


def test_a_source_does_not_lead_out_of_its_directory(tmp_path: Path, installed: registry.Installed) -> None:
    connector = installed.connectors["csv"]
    assert connector.open_source
    with pytest.raises(Exception, match="leads out of the connection's directory"):
        connector.open_source(opening_of(connector, "../secret.csv", f"csv://{tmp_path}/inner"))
