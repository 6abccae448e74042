"""A runner process of the live tests: `python -m tests.live.live_runner DIRECTORY [MUTANT]`.

Failpoints are planned by files, as for `tests.chaos.chaos_runner`; mutants are those of `tests.live.mutants`.
"""

import sys
from pathlib import Path

from tests.chaos import chaos_runner
from vitrina import failpoints
from vitrina.cli import main

if __name__ == "__main__":
    chaos_runner.DIRECTORY = Path(sys.argv[1])
    failpoints.hit = chaos_runner.hit
    for mutant in sys.argv[2:]:
        from tests.live import mutants

        mutants.apply(mutant)
    sys.argv = ["vitrina", "runner"]
    main()
