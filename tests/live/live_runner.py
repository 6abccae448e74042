"""A runner process of the live tests: `python -m tests.live.live_runner DIRECTORY [MUTANT]`.

Failpoints are planned by files, as for `tests.chaos.chaos_runner`; mutants are those of `tests.live.mutants`, and
`NAME=VALUE` sets a constant of `vitrina.loads.live`.
"""

import sys
from pathlib import Path

from tests.chaos import chaos_runner
from vitrina import failpoints
from vitrina.cli import main
from vitrina.loads import live

if __name__ == "__main__":
    chaos_runner.DIRECTORY = Path(sys.argv[1])
    failpoints.hit = chaos_runner.hit
    for mutant in sys.argv[2:]:
        from tests.live import mutants

        name, is_constant, value = mutant.partition("=")
        if is_constant:
            setattr(live, name, float(value))
        else:
            mutants.apply(mutant)
    sys.argv = ["vitrina", "runner"]
    main()
