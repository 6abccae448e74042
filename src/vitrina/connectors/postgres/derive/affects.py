"""What the author states instead of a derivation: a query that gives the keys which one changed row affects."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from vitrina.connectors.postgres.derive.tables import Table
from vitrina.errors import SourceQueryFailed
from vitrina.ports.batch import Key
from vitrina.ports.live import Change
from vitrina.sentences import say
from vitrina.store.database import Connection

# Strings, quoted names, comments and casts have colons of their own.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|::|:([a-z_][a-z0-9_]*)")


@dataclass(frozen=True)
class Affects:
    """One statement of the author, asked once for all images of changed rows."""

    table: str
    columns: tuple[str, ...]
    text: str

    @classmethod
    def made(
        cls,
        connection: Connection,
        query: str,
        key: Sequence[tuple[str, str]],
        table: Table,
        admit: Callable[[str], object] | None,
    ) -> "Affects":
        """Check the statement's parameters, that the author may run it, and that the server takes it."""
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
        found = cls(name, columns, _per_image(query, columns, key, table))
        found._refuse_failing(connection)
        return found

    def keys(self, session: "psycopg.Connection[Any]", changes: Sequence[Change]) -> set[Key]:
        images = {self._values(image) for change in changes for image in (change.old, change.new) if image}
        return self._asked(session, list(images))

    def _asked(self, session: "psycopg.Connection[Any]", images: Sequence[tuple[str | None, ...]]) -> set[Key]:
        arrays = list(zip(*images, strict=True)) or [() for _ in self.columns]
        with session.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(self.text.encode(), {f"p{n}": list(values) for n, values in enumerate(arrays)})
            return {key for key in cursor.fetchall() if None not in key}

    def _values(self, image: Mapping[str, str | None]) -> tuple[str | None, ...]:
        return tuple(image.get(column) for column in self.columns)

    def _refuse_failing(self, connection: Connection) -> None:
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("SET TRANSACTION READ ONLY")
                self._asked(connection, [])
        except psycopg.Error as exc:
            said = " ".join(str(exc).split())
            raise SourceQueryFailed(say("derive.affects_failed", table=self.table, message=said)) from exc


def _per_image(query: str, columns: Sequence[str], key: Sequence[tuple[str, str]], table: Table) -> str:
    """Ask the query for each image; its columns are the key's, in that order."""

    def written(match: "re.Match[str]") -> str:
        return f"i.p{columns.index(match[1])}" if match[1] else match[0].replace("%", "%%")

    body = _PARAMETER.sub(written, query)
    given = ", ".join(f"%(p{place})s::text[]" for place in range(len(columns)))
    named = ", ".join(f"t{place}" for place in range(len(columns)))
    casts = ", ".join(f"t{place}::{table.columns[column].type} AS p{place}" for place, column in enumerate(columns))
    wanted = ", ".join(f"k{place}::{kind}::text" for place, (_, kind) in enumerate(key))
    keys = ", ".join(f"k{place}" for place in range(len(key)))
    return (
        f"SELECT DISTINCT {wanted} FROM (SELECT {casts} FROM unnest({given}) AS u({named})) AS i"
        f" CROSS JOIN LATERAL (\n{body}\n) AS k({keys})"
    )
