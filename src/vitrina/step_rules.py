"""What holds for every Python step, before any is known: its name, and what becomes of rows that it fails on.

Known to the processes that run steps, which load as little as they can.
"""

import re
from dataclasses import dataclass, fields
from typing import Literal

# A registered Python step or source. No dots, slashes or leading underscores: a name is looked up, never imported.
STEP_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class StepRule:
    """As `ErrorRule` of a definition has read it, from among the step's own params."""

    on_error: Literal["fail", "dead_letter"] = "fail"
    max_dead_letters: int = 1000


RESERVED_PARAMS = frozenset(field.name for field in fields(StepRule))
