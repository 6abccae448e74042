"""The guide to parallel loads quotes what plans say."""

import re
from pathlib import Path

from vitrina.sentences import CATALOG

GUIDE = Path(__file__).parents[2] / "docs/how-to/parallel-loads.md"
SAID = {name: re.sub(r"\{[^}]*\}", "N", text) for name, text in CATALOG.items() if name.startswith("plan.")}


def test_reasons_in_the_table_are_those_of_plans() -> None:
    rows = GUIDE.read_text().partition("| the plan says |")[2].partition("\n\n")[0].splitlines()[2:]
    quoted = [row.split(" | ")[0].removeprefix("| ") for row in rows]

    assert len(quoted) > 10
    assert [text for text in quoted if not any(text in said for said in SAID.values())] == []


def test_each_reason_is_in_the_table() -> None:
    told = GUIDE.read_text()
    others = {"plan.ranges", "plan.ranges_engine", "plan.ranges_first_pass", "plan.ranges_load_alone"}
    # Only a source that has not run yet has no columns.
    others |= {"plan.ranges_unasked"}
    rows = told.partition("| the plan says |")[2].partition("\n\n")[0].splitlines()[2:]
    quoted = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    reasons = {name: said for name, said in SAID.items() if name.startswith("plan.ranges") and name not in others}

    assert [name for name, said in reasons.items() if not any(text in said for text in quoted)] == []


def test_the_examples_of_plans_are_what_they_say() -> None:
    example = re.sub(r"\d+", "N", GUIDE.read_text().partition("```text\n")[2].partition("```")[0])

    assert [line for line in example.splitlines() if line not in SAID.values()] == []
