"""Inspect queries without running them in full: previews, explanations, look-ups of steps, lists of tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Literal

from vitrina import explain as plans
from vitrina import sqlguard
from vitrina.connectors.postgres import catalog, plan_check, sessions
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.sessions import QueryReader
from vitrina.connectors.postgres.source import Bounds, Query
from vitrina.definition import Definition
from vitrina.errors import SourceQueryFailed
from vitrina.inside.queries import Reader, Sizes
from vitrina.ports.schema import Column
from vitrina.ports.source import Description
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store.database import Connection

if TYPE_CHECKING:
    import pyarrow as pa

# Large rows reveal no more about a plan than others.
_PROBE_BYTES = 16 << 20


def open_reader(
    settings: Settings, url: str, session_name: str, connect: Callable[[Mapping[str, str]], Connection]
) -> QueryReader:
    return QueryReader(sessions.with_extensions(settings, connect), url, session_name)


waited_for = sessions.waited_for


def sample(
    reader: Reader, definition: Definition, judged: CheckedQuery, settings: Settings, sizes: Sizes
) -> "tuple[Description, pa.Table]":
    # Imported here: previews of plain queries do not need pyarrow, whose import takes half a second.
    from vitrina.connectors.postgres import sampling
    from vitrina.transforms.outputs import outputs

    if not isinstance(reader, QueryReader):
        raise TypeError(f"a query is read by a session of Postgres, not by {reader}")
    result = reader.describe(judged)
    query = _query(definition, judged, result)
    probe = sampling.sample_of(query, limit=1, largest=_PROBE_BYTES)
    plan_check.admit(reader, query, settings, statement=probe)
    rows = sampling.read_first(reader, query, outputs(result), sizes.rows, sizes.max_bytes)
    return Description(tuple(result), stamps=judged.volatile_columns), rows


def first_rows(definition: Definition, judged: CheckedQuery, settings: Settings, sizes: Sizes) -> dict[str, Any]:
    session_name = f"vitrina:preview:{definition.name}"
    with waited_for(definition.source_connection, settings, session_name) as reader:
        columns = reader.describe(judged)
        query = _query(definition, judged, columns)
        plan_check.admit(reader, query, settings)
        head, source = query.wrapped(Bounds())
        # The server checks the length: rows that are fetched must be held in memory and stored as a whole.
        texts = reader.value(
            SQL(
                "{} SELECT CASE WHEN coalesce(sum(length(shown.row)), 0) <= {}"
                " THEN coalesce(array_agg(shown.row), ARRAY[]::text[]) END FROM ("
                "SELECT to_jsonb(q.*)::text AS row FROM (SELECT * FROM {} AS r LIMIT {}) AS q"
                ") AS shown"
            ).format(head, Literal(sizes.max_bytes), source, Literal(sizes.rows))
        )
    if texts is None:
        raise SourceQueryFailed(say("run.preview_too_large", rows=sizes.rows, size=sizes.max_bytes >> 20))
    # Row by row: parsing JSON holds the interpreter lock, and a heartbeat may be due.
    rows = [json.loads(text) for text in texts]
    return {"columns": _shown(columns), "rows": rows}


def _query(definition: Definition, judged: CheckedQuery, columns: Sequence[Column]) -> Query:
    types = {column.name: column.type for column in columns}
    return Query(judged, cursors.cursor_of(definition, types) if definition.mode == "incremental" else None)


def _shown(columns: Sequence[Column]) -> list[dict[str, str]]:
    return [{"name": column.name, "type": column.type} for column in columns]


def explain(connection: str, query: str, settings: Settings) -> dict[str, Any]:
    judged = sqlguard.check(query, settings.sql_policy)
    with waited_for(connection, settings, "vitrina:explain") as reader:
        columns = reader.describe(judged)
        admitted = plan_check.admit(reader, Query(judged, None), settings)
    return {"columns": _shown(columns), "explain": plans.outline(admitted.plan)}


def list_tables(connection: str, settings: Settings, *, limit: int) -> list[dict[str, Any]]:
    with waited_for(connection, settings, "vitrina:tables") as reader:
        return catalog.list_readable(reader.connection, sorted(settings.source_schemas), limit=limit)
