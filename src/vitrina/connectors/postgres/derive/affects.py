"""Run a query that the author states instead of a derivation: it returns the keys that one changed row affects."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from vitrina.connectors.postgres.derive.images import Images, Row, in_columns
from vitrina.connectors.postgres.derive.statements import key_text
from vitrina.connectors.postgres.derive.tables import Table
from vitrina.errors import SourceQueryFailed
from vitrina.ports.batch import Key
from vitrina.sentences import say
from vitrina.store.database import Connection

# Also matches strings, quoted names, comments and casts, which may contain colons.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|::|:([a-z_][a-z0-9_]*)", re.DOTALL)


@dataclass(frozen=True)
class Affects:
    """Represent one statement of the author, run once for all images of changed rows."""

    table: str
    columns: tuple[str, ...]
    # FROM images and, for each, the author's query as `k`.
    source: str
    key: tuple[tuple[str, str], ...]

    @classmethod
    def made(
        cls,
        connection: Connection,
        query: str,
        key: Sequence[tuple[str, str]],
        table: Table,
        admit: Callable[[str], object] | None,
    ) -> "Affects":
        """Check the statement's parameters, that the author may run it, and that the server accepts it."""
        name = table.followed_as
        columns = tuple(dict.fromkeys(match[1] for match in _PARAMETER.finditer(query) if match[1]))
        strange = [column for column in columns if column not in table.columns]
        if strange or not columns:
            raise SourceQueryFailed(say("derive.affects_parameter", table=name, parameter=(strange or [""])[0]))
        lacking = sorted(set(columns) - table.identity)
        if lacking:
            statements = "; ".join(f"ALTER TABLE {part} REPLICA IDENTITY FULL" for part in table.without_identity)
            raise SourceQueryFailed(say("derive.no_old_values", table=name, columns=lacking, statements=statements))
        if admit is None:
            raise RuntimeError("what an author states is admitted before it runs")
        admit(_PARAMETER.sub(lambda match: f"NULL::{table.columns[match[1]].type}" if match[1] else match[0], query))
        found = cls(name, columns, _per_image(query, columns, table), tuple(key))
        found._refuse_failing(connection)
        return found

    def keys(self, session: "psycopg.Connection[Any]", images: Images) -> set[Key]:
        """Query the keys of all images at once."""
        rows = {row for age in ("old", "new") for row in images.rows(self.table, self.columns, age)}
        wanted = ", ".join(key_text(f"k{place}::{kind}", kind) for place, (_, kind) in enumerate(self.key))
        named = ", ".join(f"k{place}" for place in range(len(self.key)))
        with session.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(f"SELECT DISTINCT {wanted} {self.source}({named})".encode(), self._parameters(rows))
            return {key for key in cursor.fetchall() if None not in key}

    def _parameters(self, rows: set[Row]) -> dict[str, list[str | None]]:
        return {f"p{place}": values for place, values in enumerate(in_columns(rows, len(self.columns)))}

    def _refuse_failing(self, connection: Connection) -> None:
        """Let the server parse the statement, and count its columns."""
        try:
            with connection.transaction(force_rollback=True), connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ ONLY")
                cursor.execute(f"SELECT k.* {self.source}".encode(), self._parameters(set()))
                found = len(cursor.description or ())
                self.keys(connection, Images({}, []))
        except psycopg.Error as exc:
            said = " ".join(str(exc).split())
            raise SourceQueryFailed(say("derive.affects_failed", table=self.table, message=said)) from exc
        if found != len(self.key):
            names = [name for name, _ in self.key]
            raise SourceQueryFailed(say("derive.affects_columns", table=self.table, columns=names, count=found))


def _per_image(query: str, columns: Sequence[str], table: Table) -> str:
    """Build the FROM clause that runs the query once for each image."""

    def written(match: "re.Match[str]") -> str:
        return f"i.p{columns.index(match[1])}" if match[1] else match[0]

    # The driver interprets a single percent sign as a parameter.
    body = _PARAMETER.sub(written, query.replace("%", "%%"))
    given = ", ".join(f"%(p{place})s::text[]" for place in range(len(columns)))
    named = ", ".join(f"t{place}" for place in range(len(columns)))
    casts = ", ".join(f"t{place}::{table.columns[column].type} AS p{place}" for place, column in enumerate(columns))
    return f"FROM (SELECT {casts} FROM unnest({given}) AS u({named})) AS i CROSS JOIN LATERAL (\n{body}\n) AS k"
