"""A worker is started for every run with steps, so it loads little: no driver, no settings, no logging."""

import subprocess
import sys

from vitrina.definition import ErrorRule
from vitrina.step_rules import RESERVED_PARAMS, StepRule
from vitrina.transforms import registry

HEAVY = (
    "adbc_driver_postgresql",
    "httpx",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "structlog",
    "vitrina.settings",
)


def test_a_worker_loads_neither_drivers_nor_models_nor_logging() -> None:
    program = f"""
import sys
import vitrina.transforms.worker
import vitrina.transforms
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_step_without_a_rule_of_its_own_is_held_to_is_the_rule_of_definitions() -> None:
    assert StepRule(**ErrorRule().model_dump()) == StepRule()
    assert frozenset(ErrorRule.model_fields) == RESERVED_PARAMS


def test_only_names_of_shipped_steps_are_taken_for_shipped() -> None:
    assert registry.names_shipped(["somebody_elses", "rename_columns"])
    assert not registry.names_shipped(["somebody_elses"])
