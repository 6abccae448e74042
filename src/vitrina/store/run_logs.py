"""Query `etl_run_logs`: the log lines of runs, bounded in number and age."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from vitrina.store import pruning
from vitrina.store.database import Connection

MAX_LINES_OF_A_RUN = 5_000


@dataclass(frozen=True)
class LogLine:
    """Hold one line. `fields` is JSON text, because it was redacted as a whole."""

    run_id: UUID
    at: datetime
    level: str
    event: str
    fields: str


def insert(connection: Connection, lines: Sequence[LogLine]) -> None:
    """Insert log lines; those of runs that were removed meanwhile are dropped."""
    connection.execute(
        """
        INSERT INTO etl.etl_run_logs (run_id, at, level, event, fields)
        SELECT l.run_id, l.at, l.level, l.event, l.fields::jsonb
        FROM unnest(%s::uuid[], %s::timestamptz[], %s::text[], %s::text[], %s::text[])
             WITH ORDINALITY AS l (run_id, at, level, event, fields, n)
        WHERE EXISTS (SELECT FROM etl.etl_runs r WHERE r.id = l.run_id)
        ORDER BY l.n
        """,
        [
            [line.run_id for line in lines],
            [line.at for line in lines],
            [line.level for line in lines],
            [line.event for line in lines],
            [line.fields for line in lines],
        ],
    )


def trim(connection: Connection, run_ids: Iterable[UUID], *, keep: int = MAX_LINES_OF_A_RUN) -> int:
    """Delete all but the newest lines of runs that have very many."""
    return sum(
        connection.execute(
            """
            DELETE FROM etl.etl_run_logs
            WHERE run_id = %(run)s
              AND id <= (SELECT id FROM etl.etl_run_logs WHERE run_id = %(run)s
                         ORDER BY id DESC OFFSET %(keep)s LIMIT 1)
            """,
            {"run": run_id, "keep": keep},
        ).rowcount
        for run_id in run_ids
    )


def list_of_run(
    connection: Connection, run_id: UUID, *, levels: Sequence[str], after_id: int, limit: int
) -> list[dict[str, Any]]:
    """List log lines of a run, oldest first, after line `after_id`."""
    return connection.execute(
        """
        SELECT id, at, level, event AS topic, fields AS payload FROM etl.etl_run_logs
        WHERE run_id = %s AND id > %s AND level = ANY(%s) ORDER BY id LIMIT %s
        """,
        [run_id, after_id, list(levels), limit],
    ).fetchall()


def prune(connection: Connection, *, older_than_days: int) -> int:
    return pruning.delete(connection, "etl_run_logs", "r.at < now() - make_interval(days => %s)", [older_than_days])
