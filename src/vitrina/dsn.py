"""What a database URL may say: where, who and how the line is encrypted, never how a session behaves."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

# libpq knows more. `options` would switch off timeouts and read-only sessions, `service` names a file that may hold
# anything, `replication` opens another kind of session, `client_encoding` makes the server read other characters than
# the guard did.
ALLOWED = frozenset(
    """
    host hostaddr port dbname user password passfile require_auth channel_binding connect_timeout application_name
    fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
    ssl sslmode sslnegotiation sslcompression sslcert sslkey sslcertmode sslpassword sslrootcert sslcrl sslcrldir sslsni
    ssl_min_protocol_version ssl_max_protocol_version requirepeer krbsrvname gsslib gssencmode gssdelegation
    target_session_attrs load_balance_hosts
    """.split()
)

_PAIR = re.compile(r"([A-Za-z_]+)\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)*)")


def problem(url: str) -> str | None:
    """Why the URL is not taken, without repeating any of its values; None when it is."""
    try:
        names = _parameters(url)
    except ValueError:
        return "it is not a valid postgresql:// URL"
    refused = sorted(names - ALLOWED)
    if not refused:
        return None
    return (
        f"the URL must not set {', '.join(refused)}: it says where to connect and as whom;"
        " how sessions behave is set by the platform"
    )


# Of the runner's own machine: its files, its sockets, and passwords that it keeps for other addresses.
_OF_THE_MACHINE = frozenset("passfile hostaddr sslcert sslkey sslcrl sslcrldir gsslib".split())


def problem_of_kept(url: str) -> str | None:
    """Why a URL that somebody sends us is not taken: besides, it must say everything itself, and name no files."""
    found = problem(url)
    if found:
        return found
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        return "it is not a valid postgresql:// URL"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = unquote(parts.netloc.rpartition("@")[2]) or given.get("host", "")
    if host.startswith("/") or given.get("host", "").startswith("/"):
        return "the URL must name a host: a socket of the runner's machine can only be set in its environment"
    refused = sorted(_OF_THE_MACHINE & given.keys())
    if refused:
        return f"the URL must not set {', '.join(refused)}: files of the runner's machine are set in its environment"
    login = parts.netloc.rpartition("@")[0].partition(":")[0] or given.get("user")
    database = parts.path.strip("/") or given.get("dbname")
    lacking = [what for what, value in {"host": host, "user": login, "database": database}.items() if not value]
    return f"the URL does not say the {lacking[0]}: postgresql://USER:PASSWORD@HOST:5432/DATABASE" if lacking else None


def _parameters(url: str) -> set[str]:
    """Names of the parameters of `postgresql://...?name=value` and of `name=value name=value`."""
    if "://" not in url:
        return set(_PAIR.findall(url))
    return {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
