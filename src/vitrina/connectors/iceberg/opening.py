"""Open an Iceberg table in the catalog of its connection."""

from typing import TYPE_CHECKING

from vitrina.connectors.iceberg import urls
from vitrina.errors import CannotConnect, ConfigError, Disconnected
from vitrina.ports.connector import Opening

if TYPE_CHECKING:
    from vitrina.connectors.iceberg.target import IcebergTarget


def open_target(opening: Opening) -> "IcebergTarget":
    if opening.url is None:
        raise ConfigError(
            f"iceberg:{opening.name} needs options.target_connection, the name of a connection such as"
            f" VITRINA_CONN_LAKE={urls.EXAMPLE}"
        )
    require_package()
    from vitrina.connectors.iceberg.catalogs import open_catalog
    from vitrina.connectors.iceberg.data_files import RememberedObjects
    from vitrina.connectors.iceberg.file_io import objects_of
    from vitrina.connectors.iceberg.ledger import Place
    from vitrina.connectors.iceberg.target import IcebergTarget

    url = urls.parse(opening.url)
    try:
        catalog = open_catalog(url, create=opening.work.writes)
    except Disconnected as exc:
        raise CannotConnect(exc.message) from exc
    identifier = tuple(opening.name.split("."))
    place = Place(catalog, url, identifier, "/".join(identifier), RememberedObjects(objects_of(url.warehouse)))
    return IcebergTarget(opening, place)


def require_package() -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError as exc:
        raise ConfigError("Iceberg needs the package pyiceberg: install vitrina[lake] where the runners are") from exc
