"""Manage connections stored in the metastore, sealed with a runner's public key. Only runners can open them."""

import re

from vitrina import schemas, sealing
from vitrina.errors import Conflict, InvalidField, NotFound
from vitrina.observe import logs
from vitrina.ports import registry
from vitrina.sentences import say
from vitrina.services import audit
from vitrina.services.callers import Caller
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import kept_connections, runners
from vitrina.store.database import Connection
from vitrina.store.kept_connections import Row

NAME = r"^[a-z0-9_]{1,63}$"
# `VITRINA_CONN_<NAME>` may not end in these either: it would be read as a setting of another connection.
RESERVED_ENDINGS = ("_max_connections", "_statement_timeout_seconds", "_file")
MAX_URL_LENGTH = 4_000
MAKE_A_KEY = say("connection.make_a_key")


def names(connection: Connection, settings: Settings) -> list[str]:
    """List the connections that pipelines may name."""
    return sorted({DEFAULT_CONNECTION, *settings.connections, *kept_connections.list_names(connection)})


def list_all(connection: Connection, settings: Settings) -> list[schemas.Connection]:
    users = kept_connections.list_users(connection)
    kept = {row["name"]: row for row in kept_connections.list_all(connection)}
    return [_answer(settings, name, kept.get(name), users.get(name, [])) for name in names(connection, settings)]


def get(connection: Connection, settings: Settings, name: str) -> schemas.Connection:
    return next(found for found in list_all(connection, settings) if found.name == name)


def _answer(settings: Settings, name: str, row: Row | None, used_by: list[str]) -> schemas.Connection:
    if row is None or name in settings.connections:
        opened_by = settings.connector_of(name)
        return schemas.Connection(name=name, connector=opened_by, set_in="environment", pipelines=used_by)
    connector = registry.installed().of_scheme(row["scheme"])
    return schemas.Connection(
        name=name,
        connector=connector.name if connector else None,
        set_in="metastore",
        pipelines=used_by,
        updated_at=row["updated_at"],
        updated_by=row["updated_by"],
    )


def connector_of(connection: Connection | None, settings: Settings, name: str) -> str | None:
    """Return the name of the connector that opens a connection, wherever it is set, or None when there is none here."""
    if name in (DEFAULT_CONNECTION, *settings.connections) or connection is None:
        return settings.connector_of(name) if name in (DEFAULT_CONNECTION, *settings.connections) else None
    scheme = kept_connections.find_scheme(connection, name)
    found = registry.installed().of_scheme(scheme) if scheme else None
    return found.name if found else None


def require(connection: Connection, settings: Settings, name: str) -> str:
    """Return the name in lower case. Raise `NotFound` when there is no such connection."""
    known = names(connection, settings)
    if name.lower() not in known:
        raise NotFound(say("connection.none", name=name, known=", ".join(known)))
    return name.lower()


def add(
    connection: Connection, settings: Settings, caller: Caller, name: str, url: str, *, key: bytes | None = None
) -> None:
    """Store a new connection. It is sealed with the public key `key`, or with that of the runners."""
    _check(settings, name, url)
    with connection.transaction():
        sealed = sealing.seal(key or sealing_key(connection, settings), name, url)
        if not kept_connections.insert(connection, name, sealed, by=caller.name, scheme=registry.scheme_of(url)):
            raise Conflict(say("connection.exists", name=name))
        audit.record(connection, caller, "add_connection", f"connection:{name}", after={"key_id": sealed.key_id})


def replace(
    connection: Connection, settings: Settings, caller: Caller, name: str, url: str, *, key: bytes | None = None
) -> None:
    """Replace the URL of a connection; runs that start from now on use it."""
    _check(settings, name, url)
    with connection.transaction():
        sealed = sealing.seal(key or sealing_key(connection, settings), name, url)
        if not kept_connections.replace(connection, name, sealed, by=caller.name, scheme=registry.scheme_of(url)):
            raise NotFound(say("connection.not_kept_add", name=name))
        audit.record(connection, caller, "replace_connection", f"connection:{name}", after={"key_id": sealed.key_id})


def remove(connection: Connection, settings: Settings, caller: Caller, name: str) -> None:
    """Delete a connection, unless a pipeline uses it."""
    with connection.transaction():
        if not kept_connections.lock(connection, name):
            if name in (DEFAULT_CONNECTION, *settings.connections):
                raise Conflict(say("connection.in_environment", name=name, variable=_variable(name)))
            raise NotFound(say("connection.not_kept", name=name))
        used_by = kept_connections.list_users(connection).get(name, [])
        if used_by and name not in settings.connections:
            raise Conflict(say("connection.in_use", name=name, pipelines=_listed(used_by)))
        kept_connections.delete(connection, name)
        audit.record(connection, caller, "remove_connection", f"connection:{name}")


def sealing_key(connection: Connection, settings: Settings) -> bytes:
    """Choose, among the public keys that live runners prefer, the one that most of them can open with."""
    alive = runners.list_sealing_keys(connection, stale_after_seconds=settings.lease_ttl_seconds)
    holders = [keys for keys in alive if keys]
    if not holders:
        raise Conflict(say("connection.no_key" if alive else "connection.no_runner", remedy=MAKE_A_KEY))
    preferred = list(dict.fromkeys(keys[0] for keys in holders))
    return max(preferred, key=lambda wanted: sum(wanted in keys for keys in holders))


def _check(settings: Settings, name: str, url: str) -> None:
    if not re.fullmatch(NAME, name) or name.endswith(RESERVED_ENDINGS):
        raise InvalidField(
            "name",
            say("connection.bad_name", name=name, endings=", ".join(RESERVED_ENDINGS)),
        )
    if name == DEFAULT_CONNECTION:
        raise InvalidField("name", say("connection.default"))
    if name in settings.connections:
        raise Conflict(say("connection.in_environment_first", name=name, variable=_variable(name)))
    found = kept_connections.problem(url) if len(url) <= MAX_URL_LENGTH else say("connection.url_too_long")
    if found:
        raise InvalidField("url", say("connection.bad_url", why=found))
    logs.learn(url)


def _variable(name: str) -> str:
    return "VITRINA_DATABASE_URL" if name == DEFAULT_CONNECTION else f"VITRINA_CONN_{name.upper()}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
