"""Points at which a test can make the program die, stop or fail. Inactive unless VITRINA_FAILPOINTS is set.

`VITRINA_FAILPOINTS=batch.filled:kill:3` kills the process at the third time that `batch.filled` is reached. Several are
separated by commas. Actions:

- `kill`: SIGKILL, as the kernel does when memory runs out
- `stop`: SIGSTOP; the test sends SIGCONT when the lease is over
- `error`: a transient error, after which a retry may succeed
- `crash`: the thread ends without cleaning up in the database, as if it had been killed; for tests in one process
"""

import os
import signal
import threading
from collections import Counter

from vitrina.errors import TransientError

# Every step after which a runner that takes over finds a different state.
POINTS = (
    "claim.taken",
    "run.seized",
    "run.planned",
    "load.fenced",
    "load.begun",
    "pass.begun",
    "batch.filled",
    "merge.applied",
    "batch.fenced",
    "batch.committed",
    "publish.applied",
    "publish.fenced",
    "publish.committed",
    "pass.fenced",
    "pass.ended",
    "run.concluding",
    "run.concluded",
)
# Steps of one kind of target, between those of every run.
CLICKHOUSE_POINTS = ("clickhouse.inserted", "clickhouse.checked", "clickhouse.viewed")
# Steps of the owner of a feed.
FEED_POINTS = ("feed.claimed", "feed.started", "feed.copied", "feed.stored", "feed.confirmed", "feed.published")
# Steps of a follower, between those of every run.
LIVE_POINTS = ("live.gathered",)
# Steps outside of runs.
OTHER_POINTS = ("schedule.fired",)

_lock = threading.Lock()
_reached: Counter[str] = Counter()
_plan: dict[tuple[str, int], str] = {}


class Crashed(BaseException):
    """Not an Exception: nothing may handle it, as nothing can handle a kill."""


def configure(text: str) -> None:
    """Read a plan such as `batch.filled:kill:3,publish.applied:stop:1`."""
    _plan.clear()
    _reached.clear()
    for entry in filter(None, text.split(",")):
        name, action, count = entry.split(":")
        known = (*POINTS, *CLICKHOUSE_POINTS, *FEED_POINTS, *LIVE_POINTS, *OTHER_POINTS)
        if name not in known:
            raise ValueError(f"there is no failpoint {name!r} (there are: {', '.join(known)})")
        _plan[(name, int(count))] = action


def hit(name: str) -> None:
    if not _plan:
        return
    with _lock:
        _reached[name] += 1
        action = _plan.pop((name, _reached[name]), None)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        # Sent to this thread: the main thread would handle a signal to the process, while this one could continue.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif action == "error":
        raise TransientError(f"failpoint {name}")
    elif action == "crash":
        raise Crashed(name)


configure(os.environ.get("VITRINA_FAILPOINTS", ""))
