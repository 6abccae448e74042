"""Recompute the rows of a Python source next to the mart, for comparisons that cannot query the source again."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from uuid import UUID, uuid4

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres.stage import BATCH, SCHEMA, Stage, Turns
from vitrina.connectors.postgres.stream import Stager
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.errors import Conflict
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Looked
from vitrina.store import database
from vitrina.store.database import Connection


@contextmanager
def staged(writer: PostgresWriter, url: str, looked: Looked, found: Checkpoint) -> Iterator[tuple[Connection, Stage]]:
    """Write the rows into a separate table, dropped with the block. `IS_IN_FLIGHT` refers to its rows."""
    name = f"r_{looked.pipeline_id.hex}_{uuid4().hex[:12]}"
    stage = writer.stage(name, dict(looked.arrives_as or {}))
    session = f"vitrina:reconcile:{looked.pipeline_id}"
    with database.connect(url, session) as connection:
        _drop_leftovers(connection, looked.pipeline_id)
        connection.execute(stage.creation(fillable_by=None))
        try:
            with closing(Stager(url, session, Turns(stage), epoch=0, target=writer.target)) as stager:
                for number, (table, in_flight) in enumerate(looked.rows(found, in_order=True), 1):
                    stager.stage(table, 2 * number + in_flight)
            stage.analyze(connection)
            yield connection, stage
        finally:
            stage.drop(connection)


# In-flight rows are staged in odd batches.
IS_IN_FLIGHT = SQL("q.{} % 2 = 1").format(Identifier(BATCH))
# A later batch overwrites an earlier one; within a batch, a key may occur only once.
LATEST = (SQL("q.{}").format(Identifier(BATCH)),)


def _drop_leftovers(connection: Connection, pipeline_id: UUID) -> None:
    """Remove tables of a reconciliation whose runner died; the lock shows that no other one is running."""
    row = connection.execute(
        "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0)) AS ours",
        [f"vitrina:reconcile:{pipeline_id}"],
    ).fetchone()
    if not (row and row["ours"]):
        raise Conflict("another reconciliation of this pipeline is running: wait for its report")
    found = connection.execute(
        """
        SELECT c.relname AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND starts_with(c.relname, %s)
        """,
        [SCHEMA, f"r_{pipeline_id.hex}_"],
    ).fetchall()
    for left in found:
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(SCHEMA, left["name"])))
