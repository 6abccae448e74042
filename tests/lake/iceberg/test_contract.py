"""Iceberg tables keep the contract of targets, and each protection that is taken away is noticed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.lake.iceberg import rest_catalog
from tests.lake.iceberg.rest_catalog import TOKEN
from tests.lake.iceberg.tables import Tables, latest
from vitrina.connectors.files import load
from vitrina.connectors.files.manifest import Manifest
from vitrina.connectors.iceberg import connector, schemas
from vitrina.connectors.iceberg.ledger import Change, TableLedger
from vitrina.definition import Definition
from vitrina.errors import FatalError, VitrinaError
from vitrina.ports.target import Target
from vitrina.testing import TargetContract
from vitrina.testing.openings import opening_of

RELAXED = {"allow_empty": True, "allow_shrink": True}


def open_table(url: str, epoch: int, name: str = "marts.films", **options: Any) -> Target:
    """Open a target as a runner would, with guards against shrinking off."""
    opening = opening_of(connector, name, url, epoch=epoch, options=options)
    definition = opening.definition
    assert isinstance(definition, Definition)
    relaxed = definition.model_copy(update={"options": definition.options.model_copy(update=RELAXED)})
    assert connector.open_target
    return connector.open_target(replace(opening, definition=relaxed))


class TestIceberg(TargetContract):
    """One table, read by pyiceberg and DuckDB."""

    url: str
    opened: list[Target]

    @pytest.fixture(autouse=True)
    def _place(self, tables: Tables) -> Iterator[None]:
        self.tables, self.url, self.opened = tables, tables.url, []
        yield
        self.close()

    def close(self) -> None:
        for target in self.opened:
            target.close()

    def open_target(self, epoch: int) -> Target:
        target = open_table(self.url, epoch)
        self.opened.append(target)
        return target

    def visible(self) -> list[tuple[int, str]]:
        table = self.tables.table()
        if table is None or "id" not in table.schema().column_names:
            return []
        return [(row["id"], row["title"]) for row in latest(table.scan().to_arrow())]


class TestRest(TestIceberg):
    """The same in a REST catalog, with a folder."""

    @pytest.fixture(autouse=True)
    def _place(self, folder_tables: Tables) -> Iterator[None]:
        self.tables, self.opened = folder_tables, []
        catalog = folder_tables.catalog()
        with rest_catalog.running(catalog) as port:
            self.url = f"iceberg+http://127.0.0.1:{port}/?warehouse=file://{folder_tables.folder}&token={TOKEN}"
            yield
            self.close()
        catalog.engine.dispose()

    def test_a_login_that_is_wrong_is_said_and_not_shown(self) -> None:
        wrong = open_table(self.url.replace(TOKEN, "hush-hush"), 1)
        with pytest.raises(FatalError, match="refuses the login of the connection") as refused:
            wrong.seize()
        assert "hush" not in str(refused.value)


# --- a contract that cannot be broken says nothing ------------------------------------------------------------------


def changes_without_asking(self: TableLedger, make: Any, record: bytes = b"") -> Manifest:
    return self._change(make, record)


def requires_nothing(self: TableLedger, change: Any, summary: Any = None) -> None:
    """Let whoever comes."""


def shows_parts_at_once(self: Any, part: Any, fence: Any) -> None:
    files = tuple(file for group in self._groups for file in group.files)
    shown = replace(self._target.generation(self.name, "log"), files=files)
    self._target.ledger.change(lambda found: replace(found, shown=shown))
    fence.after()


MUTANTS: dict[str, tuple[list[tuple[Any, str, Any]], str]] = {
    "zombie": (
        [(TableLedger, "change", changes_without_asking), (TableLedger, "_fence", requires_nothing)],
        "test_a_runner_that_was_left_behind_publishes_nothing",
    ),
    "early": (
        [(load.ReplaceLoad, "commit", shows_parts_at_once)],
        "test_a_load_is_seen_when_it_is_published_and_not_before",
    ),
    "keeps what it replaces": (
        [(Change, "_shown_files", lambda self: iter(()))],
        "test_the_next_load_takes_its_place",
    ),
    "no ids": ([(schemas, "with_ids", lambda layout, schema: layout)], "test_the_next_load_takes_its_place"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_protection_that_is_taken_away_is_noticed(
    mutant: str, folder_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, noticed_by = MUTANTS[mutant]
    suite = TestIceberg()
    suite.tables, suite.url, suite.opened = folder_tables, folder_tables.url, []
    for kind, name, replacement in replaced:
        monkeypatch.setattr(kind, name, replacement)
    with pytest.raises((AssertionError, VitrinaError)):
        getattr(suite, noticed_by)()
    suite.close()
