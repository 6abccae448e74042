"""Describe the connector for Iceberg tables in a SQL or REST catalog. It loads no driver."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitrina.connectors.iceberg import urls
from vitrina.connectors.iceberg.options import IcebergOptions
from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.target import Target
    from vitrina.settings import Settings

# A namespace of one to three names, and a table.
TARGET_NAME = r"[a-z_][a-z0-9_]{0,62}(?:\.[a-z_][a-z0-9_]{0,62}){1,3}"


def _open_target(opening: Opening) -> "Target":
    from vitrina.connectors.iceberg.opening import open_target

    return open_target(opening)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    from vitrina.connectors.iceberg.health import check

    yield from check(url)


def _place(settings: "Settings", connection: str | None) -> str | None:
    return urls.parse(settings.connection_url(connection)).identity if connection else None


connector = Connector(
    name="iceberg",
    summary="Iceberg tables in a SQL or REST catalog (`iceberg:namespace.table`); needs `vitrina[lake]`.",
    schemes=urls.SCHEMES,
    prefix="iceberg",
    target_name=TARGET_NAME,
    options=IcebergOptions,
    secrets=urls.SECRETS,
    open_target=_open_target,
    takes_delete_when=True,
    removes_rows=True,
    target_sessions=1,
    url_problem=urls.problem,
    kept_url_problem=urls.kept_problem,
    check=_check,
    place=_place,
    dataset=urls.dataset,
)
