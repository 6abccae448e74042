"""Check a folder or a bucket for doctor and `vitrina connections test`; write nothing."""

import os
from collections.abc import Iterator

from vitrina.connectors.files import urls
from vitrina.connectors.files.places import open_place
from vitrina.connectors.files.urls import Folder
from vitrina.errors import VitrinaError
from vitrina.ports.connector import Finding


def check(url: str) -> Iterator[Finding]:
    try:
        place = urls.parse(url)
        if isinstance(place, Folder):
            yield _folder(place)
        else:
            # Any name will do, because only the server's acceptance of the keys matters.
            open_place(place).find("manifest.json")
            yield Finding("OK", f"the bucket {place.name} answers")
    except VitrinaError as exc:
        yield Finding(
            "PROBLEM", exc.message, "correct the connection's URL, its keys, or repair the network in between"
        )


def _folder(place: Folder) -> Finding:
    if not place.path.is_dir():
        return Finding("PROBLEM", f"{place.path} is no folder", "make it, for the login of the runners, or mount it")
    if not os.access(place.path, os.W_OK | os.X_OK):
        if os.access(place.path, os.R_OK | os.X_OK):
            return Finding("WARNING", f"{place.path} may be read, not written", "enough for sources, not for targets")
        return Finding("PROBLEM", f"{place.path} may not be written", "give it to the login of the runners")
    return Finding("OK", f"{place.path} is a folder that may be written")
