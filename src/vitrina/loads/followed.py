"""Repairs and replays of live pipelines: they are performed between two batches of the follower.

The follower ends its run after a batch, and its place in the source's log stays in the checkpoint. What is written then
shows the source as of a snapshot S that was taken later than that place. The next follower goes on from the place. It
asks again for every key that changed after it, in a snapshot that is later than S, so each of these rows becomes what
it is then, whether it was repaired or not. A row that did not change after the place is the same in S. Nothing is
loaded again. Until the next batch, a mart shows rows of two moments.
"""

import time
from typing import Any

from vitrina.errors import Conflict
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.status import Status, is_followed
from vitrina.store import leases, pipelines, requests
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

# A follower lets go within seconds, unless it is loading everything.
PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def claim(request: dict[str, Any], metastore: Connection, settings: Settings, refusal: str) -> Claim:
    """Take the pipeline for a request. A follower is asked to let it go; `refusal` says that it did not in time."""
    row = pipelines.find(metastore, request["pipeline_id"])
    waits = row is not None and is_followed(row)
    if waits:
        requests.want_lease(metastore, request["id"])
        _await_let_go(request, metastore, refusal)
    taken = leases.claim_idle(metastore, request["pipeline_id"], request["runner_id"], settings.lease_ttl_seconds)
    if waits:
        requests.have_lease(metastore, request["id"])
    return taken


def _await_let_go(request: dict[str, Any], metastore: Connection, refusal: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while (row := pipelines.find(metastore, request["pipeline_id"])) and row["status"] == Status.RUNNING:
        if time.monotonic() > end:
            raise Conflict(say(refusal, name=row["name"], status=row["status"]))
        time.sleep(_LOOK_SECONDS)
