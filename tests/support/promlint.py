"""Find what `promtool check metrics` would report about an exposition, in Python, and by promtool if installed."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CAMEL = re.compile(r"[a-z][A-Z]")
_NOT_BASE = re.compile(
    r"_(milli|micro|nano|kilo|mega|giga)?(ms|milliseconds|microseconds|nanoseconds|minutes|hours|days|weeks"
    r"|kilobytes|megabytes|gigabytes|kb|mb|gb|bits|percent|celsius_degrees)(_|$)"
)
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")


def problems(text: str) -> list[str]:
    """Return the problems; none if it is clean."""
    return [*_in_python(text), *_by_promtool(text)]


def _in_python(text: str) -> Iterator[str]:
    kinds = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    helped = {line.split(" ")[2] for line in text.splitlines() if re.match(r"# HELP \S+ \S", line)}
    for name, kind in kinds.items():
        yield from (f"{name}: {what}" for what in _of_family(name, kind, has_help=name in helped))
    seen: set[str] = set()
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        if not found:
            yield f"cannot be read: {line}"
            continue
        series = line.rpartition(" ")[0]
        if series in seen:
            yield f"told twice: {series}"
        seen.add(series)
        yield from _of_sample(found[1], found[2] or "", kinds)


def _of_family(name: str, kind: str, *, has_help: bool) -> Iterator[str]:
    if not has_help:
        yield "no help text"
    if kind == "untyped":
        yield "no type"
    if kind == "counter" and not name.endswith("_total"):
        yield 'counter metrics should have "_total" suffix'
    if kind != "counter" and name.endswith("_total"):
        yield 'non-counter metrics should not have "_total" suffix'
    if kind not in ("histogram", "summary") and name.endswith(("_count", "_sum", "_bucket")):
        yield "a suffix that belongs to histograms"
    if kind in name.split("_"):
        yield f'metric name should not include type "{kind}"'
    if ":" in name:
        yield "metric names should not contain ':'"
    if _CAMEL.search(name):
        yield "metric names should be written in 'snake_case' not 'camelCase'"
    if _NOT_BASE.search(name):
        yield "use base units"


def _of_sample(name: str, labels: str, kinds: dict[str, str]) -> Iterator[str]:
    family = name if name in kinds else re.sub(r"_(count|sum|bucket)$", "", name)
    if family not in kinds:
        yield f"{name}: no type"
    for label in re.findall(r'(\w+)="', labels):
        if _CAMEL.search(label):
            yield f"{name}: label names should be written in 'snake_case' not 'camelCase'"
        if label in ("le", "quantile") and kinds.get(family) != "histogram":
            yield f"{name}: the label {label} belongs to histograms"


def _by_promtool(text: str) -> list[str]:
    return _promtool("metrics", given=text)


def rule_problems(path: Path) -> list[str]:
    return _promtool("rules", "--lint=all", "--lint-fatal", str(path))


def _promtool(*what: str, given: str = "") -> list[str]:
    promtool = shutil.which("promtool")
    if promtool is None:
        return []
    done = subprocess.run([promtool, "check", *what], input=given, capture_output=True, text=True, check=False)
    return done.stderr.splitlines() or ([] if done.returncode == 0 else [done.stdout])
