"""Describe PostgreSQL as source and target. Drivers are imported where they are used."""

from typing import TYPE_CHECKING

from vitrina import dsn
from vitrina.ports.connector import Connector, Opening

if TYPE_CHECKING:
    from vitrina.inside.queries import Queries
    from vitrina.ports.live import Feeds
    from vitrina.ports.source import Source
    from vitrina.ports.target import Target

# A source has one session for statements and one that streams; a target has one that merges and one that fills stages.
SESSIONS_OF_A_SIDE = 2


def _kept_url_problem(url: str) -> str | None:
    from vitrina.store import kept_connections

    return kept_connections.postgres_problem(url)


def _open_source(opening: Opening) -> "Source":
    from vitrina.connectors.postgres.opening import open_source

    return open_source(opening)


def _open_target(opening: Opening) -> "Target":
    from vitrina.connectors.postgres.opening import open_target

    return open_target(opening)


def _queries() -> "Queries":
    from vitrina.connectors.postgres import queries

    return queries


def _feeds() -> "Feeds":
    from vitrina.connectors.postgres import feeds

    return feeds


def _dataset(url: str | None, table: str) -> tuple[str, str]:
    """Name the table as OpenLineage names PostgreSQL tables, without any part of the login."""
    from psycopg import conninfo

    parts = conninfo.conninfo_to_dict(url or "")
    host = str(parts.get("host") or "localhost")
    server = "localhost" if host.startswith("/") else host
    return f"postgres://{server}:{parts.get('port') or 5432}", f"{parts.get('dbname') or ''}.{table}"


connector = Connector(
    name="postgres",
    summary="PostgreSQL 15 to 18: queries as source, tables as targets (`schema.table`).",
    schemes=("postgresql", "postgres"),
    open_source=_open_source,
    open_target=_open_target,
    takes_delete_when=True,
    removes_rows=True,
    source_sessions=SESSIONS_OF_A_SIDE,
    target_sessions=SESSIONS_OF_A_SIDE,
    url_problem=dsn.problem,
    kept_url_problem=_kept_url_problem,
    dataset=_dataset,
    queries=_queries,
    feeds=_feeds,
)
