"""Open sessions that read a user's query, in which operators and types of trusted extensions are found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg.sql import Identifier

from vitrina.connectors.postgres import catalog
from vitrina.connectors.postgres.source import SqlReader
from vitrina.inside.queries import Table
from vitrina.ports.schema import Column
from vitrina.settings import Settings
from vitrina.store import database, named_sessions
from vitrina.store.database import Connection

if TYPE_CHECKING:
    import pyarrow as pa

# A user waits for a preview, or for completions of names.
WAITED_FOR_SECONDS = 30.0
_WAITED_FOR_LIMITS = {
    "lock_timeout": "5000",
    "idle_in_transaction_session_timeout": "60000",
}


class QueryReader(SqlReader):
    """Extend the reader to run reference queries of steps."""

    def look_up(self, settings: Settings, query: str) -> "pa.Table":
        # Imported here: most steps have no reference query, and it needs pyarrow.
        from vitrina.connectors.postgres import sampling

        return sampling.load_reference(self, settings, query)

    def columns_of(self, tables: Sequence[Table]) -> Mapping[Table, Sequence[Column]]:
        return catalog.columns_of(self.connection, tables)


@contextmanager
def waited_for(connection: str | None, settings: Settings, session_name: str) -> Iterator[QueryReader]:
    """Open a reader on the named connection for a caller that waits for the answer."""
    url = database.reader_url(settings, connection)
    seconds = min(WAITED_FOR_SECONDS, settings.statement_timeout_on(connection))
    limits = _WAITED_FOR_LIMITS | {"statement_timeout": str(int(seconds * 1000))} | database.READ_ONLY

    def connect(more: Mapping[str, str]) -> Connection:
        return named_sessions.connect(settings, url, connection, session_name, limits | dict(more))

    with with_extensions(settings, connect) as session:
        yield QueryReader(session, url, session_name)


def with_extensions(settings: Settings, connected: Callable[[Mapping[str, str]], Connection]) -> Connection:
    """Open a reader's session in which operators and types of trusted extensions are found in any schema.

    Only schemas in which PUBLIC cannot create objects are added to the search_path. In others, any role could create a
    function that matches a call better than the intended one. Settings are part of the login, so that a reset keeps
    them.
    """
    connection = connected({})
    schemas = catalog.schemas_of_extensions(connection, settings.extensions) if settings.extensions else []
    if not schemas:
        return connection
    connection.close()
    return connected({"search_path": ", ".join(Identifier(schema).as_string(None) for schema in schemas)})
