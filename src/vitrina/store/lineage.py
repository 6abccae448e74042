"""Query `etl_lineage_begun`: runs whose start was reported to a catalogue, and whose end was not yet."""

from typing import Any
from uuid import UUID

from vitrina.store.database import Connection

Row = dict[str, Any]

# The end of a run is not reported to a catalogue that was unreachable for this long.
FORGET_AFTER_HOURS = 24


def note_begun(connection: Connection, run_id: UUID | str) -> None:
    connection.execute(
        """
        INSERT INTO etl.etl_lineage_begun (run_id) SELECT r.id FROM etl.etl_runs r WHERE r.id = %s
        ON CONFLICT DO NOTHING
        """,
        [run_id],
    )


def take_end(connection: Connection, run_id: UUID | str) -> bool:
    """Return whether the end of the run is still to be reported. If so, the caller has to report it."""
    deleted = connection.execute("DELETE FROM etl.etl_lineage_begun WHERE run_id = %s", [run_id])
    return deleted.rowcount == 1


def take_left_behind(connection: Connection, *, after_seconds: float, limit: int) -> list[Row]:
    """Take runs that have ended without a report by their runner. The caller has to report them.

    A runner that lost its lease is not waited for: the run was taken from it because it was silent.
    """
    forget_old(connection)
    return connection.execute(
        """
        WITH over AS (
            SELECT b.run_id FROM etl.etl_lineage_begun b JOIN etl.etl_runs r ON r.id = b.run_id
            WHERE r.status <> 'RUNNING'
              AND (r.error_code IN ('lease_lost', 'too_many_losses')
                   OR r.finished_at < clock_timestamp() - make_interval(secs => %s))
            ORDER BY r.finished_at LIMIT %s
            FOR UPDATE OF b SKIP LOCKED
        ), taken AS (
            DELETE FROM etl.etl_lineage_begun b USING over WHERE b.run_id = over.run_id RETURNING b.run_id
        )
        SELECT r.id AS run_id, r.pipeline_id, r.pipeline_version, r.epoch, r.status, r.error_code, r.error_message,
               r.rows_read, r.rows_written, r.metrics, r.finished_at
        FROM taken JOIN etl.etl_runs r ON r.id = taken.run_id ORDER BY r.finished_at
        """,
        [after_seconds, limit],
    ).fetchall()


def forget_old(connection: Connection) -> int:
    return connection.execute(
        """
        DELETE FROM etl.etl_lineage_begun b USING etl.etl_runs r
        WHERE r.id = b.run_id AND r.finished_at < clock_timestamp() - make_interval(hours => %s)
        """,
        [FORGET_AFTER_HOURS],
    ).rowcount
