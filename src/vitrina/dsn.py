"""Check database URLs. They may set address, login and encryption, but no session parameters."""

import re
from urllib.parse import parse_qsl, urlsplit

# libpq accepts more. `options` could disable timeouts and read-only sessions, `service` names a file that may set
# anything, `replication` opens another kind of session, and with `client_encoding` the server would read other
# characters than the SQL guard did.
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
    """Return why the URL is refused, without repeating any of its values, or None when it is accepted."""
    try:
        names = _parameters(url)
    except ValueError:
        return NOT_VALID
    refused = sorted(names - ALLOWED)
    if not refused:
        return None
    return (
        f"the URL must not set {', '.join(refused)}: it sets only address and login;"
        " the platform sets the parameters of its sessions"
    )


# Files of the machine that connects, and passwords that it stores for other addresses. Only the operator of that
# machine may name them.
OF_THE_MACHINE = frozenset("passfile hostaddr sslcert sslkey sslcrl sslcrldir gsslib".split())
NOT_VALID = "it is not a valid postgresql:// URL"


def _parameters(url: str) -> set[str]:
    """Return the names of the parameters of `postgresql://...?name=value` and of `name=value name=value`."""
    if "://" not in url:
        return set(_PAIR.findall(url))
    # libpq has no fragments: it reads on after a #.
    return {name for name, _ in parse_qsl(urlsplit(url, allow_fragments=False).query, keep_blank_values=True)}
