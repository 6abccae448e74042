"""The documentation of steps says what the code does."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from vitrina.testing import run_step
from vitrina.transforms import registry

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_lists_the_steps_as_they_are() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "steps_reference.py"), "--print"]
    written = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    found = (ROOT / "docs" / "reference" / "steps.md").read_text(encoding="utf-8")
    assert found == written, "run .venv/bin/python scripts/steps_reference.py"


def test_runners_tell_of_the_shipped_steps_what_the_code_says() -> None:
    written = [found.describe() for found in registry.load_shipped() if found.is_shipped]
    assert registry.describe_shipped() == written, "run .venv/bin/python scripts/steps_reference.py"


def test_the_guide_s_steps_work() -> None:
    guide = (ROOT / "docs" / "how-to" / "write-a-step.md").read_text(encoding="utf-8")
    first = re.findall(r"```python[^\n]*\n(.*?)```", guide, re.DOTALL)[0]
    namespace: dict[str, Any] = {"__name__": "cinema_steps"}
    exec(compile(first, "cinema_steps.py", "exec"), namespace)
    rows = [{"title": "the long goodbye", "rating": 7}, {"title": "m", "rating": None}]
    assert registry.load().find("title_case")
    assert [row["title"] for row in run_step("title_case", rows).rows] == ["The Long Goodbye", "M"]
    assert len(run_step("drop_unrated", rows).rows) == 1
    assert len(run_step("keep_long", pa.Table.from_pylist(rows), params={"than": 5}).rows) == 1
