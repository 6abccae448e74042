"""Connections that the metastore keeps, for commands that run where a runner's key is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.database import Connection


def for_name(settings: "Settings", name: str) -> "Settings":
    """Return the settings with the named connection in them, wherever it is kept."""
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
    """Add all kept connections, unless the metastore has another version."""
    from vitrina.loads import kept_connections
    from vitrina.store import migrate

    if migrate.current_version(metastore) != migrate.newest_version():
        return settings
    return kept_connections.with_kept(settings, metastore)
