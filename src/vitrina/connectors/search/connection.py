"""Parse `ELASTICSEARCH_URL` and its related settings: the servers, the login and the expected certificate."""

import base64
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import elastic_transport

from vitrina import errors
from vitrina.connectors.search import urls


@dataclass(frozen=True)
class ConnectionOptions:
    """Hold the servers, the login, and how to verify the servers' identity."""

    hosts: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    fingerprint: str | None = None
    timeout_seconds: float = 30
    bulk_timeout_seconds: float = 120
    gzip: bool = True
    connections: int = 8

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        ca_file: Path | None = None,
        fingerprint: str | None = None,
    ) -> "ConnectionOptions":
        """Parse `ELASTICSEARCH_URL`: addresses separated by commas, with user and password in one of them."""
        addresses = [part.strip() for part in url.split(",") if part.strip()]
        if not addresses:
            raise errors.ConfigError(
                "ELASTICSEARCH_URL is empty: set it to http://host:9200, separate several with commas"
            )
        username, password = _login_of(addresses)
        return cls(
            hosts=tuple(dict.fromkeys(map(_without_login, addresses))),
            username=username,
            password=password,
            api_key=api_key,
            ca_file=ca_file,
            fingerprint=fingerprint,
        )

    @classmethod
    def of_cluster(cls, url: str) -> "ConnectionOptions":
        """Parse the URL of a named connection, which holds all options itself."""
        problem = urls.problem(url)
        if problem:
            raise errors.ConfigError(problem)
        found = urls.parse(url)
        ca_file = found.parameters.get("ca_file")
        return cls.from_url(
            found.addresses,
            api_key=found.parameters.get("api_key"),
            ca_file=Path(ca_file) if ca_file else None,
            fingerprint=found.parameters.get("fingerprint"),
        )


def node_config(host: str, options: ConnectionOptions, number: int) -> elastic_transport.NodeConfig:
    parts = _split(host, number)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong_address(number)
    secure = parts.scheme == "https"
    return elastic_transport.NodeConfig(
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port or (443 if secure else 9200),
        path_prefix=parts.path.rstrip("/"),
        connections_per_node=options.connections,
        ca_certs=_usable_ca_file(options.ca_file) if secure and options.ca_file else None,
        ssl_assert_fingerprint=_usable_fingerprint(options.fingerprint) if secure and options.fingerprint else None,
    )


def login_headers(options: ConnectionOptions) -> dict[str, str]:
    if options.api_key:
        return {"authorization": f"ApiKey {options.api_key}"}
    if options.username is not None:
        login = f"{options.username}:{options.password or ''}".encode()
        return {"authorization": "Basic " + base64.b64encode(login).decode()}
    return {}


def _usable_ca_file(path: Path) -> str:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as exc:  # includes OpenSSL's errors
        raise errors.ConfigError(
            f"ELASTICSEARCH_CA_FILE={path} cannot be used ({exc.strerror or type(exc).__name__}): name a file with"
            " certificates in PEM form that this process may read"
        ) from exc
    return str(path)


def _usable_fingerprint(text: str) -> str:
    digits = text.replace(":", "")
    if not re.fullmatch("[0-9a-fA-F]{64}", digits):
        raise errors.ConfigError(
            f"ELASTICSEARCH_FINGERPRINT is {text[:100]!r}: write the 64 hexadecimal digits that"
            " `openssl x509 -fingerprint -sha256 -noout -in certificate.pem` prints"
        )
    return digits


def _with_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def _login_of(addresses: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the one login for all servers, which may be in any of the addresses."""
    found: set[tuple[str, str | None]] = set()
    for number, address in enumerate(addresses, start=1):
        parts = _split(address, number)
        if parts.username:
            found.add((unquote(parts.username), unquote(parts.password) if parts.password else None))
        elif "@" in address:
            raise _wrong_address(number)
    if len(found) > 1:
        raise errors.ConfigError("the addresses in ELASTICSEARCH_URL have different logins: write one, in the first")
    return found.pop() if found else (None, None)


def _split(address: str, number: int) -> SplitResult:
    try:
        parts = urlsplit(_with_scheme(address))
        _ = parts.port  # validated on access
    except ValueError:
        raise _wrong_address(number) from None  # its message may contain a part of the password
    return parts


def _wrong_address(number: int) -> errors.ConfigError:
    return errors.ConfigError(
        f"address {number} in ELASTICSEARCH_URL is wrong: write http://host:9200 or https://user:password@host, a"
        " number as port, and / ? # , in user and password as %2F %3F %23 %2C"
    )


def _without_login(address: str) -> str:
    scheme, _, rest = _with_scheme(address).partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
