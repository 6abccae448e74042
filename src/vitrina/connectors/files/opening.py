"""Opening a target of files, in the folder or bucket of its connection."""

from vitrina.connectors.files import urls
from vitrina.connectors.files.places import open_place
from vitrina.connectors.files.target import FilesTarget
from vitrina.errors import ConfigError
from vitrina.ports.connector import Opening


def open_target(opening: Opening) -> FilesTarget:
    if opening.url is None:
        raise ConfigError(
            f"files:{opening.name} needs options.target_connection, the name of a connection such as"
            " VITRINA_CONN_LAKE=s3://bucket/prefix or file:///folder"
        )
    return FilesTarget(opening, open_place(urls.parse(opening.url)))
