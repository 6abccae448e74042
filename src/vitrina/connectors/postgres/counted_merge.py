"""Merge in one statement, and count how many rows it inserted and updated.

From PostgreSQL 17 on, MERGE returns what it did with each row. Before, the session's own statistics tell it: they count
every row that a statement writes, at once and exactly.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres import merge
from vitrina.connectors.postgres.catalog import Table
from vitrina.connectors.postgres.merge import Merge
from vitrina.errors import TransientError
from vitrina.ports.batch import Counts
from vitrina.store import database
from vitrina.store.database import Connection

SAMPLED = 2
# What the server says to a repeated key: two updates of a row, or two new rows; the last is that of temporal keys.
REPEATED = (
    psycopg.errors.CardinalityViolation,
    psycopg.errors.UniqueViolation,
    psycopg.errors.ExclusionViolation,
)


class Merged(NamedTuple):
    """Hold what a merge did, and the positions of some rows that it wrote."""

    counts: Counts
    places: list[str]


def upsert(connection: Connection, merging: Merge) -> Merged | None:
    """Merge into a target without other keys. Return None if this server cannot count what a MERGE does there."""
    return _upsert(connection, merging, SQL(""))


def _upsert(connection: Connection, merging: Merge, first: Composable) -> Merged | None:
    """Merge after a statement that is sent together with the next one."""
    if connection.info.server_version >= merge.COUNTS_MERGED_ROWS:
        return _merged(database.last_row(connection.execute(first + merge.counted_upsert(merging))))
    before = database.last_row(connection.execute(first + _counts_of_session(merging)))
    if not before["are_kept"]:
        return None
    rows = connection.execute(merge.upsert(merging)).rowcount
    after = database.one(connection.execute(_counts_of_session(merging)))
    done = Counts(inserted=after["inserted"] - before["inserted"], updated=after["updated"] - before["updated"])
    if done.inserted + done.updated != rows:
        raise TransientError(f"{rows} rows were merged, and the session's statistics count {done}")
    return Merged(done, _written(connection, merging) if rows else [])


def notices_repeats(target: Table) -> bool:
    """Return whether a merge that writes a row twice fails at once."""
    # A key may be in a table and in its child: one staged row then updates two.
    return target.has_one_key and target.refuses_repeats and not target.has_children


def try_upsert(connection: Connection, merging: Merge) -> Merged | None:
    """Merge after a savepoint, for a target that notices repeats. The caller keeps the rows or takes them back.

    Return None, with nothing written, if this server cannot count what a MERGE does there.
    """
    return _upsert(connection, merging, SQL("SAVEPOINT {}; ").format(_TRIAL))


def keep(connection: Connection) -> None:
    connection.execute(SQL("RELEASE SAVEPOINT {}").format(_TRIAL))


def take_back(connection: Connection) -> None:
    connection.execute(SQL("ROLLBACK TO SAVEPOINT {0}; RELEASE SAVEPOINT {0}").format(_TRIAL))


_TRIAL = Identifier("vitrina_upsert")


def _merged(row: Mapping[str, Any]) -> Merged:
    return Merged(Counts(inserted=row["inserted"], updated=row["updated"]), [at for at in row["places"] if at])


def _counts_of_session(merging: Merge) -> Composed:
    """Count what this session has written. Triggers may write to the target too; rows of children count as theirs."""
    return SQL(
        """
        SELECT pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid) AS inserted,
               pg_catalog.pg_stat_get_xact_tuples_updated(c.oid) AS updated,
               current_setting('track_counts')::boolean AND NOT c.relhastriggers
                   AND NOT c.relhassubclass AS are_kept
        FROM pg_catalog.pg_class AS c WHERE c.oid = {}
        """
    ).format(Literal(merging.target.oid))


def _written(connection: Connection, merging: Merge) -> list[str]:
    """Find rows that this transaction wrote. Most staged rows are such rows, so the first ones are found soon.

    A savepoint has a number of its own, which is later than the transaction's: the age of both is at most 0. A row that
    another session has written since then serves as well, because almost all older copies of the mart lack it too.
    Numbers are reused: the age of a row that was written two billion transactions ago is far below 0.
    """
    found = connection.execute(
        SQL(
            "SELECT t.ctid AS place FROM {} AS s JOIN {} AS t ON {}"
            " WHERE pg_catalog.age(t.xmin) BETWEEN -1000000 AND 0 LIMIT {}"
        ).format(merging.staged, merging.target.identifier, merge.same_key(merging), Literal(SAMPLED))
    ).fetchall()
    return [row["place"] for row in found]
