"""Parse URLs of ClickHouse servers: `clickhouse://user:password@host:8123/database?secure=1`."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

# clickhouses: over TLS.
SCHEMES = ("clickhouse", "clickhouses", "clickhouse+chdb")
# The engine inside the runner's process, with its tables in a directory; for the demo.
IN_PROCESS = "clickhouse+chdb"
PARAMETERS = frozenset({"secure", "ca_file", "compress", "timeout"})
# Files of the runner's machine: only the operator of that machine may name them.
OF_THE_MACHINE = frozenset({"ca_file"})
EXAMPLE = "clickhouse://USER:PASSWORD@HOST:8123/DATABASE"
_PORT, _TLS_PORT = 8123, 8443
_FLAGS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Server:
    """Hold one server and the login to it."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    secure: bool
    ca_file: str | None = None
    compress: bool = False
    timeout_seconds: int = 300
    directory: str | None = None


def parse(url: str) -> Server:
    """Parse a URL that `problem` accepts."""
    parts = urlsplit(url)
    if parts.scheme.lower() == IN_PROCESS:
        return Server("in process", 0, "default", "", "default", secure=False, directory=unquote(parts.path))
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    secure = parts.scheme.lower() == "clickhouses" or _FLAGS[given.get("secure", "0").lower()]
    return Server(
        host=parts.hostname or "localhost",
        port=parts.port or (_TLS_PORT if secure else _PORT),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or "default",
        secure=secure,
        ca_file=given.get("ca_file"),
        compress=_FLAGS[given.get("compress", "0").lower()],
        timeout_seconds=int(given.get("timeout", "300")),
    )


def problem(url: str) -> str | None:
    """Return why the URL is refused, without repeating any of its values; None if it is accepted."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # validated on access
    except ValueError:
        return f"it has an address that is wrong: write {EXAMPLE}"
    if parts.scheme.lower() == IN_PROCESS:
        return None if parts.path.startswith("/") and not parts.netloc else f"write {IN_PROCESS}:///DIRECTORY"
    if parts.scheme.lower() not in SCHEMES or not parts.hostname or not url.isprintable():
        return f"it is not the URL of a ClickHouse server: write {EXAMPLE}"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(given.keys() - PARAMETERS)
    if unknown:
        return f"the URL must not set {', '.join(unknown)}: it may set {', '.join(sorted(PARAMETERS))}"
    for name in ("secure", "compress"):
        if given.get(name, "0").lower() not in _FLAGS:
            return f"the URL's {name} is 0 or 1"
    if not given.get("timeout", "300").isdigit():
        return "the URL's timeout is a number of seconds"
    if not parts.path.strip("/").replace("_", "a").isalnum() and parts.path.strip("/"):
        return "the URL's database is one name of letters, digits and underscores"
    return None


def kept_problem(url: str) -> str | None:
    """Return why a URL that a user sends is refused. It must not name a file of the runner's machine."""
    found = problem(url)
    if not found and urlsplit(url).scheme.lower() == IN_PROCESS:
        return "a directory of the runner's machine can only be set in its environment"
    given = {} if found else dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    refused = sorted(given.keys() & OF_THE_MACHINE)
    if refused:
        return f"the URL must not set {', '.join(refused)}: files of the runner's machine are set in its environment"
    return found
