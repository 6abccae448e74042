"""Select rows of a mart by key, in the text form that comparisons use for keys."""

from collections.abc import Sequence

import psycopg
from psycopg.sql import SQL, Composable, Identifier

from vitrina.connectors.postgres.compare import Field, TableSide
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.errors import TargetMismatch, VitrinaError
from vitrina.ports import types
from vitrina.ports.batch import Key
from vitrina.store import database


def have_keys(writer: PostgresWriter, keys: Sequence[Key]) -> Composable:
    """Build the condition on `q` that matches exactly these rows."""
    fields = tuple(Field(name, SQL("q.{}").format(Identifier(name)), kind_of(writer, name)) for name in writer.key)
    side = TableSide(writer.connection, SQL(""), writer.table.identifier, fields, (), translate)
    return side.has_key(keys)


def kind_of(writer: PostgresWriter, name: str) -> str:
    """Return the type in which a column of the mart is compared."""
    column = writer.table.column(name)
    if column is None:
        raise TargetMismatch(f"{writer.target} lacks the column {name!r}: run the pipeline, which adds it")
    return types.merge_type(column.base_type)


def translate(exc: psycopg.Error) -> Exception:
    try:
        database.raise_translated("comparing with the mart", exc)
    except VitrinaError as translated:
        return translated
