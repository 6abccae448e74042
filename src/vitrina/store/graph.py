"""Query what the graph shows of pipelines: a line of each, and whole definitions of those that are not known yet."""

from collections.abc import Collection, Iterator
from functools import cache
from itertools import islice
from typing import Any
from uuid import UUID

from psycopg import sql

from vitrina.store import pipelines
from vitrina.store.database import Connection

Row = dict[str, Any]

_MANY = 1_000


def list_lines(
    connection: Connection, *, name: str | None = None, after_name: str | None = None, limit: int | None = None
) -> list[Row]:
    """List pipelines by name, with a digest of what their definitions say. `name` is a part of the name."""
    wanted = [sql.SQL("strpos(lower(p.name), lower(%(name)s::text)) > 0")] if name is not None else []
    wanted += [sql.SQL("p.name > %(after)s")] if after_name is not None else []
    return connection.execute(
        sql.SQL(
            """
            SELECT p.id, p.name, p.status, p.enabled, {digest} AS digest
            FROM etl.etl_pipelines p WHERE {wanted} ORDER BY p.name LIMIT %(limit)s
            """
        ).format(digest=_digest(), wanted=sql.SQL(" AND ").join(wanted or [sql.SQL("true")])),
        {"name": name, "after": after_name, "limit": limit},
    ).fetchall()


def iterate_whole(connection: Connection, ids: Collection[UUID]) -> Iterator[Row]:
    """Yield whole rows with their digests, a part at a time: very many may be wanted after a start."""
    left = iter(ids)
    while part := list(islice(left, _MANY)):
        yield from connection.execute(
            sql.SQL("SELECT {parts}, {digest} AS digest FROM etl.etl_pipelines p WHERE p.id = ANY(%s)").format(
                parts=pipelines.WITH_PARTS, digest=_digest()
            ),
            [part],
        )


@cache
def _digest() -> sql.Composed:
    """Build the digest of a definition. A row may have been edited with psql, so its version does not tell."""
    columns = sql.SQL(", ").join(sql.Identifier("p", name) for name in pipelines.DEFINITION_COLUMNS)
    return sql.SQL("sha256(convert_to(ROW({columns}, {tasks})::text, 'UTF8'))").format(
        columns=columns, tasks=pipelines.TASKS
    )
