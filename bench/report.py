"""Report results: medians, ratios, a JSON file for machines and a Markdown table for readers."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

RESULTS = Path(__file__).parent / "results"


@dataclass
class Line:
    """Hold one row of the table: our time, and the reference's time measured alternately."""

    work: str
    reference: str
    rows: int
    wanted: float | None
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return our speed in units of the reference's speed, as the median of the pairs."""
        return statistics.median(t / o for o, t in zip(self.ours, self.theirs, strict=True))

    @property
    def krows_per_second(self) -> float:
        return self.rows / statistics.median(self.ours) / 1000

    def markdown(self) -> str:
        wanted = f"{self.wanted:g}" if self.wanted is not None else ""
        met = "" if self.wanted is None else ("yes" if self.ratio >= self.wanted else "**no**")
        return (
            f"| {self.work} | {self.krows_per_second:.0f} | {self.reference} | "
            f"{self.rows / statistics.median(self.theirs) / 1000:.0f} | {self.ratio:.2f} | {wanted} | {met} |"
        )


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
| work | krows/s | reference | its krows/s | ratio | wanted | met |
|---|---|---|---|---|---|---|"""


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


def write(name: str, lines: list[Line], extra: dict[str, object], sizes: Sequence[Size] = ()) -> Path:
    """Write the report after each scenario: an interrupted run leaves what it has measured."""
    RESULTS.mkdir(exist_ok=True)
    described = machine() | extra
    measured = {
        "machine": described,
        "lines": [asdict(line) | {"ratio": line.ratio} for line in lines],
        "sizes": [asdict(size) for size in sizes],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(measured, indent=2) + "\n")
    parts = [f"# {name.capitalize()} benchmark", "\n".join([HEADER, *(line.markdown() for line in lines)])]
    if sizes:
        parts += ["## Growth", "\n".join([SIZES_HEADER, *map(_size, sizes)])]
    parts += ["## Machine", "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in described.items())]
    path = RESULTS / f"{name}.md"
    path.write_text("\n\n".join(parts) + "\n")
    return path


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
