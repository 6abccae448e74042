"""Show the progress of runs on standard error: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from vitrina.cli import local
from vitrina.cli.output import clean, console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from vitrina.schemas import PipelineStatus, Run

LINE_SECONDS = 5.0
ON_THE_WAY = ("RUN_REQUESTED", "RUNNING", "PAUSE_REQUESTED")


class Watcher(Protocol):
    """Receive the status of a pipeline, and the outcome of its run."""

    def see(self, seen: "PipelineStatus") -> None: ...

    def finish(self, run: "Run") -> None: ...


@contextmanager
def watching() -> Iterator[Watcher]:
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[rows]}", justify="right"),
        TextColumn("{task.fields[speed]}", justify="right"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    ]
    with Progress(*columns, console=console()) as bars:
        yield Bars(bars)


class Lines:
    """Print a line when the status changes, and at intervals while rows are loaded."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, int, float]] = {}

    def see(self, seen: "PipelineStatus") -> None:
        if seen.status not in ON_THE_WAY:
            return
        status, rows, at = self._told.get(seen.pipeline, ("", 0, 0.0))
        now, rows_now = time.monotonic(), seen.progress.rows_read if seen.progress else 0
        words = f"{seen.status}{_waiting(seen)}"
        if words == status and (rows_now == rows or now - at < LINE_SECONDS):
            return
        self._told[seen.pipeline] = (words, rows_now, now)
        local.say(f"{seen.pipeline}: {words}{f' {rows_now:,} rows' if rows_now else ''}{_ranges(seen)}")

    def finish(self, run: "Run") -> None:
        local.say(f"{run.pipeline}: {run.status} {run.rows_read:,} rows in {run.duration_seconds:.2f} s")


class Bars:
    """Show one bar for each pipeline. It fills by an estimate, or only moves when the number of rows is unknown."""

    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def see(self, seen: "PipelineStatus") -> None:
        task, progress = self._task(seen.pipeline), seen.progress
        self._bars.update(task, status=f"{seen.status}{_waiting(seen)}")
        if progress is not None:
            total = progress.rows_estimate if progress.percent is not None else None
            self._bars.update(
                task,
                total=total,
                completed=progress.rows_read,
                rows=f"{progress.rows_read:,} rows{_ranges(seen)}",
                speed=f"{progress.rows_per_second:,.0f}/s" if progress.rows_per_second else "",
            )

    def finish(self, run: "Run") -> None:
        from vitrina.status import RunStatus

        done = run.status == RunStatus.SUCCESS
        self._bars.update(
            self._task(run.pipeline),
            total=1 if done else None,
            completed=1 if done else 0,
            rows=f"{run.rows_read:,} rows",
            speed=f"{run.rows_per_second:,.0f}/s" if run.rows_per_second else "",
            status=f"[{'green' if done else 'red'}]{run.status}[/]",
        )
        self._bars.stop_task(self._task(run.pipeline))

    def _task(self, pipeline: str) -> "TaskID":
        if pipeline not in self._tasks:
            self._tasks[pipeline] = self._bars.add_task(pipeline, total=None, rows="", speed="", status="")
        return self._tasks[pipeline]


def _ranges(seen: "PipelineStatus") -> str:
    """Format how many ranges of the key are done in a parallel load."""
    found = seen.progress.ranges if seen.progress else None
    return f", {found.done:,} of {found.done + found.left:,} ranges" if found else ""


def _waiting(seen: "PipelineStatus") -> str:
    """Format why there is no progress: the run waits for an unreachable server."""
    reason = seen.run.metrics.get("waiting") if seen.run and seen.progress else None
    return clean(f", waiting: {reason}") if reason else ""
