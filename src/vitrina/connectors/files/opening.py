"""Open a target or a source of files, in the folder or bucket of its connection."""

import hashlib
import json

from vitrina.connectors.files import urls
from vitrina.connectors.files.options import FilesOptions
from vitrina.connectors.files.places import open_place
from vitrina.connectors.files.reading.process import Limits
from vitrina.connectors.files.reading.source import CURSOR, Asked, FilesSource
from vitrina.connectors.files.target import FilesTarget
from vitrina.definition import Definition
from vitrina.errors import ConfigError, FatalError
from vitrina.inside.opening import inside_of
from vitrina.ports.connector import Opening


def open_target(opening: Opening) -> FilesTarget:
    if opening.url is None:
        raise ConfigError(
            f"files:{opening.name} needs options.target_connection, the name of a connection such as"
            " VITRINA_CONN_LAKE=s3://bucket/prefix or file:///folder"
        )
    return FilesTarget(opening, open_place(urls.parse(opening.url)))


def open_source(opening: Opening) -> FilesSource:
    """Open the files of a connection. Nothing is read and no process is started yet."""
    inside = inside_of(opening)
    definition = inside.definition
    if opening.url is None:
        raise ConfigError(
            "files as a source need source_connection, the name of a connection such as"
            " VITRINA_CONN_LAKE=s3://bucket/prefix or file:///folder"
        )
    return FilesSource(urls.parse(opening.url), _asked(opening, definition, is_backfill=inside.claim.is_backfill))


def _asked(opening: Opening, definition: Definition, *, is_backfill: bool) -> Asked:
    options = opening.options if isinstance(opening.options, FilesOptions) else FilesOptions()
    follows = definition.mode == "incremental"
    if follows and definition.incremental_key != CURSOR:
        raise FatalError(
            f"incremental_key is {definition.incremental_key!r}: what is new among files is known by file, so write"
            f" {CURSOR!r}"
        )
    own = definition.options
    return Asked(
        query=_query(definition),
        limits=Limits(own.step_timeout_seconds, own.step_memory_mb, options.threads, options.spill_mb),
        by_file=follows,
        follow=options.follow,
        allow_none=own.allow_empty,
        is_backfill=is_backfill,
        identity=_identity(definition, options),
        connection=definition.source_connection,
    )


def _query(definition: Definition) -> str:
    if definition.source_table:
        name = definition.source_table.replace('"', '""')
        return f'SELECT * FROM "{name}"'  # noqa: S608 - checked like every query
    if not definition.query:
        raise FatalError("the pipeline has no query: write one, such as SELECT * FROM 'sales/*.parquet'")
    return definition.query


def _identity(definition: Definition, options: FilesOptions) -> str:
    """Return what identifies the data read up to a checkpoint, and the target that it was written to."""
    parts = [definition.source_connection, _query(definition), options.follow, definition.placed_target]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
