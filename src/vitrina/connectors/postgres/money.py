"""Check amounts of type `money`: their text depends on the locale of the session that writes or reads it."""

from collections.abc import Sequence

from vitrina.errors import TargetMismatch
from vitrina.ports.schema import Column
from vitrina.store import database
from vitrina.store.database import Connection


def refuse_unlike(source: Connection, target: Connection, columns: Sequence[Column]) -> None:
    """Refuse money between databases that write it differently.

    That happens if one of them has a number of decimal places other than two. Such a database keeps its own locale,
    because queries that cast its amounts would get other values in any other locale.
    """
    # A type of a user schema may be based on money.
    suspects = [column for column in columns if "money" in column.type or "." in column.type]
    if not suspects or (ours := _written(source)) == (theirs := _written(target)):
        return
    for column in suspects:
        if _is_made_of_money(source, column.type):
            raise TargetMismatch(
                f"the column {column.name} is of type {column.type}, and -1234.50 of type money is {ours} in the source"
                f" but {theirs} in the target's database (lc_monetary): cast it to numeric in the query"
            )


def _written(connection: Connection) -> str:
    row = database.one(connection.execute("SELECT ((-1234.50)::numeric::money)::text AS written"))
    return str(row["written"])


def _is_made_of_money(connection: Connection, kind: str) -> bool:
    row = connection.execute(
        """
        WITH RECURSIVE part (oid) AS (
            SELECT %s::pg_catalog.regtype::oid
            UNION
            SELECT unnest(ARRAY[t.typelem, t.typbasetype, a.atttypid, r.rngsubtype])
            FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid OR r.rngmultitypid = t.oid
        )
        SELECT EXISTS (SELECT FROM part WHERE oid = 'pg_catalog.money'::pg_catalog.regtype) AS found
        """,
        [kind],
    ).fetchone()
    return bool(row and row["found"])
