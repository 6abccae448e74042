"""Places where a test may make the program die, stop or fail: does nothing unless VITRINA_FAILPOINTS is set.

`VITRINA_FAILPOINTS=batch.filled:kill:3` kills the process at the third time that `batch.filled` is reached. Actions:
`kill` (SIGKILL), `stop` (SIGSTOP), `error` (a transient error). Several are separated by commas.
"""

import os
import signal
import threading
from collections import Counter

from vitrina.errors import TransientError

_lock = threading.Lock()
_reached: Counter[str] = Counter()
_plan: dict[tuple[str, int], str] = {}


def configure(text: str) -> None:
    """Read a plan such as `batch.filled:kill:3,publish.merged:stop:1`."""
    _plan.clear()
    _reached.clear()
    for entry in filter(None, text.split(",")):
        name, action, count = entry.split(":")
        _plan[(name, int(count))] = action


def hit(name: str) -> None:
    if not _plan:
        return
    with _lock:
        _reached[name] += 1
        action = _plan.get((name, _reached[name]))
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "error":
        raise TransientError(f"failpoint {name}")


configure(os.environ.get("VITRINA_FAILPOINTS", ""))
