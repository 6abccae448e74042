"""Open the place of a connection: a folder or a bucket."""

from vitrina.connectors.files.folder import FolderObjects
from vitrina.connectors.files.objects import Objects
from vitrina.connectors.files.urls import Folder, Place


def open_place(place: Place) -> Objects:
    """Open the place; read and write nothing yet."""
    if isinstance(place, Folder):
        return FolderObjects(place.path)
    # Imported here, because folders need no additional package.
    from vitrina.connectors.files.bucket import BucketObjects

    return BucketObjects(place)
