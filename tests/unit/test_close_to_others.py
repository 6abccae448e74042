"""The environment of a runner holds passwords; steps run under the same login in other processes."""

import subprocess
import sys
from pathlib import Path

import pytest

# As nobody in particular: root may read everything. Looked at by a child, before and after.
PROGRAM = """
import os
from vitrina.cli import processes

def seen():
    child = os.fork()
    if not child:
        try:
            open(f"/proc/{os.getppid()}/environ", "rb").read()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
    processes.ctypes.CDLL(None).prctl(processes._PR_SET_DUMPABLE, 1, 0, 0, 0)
before = seen()
processes.close_to_others()
print(before, seen())
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux")
def test_a_process_of_the_same_login_cannot_read_the_environment_of_a_runner() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
