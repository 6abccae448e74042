"""URLs of Spark Connect servers: `sc://host:15002`, and `/;use_ssl=true;token=...` after it."""

from urllib.parse import urlsplit

SCHEMES = ("sc",)
SECRETS = frozenset({"token"})
EXAMPLE = "sc://HOST:15002"
# Each run has a session of its own, so that its steps are seen by no other.
_OURS = frozenset({"session_id"})


def problem(url: str) -> str | None:
    """Say why the URL is refused, without repeating any of its values; None when it is accepted."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # judged when it is asked for
    except ValueError:
        return f"it has an address that is wrong: write {EXAMPLE}"
    if parts.scheme.lower() not in SCHEMES or not parts.hostname or not url.isprintable():
        return f"it is not the URL of a Spark Connect server: write {EXAMPLE}"
    path, _, parameters = parts.path.partition(";")
    if path not in ("", "/") or parts.query:
        return f"parameters follow a slash and a semicolon: write {EXAMPLE}/;use_ssl=true"
    given = {one.partition("=")[0] for one in parameters.split(";") if one}
    if given & _OURS:
        return f"the URL must not set {', '.join(sorted(given & _OURS))}"
    return None


def kept_problem(url: str) -> str | None:
    """Refuse what a user sends: whoever runs the cluster is sent steps, and answers for rows."""
    return "only the operator names a cluster: VITRINA_CONN_<NAME> of API and runners"
