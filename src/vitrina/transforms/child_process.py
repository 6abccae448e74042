"""Set up a process that works for a runner: it ends with the runner, and is the first to lose its memory."""

import faulthandler
import fcntl
import gc
import os
import resource
import select
import signal
from contextlib import suppress
from pathlib import Path

# The kernel's OOM killer chooses this process before the runner.
_OOM_SCORE = "500"


def end_with_runner(life: int) -> None:
    """Make the kernel end this process, whatever it is doing, when the runner closes its end of the pipe."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)  # the pipe was closed before the signal was requested


def be_modest() -> None:
    faulthandler.enable()
    # As in the runner: existing objects stay, and rows come and go by the batch.
    gc.freeze()
    gc.set_threshold(100_000, 20)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain rows
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
