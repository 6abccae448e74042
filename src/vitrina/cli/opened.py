"""Open connections stored in the metastore, for commands that have a runner's key."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.database import Connection


def for_name(settings: "Settings", name: str) -> "Settings":
    """Return settings that include the named connection, from the environment or the metastore."""
    from vitrina.settings import DEFAULT_CONNECTION
    from vitrina.store import database

    if name in (DEFAULT_CONNECTION, *settings.connections):
        return settings
    with (
        database.connect(settings.require_database_url(), "vitrina:connections") as metastore,
        database.translated("looking for connections"),
    ):
        return with_kept(settings, metastore)


def with_kept(settings: "Settings", metastore: "Connection") -> "Settings":
    """Add all stored connections, unless the metastore has another version."""
    from vitrina.loads import kept_connections
    from vitrina.store import migrate

    if migrate.current_version(metastore) != migrate.newest_version():
        return settings
    return kept_connections.with_kept(settings, metastore)
