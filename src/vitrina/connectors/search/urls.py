"""Parse URLs of named search clusters: `elasticsearch+https://user:password@a:9200,b:9200?fingerprint=...`."""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

SCHEMES = ("elasticsearch+http", "elasticsearch+https", "opensearch+http", "opensearch+https")
PARAMETERS = frozenset({"api_key", "ca_file", "fingerprint"})
# Files of the runner's machine: only the operator of that machine may name them.
OF_THE_MACHINE = frozenset({"ca_file"})
SECRETS = frozenset({"api_key"})

EXAMPLE = "elasticsearch+https://USER:PASSWORD@HOST:9200"


@dataclass(frozen=True)
class ClusterUrl:
    """Hold the URL of a named cluster, split into the parts that ELASTICSEARCH_URL and its related variables hold."""

    addresses: str = field(repr=False)
    parameters: dict[str, str] = field(repr=False)


def parse(url: str) -> ClusterUrl:
    """Parse a URL that `problem` accepts."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    protocol = scheme.lower().partition("+")[2]
    login, at, hosts = rest.rpartition("@")
    addresses = [f"{protocol}://{host}" for host in hosts.split(",") if host]
    if addresses and at:
        addresses[0] = f"{protocol}://{login}@{hosts.split(',')[0]}"
    return ClusterUrl(",".join(addresses), dict(parse_qsl(query, keep_blank_values=True)))


def is_of_cluster(url: str) -> bool:
    """Return whether this is the URL of a named connection, not a value of ELASTICSEARCH_URL."""
    return url.partition("://")[0].lower() in SCHEMES


def problem(url: str) -> str | None:
    """Return why the URL is refused, without repeating any of its values; None if it is accepted."""
    rest = url.partition("://")[2]
    if not is_of_cluster(url) or not url.isprintable():
        return f"it is not the URL of a search cluster: write {EXAMPLE}"
    unknown = sorted(parse(url).parameters.keys() - PARAMETERS)
    if unknown:
        return f"the URL must not set {', '.join(unknown)}: it may set {', '.join(sorted(PARAMETERS))}"
    hosts = rest.partition("?")[0].rpartition("@")[2].split(",")
    if "#" in rest or not all(map(_is_host, hosts)):
        return (
            f"the URL has an invalid address: write {EXAMPLE}, several hosts separated by commas, a number as"
            " port, and / ? # , @ in user and password as %2F %3F %23 %2C %40"
        )
    return None


def kept_problem(url: str) -> str | None:
    """Return why a URL that a user sends is refused. It must not name a file of the runner's machine."""
    found = problem(url)
    refused = [] if found else sorted(parse(url).parameters.keys() & OF_THE_MACHINE)
    if refused:
        return f"the URL must not set {', '.join(refused)}: files of the runner's machine are set in its environment"
    return found


def _is_host(address: str) -> bool:
    try:
        parts = urlsplit(f"http://{address}")
        _ = parts.port  # validated on access
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in address
