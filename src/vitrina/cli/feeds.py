"""`vitrina feeds`: the logs of sources that live pipelines follow. Works without an API and without a runner."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import local
from vitrina.cli.output import Column, Format, Output, show_list
from vitrina.errors import CannotConnect, ConfigError, NotFound

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.database import Connection
    from vitrina.store.feeds import FeedRow

group = typer.Typer(help="Logs that live pipelines follow.", no_args_is_help=True, rich_markup_mode=None)

# How long a runner that owned a dropped feed may not take it again.
_DROP_SECONDS = 120.0


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GB"


def _state(feed: dict[str, Any]) -> str:
    if feed["problem"]:
        return str(feed["problem"])
    return f"read on {feed['host'] or 'a runner'}" if feed["is_owned"] else "no runner reads it"


def _followers(feed: dict[str, Any]) -> str:
    return ", ".join(f"{each['pipeline']} ({_standing(each)})" for each in feed["followers"])


def _standing(follower: dict[str, Any]) -> str:
    if follower["must_reload"]:
        return "must reload"
    return f"{follower['backlog_changes']} behind" if follower["is_ready"] else "not ready"


LIST_COLUMNS = [
    Column("connection", lambda feed: feed["connection"], is_name=True),
    Column("state", _state),
    Column("lag s", lambda feed: "-" if feed["lag_seconds"] is None else f"{feed['lag_seconds']:.0f}"),
    Column("behind", lambda feed: _bytes(feed["behind_bytes"]), leaves=2),
    Column("source keeps", lambda feed: _bytes(feed["retained_bytes"])),
    Column("slot", lambda feed: feed["slot"], leaves=1),
    Column("followed by", _followers, leaves=3),
]


@group.command(name="list")
def list_feeds(output: Output = Format.TABLE) -> None:
    """Show who reads each log, how far it is behind, and what its source keeps for it."""
    from vitrina.store import feed_reports

    with _metastore() as (_, metastore):
        rows = feed_reports.list_all(metastore)
    show_list(rows, LIST_COLUMNS, output, empty="no feeds: a live pipeline creates one")


@group.command(name="drop")
def drop(
    name: Annotated[
        str,
        typer.Argument(metavar="CONNECTION", help="Name of a feed, as `vitrina feeds list` shows it, or of a slot."),
    ],
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Drop the feed even if the source cannot be reached, and print what to run there."
        ),
    ] = False,
) -> None:
    """Drop slot, publication and stored changes. Enabled live pipelines create the feed again."""
    from vitrina.store import feeds

    with _metastore() as (settings, metastore):
        found = [feed for feed in feeds.list_all(metastore) if name in (feed.connection or "default", feed.slot)]
        if not found:
            raise NotFound(f"there is no feed of {name!r}: `vitrina feeds list` shows all of them")
        for feed in found:
            _drop(settings, metastore, feed, forget=forget)


def _drop(settings: "Settings", metastore: "Connection", feed: "FeedRow", *, forget: bool) -> None:
    """Drop one feed. The claim is taken first, so that the runner that owned it does not create the slot again."""
    from vitrina.store import feed_owner

    feed_owner.seize(metastore, feed.id, _DROP_SECONDS)
    try:
        dropped = _drop_at_source(settings, feed)
    except (CannotConnect, ConfigError) as exc:
        if not forget:
            raise ConfigError(
                f"{exc.message}; to drop the feed without its source, add --forget, and run there: {_by_hand(feed)}"
            ) from exc
        dropped = []
        local.say(f"the source was not reached; run there: {_by_hand(feed)}")
    feed_owner.forget(metastore, feed.id, with_followers=True)
    local.say(f"dropped: {', '.join([*dropped, 'stored changes'])}")


def _drop_at_source(settings: "Settings", feed: "FeedRow") -> list[str]:
    from vitrina.ports import registry
    from vitrina.settings import feed_variable

    url = settings.find_feed_url(feed.connection)
    if url is None:
        raise ConfigError(f"{feed_variable(feed.connection)} is not set here: the slot cannot be dropped without it")
    return list(registry.feeds().drop(url, feed.names, settings))


def _by_hand(feed: "FeedRow") -> str:
    return f"SELECT pg_drop_replication_slot('{feed.slot}'); DROP PUBLICATION {feed.publication}"


@contextmanager
def _metastore() -> "Iterator[tuple[Settings, Connection]]":
    from vitrina.store import database, migrate

    with local.database(local.load_settings(), migrated=False) as settings:
        session = database.connect(settings.require_database_url(), "vitrina:feeds")
        with session, database.translated("working on the metastore"):
            migrate.require_current(session)
            yield settings, session
