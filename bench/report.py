"""Report results: medians, ratios, a JSON file for machines and a Markdown table for readers.

python -m bench.report postgres postgres_hard_15     write the tables again from bench/results/NAME.json
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

RESULTS = Path(__file__).parent / "results"


@dataclass
class Line:
    """Hold one row of the table: our turns, and those of the reference, measured alternately."""

    work: str
    reference: str
    rows: int
    wanted: float | None
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    # CPU seconds of the same turns. Older files, and benchmarks that do not count them, have none.
    our_cpu: list[float] = field(default_factory=list)
    their_cpu: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Return our speed in units of the reference's speed, pair by pair."""
        return _ratios(self.ours, self.theirs)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float | None:
        """Return how many times our CPU seconds the reference needs, as the median of the pairs."""
        return statistics.median(_ratios(self.our_cpu, self.their_cpu)) if self.our_cpu else None

    @property
    def krows_per_second(self) -> float:
        return self.rows / statistics.median(self.ours) / 1000

    def measured(self) -> dict[str, object]:
        """Return what the JSON file keeps."""
        kept = asdict(self) | {"ratio": self.ratio}
        return kept | ({"cpu_ratio": self.cpu_ratio} if self.our_cpu else {})

    def markdown(self) -> str:
        wanted = f"{self.wanted:g}" if self.wanted is not None else ""
        met = "" if self.wanted is None else ("yes" if self.ratio >= self.wanted else "**no**")
        cpu = "" if self.cpu_ratio is None else f"{self.cpu_ratio:.2f}"
        return (
            f"| {self.work} | {self.krows_per_second:.0f} | {self.reference} | "
            f"{self.rows / statistics.median(self.theirs) / 1000:.0f} | {self.ratio:.2f} | "
            f"{min(self.ratios):.2f} to {max(self.ratios):.2f} | {cpu} | {wanted} | {met} |"
        )


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [t / o for o, t in zip(ours, theirs, strict=True)]


@dataclass(frozen=True)
class Size:
    """Hold one route at one size: median times, and the runner's peak memory in the last turn."""

    route: str
    rows: int
    seconds: float
    reference_seconds: float  # of hand-written SQL: servers get slower with size, too
    peak_memory_mb: float

    def microseconds_per_row(self, seconds: float) -> float:
        return 1e6 * seconds / self.rows


HEADER = """\
| work | krows/s | reference | its krows/s | ratio | of the pairs | ratio of CPU | goal | met |
|---|---|---|---|---|---|---|---|---|"""


def timed(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def machine() -> dict[str, object]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": cpu.partition(":")[2].strip() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory) / 1024 / 1024),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def write(name: str, lines: Sequence[Line], extra: Mapping[str, object], sizes: Sequence[Size] = ()) -> Path:
    """Write the report after each scenario: an interrupted run leaves what it has measured."""
    RESULTS.mkdir(exist_ok=True)
    described = {**machine(), **extra}
    measured = {
        "machine": described,
        "lines": [line.measured() for line in lines],
        "sizes": [asdict(size) for size in sizes],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(measured, indent=2) + "\n")
    path = RESULTS / f"{name}.md"
    path.write_text(page(name, lines, described, sizes))
    return path


def read(name: str) -> tuple[list[Line], dict[str, object], list[Size]]:
    """Read what `write` has written, by this or an earlier version."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    known = {each.name for each in fields(Line)}
    lines = [Line(**{name: value for name, value in line.items() if name in known}) for line in found["lines"]]
    return lines, found["machine"], [Size(**size) for size in found["sizes"]]


def page(name: str, lines: Sequence[Line], described: Mapping[str, object], sizes: Sequence[Size]) -> str:
    parts = [f"# {name.capitalize()} benchmark", "\n".join([HEADER, *(line.markdown() for line in lines)])]
    if sizes:
        parts += ["## Growth", "\n".join([SIZES_HEADER, *map(_size, sizes)])]
    parts += ["## Machine", "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in described.items())]
    return "\n\n".join(parts) + "\n"


def write_figures(name: str, title: str, intro: str, figures: Mapping[str, object]) -> None:
    """Write and print the report of a benchmark that has a few figures of its own."""
    RESULTS.mkdir(exist_ok=True)
    described = machine()
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": described, "figures": figures}, indent=2) + "\n")
    rows = "\n".join(f"| {figure.replace('_', ' ')} | {value} |" for figure, value in figures.items())
    notes = "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in described.items())
    text = f"# {title}\n\n{intro}\n\n| what | figure |\n|---|---|\n{rows}\n\n{notes}\n"
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def write_table(
    name: str, title: str, intro: str, rows: Mapping[str, Mapping[str, object]], notes: Mapping[str, object]
) -> None:
    """Write and print the report of a benchmark that measures several subjects, one row for each."""
    RESULTS.mkdir(exist_ok=True)
    described = {**machine(), **notes}
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": described, "figures": rows}, indent=2) + "\n")
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [
        "| | " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {subject} | " + " | ".join(str(row.get(column, "")) for column in columns) + " |"
            for subject, row in rows.items()
        ),
    ]
    told = [f"- {key.replace('_', ' ')}: {value}" for key, value in described.items()]
    text = "\n".join([f"# {title}", "", intro, "", *lines, "", *told, ""])
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


SIZES_HEADER = """\
| load into an empty mart | rows | seconds | µs per row | by hand, µs per row | runner's peak memory, MB |
|---|---|---|---|---|---|"""


def _size(size: Size) -> str:
    return (
        f"| {size.route} | {size.rows:,} | {size.seconds:.1f} | {size.microseconds_per_row(size.seconds):.2f} |"
        f" {size.microseconds_per_row(size.reference_seconds):.2f} | {size.peak_memory_mb:.0f} |"
    )


if __name__ == "__main__":
    for each in sys.argv[1:]:
        (RESULTS / f"{each}.md").write_text(page(each, *read(each)))
