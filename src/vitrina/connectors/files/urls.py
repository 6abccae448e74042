"""Parse URLs of connections to files: `file:///folder`, or `s3://bucket/prefix?endpoint=...`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vitrina.errors import ConfigError

SCHEMES = ("file", "s3")
SECRETS = frozenset({"secret_access_key", "session_token"})
_PARAMETERS = frozenset({"endpoint", "region", "access_key_id", "path_style"}) | SECRETS
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True)
class Folder:
    """Locate a folder of the runner's machine, or one that is mounted there."""

    path: Path

    @property
    def identity(self) -> str:
        """Identify the place; two connections with one identity lead to the same place."""
        return f"file:{self.path.resolve()}"


@dataclass(frozen=True)
class Bucket:
    """Locate a prefix of a bucket. Without keys in the URL, the runner's own identity is used."""

    name: str
    prefix: str
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def identity(self) -> str:
        return f"s3:{self.endpoint or 'aws'}/{self.name}/{self.prefix}"

    @property
    def endpoint(self) -> str | None:
        return self.parameters.get("endpoint")

    @property
    def path_style(self) -> bool:
        """Return whether URLs have the bucket in the path. Few servers besides Amazon's have a host for each bucket."""
        return _SWITCH[self.parameters.get("path_style", "true" if self.endpoint else "false")]


Place = Folder | Bucket


def parse(url: str) -> Place:
    """Parse a URL. Raise `ConfigError` that says what is wrong with it."""
    wrong = problem(url)
    if wrong:
        raise ConfigError(f"the connection's URL cannot be used: {wrong}")
    parts = urlsplit(url)
    if parts.scheme.lower() == "file":
        return Folder(Path(unquote(parts.path)))
    return Bucket(parts.netloc, unquote(parts.path).strip("/"), _parameters(parts.query))


def problem(url: str) -> str | None:
    """Return why a URL is refused, without repeating any of its values; None if it is accepted."""
    parts = urlsplit(url)
    if parts.scheme.lower() == "file":
        return None if not parts.netloc and parts.path.strip("/") else "write file:///FOLDER, without a host"
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
        return "write s3://BUCKET/PREFIX, and keys as ?access_key_id=...&secret_access_key=..."
    return _wrong_parameter(_parameters(parts.query))


def _wrong_parameter(found: Mapping[str, str]) -> str | None:
    unknown = sorted(found.keys() - _PARAMETERS)
    if unknown:
        return f"the parameter {unknown[0][:40]!r} is unknown; there are: {', '.join(sorted(_PARAMETERS))}"
    if found.get("path_style", "true") not in _SWITCH:
        return "path_style is true or false"
    if not found.get("endpoint", "https://").startswith(("http://", "https://")):
        return "endpoint begins with http:// or https://"
    if ("access_key_id" in found) != ("secret_access_key" in found):
        return "access_key_id and secret_access_key come together"
    return None


def kept_problem(url: str) -> str | None:
    """Refuse a user's URL that would use the identity of the runner itself."""
    if urlsplit(url).scheme.lower() == "file":
        return "a folder of the runner's machine can only be set in its environment"
    if "access_key_id" not in _parameters(urlsplit(url).query):
        return "a bucket that is kept here needs its own keys: access_key_id and secret_access_key"
    return None


def dataset(url: str | None, name: str) -> tuple[str, str]:
    """Return the lineage name of a target."""
    place = parse(url or "file:///unknown")
    if isinstance(place, Folder):
        return "file", str(place.path / name)
    return f"s3://{place.name}", f"{place.prefix}/{name}".strip("/")


def _parameters(query: str) -> dict[str, str]:
    """Parse parameters without decoding `+` as a space, because secret keys contain it."""
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: unquote(value) for name, _, value in pairs}
