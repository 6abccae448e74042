"""Merge rows of stale keys into a mart: one temporary stage per session, and no catalog changes per batch."""

from collections.abc import Iterator
from dataclasses import replace

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import catalog, copy, merge
from vitrina.connectors.postgres.derive.tables import unsized
from vitrina.connectors.postgres.following import QueryMoment
from vitrina.connectors.postgres.merge import Merge
from vitrina.connectors.postgres.source import column, translate_read
from vitrina.connectors.postgres.target import PostgresWriter, null_key_error
from vitrina.errors import DuplicateKeys
from vitrina.ports.batch import Counts
from vitrina.ports.live import Stale
from vitrina.sentences import say
from vitrina.store import database
from vitrina.store.database import Connection

STAGE = Identifier("pg_temp", "vitrina_live")


class LiveStage:
    """Represent a temporary table that each COMMIT empties in place, without leaving traces in the catalog."""

    def __init__(self, connection: Connection, writer: PostgresWriter) -> None:
        self._connection = connection
        self._writer = writer
        self.is_made = False

    def make(self) -> None:
        """Create the stage once, in a separate transaction: rolling back a shared one would remove it."""
        kinds = {
            # Without the mart's collation, two keys that the mart holds for one would both be staged.
            found.name: f"{found.type} COLLATE {found.collation}" if found.collation else found.type
            for found in self._writer.table.columns
        }
        columns = [SQL("{} {}").format(Identifier(name), SQL(kinds[name])) for name in self._writer.columns]
        key = SQL(", ").join(map(Identifier, self._writer.key))
        self._connection.execute(SQL("DROP TABLE IF EXISTS {}").format(STAGE))
        self._connection.execute(
            SQL("CREATE TEMPORARY TABLE vitrina_live ({}, PRIMARY KEY ({})) ON COMMIT DELETE ROWS").format(
                SQL(", ").join(columns), key
            )
        )
        self.is_made = True

    def fill(self, moment: QueryMoment, stale: Stale) -> int:
        """Copy the rows of the stale keys from the snapshot into the stage, as COPY writes them."""
        names = [Identifier(name) for name in self._writer.columns]
        statement = SQL("COPY {} ({}) FROM STDIN").format(STAGE, SQL(", ").join(names))
        rows = 0
        try:
            with self._connection.cursor() as cursor, cursor.copy(statement) as sink:
                for piece in self._lines(moment, stale):
                    rows += len(piece)
                    sink.write(b"".join(piece))
        except psycopg.errors.NotNullViolation as exc:
            raise null_key_error(exc.diag.column_name, self._writer.target) from exc
        except psycopg.errors.UniqueViolation as exc:
            raise self._duplicate(exc) from exc
        return rows

    def _lines(self, moment: QueryMoment, stale: Stale) -> Iterator[list[copy.Line]]:
        select = moment.select([self._output(name) for name in self._writer.columns], stale)
        text = SQL("COPY ({}) TO STDOUT").format(select).as_string(moment.session)
        try:
            yield from copy.pieces(moment.session, text)
        except psycopg.Error as exc:
            raise translate_read(exc) from exc

    def _output(self, name: str) -> Composed:
        """Select the column. A real read back as text into a double would differ from a cast, so it is cast here."""
        kind = self._writer.table.column(name)
        return column(name, "double precision" if kind and kind.type == "double precision" else None)

    def _duplicate(self, exc: psycopg.errors.UniqueViolation) -> DuplicateKeys:
        example = (exc.diag.message_detail or "").partition("=")[2].rpartition(" ")[0].strip("() ")
        names = ", ".join(self._writer.key)
        return DuplicateKeys(
            say("run.key_repeated", keys=1, columns=names, example=example, target=self._writer.target)
        )

    def apply(self, stale: Stale) -> Counts:
        """Delete absent rows, update changed ones and insert new ones, in the caller's transaction."""
        merging = self._writer.merging(STAGE)
        deleted = delete_absent(self._writer, stale, merge.is_staged(merging))
        written = self._writer.write_states(merging) if self._writer.keeps_history else self._write(merging)
        return replace(written, deleted=deleted)

    def _write(self, merging: Merge) -> Counts:
        update = merge.update_staged(merging)
        updated = self._connection.execute(update).rowcount if update else 0
        inserted = self._connection.execute(merge.insert_staged(merging)).rowcount
        return Counts(inserted=inserted, updated=updated)


def delete_absent(writer: PostgresWriter, stale: Stale, is_present: Composable) -> int:
    """Delete the rows of stale keys for which the condition on the alias `q` is not true."""
    if not stale.keys:
        return 0
    same = SQL(" AND ").join(writer.table.same(name, "q", "a") for name in stale.columns)
    is_asked = SQL("EXISTS (SELECT FROM {} AS a WHERE {})").format(_keys_as_rows(writer, stale), same)
    return writer.delete_rows(SQL("{} AND NOT {}").format(is_asked, is_present))


def _keys_as_rows(writer: PostgresWriter, stale: Stale) -> Composed:
    """Build a FROM item with the stale keys in the mart's types."""
    # A value that no key can have must neither fail nor be truncated to one that exists.
    kinds = {found.name: unsized(found.base_type) for found in writer.table.columns}
    names = [Identifier(name) for name in stale.columns]
    typed = [SQL("u.{0}::{1} AS {0}").format(Identifier(name), SQL(kinds[name])) for name in stale.columns]
    arrays = [
        SQL("{}::text[]").format(Literal(database.text_array(values))) for values in zip(*stale.keys, strict=True)
    ]
    return SQL("(SELECT DISTINCT {} FROM unnest({}) AS u({}))").format(
        SQL(", ").join(typed), SQL(", ").join(arrays), SQL(", ").join(names)
    )


def is_rewritten(connection: Connection, writer: PostgresWriter) -> bool:
    """Return whether the mart was truncated or recreated since it was prepared."""
    return catalog.files_of(connection, writer.target) != writer.table.files
