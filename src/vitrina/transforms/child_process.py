"""What every process that works for a runner does first: end with it, and take less than it."""

import faulthandler
import fcntl
import gc
import os
import resource
import select
import signal
from contextlib import suppress
from pathlib import Path

# The kernel looks for memory here before it ends the runner.
_OOM_SCORE = "500"


def end_with_runner(life: int) -> None:
    """Let the kernel end this process, whatever it is doing, when the runner closes its end of the pipe."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)  # it was closed before we could ask to be told


def be_modest() -> None:
    faulthandler.enable()
    # As in the runner: what is there now stays, and rows come by the batch.
    gc.freeze()
    gc.set_threshold(100_000, 20)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold rows
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
