"""Collect what the home page shows: problems, recent runs, upcoming runs, live runners."""

import threading
import time
from collections.abc import Iterable

from vitrina import schemas
from vitrina.observe import monitoring
from vitrina.settings import Settings
from vitrina.store import home as statements
from vitrina.store import metrics
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# The worst first.
KINDS = ("failed", "stale", "overdue", "differs", "dead_letters", "blocked", "held", "queued")

SHOWN_OF_A_KIND = 20
SHOWN_PIPELINES = 30
# This many runs are searched for the pipelines that ran last.
LOOKED_AT_RUNS = 2_000
SHOWN_UPCOMING = 10

# Up to this duration, stale marts are looked for each time; beyond it, so rarely that it takes 1/50 of the time.
QUICK_SECONDS = 0.05
_KEEP_FACTOR = 50
_MAX_KEEP_SECONDS = 60.0


class StaleMarts:
    """Find marts that are older than their `options.max_lag_seconds` allows, the most overdue first.

    The age of each mart is computed, so with very many pipelines the result is kept for a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._good_until = 0.0

    def read(self, connection: Connection) -> list[Row]:
        # Of two concurrent callers, the second uses what the first has read.
        with self._lock:
            if time.monotonic() >= self._good_until:
                started = time.monotonic()
                self._rows = _list_stale(connection)
                took = time.monotonic() - started
                kept = 0.0 if took <= QUICK_SECONDS else min(_KEEP_FACTOR * took, _MAX_KEEP_SECONDS)
                self._good_until = time.monotonic() + kept
            return self._rows


def home(connection: Connection, settings: Settings, stale: StaleMarts, *, hours: int) -> schemas.Home:
    totals = statements.totals(connection, stale_after_seconds=settings.lease_ttl_seconds)
    attention = [*statements.list_attention(connection, limit=SHOWN_OF_A_KIND), *stale.read(connection)]
    activity = _by_pipeline(statements.list_activity(connection, hours=hours, limit=LOOKED_AT_RUNS))
    return schemas.Home(
        at=totals["at"],
        hours=hours,
        pipelines=sum(totals["statuses"].values()),
        statuses=totals["statuses"],
        dead_letters=totals["dead_letters"],
        attention=[schemas.Attention.model_validate(row) for row in _worst_first(attention)],
        attention_counts={row["kind"]: row["total"] for row in attention},
        activity=activity[:SHOWN_PIPELINES],
        activity_left_out=max(len(activity) - SHOWN_PIPELINES, 0),
        upcoming=[
            schemas.UpcomingRun.model_validate(row)
            for row in statements.list_upcoming(connection, limit=SHOWN_UPCOMING)
        ],
        runners=schemas.Workforce.model_validate(totals),
    )


def _list_stale(connection: Connection) -> list[Row]:
    found = []
    for row in metrics.list_oldest(connection, only_limited=True):
        seconds, limit = monitoring.lag_seconds(row), monitoring.lag_limit_seconds(row)
        if seconds is not None and limit is not None and seconds > limit:
            found.append({"pipeline_id": row["id"], "pipeline": row["name"], "seconds": seconds, "limit": limit})
    found.sort(key=lambda row: row["limit"] - row["seconds"])
    return [
        row | {"kind": "stale", "limit_seconds": row["limit"], "total": len(found)} for row in found[:SHOWN_OF_A_KIND]
    ]


def _worst_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: KINDS.index(row["kind"]))


def _by_pipeline(newest_first: Iterable[Row]) -> list[schemas.Activity]:
    """Group runs into one line per pipeline, the one that ran last first, with the oldest run of a line first."""
    runs: dict[str, list[Row]] = {}
    for row in newest_first:
        runs.setdefault(row["pipeline"], []).append(row)
    return [
        schemas.Activity(
            pipeline_id=found[0]["pipeline_id"],
            pipeline=name,
            runs=[schemas.ActivityRun.model_validate(run) for run in reversed(found)],
        )
        for name, found in runs.items()
    ]
