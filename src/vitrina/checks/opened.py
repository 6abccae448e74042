"""A job as a comparison sees it: its query, if it has one, and the table or index behind its target."""

from vitrina.connectors.postgres.cursor import Cursor
from vitrina.connectors.postgres.load import MartTarget
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.errors import FatalError
from vitrina.loads.job import Opened


def query_of(job: Opened) -> QuerySource:
    """Give the query that the rows come from; only where `is_recomputed` says that SQL can be asked."""
    if not isinstance(job.source, QuerySource):
        raise FatalError(f"the rows come from {job.source.name}, which cannot be asked in SQL")
    return job.source


def cursor_of(job: Opened) -> Cursor | None:
    return job.source.cursor if isinstance(job.source, QuerySource) else None


def mart_of(job: Opened) -> MartTarget:
    if not isinstance(job.target, MartTarget):
        raise FatalError(f"{job.definition.final_target} is no table")
    return job.target


def writer_of(job: Opened) -> PostgresWriter:
    return mart_of(job).writer


def is_recomputed(job: Opened) -> bool:
    """Whether rows have to be made again to be compared: behind steps, or from a source that is no query."""
    return bool(job.steps) or not isinstance(job.source, QuerySource)
