"""Iceberg tables keep the contract of targets, and each protection that is taken away is noticed."""

from dataclasses import replace
from typing import Any

import pytest

from tests.lake.iceberg.tables import Tables, latest
from vitrina.connectors.iceberg import connector
from vitrina.definition import Definition
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

    @pytest.fixture(autouse=True)
    def _place(self, tables: Tables) -> Any:
        self.tables = tables
        self.opened: list[Target] = []
        yield
        for target in self.opened:
            target.close()

    def open_target(self, epoch: int) -> Target:
        target = open_table(self.tables.url, epoch)
        self.opened.append(target)
        return target

    def visible(self) -> list[tuple[int, str]]:
        table = self.tables.table()
        if table is None or "id" not in table.schema().column_names:
            return []
        return [(row["id"], row["title"]) for row in latest(table.scan().to_arrow())]
