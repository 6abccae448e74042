"""Writes docs/reference/steps.md, and what runners tell of the steps that ship; `make reference` calls it."""

import json
import sys
from pathlib import Path
from typing import Any

from vitrina.transforms import registry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "steps.md"
HEAD = """\
# Steps that ship with Vitrina

Each is named in a task of type `PYTHON` (`body`), with its `params`. `vitrina transforms list` and `GET /transforms`
show them too, beside [steps of your own](../how-to/write-a-step.md). `scripts/steps_reference.py` writes this page.

Every step also takes `on_error` (`fail`, or `dead_letter` to store the rows that it fails on as dead letters) and
`max_dead_letters` (1000: more in one run, or in one load in ranges, stop it).
"""


def page() -> str:
    shipped = [found for found in registry.load() if found.origin.startswith("vitrina.")]
    return "\n".join([HEAD, *map(section, shipped)])


def described() -> str:
    return json.dumps(registry.load_shipped().describe(), indent=1, ensure_ascii=False) + "\n"


def section(step: registry.Registered) -> str:
    lines = [f"## {step.name}", "", step.doc, ""]
    if step.params is not None:
        schema = step.params.model_json_schema()
        required = schema.get("required", [])
        lines += ["| param | | |", "|---|---|---|"]
        lines += [row(name, field, name in required) for name, field in schema["properties"].items()]
        lines.append("")
    return "\n".join(lines)


def row(name: str, field: dict[str, Any], required: bool) -> str:
    if required:
        presence = "required"
    elif field.get("default") is None:
        presence = "optional"
    else:
        presence = (
            f"default `{str(field['default']).lower() if isinstance(field['default'], bool) else field['default']}`"
        )
    choices = field.get("enum") or [option["enum"] for option in field.get("anyOf", []) if "enum" in option]
    words = field.get("description", "")
    if choices:
        flat = choices if isinstance(choices[0], str) else choices[0]
        words = f"{words} One of {', '.join(f'`{choice}`' for choice in flat)}.".strip()
    return f"| `{name}` | {presence} | {words} |"


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
        registry.SHIPPED.write_text(described(), encoding="utf-8")
