"""Open a query as a source and a table as a target, with the sessions of the run."""

from vitrina.connectors.postgres.load import MartOpening, MartTarget
from vitrina.connectors.postgres.mart_plan import ForeseeingMart
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.errors import FatalError
from vitrina.inside.opening import inside_of
from vitrina.ports.connector import Opening
from vitrina.settings import DEFAULT_CONNECTION
from vitrina.store import database
from vitrina.targets import PostgresTarget


def open_source(opening: Opening) -> QuerySource:
    inside = inside_of(opening)
    definition = inside.definition
    if inside.metastore is None or inside.judged is None:
        raise FatalError("a query is judged, and read beside the metastore")
    asked = inside.claim.row["requested_range"]
    return QuerySource(
        definition,
        inside.settings,
        inside.judged,
        inside.reader,
        reader_url=database.reader_url(inside.settings, definition.source_connection),
        session_name=opening.work.session_name,
        metastore=inside.metastore,
        found=inside.checkpoint,
        backfill=asked if definition.mode == "incremental" else None,
        lend=inside.lend,
    )


def open_target(opening: Opening) -> MartTarget:
    inside = inside_of(opening)
    definition = inside.definition
    name = definition.options.target_connection
    url = inside.settings.connection_url(name)
    own = None if name not in (None, DEFAULT_CONNECTION) else inside.metastore
    schema, _, table = opening.name.partition(".")
    return ForeseeingMart(
        MartOpening(
            definition=definition,
            settings=inside.settings,
            claim=inside.claim,
            name=PostgresTarget(schema, table),
            connection=own or inside.connect(url, name, {}),
            url=url,
            others=inside.others,
            lend=inside.lend,
        )
    )
