"""Repair and replay live pipelines between two batches of their follower.

The follower ends its run after a batch, and its position in the source's log stays in the checkpoint. The repair writes
rows as of a snapshot S, which is later than that position. The next follower continues from the position. It queries
every key that changed after it again, in a snapshot that is later than S, so each of these rows gets its state of then,
whether it was repaired or not. A row that did not change after the position is the same in S. Nothing is loaded again.
Until the next batch, a mart shows rows of two moments.
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

# A follower releases the pipeline within seconds, unless it is running a full load.
PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def claim(request: dict[str, Any], metastore: Connection, settings: Settings, refusal: str) -> Claim:
    """Claim the pipeline for a request, asking its follower to release it. Raise `refusal` if it does not in time."""
    row = pipelines.find(metastore, request["pipeline_id"])
    waits = row is not None and is_followed(row)
    if waits:
        requests.want_lease(metastore, request["id"])
        _await_release(request, metastore, refusal)
    taken = leases.claim_idle(metastore, request["pipeline_id"], request["runner_id"], settings.lease_ttl_seconds)
    if waits:
        requests.have_lease(metastore, request["id"])
    return taken


def _await_release(request: dict[str, Any], metastore: Connection, refusal: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while (row := pipelines.find(metastore, request["pipeline_id"])) and row["status"] == Status.RUNNING:
        if time.monotonic() > end:
            raise Conflict(say(refusal, name=row["name"], status=row["status"]))
        time.sleep(_LOOK_SECONDS)
