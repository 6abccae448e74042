"""Check URLs of Spark Connect servers: `sc://host:15002`, optionally followed by `/;use_ssl=true;token=...`."""

from urllib.parse import urlsplit

SCHEMES = ("sc",)
SECRETS = frozenset({"token"})
EXAMPLE = "sc://HOST:15002"
# Each run uses a separate session, so that no other run sees its steps.
_OURS = frozenset({"session_id"})


def problem(url: str) -> str | None:
    """Return why the URL is refused, without repeating any of its values; None if it is accepted."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # urlsplit() validates the port on access
    except ValueError:
        return f"it has an address that is wrong: write {EXAMPLE}"
    if parts.scheme.lower() not in SCHEMES or not parts.hostname or not url.isprintable():
        return f"it is not the URL of a Spark Connect server: write {EXAMPLE}"
    path, _, parameters = parts.path.partition(";")
    if path not in ("", "/") or parts.query:
        return f"parameters follow a slash and a semicolon: write {EXAMPLE}/;use_ssl=true"
    if parameters and any(one.count("=") != 1 for one in parameters.split(";")):
        return "a parameter is not written as name=value, separated by semicolons; write %3D for = in a value"
    given = {one.partition("=")[0] for one in parameters.split(";") if one}
    if given & _OURS:
        return f"the URL must not set {', '.join(sorted(given & _OURS))}"
    return None


def kept_problem(url: str) -> str | None:
    """Refuse every URL that a user submits: the cluster's operator receives steps and is trusted with rows."""
    return "only the operator names a cluster: VITRINA_CONN_<NAME> of API and runners"
