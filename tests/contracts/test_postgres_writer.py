"""The contract of writers, kept by `PostgresWriter`."""

from dataclasses import dataclass

import pytest

from tests.contracts.writers import SOURCE, Mart, Row, WriterContract
from tests.support.workbench import Workbench


@dataclass
class Table:
    """A mart in the platform's own database."""

    bench: Workbench
    name: str = "analytics.films"

    def rows(self) -> dict[int, Row]:
        rows = self.bench.sql(f"SELECT id, title, rating::float8 AS rating, note FROM {self.name}")
        return {row["id"]: (row["title"], row["rating"], row["note"]) for row in rows}


class TestPostgresWriter(WriterContract):
    """Into a table."""

    @pytest.fixture
    def mart(self, workbench: Workbench) -> Mart:
        workbench.source(SOURCE)
        return Mart(workbench, Table(workbench))
