"""Help to test your own steps, sources and targets; inherit `SourceContract` or `TargetContract` from `contracts`.

>>> from vitrina.testing import run_step
>>> run_step("normalise_text", [{"title": " Alien "}], params={"columns": ["title"]}).rows
[{'title': 'Alien'}]
"""

from vitrina.testing.contracts import SourceContract, TargetContract
from vitrina.testing.steps import SourceContext, SourceResult, StepContext, StepResult, run_source, run_step

__all__ = [
    "SourceContext",
    "SourceContract",
    "SourceResult",
    "StepContext",
    "StepResult",
    "TargetContract",
    "run_source",
    "run_step",
]
