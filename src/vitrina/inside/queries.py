"""Define what a system with SQL offers besides rows for runs: previews, explanations, lists of tables."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from vitrina.definition import Definition
from vitrina.errors import ConfigError
from vitrina.ports import registry
from vitrina.ports.schema import Column
from vitrina.ports.source import Description
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store.database import Connection

if TYPE_CHECKING:
    import pyarrow as pa

Table = tuple[str, str]


class Reader(Protocol):
    """Hold a session that may only read."""

    @property
    def connection(self) -> Connection: ...

    @property
    def ends_with_run(self) -> bool:
        """Return whether the session holds state that a reset does not clear, so that no other run may reuse it."""
        ...

    def look_up(self, settings: Settings, query: str) -> "pa.Table":
        """Run a query of a step, which is checked like that of a pipeline and has the same rights."""
        ...

    def columns_of(self, tables: Sequence[Table]) -> Mapping[Table, Sequence[Column]]:
        """Return the columns of those tables that exist."""
        ...


class Queries(Protocol):
    """Answer queries; nothing is written."""

    def open_reader(
        self,
        settings: Settings,
        url: str,
        session_name: str,
        connect: Callable[[Mapping[str, str]], Connection],
    ) -> Reader:
        """Open the reader of a run, with the session settings that it needs."""
        ...

    def waited_for(
        self, connection: str | None, settings: Settings, session_name: str
    ) -> AbstractContextManager[Reader]:
        """Open a reader for a caller that waits for the answer."""
        ...

    def sample(
        self, reader: Reader, definition: Definition, judged: CheckedQuery, settings: Settings, sizes: "Sizes"
    ) -> "tuple[Description, pa.Table]":
        """Describe the result and read its first rows, in their natural types."""
        ...

    def first_rows(self, definition: Definition, judged: CheckedQuery, settings: Settings, sizes: "Sizes") -> Any:
        """Read the first rows as JSON, with their columns."""
        ...

    def explain(self, connection: str, query: str, settings: Settings) -> dict[str, Any]:
        """Describe what a query returns and how the server would run it; read nothing."""
        ...

    def list_tables(self, connection: str, settings: Settings, *, limit: int) -> list[dict[str, Any]]:
        """List what queries may read: tables of the allowed schemas that the reader may select from."""
        ...


class Sizes(Protocol):
    """Limit how much of a result is shown."""

    @property
    def rows(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...


def installed() -> Queries:
    """Return what runs SQL queries here: previews, explanations, reference queries of steps."""
    found = registry.get(registry.POSTGRES).queries
    if found is None:
        raise ConfigError("the connector for PostgreSQL answers no queries")
    answering: Queries = found()
    return answering
