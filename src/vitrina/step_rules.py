"""Define rules of all Python steps: valid names, and how rows are handled on which a step fails.

The processes that run steps import this module, so it imports little.
"""

import re
from dataclasses import dataclass, fields
from typing import Literal

# A registered Python step or source. No dots, slashes or leading underscores: a name is looked up, never imported.
STEP_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class StepRule:
    """Hold the error rule of a step, as `ErrorRule` parsed it from the step's params."""

    on_error: Literal["fail", "dead_letter"] = "fail"
    max_dead_letters: int = 1000


RESERVED_PARAMS = frozenset(field.name for field in fields(StepRule))
