"""Parse URLs of Iceberg catalogs: `iceberg+postgresql://user:password@host/database?warehouse=s3://bucket/prefix`.

What follows `iceberg+` is the catalog: a PostgreSQL database, or the address of a REST catalog. `warehouse` is the
folder or bucket of the tables; its parameters follow it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from vitrina.connectors.files import urls as places
from vitrina.connectors.files.urls import Place
from vitrina.errors import ConfigError

SQL = "iceberg+postgresql"
REST = ("iceberg+https", "iceberg+http")
SCHEMES = (SQL, *REST)
SECRETS = places.SECRETS | {"token", "credential"}
EXAMPLE = "iceberg+postgresql://USER:PASSWORD@HOST/DATABASE?warehouse=s3://BUCKET/PREFIX"
_OF_PLACES = frozenset({"endpoint", "region", "access_key_id", "path_style"}) | places.SECRETS
_OF_SQL = frozenset({"sslmode"})
_OF_REST = frozenset({"token", "credential", "oauth2_server_uri", "scope", "rest_warehouse"})
_OF_ALL = frozenset({"warehouse", "catalog"}) | _OF_PLACES
_NAME = "vitrina"


@dataclass(frozen=True)
class CatalogUrl:
    """Hold a catalog and the location of its tables."""

    scheme: str
    # Without parameters; it may contain a password.
    address: str = field(repr=False)
    host: str
    warehouse: str = field(repr=False)
    catalog: str
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_sql(self) -> bool:
        return self.scheme == SQL

    @property
    def place(self) -> Place:
        return places.parse(self.warehouse)

    @property
    def location(self) -> str:
        """Return the location of the tables as Iceberg writes it: without parameters and without a trailing slash."""
        return self.warehouse.partition("?")[0].rstrip("/")

    @property
    def identity(self) -> str:
        """Identify the catalog; two connections with one identity lead to the same catalog."""
        return f"iceberg:{self.host}{urlsplit(self.address).path}#{self.catalog}"


def parse(url: str) -> CatalogUrl:
    """Parse a URL. Raise `ConfigError` that says what is wrong with it."""
    wrong = problem(url)
    if wrong:
        raise ConfigError(f"the connection's URL cannot be used: {wrong}")
    parts = urlsplit(url)
    found = _parameters(parts.query)
    address = parts._replace(query="", fragment="", scheme=parts.scheme.lower().removeprefix("iceberg+")).geturl()
    port = f":{parts.port}" if parts.port else ""
    return CatalogUrl(
        parts.scheme.lower(),
        address,
        f"{parts.hostname}{port}",
        _warehouse(found),
        found.get("catalog", _NAME),
        {name: value for name, value in found.items() if name in _OF_SQL | _OF_REST},
    )


def problem(url: str) -> str | None:
    """Return why a URL is refused, without repeating any of its values; None if it is accepted."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # validated on access
    except ValueError:
        return f"it has an address that is wrong: write {EXAMPLE}"
    scheme, found = parts.scheme.lower(), _parameters(parts.query)
    if scheme not in SCHEMES or not parts.hostname or not url.isprintable():
        return f"it is not the URL of an Iceberg catalog: write {EXAMPLE}"
    if scheme == SQL and not parts.path.strip("/"):
        return f"it names no database: write {EXAMPLE}"
    known = _OF_ALL | (_OF_SQL if scheme == SQL else _OF_REST)
    unknown = sorted(found.keys() - known)
    if unknown:
        return f"the parameter {unknown[0][:40]!r} is unknown; there are: {', '.join(sorted(known))}"
    if not found.get("warehouse", "").startswith(("file:///", "s3://")):
        return "it needs warehouse=s3://BUCKET/PREFIX or warehouse=file:///FOLDER, where the tables are"
    return places.problem(_warehouse(found))


def kept_problem(url: str) -> str | None:
    """Refuse a user's URL that would use the identity of the runner itself."""
    found = problem(url)
    return found or places.kept_problem(_warehouse(_parameters(urlsplit(url).query)))


def dataset(url: str | None, name: str) -> tuple[str, str]:
    """Return the lineage name of a target."""
    if url is None:
        return "iceberg", name
    found = parse(url)
    return f"iceberg://{found.host}", f"{found.catalog}.{name}"


def _warehouse(found: Mapping[str, str]) -> str:
    """Return the warehouse as the URL of a place for files."""
    given = "&".join(f"{name}={quote(found[name], safe=':/')}" for name in sorted(_OF_PLACES & found.keys()))
    return f"{found.get('warehouse', '')}{'?' if given else ''}{given}"


def _parameters(query: str) -> dict[str, str]:
    """Parse parameters without decoding `+` as a space, because secret keys contain it."""
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: unquote(value) for name, _, value in pairs}
