"""A database of one test, and the target in it as runs of several epochs open it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tests.support.clickhouse_process import ClickHouseProcess
from vitrina.connectors.clickhouse import connector
from vitrina.connectors.clickhouse.client import Missing, Session
from vitrina.connectors.clickhouse.target import ClickHouseTarget, open_target
from vitrina.definition import Definition
from vitrina.ports.connector import Context
from vitrina.testing.openings import opening_of


@dataclass
class Place:
    """A database."""

    url: str
    database: str
    session: Session

    @classmethod
    @contextmanager
    def made(cls, server: ClickHouseProcess) -> Iterator["Place"]:
        session = Session(server.url)
        name = f"t_{secrets.token_hex(4)}"
        session.command(f"CREATE DATABASE {name} ENGINE = Atomic")
        try:
            yield cls(server.url, name, session)
        finally:
            session.command(f"DROP DATABASE {name}")
            session.close()

    def target(
        self,
        epoch: int,
        *,
        context: Context | None = None,
        clickhouse: dict[str, Any] | None = None,
        table: str = "films",
        **fields: Any,
    ) -> ClickHouseTarget:
        options = {"allow_empty": True, "allow_shrink": True} | fields.pop("options", {})
        definition = Definition.model_validate(
            {"name": "contract", "source_query": "SELECT 1", "target_table": "a.b", "target_key": ["id"]}
            | fields
            | {"options": options}
        )
        opening = opening_of(connector, f"{self.database}.{table}", self.url, epoch=epoch, options=clickhouse)
        return open_target(replace(opening, definition=definition, context=context or opening.context))

    def rows(self, columns: str = "*", table: str = "films") -> list[tuple[Any, ...]]:
        """What somebody reads who knows nothing of Vitrina."""
        return [tuple(row) for row in self.session.rows(f"SELECT {columns} FROM {self.database}.{table} ORDER BY 1")]

    def titles(self) -> dict[int, str]:
        try:
            return dict(self.rows("id, title"))
        except Missing:
            return {}

    def tables(self) -> list[str]:
        return [name for (name,) in self.session.rows(f"SHOW TABLES FROM {self.database}")]
