"""Detect whether a mart is still the table that a pipeline filled.

TRUNCATE and recreating the table change the oid or the file. A file also changes for harmless reasons (VACUUM FULL,
CLUSTER, pg_repack, ALTER TABLE). In that case the rows decide: an older copy lacks the rows that were written last.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import psycopg
from psycopg.rows import DictRow
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import catalog
from vitrina.connectors.postgres.catalog import Table
from vitrina.store.database import Connection
from vitrina.targets import PostgresTarget

# How many rows of the latest non-empty batch are remembered.
WITNESSES = 2


def remember(table: Table, rows: int, before: dict[str, Any] | None) -> dict[str, Any]:
    """Describe the table for the checkpoint if nothing was written: its files hold at least `rows` rows."""
    known = before or {"key": [], "columns": [], "witnesses": []}
    return known | {"name": f"{table.schema}.{table.name}", "files": table.files, "rows": rows}


def followed(table: Table) -> dict[str, Any]:
    """Describe the mart after a batch of a live run. Another file means another table, which a full load corrects."""
    return remember(table, 0, None) | {"followed": True}


def witnesses(
    connection: Connection, table: Table, key: Sequence[str], columns: Sequence[str], written: Composable
) -> dict[str, Any]:
    """Sample the rows that a merge wrote: those that match the condition on the alias `t`."""
    rows = connection.execute(
        SQL(
            "SELECT {key} AS key, {digest} AS digest, ARRAY[{values}] AS values FROM {table} AS t WHERE {written}"
            " LIMIT {limit}"
        ).format(
            key=_as_text(key),
            values=SQL(", ").join(SQL("t.{}::pg_catalog.text").format(Identifier(name)) for name in key),
            digest=_digest(columns),
            table=table.identifier,
            written=written,
            limit=Literal(WITNESSES),
        )
    ).fetchall()
    types = {column.name: column.type for column in table.columns}
    return {
        "key": list(key),
        "key_types": [types[name] for name in key],
        "columns": list(columns),
        "witnesses": [[row["key"], row["digest"], row["values"]] for row in rows],
    }


def is_same(connection: Connection, target: PostgresTarget, known: dict[str, Any]) -> bool:
    """Return whether the table of that name holds what was remembered of it."""
    files = catalog.files_of(connection, target)
    if known.get("followed"):
        return bool(files == known["files"])
    if files == known["files"]:
        return _has_one(connection, target, known)
    if files.partition(",")[0] != known["files"].partition(",")[0]:
        return False
    row = _ask(connection, known, lambda is_row: _count_known(target, known, is_row))
    return row is not None and row["rows"] >= known["rows"] and row["witnesses"] == len(known["witnesses"])


def shows_rows(known: dict[str, Any]) -> bool:
    """Return whether a table that is the same has rows: there are some that are looked for."""
    rows = [values for _, _, *more in known["witnesses"] for values in more if None not in values]
    return bool(rows) and len(rows) == len(known["witnesses"]) and not known.get("followed")


def _has_one(connection: Connection, target: PostgresTarget, known: dict[str, Any]) -> bool:
    """Return whether one of the rows written last still exists, whatever its other columns contain now.

    DELETE, and a crash that empties an unlogged table, do not change the file. If another pipeline refills the shared
    mart first, its remaining pipelines have no other sign.
    """
    if not shows_rows(known):
        return True  # there is nothing to look for
    row = _ask(connection, known, lambda is_row: _count_one(target, known, is_row))
    return row is not None and row["found"]


# Builds the condition that a row of the table is a remembered one.
IsRow = Callable[[Sequence[Any]], Composed]


def _ask(connection: Connection, known: dict[str, Any], query: Callable[[IsRow], Composed]) -> DictRow | None:
    """Look for remembered rows by the types of their keys. Return None if the table lacks a column.

    Since they were remembered, a column may have received another type, a type another name or labels, or a domain a
    condition that a key violates. The keys are then compared as text, for which every row is written as text.
    """
    own = catalog.equalities(connection, known.get("key_types", ()))
    in_transaction = connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    try:
        with connection.transaction() if in_transaction else nullcontext():
            return connection.execute(query(lambda witness: _has_key(known, witness, own))).fetchone()
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.errors.CheckViolation):
        pass  # a column that is missing is met again
    try:
        return connection.execute(query(lambda witness: _has_text(known, witness))).fetchone()
    except psycopg.errors.UndefinedColumn:
        return None


def _count_one(target: PostgresTarget, known: dict[str, Any], is_row: IsRow) -> Composed:
    # Not EXISTS: if a key may have many rows, the planner would scan the table, expecting to find one soon.
    return SQL("SELECT count(*) > 0 AS found FROM {} AS t WHERE {}").format(
        Identifier(target.schema, target.table), SQL(" OR ").join(map(is_row, known["witnesses"]))
    )


def _count_known(target: PostgresTarget, known: dict[str, Any], is_row: IsRow) -> Composed:
    """Count rows and witnesses in one read of the table, which happens once for each change of its file."""
    found = [
        # By the type first: writing the key of each row as text costs five times as much.
        SQL("CASE WHEN {} AND {} THEN {} = {} ELSE false END").format(
            is_row(witness), _has_text(known, witness), _digest(known["columns"]), Literal(witness[1])
        )
        for witness in known["witnesses"]
    ]
    return SQL("SELECT count(*) AS rows, count(*) FILTER (WHERE {found}) AS witnesses FROM {table} AS t").format(
        found=SQL(" OR ").join(found) if found else Literal(False), table=Identifier(target.schema, target.table)
    )


def _has_key(known: dict[str, Any], witness: Sequence[Any], own: Mapping[str, str]) -> Composed:
    """Compare keys by their types' own operators; as text if a value is NULL, or was not remembered."""
    values = witness[2] if len(witness) > 2 else [None]
    if None in values:
        return _has_text(known, witness)
    parts = (
        SQL("t.{} {} {}::{}").format(Identifier(name), SQL(own.get(kind, "=")), Literal(value), SQL(kind))
        for name, value, kind in zip(known["key"], values, known["key_types"], strict=True)
    )
    return SQL("({})").format(SQL(" AND ").join(parts))


def _has_text(known: dict[str, Any], witness: Sequence[Any]) -> Composed:
    return SQL("{} = {}").format(_as_text(known["key"]), Literal(witness[0]))


def _digest(columns: Sequence[str]) -> Composed:
    return SQL("pg_catalog.hashtextextended({}, 0)").format(_as_text(columns))


def _as_text(columns: Sequence[str]) -> Composed:
    names = SQL(", ").join(SQL("t.{}").format(Identifier(name)) for name in columns)
    return SQL("ROW({})::pg_catalog.text").format(names)
