"""Open an index as a target, on the cluster of ELASTICSEARCH_URL or on a named one."""

from vitrina.connectors.search.load import IndexTarget
from vitrina.connectors.search.target import ElasticsearchWriter, open_client
from vitrina.inside.opening import inside_of
from vitrina.ports.connector import Opening
from vitrina.targets import SearchTarget


def open_target(opening: Opening) -> IndexTarget:
    inside = inside_of(opening)
    definition = inside.definition
    client = open_client(inside.settings, definition.options.target_connection)
    writer = ElasticsearchWriter(client, inside.claim, SearchTarget(opening.name), definition.options)
    return IndexTarget(writer, definition, opening.context)
