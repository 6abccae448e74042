"""Hold a query that is open for reading: its reader, its columns and its cursor."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from vitrina.connectors.postgres.cursor import Cursor
from vitrina.connectors.postgres.provenance import Provenance
from vitrina.connectors.postgres.source import Query, SqlReader
from vitrina.definition import Definition
from vitrina.errors import FatalError
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store import database
from vitrina.store.database import Connection

Lend = Callable[[str, str | None, Mapping[str, str]], AbstractContextManager[Connection]]


class OpenedQuery:
    """Hold what is known about one pipeline's query and its reader; `QuerySource` extends it to a source."""

    def __init__(
        self,
        definition: Definition,
        settings: Settings,
        judged: CheckedQuery,
        reader: SqlReader,
        *,
        reader_url: str,
        session_name: str,
        metastore: Connection,
        found: Checkpoint,
        backfill: dict[str, Any] | None,
        lend: Lend | None = None,
    ) -> None:
        # Lends a session for a part of the run; it ends with the lease.
        self._lend = lend
        self.definition = definition
        self.settings = settings
        self.judged = judged
        self.reader = reader
        self.reader_url = reader_url
        self.session_name = session_name
        self.backfill = backfill
        self._metastore = metastore
        self._found = found
        self.result: tuple[Column, ...] = ()
        self.cursor: Cursor | None = None
        self.provenance = Provenance()
        # What the catalog said about the cursor's column when the run was planned.
        self.cursor_column: dict[str, Any] | None = None
        self.on_standby = False

    @property
    def query(self) -> Query:
        return Query(self.judged, self.cursor)

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.result}

    @cached_property
    def reads_metastore(self) -> bool:
        """Return whether the source is the metastore's own database; the reader's login may point to a copy of it."""
        if self.definition.source_connection != DEFAULT_CONNECTION:
            return False
        return database.place(self.reader.connection) == database.place(self._metastore)

    @property
    def statistics(self) -> Connection:
        """Return a session on the source's server that may see when transactions of other sessions began."""
        return self._metastore if self.reads_metastore else self.reader.connection

    @property
    def _required_cursor(self) -> Cursor:
        if self.cursor is None:
            raise FatalError(say("run.no_cursor"))
        return self.cursor

    @property
    def identity(self) -> str:
        """Identify the columns that a checkpoint's values belong to: the key's digest, a slash, the id's digest."""
        cursor = self._required_cursor
        parts = (
            self.definition.source_connection,
            cursor.key,
            cursor.family,
            cursor.zone,
            self.definition.placed_target,
        )
        return f"{_digest(*parts)}/{_digest(cursor.id, cursor.id_type)}"


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
