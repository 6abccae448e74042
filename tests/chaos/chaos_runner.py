"""Run a runner process that fails where it is told to: `python -m tests.chaos.chaos_runner DIRECTORY [MUTANT]`.

A file `point:action:n` in the directory makes the n-th process that reaches the failpoint perform the action. All
runners share the files, and each fires once. `hold` waits until a file called `go` exists.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from vitrina import failpoints
from vitrina.cli import main
from vitrina.errors import TransientError
from vitrina.loads import local_pool
from vitrina.transforms import forking

DIRECTORY = Path()
# In the environment of the runner's own workers: the same directory.
PLANS = "CHAOS_PLANS"


def hit(name: str) -> None:
    for plan in DIRECTORY.glob(f"{name}:*"):
        _, action, count = plan.name.split(":")
        try:
            if int(count) > 1:
                plan.rename(plan.with_name(f"{name}:{action}:{int(count) - 1}"))
                continue
            plan.unlink()
        except FileNotFoundError:
            continue  # another runner was faster
        announce()
        perform(name, action)


def announce() -> None:
    """Write the process ID to `fired`, by a rename, so that a reader sees the whole file."""
    written = DIRECTORY / f".fired.{os.getpid()}"
    written.write_text(f"{os.getpid()}")
    written.rename(DIRECTORY / "fired")


def perform(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        # To this thread: a signal to the process is handled by its main thread, and this one may continue until then.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif action == "error":
        raise TransientError(f"failpoint {name}")
    elif action == "hold":
        while not (DIRECTORY / "go").exists():
            time.sleep(0.01)


if __name__ == "__main__":
    DIRECTORY = Path(sys.argv[1])
    failpoints.hit = hit
    os.environ[PLANS] = str(DIRECTORY)
    local_pool.templates = forking.Templates(["tests.chaos.chaos_worker"])
    if sys.argv[2:]:
        # Imported here: runners are started by the dozen, and most keep all protections.
        from tests.chaos import mutants

        for mutant in sys.argv[2:]:
            mutants.apply(mutant)
    if os.environ.get("CHAOS_WATCH_GIL"):
        from tests.chaos import gil

        gil.watch(DIRECTORY)
    sys.argv = ["vitrina", "runner"]
    main()
