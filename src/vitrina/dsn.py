"""What a database URL may say: where, who and how the line is encrypted, never how a session behaves."""

import re
from urllib.parse import parse_qsl, urlsplit

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
    """Say why the URL is refused, without repeating any of its values. Return None when it is accepted."""
    try:
        names = _parameters(url)
    except ValueError:
        return NOT_VALID
    refused = sorted(names - ALLOWED)
    if not refused:
        return None
    return (
        f"the URL must not set {', '.join(refused)}: it says where to connect and as whom;"
        " how sessions behave is set by the platform"
    )


# Of the machine that connects: its files, and passwords that it keeps for other addresses. Only who runs that machine
# may name them.
OF_THE_MACHINE = frozenset("passfile hostaddr sslcert sslkey sslcrl sslcrldir gsslib".split())
NOT_VALID = "it is not a valid postgresql:// URL"


def _parameters(url: str) -> set[str]:
    """Return the names of the parameters of `postgresql://...?name=value` and of `name=value name=value`."""
    if "://" not in url:
        return set(_PAIR.findall(url))
    # libpq knows no fragment: what is behind a # is read on.
    return {name for name, _ in parse_qsl(urlsplit(url, allow_fragments=False).query, keep_blank_values=True)}
