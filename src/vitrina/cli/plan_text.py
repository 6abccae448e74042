"""Format a plan as text for a terminal, and as Markdown for a comment in CI."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Plan = Mapping[str, Any]
Row = Mapping[str, str | None]

_SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def text(plan: Plan) -> str:
    """Write a plan for a terminal."""
    head = f"{plan['pipeline']} -> {plan['target']}: {summary(plan)}"
    lines = [head, *(f"  {line}" for line in _lines(plan)), f"  plan {plan['id']}"]
    return "\n".join(map(_printable, lines))


def summary(plan: Plan) -> str:
    """Summarise in one sentence what would change."""
    parts = [*_column_parts(plan["columns"]), *_row_parts(plan)]
    return (", ".join(parts) or "changes nothing") + _downstream(plan)


def _column_parts(columns: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[str]:
    for verb, kind in (("adds", "added"), ("no longer returns", "removed"), ("changes the type of", "retyped")):
        if columns[kind]:
            noun = "column" if len(columns[kind]) == 1 else "columns"
            yield f"{verb} {noun} {', '.join(column['name'] for column in columns[kind])}"


def _row_parts(plan: Plan) -> Iterator[str]:
    rows = plan["rows"]
    if rows is None:
        yield "rows are unknown"
        return
    changed = rows["changed_columns"] or {}
    by_column = f" ({', '.join(f'{name}: {count:,}' for name, count in changed.items())})" if changed else ""
    yield f"changes {rows['changed']:,} of {rows['before']:,} rows{by_column}"
    yield f"removes {rows['removed']:,}"
    yield f"adds {rows['added']:,}"


def _downstream(plan: Plan) -> str:
    named = [*plan["downstream"]["pipelines"], *plan["downstream"]["targets"]]
    return f"; downstream: {', '.join(named)}" if named else ""


def _lines(plan: Plan) -> Iterator[str]:
    yield from (f"refused: {_value(said)}" for said in plan["refusals"])
    yield from (f"warning: {_value(said)}" for said in plan["warnings"])
    yield from (f"note: {_value(said)}" for said in plan["notes"])
    if not plan["target_exists"]:
        yield f"{plan['target']} is created by the first run"
    yield from _column_lines(plan["columns"])
    yield from (f"check {one['name']} {one['result']}: {one['found']}" for one in _told_checks(plan))
    rows = plan["rows"] or {}
    if rows.get("stay"):
        yield f"{rows['stay']:,} rows that the query no longer returns stay"
    if rows.get("rejected"):
        yield f"{rows['rejected']:,} rows are rejected and become dead letters"
    for sample in _samples(plan):
        yield f"{_SIGNS[sample['kind']]} {_sample(sample)}"


def _column_lines(columns: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[str]:
    yield from (f"+ column {one['name']} {one['type']}" for one in columns["added"])
    yield from (f"- column {one['name']} {one['type']}" for one in columns["removed"])
    yield from (f"~ column {one['name']} {one['before']} -> {one['after']}" for one in columns["retyped"])


def _told_checks(plan: Plan) -> list[Mapping[str, Any]]:
    return [one for one in plan["checks"] if one["result"] != "passed"]


def _samples(plan: Plan) -> Sequence[Mapping[str, Any]]:
    """Return the sample rows. For viewers they are replaced by a word."""
    shown = (plan["rows"] or {}).get("sample_rows") or []
    return shown if isinstance(shown, list) else []


def _sample(sample: Mapping[str, Any]) -> str:
    before, after = sample["before"], sample["after"]
    if before is None or after is None:
        return _pairs(after or before)
    same = {name: value for name, value in after.items() if before.get(name) == value}
    changed = [f"{name}: {_value(before.get(name))} -> {_value(after[name])}" for name in after if name not in same]
    # The first unchanged columns, mostly the key, which identify the row.
    return ", ".join([*(_pair(name, value) for name, value in list(same.items())[:2]), *changed])


def _pairs(row: Row) -> str:
    return ", ".join(_pair(name, value) for name, value in row.items())


def _pair(name: str, value: str | None) -> str:
    return f"{name} = {_value(value)}"


def _value(value: str | None) -> str:
    """Write a value in one line."""
    return "NULL" if value is None else _printable(" ".join(value.split()))


def _printable(text: str) -> str:
    """Remove control characters: names and values must not control the user's terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


# --- Markdown --------------------------------------------------------------------------------------------------------

# Characters with a meaning in Markdown; an underscore within a word has none.
_MARKS = re.compile(r"[\\`*\[\]<>!|#@]|(?<![^\W_])_|_(?![^\W_])")


def markdown(plan: Plan) -> str:
    """Write a plan as a comment for people who review a change."""
    parts = [f"### Plan of `{plan['pipeline']}` → `{plan['target']}`", f"{_quoted(_capital(summary(plan)))}."]
    parts += [f"> **The run would be refused:** {_quoted(said)}" for said in plan["refusals"]]
    parts += [f"> {_quoted(said)}" for said in (*plan["warnings"], *plan["notes"])]
    table = [*_markdown_columns(plan["columns"]), *_markdown_rows(plan)]
    if table:
        parts.append("\n".join(["| what | change |", "|---|---|", *table]))
    samples = list(_markdown_samples(plan))
    if samples:
        parts.append("\n".join(["<details><summary>Some of the rows</summary>", "", *samples, "", "</details>"]))
    parts.append(f"Plan `{plan['id']}`; apply exactly this with `vitrina apply --require-plan {plan['id']}`.")
    return "\n\n".join(parts)


def _quoted(said: str) -> str:
    """Escape text that Markdown would read as a link, an image or HTML: messages quote values of rows."""
    return _MARKS.sub(r"\\\g<0>", _value(said))


def _code(name: str) -> str:
    """Write a name as code that neither ends early nor splits a cell of a table."""
    return f"`{_value(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _markdown_columns(columns: Mapping[str, Sequence[Mapping[str, str]]]) -> Iterator[str]:
    yield from (f"| column {_code(one['name'])} | added as {_code(one['type'])} |" for one in columns["added"])
    yield from (f"| column {_code(one['name'])} | no longer returned |" for one in columns["removed"])
    for one in columns["retyped"]:
        yield f"| column {_code(one['name'])} | {_code(one['before'])} → {_code(one['after'])} |"


def _markdown_rows(plan: Plan) -> Iterator[str]:
    rows = plan["rows"]
    if rows is None:
        return
    yield f"| rows | {rows['before']:,} → {rows['after']:,} |"
    for kind in ("added", "changed", "removed", "rejected", "stay"):
        if rows[kind]:
            yield f"| rows {kind} | {rows[kind]:,} |"
    for name, count in (rows["changed_columns"] or {}).items():
        yield f"| {_code(name)} | changes in {count:,} rows |"
    yield from (
        f"| check {_code(one['name'])} | {one['result']}: {_quoted(one['found'])} |" for one in _told_checks(plan)
    )


def _markdown_samples(plan: Plan) -> Iterator[str]:
    for sample in _samples(plan):
        shown = _sample(sample).replace("`", "'")
        yield f"- {sample['kind']}: `{_printable(shown)}`"
