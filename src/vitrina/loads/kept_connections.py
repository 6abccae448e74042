"""Combine the connections stored in the metastore, decrypted with this runner's key, with those of the environment."""

from pydantic import SecretStr

from vitrina.definition import Definition
from vitrina.errors import ConfigError
from vitrina.observe import logs
from vitrina.sealing import Sealed
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import kept_connections
from vitrina.store.database import Connection
from vitrina.unsealing import Keyring


def for_run(settings: Settings, metastore: Connection, definition: Definition) -> Settings:
    """Call `with_kept` only if the definition names a connection, which saves a query for most definitions."""
    named = {definition.source_connection, definition.options.target_connection or DEFAULT_CONNECTION}
    return with_kept(settings, metastore) if named != {DEFAULT_CONNECTION} else settings


def with_kept(settings: Settings, metastore: Connection) -> Settings:
    """Add the metastore's current connections to the settings; those of the environment take precedence.

    A connection that cannot be decrypted fails only when a pipeline uses it.
    """
    kept = {
        name: sealed
        for name, sealed in kept_connections.list_sealed(metastore).items()
        if name not in settings.connections
    }
    if not kept:
        return settings
    keyring = Keyring(settings.secret_keys)
    opened: dict[str, SecretStr] = {}
    shut: dict[str, str] = {}
    for name, sealed in kept.items():
        try:
            opened[name] = SecretStr(_open(keyring, name, sealed))
        except ConfigError as exc:
            shut[name] = exc.message
    return settings.model_copy(
        update={"connections": settings.connections | opened, "shut_connections": settings.shut_connections | shut}
    )


def _open(keyring: Keyring, name: str, sealed: Sealed) -> str:
    """Decrypt a sealed URL and validate it, because any login to the metastore may have sealed it."""
    url = keyring.open(name, sealed)
    logs.learn(url)
    found = kept_connections.problem(url)
    if found:
        raise ConfigError(f"connection {name!r}: {found}")
    return url
