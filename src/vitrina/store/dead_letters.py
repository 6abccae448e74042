"""Query `etl_dead_letters`: documents that a target refused, and rows that a step failed on."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.sql import SQL

from vitrina import deep_json
from vitrina.ports.batch import DeadLetter
from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Row = dict[str, Any]

LONGEST_ERROR = 4_000
# Maximum nesting of objects and lists that a dead letter shows as JSON.
DEEPEST = 200
# `sent`: sent again and accepted. `gone`: the source no longer has the row. `superseded`: refused again for another
# reason, which has a separate dead letter. `rebuilt`: a later full load contains the row. `delivered`: a later run of
# the pipeline delivered it, because the row changed.
Resolution = Literal["sent", "gone", "superseded", "rebuilt", "delivered"]


# What dead letters of one cause have in common: their errors without the quoted values and numbers.
_REASON = SQL(
    """
    regexp_replace(regexp_replace(d.error, '''[^'']*''|"[^"]*"', '…', 'g'), '[0-9]+', '#', 'g')
    """
)


def list_page(
    connection: Connection,
    *,
    pipeline_id: UUID | None,
    resolved: bool,
    reason: str | None = None,
    before_id: int | None,
    limit: int,
) -> list[Row]:
    """List dead letters, newest first; `reason` narrows the list to one group."""
    return connection.execute(
        SQL(
            """
            SELECT d.*, p.name AS pipeline
            FROM etl.etl_dead_letters d JOIN etl.etl_pipelines p ON p.id = d.pipeline_id
            WHERE (%(pipeline)s::uuid IS NULL OR d.pipeline_id = %(pipeline)s)
              AND (d.resolved_at IS NOT NULL) = %(resolved)s
              AND (%(reason)s::text IS NULL OR {reason} = %(reason)s)
              AND (%(before)s::bigint IS NULL OR d.id < %(before)s)
            ORDER BY d.id DESC LIMIT %(limit)s
            """
        ).format(reason=_REASON),
        {"pipeline": pipeline_id, "resolved": resolved, "reason": reason, "before": before_id, "limit": limit},
    ).fetchall()


def list_groups(connection: Connection, *, pipeline_id: UUID | None, resolved: bool, limit: int) -> list[Row]:
    """Group dead letters by pipeline and reason, the largest group first."""
    return connection.execute(
        SQL(
            """
            SELECT p.name AS pipeline, d.pipeline_id, {reason} AS reason, count(*) AS letters,
                   min(d.created_at) AS first_at, max(d.created_at) AS last_at,
                   (array_agg(d.error ORDER BY d.id DESC))[1] AS error
            FROM etl.etl_dead_letters d JOIN etl.etl_pipelines p ON p.id = d.pipeline_id
            WHERE (%(pipeline)s::uuid IS NULL OR d.pipeline_id = %(pipeline)s)
              AND (d.resolved_at IS NOT NULL) = %(resolved)s
            GROUP BY p.name, d.pipeline_id, {reason}
            ORDER BY count(*) DESC, max(d.id) DESC LIMIT %(limit)s
            """
        ).format(reason=_REASON),
        {"pipeline": pipeline_id, "resolved": resolved, "limit": limit},
    ).fetchall()


def list_open(
    connection: Connection, pipeline_id: UUID, *, numbers: Sequence[int] | None = None, limit: int | None = None
) -> list[Row]:
    """List open dead letters of a pipeline, oldest first; `numbers` narrows the list to some of them."""
    return connection.execute(
        """
        SELECT * FROM etl.etl_dead_letters
        WHERE pipeline_id = %(pipeline)s AND resolved_at IS NULL
          AND (%(numbers)s::bigint[] IS NULL OR id = ANY(%(numbers)s))
        ORDER BY id LIMIT %(limit)s
        """,
        {"pipeline": pipeline_id, "numbers": list(numbers) if numbers is not None else None, "limit": limit},
    ).fetchall()


def count_open(connection: Connection, pipeline_id: UUID, *, since: datetime | None = None) -> int:
    row = connection.execute(
        """
        SELECT count(*) AS letters FROM etl.etl_dead_letters
        WHERE pipeline_id = %(pipeline)s AND resolved_at IS NULL
          AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
        """,
        {"pipeline": pipeline_id, "since": since},
    ).fetchone()
    return int(row["letters"]) if row else 0


def open_ids(connection: Connection, pipeline_id: UUID) -> set[str]:
    """Return the ids of the rows and documents that open dead letters are about."""
    rows = connection.execute(
        "SELECT DISTINCT document_id FROM etl.etl_dead_letters WHERE pipeline_id = %s AND resolved_at IS NULL",
        [pipeline_id],
    ).fetchall()
    return {row["document_id"] for row in rows}


def record(connection: Connection, pipeline_id: UUID, run_id: UUID, letters: Sequence[DeadLetter]) -> None:
    """Store one open dead letter for each document and reason; a run that rejects the document again renews it."""
    rows = [
        {
            "pipeline": pipeline_id,
            "run": run_id,
            "id": letter.document_id,
            "error": storable_reason(letter.error),
            "reason": without_numbers(storable_reason(letter.error)),
            "document": json.dumps(letter.document) if _is_deep(letter.document) else letter.document,
        }
        for letter in letters
    ]
    try:
        _keep(connection, rows)
    except _NO_JSONB:
        for row in rows:
            _keep_with_fallbacks(connection, row)


# jsonb cannot store the character 0, a lone surrogate, very long numbers, and very deep nesting.
_NO_JSONB = (psycopg.DataError, psycopg.errors.StatementTooComplex)


def _keep_with_fallbacks(connection: Connection, row: Row) -> None:
    try:
        _keep(connection, [row])
    except _NO_JSONB:
        _keep(connection, [row | {"document": json.dumps(row["document"])}])  # its JSON, as one text


def _keep(connection: Connection, rows: Sequence[Row]) -> None:
    """Store all of the dead letters or none."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(
            """
            WITH renewed AS (
                UPDATE etl.etl_dead_letters
                SET run_id = %(run)s, error = %(error)s, document = %(document)s::jsonb, created_at = clock_timestamp()
                WHERE pipeline_id = %(pipeline)s AND document_id = %(id)s AND resolved_at IS NULL
                  AND regexp_replace(error, '[0-9]+', '#', 'g') = %(reason)s
                  -- Rows without a key are told apart by what they hold.
                  AND (document_id <> '' OR document = %(document)s::jsonb)
                RETURNING id)
            INSERT INTO etl.etl_dead_letters (pipeline_id, run_id, document_id, error, document)
            SELECT %(pipeline)s, %(run)s, %(id)s, %(error)s, %(document)s::jsonb WHERE NOT EXISTS (SELECT FROM renewed)
            """,
            rows,
        )


def storable_reason(error: str) -> str:
    """Shorten a reason, which may quote a whole value, and escape what Postgres's text cannot store."""
    shown = error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]}..."
    return shown.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()


def without_numbers(error: str) -> str:
    """Replace numbers in a reason, so that two reasons count as one: positions and sizes change when the row does."""
    return re.sub("[0-9]+", "#", error)


def as_kept(document: str) -> Any:
    """Return the document in the form in which it is read from its dead letter."""
    return document if _is_deep(document) else json.loads(document)


def _is_deep(document: str) -> bool:
    """Return whether a reader of the dead letter would run out of stack, although Postgres accepts the document."""
    return deep_json.is_deeper(document, DEEPEST)


def resolve(connection: Connection, numbers: Sequence[int], how: Resolution) -> None:
    """Close dead letters and record how they were resolved; they are not deleted."""
    connection.execute(
        """
        UPDATE etl.etl_dead_letters SET resolved_at = clock_timestamp(), resolution = %s
        WHERE id = ANY(%s) AND resolved_at IS NULL
        """,
        [how, list(numbers)],
    )


def resolve_rebuilt(connection: Connection, pipeline_id: UUID, *, before: datetime) -> None:
    """Close dead letters older than a full load: the load has written their rows, or has rejected them again."""
    _RESOLVE_REBUILT.execute(connection, [pipeline_id, before])


_RESOLVE_REBUILT = Statement(
    b"""
    UPDATE etl.etl_dead_letters SET resolved_at = clock_timestamp(), resolution = 'rebuilt'
    WHERE pipeline_id = %s AND resolved_at IS NULL AND created_at < %s
    """
)


def resolve_delivered(connection: Connection, pipeline_id: UUID, document_ids: Iterable[str]) -> None:
    """Close dead letters of rows that a later batch has delivered."""
    connection.execute(
        """
        UPDATE etl.etl_dead_letters SET resolved_at = clock_timestamp(), resolution = 'delivered'
        WHERE pipeline_id = %s AND resolved_at IS NULL AND document_id = ANY(%s)
        """,
        [pipeline_id, sorted(document_ids)],
    )
