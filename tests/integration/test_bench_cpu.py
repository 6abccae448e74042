"""The CPU that benchmarks count, on real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.servers import SessionCpu, tree_cpu_seconds

# Enough to be seen, and not to be mistaken for a start of Python.
BURNT_SECONDS = 2.0
# A child uses its CPU and ends, and its parent never waits for it, as the Python daemon of a Spark executor does.
DAEMON = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    while time.process_time() < {BURNT_SECONDS}:
        pass
    os._exit(0)
try:
    os.waitpid(pid, 0)
except ChildProcessError:
    pass  # it has ended, and its time was not kept
print("ended", flush=True)
sys.stdin.read()
"""


@contextmanager
def daemon() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ended(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"


def test_the_cpu_of_a_child_that_its_parent_ignores_counts() -> None:
    with daemon() as process, SessionCpu(process.pid) as cpu:
        ended(process)

        assert tree_cpu_seconds(process.pid) < BURNT_SECONDS / 2  # the kernel has forgotten it
        assert cpu.seconds() == pytest.approx(BURNT_SECONDS, rel=0.5)


def test_what_a_session_has_used_does_not_fall_when_it_ends() -> None:
    with daemon() as process, SessionCpu(process.pid) as cpu:
        ended(process)
        before = cpu.seconds()
        process.kill()
        process.wait()

        assert cpu.seconds() >= before > 0


def test_a_child_may_be_left_out_of_the_tree() -> None:
    burn = f"import sys, time\nwhile time.process_time() < {BURNT_SECONDS}: pass\nprint('ended', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        ended(process)
        without = tree_cpu_seconds(os.getpid(), without=process.pid)
        assert tree_cpu_seconds(os.getpid()) - without > BURNT_SECONDS / 2
        process.communicate("\n")
