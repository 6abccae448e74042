"""The demo's live pipeline: rename a film in the source and measure when the mart shows it."""

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vitrina.cli import local, stack
from vitrina.errors import RunError
from vitrina.sentences import say

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.settings import Settings

PIPELINE: dict[str, Any] = {
    "name": "film_votes_live",
    "description": "Votes for every film, within a second of each vote.",
    "source_query": """\
SELECT fw.id AS film_id, fw.title, count(r.id) AS votes, CAST(avg(r.rating) AS numeric(4, 2)) AS avg_rating
FROM content.film_work fw
LEFT JOIN ugc.ratings r ON r.film_id = fw.id
GROUP BY fw.id, fw.title""",
    "target_table": "analytics.film_votes_live",
    "target_key": ["film_id"],
    "mode": "live",
}
# Limits of the waits until it follows, and until a change arrives; they only bound a hang.
PATIENCE_SECONDS = 60.0


def can_follow(settings: "Settings") -> bool:
    """Return whether there is a login for the source's log, and the parser that live pipelines need."""
    return settings.feed_url is not None and settings.admin_url is not None and find_spec("pgparse") is not None


def show(client: "Client", running: stack.Stack, settings: "Settings") -> None:
    """Create and start the pipeline, rename a film in the source, and report when the mart shows it."""
    name = PIPELINE["name"]
    if name not in {pipeline.name for pipeline in client.list_pipelines()}:
        client.create_pipeline(PIPELINE)
        local.say(f"pipeline {name}: created, live, into {PIPELINE['target_table']}")
    client.run(name)
    _await_following(client, running, name)
    seconds = _rename(settings)
    local.say(f"live: a film was renamed in the source, and {PIPELINE['target_table']} showed it {seconds:.2f} s later")


def _await_following(client: "Client", running: stack.Stack, name: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        running.children.raise_if_ended()
        seen = client.status(name)
        if seen.following and seen.run_requested_at is None:
            return
        if seen.last_error:
            raise RunError(seen.last_error.message)
        time.sleep(0.1)
    raise RunError(say("run.live_not_ready", problem=f"it does not follow after {PATIENCE_SECONDS:.0f} s"))


def _rename(settings: "Settings") -> float:
    """Rename a film and restore its title. Return how long the mart took to show the new title."""
    from vitrina.store import database

    if settings.admin_url is None:
        raise RunError("the demo's cinema has no login that may change it")
    url = settings.admin_url.get_secret_value()
    with database.connect(url, "vitrina:demo") as connection, database.translated("renaming a film"):
        film = database.one(connection.execute("SELECT id, title FROM content.film_work ORDER BY title, id LIMIT 1"))
        seconds = _rename_one(connection, film["id"], f"{film['title']} (renamed)")
        _rename_one(connection, film["id"], film["title"])
        return seconds


def _rename_one(connection: Any, film_id: Any, title: str) -> float:
    connection.execute("UPDATE content.film_work SET title = %s WHERE id = %s", [title, film_id])
    started = time.monotonic()
    while time.monotonic() < started + PATIENCE_SECONDS:
        shown = connection.execute(
            "SELECT title = %s AS is_shown FROM analytics.film_votes_live WHERE film_id = %s", [title, film_id]
        ).fetchone()
        if shown and shown["is_shown"]:
            return time.monotonic() - started
        time.sleep(0.005)
    raise RunError(f"the mart does not show {title!r} after {PATIENCE_SECONDS:.0f} s: see `vitrina feeds list`")
