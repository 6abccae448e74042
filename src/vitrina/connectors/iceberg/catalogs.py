"""Open catalogs of Iceberg tables, and translate their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests.adapters import HTTPAdapter
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from vitrina.connectors.files.objects import Changed
from vitrina.connectors.iceberg.file_io import WAREHOUSE, ObjectsIO
from vitrina.connectors.iceberg.urls import CatalogUrl
from vitrina.errors import Disconnected, FatalError, VitrinaError

# Time limits for a catalog that does not answer. The run then waits and tries again.
_CONNECT_SECONDS, _STATEMENT_SECONDS, _REQUEST_SECONDS = 10, 60, 60
_OUTAGES = (
    exceptions.ServerError,
    exceptions.ServiceUnavailableError,
    exceptions.CommitStateUnknownException,
    exceptions.TooManyRequestsError,
)
_REFUSALS = (
    exceptions.UnauthorizedError,
    exceptions.ForbiddenError,
    exceptions.AuthorizationExpiredError,
    exceptions.OAuthError,
)


class _OwnObjects:
    """Read tables through our objects, whatever the properties of a table or the answer of a server say."""

    properties: Properties

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return ObjectsIO(self.properties)


class OwnSqlCatalog(_OwnObjects, SqlCatalog):
    """Access a SQL catalog through our objects."""


class OwnRestCatalog(_OwnObjects, RestCatalog):
    """Access a REST catalog through our objects, with time limits."""

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, _TimeLimitAdapter())
        return session


class _TimeLimitAdapter(HTTPAdapter):
    def send(self, request: Any, *args: Any, **more: Any) -> requests.Response:
        return super().send(request, *args, **more | {"timeout": (_CONNECT_SECONDS, _REQUEST_SECONDS)})


def open_catalog(url: CatalogUrl, *, create: bool = True) -> Catalog:
    """Connect to the catalog. `create`: create its own tables if the database has none yet."""
    common = {WAREHOUSE: url.warehouse, "warehouse": url.location, "py-io-impl": f"{ObjectsIO.__module__}.ObjectsIO"}
    with translated(url):
        if url.is_sql:
            return _sql(url, common | {"init_catalog_tables": str(create).lower()})
        given = {_REST_NAMES.get(name, name): value for name, value in url.parameters.items()}
        return OwnRestCatalog(url.catalog, uri=url.address, **common | given)


_REST_NAMES = {"oauth2_server_uri": "oauth2-server-uri", "rest_warehouse": "warehouse"}


def _sql(url: CatalogUrl, properties: dict[str, str]) -> Catalog:
    settings = {
        **url.parameters,
        "connect_timeout": str(_CONNECT_SECONDS),
        "application_name": "vitrina:iceberg",
        "options": f"-c statement_timeout={_STATEMENT_SECONDS}s -c lock_timeout={_STATEMENT_SECONDS}s",
        "tcp_user_timeout": str(_STATEMENT_SECONDS * 1000),
    }
    query = "&".join(f"{name}={quote(value)}" for name, value in settings.items())
    uri = f"postgresql+psycopg{url.address.removeprefix('postgresql')}?{query}"
    try:
        return OwnSqlCatalog(url.catalog, uri=uri, pool_pre_ping="true", **properties)
    except DBAPIError as exc:
        if "already exists" not in str(exc.orig):
            raise
        # Two runners created the catalog's tables at the same time.
        return OwnSqlCatalog(url.catalog, uri=uri, pool_pre_ping="true", **properties)


def ask(url: CatalogUrl, catalog: Catalog) -> None:
    """Check that the catalog answers. A SQL catalog connects on first use, and may have no tables yet."""
    with translated(url):
        if isinstance(catalog, SqlCatalog):
            catalog.engine.connect().close()
        else:
            catalog.list_namespaces()


def close(catalog: Catalog) -> None:
    if isinstance(catalog, SqlCatalog):
        catalog.engine.dispose()
    else:
        catalog.close()


@contextmanager
def translated(url: CatalogUrl) -> Iterator[None]:
    """Translate errors. The message of a driver never holds the URL; the statement is left out."""
    where = f"the Iceberg catalog at {url.host}"
    try:
        yield
    except (VitrinaError, Changed):
        raise
    except (exceptions.CommitFailedException, exceptions.TableAlreadyExistsError) as exc:
        raise Changed(str(exc)) from exc
    except DBAPIError as exc:
        kind = Disconnected if _is_outage(exc) else FatalError
        raise kind(f"{where}: {_first_line(exc.orig or exc)}") from None
    except (*_OUTAGES, requests.RequestException, SQLAlchemyError) as exc:
        raise Disconnected(f"{where}: {_first_line(exc)}") from None
    except _REFUSALS as exc:
        raise FatalError(f"{where} refuses the login of the connection: {_first_line(exc)}") from None
    except exceptions.RESTError as exc:
        raise FatalError(f"{where}: {_first_line(exc)}") from exc
    except FileNotFoundError as exc:
        raise FatalError(f"{where} names a file that is not in the warehouse: {_first_line(exc)}") from exc


# SQLSTATE classes: no privilege, no such login, database or schema. Trying again does not help.
_PERMANENT = ("28", "3D", "3F", "42")


def _is_outage(exc: DBAPIError) -> bool:
    state = getattr(exc.orig, "sqlstate", None)
    if state is None:
        said = str(exc.orig)
        return not any(word in said for word in ("password authentication failed", "does not exist", "no pg_hba.conf"))
    return not str(state).startswith(_PERMANENT)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
