"""Describe the connector for files in a folder or an S3 bucket. It loads no driver."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitrina.connectors.files import urls
from vitrina.connectors.files.options import FilesOptions
from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.source import Source
    from vitrina.ports.target import Target
    from vitrina.settings import Settings

# Folders below that of the connection. Objects of a target are in its folder `data`, so no target may have that name.
TARGET_NAME = r"(?!(?:.*/)?data(?:/|$))[a-z0-9][a-z0-9_\-]{0,62}(?:/[a-z0-9][a-z0-9_\-]{0,62}){0,4}"


def _open_target(opening: Opening) -> "Target":
    from vitrina.connectors.files.opening import open_target

    return open_target(opening)


def _open_source(opening: Opening) -> "Source":
    from vitrina.connectors.files.opening import open_source

    return open_source(opening)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    from vitrina.connectors.files.health import check

    yield from check(url)


def _place(settings: "Settings", connection: str | None) -> str | None:
    return urls.parse(settings.connection_url(connection)).identity if connection else None


connector = Connector(
    name="files",
    summary="Parquet files in a folder or an S3 bucket (`files:name`); CSV, JSON Lines and Parquet there as a source."
    " S3 and sources need `vitrina[lake]`.",
    schemes=urls.SCHEMES,
    prefix="files",
    target_name=TARGET_NAME,
    options=FilesOptions,
    secrets=urls.SECRETS,
    open_source=_open_source,
    open_target=_open_target,
    takes_delete_when=True,
    removes_rows=True,
    url_problem=urls.problem,
    kept_url_problem=urls.kept_problem,
    check=_check,
    place=_place,
    dataset=urls.dataset,
)
