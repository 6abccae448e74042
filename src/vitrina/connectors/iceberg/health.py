"""Check a catalog and its warehouse for doctor and `vitrina connections test`; write nothing."""

from collections.abc import Iterator

from vitrina.connectors.files import health as places
from vitrina.connectors.iceberg import urls
from vitrina.connectors.iceberg.opening import require_package
from vitrina.connectors.iceberg.urls import CatalogUrl
from vitrina.errors import VitrinaError
from vitrina.ports.connector import Finding


def check(url: str) -> Iterator[Finding]:
    try:
        found = urls.parse(url)
        require_package()
        yield _catalog(found)
    except VitrinaError as exc:
        yield Finding(
            "PROBLEM", exc.message, "correct the connection's URL, its login, or repair the network in between"
        )
        return
    yield from places.check(found.warehouse)


def _catalog(url: CatalogUrl) -> Finding:
    from vitrina.connectors.iceberg import catalogs

    catalog = catalogs.open_catalog(url, create=False)
    try:
        catalogs.ask(url, catalog)
        return Finding("OK", f"the Iceberg catalog at {url.host} answers")
    finally:
        catalogs.close(catalog)
