"""Run a worker of a load in ranges that fails where it is told to, in place of `vitrina.loads.range_worker`.

The runner's process (`chaos_runner`) starts it, and passes the location of the plans in a variable.
"""

import os
from pathlib import Path

from tests.chaos import chaos_runner
from vitrina import failpoints
from vitrina.loads.range_worker import main

__all__ = ["main"]

chaos_runner.DIRECTORY = Path(os.environ[chaos_runner.PLANS])
failpoints.hit = chaos_runner.hit
