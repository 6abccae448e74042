"""Commands for runs: run, resume, runs, logs."""

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import local, remote, several
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format, Output, ago, clean, show_columns, show_data, show_list, text
from vitrina.cli.pipelines import show_accepted
from vitrina.cli.progress import watching
from vitrina.cli.remote import OptionalPipelineName, PipelineName
from vitrina.errors import NotFound

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import LogLine, Run, RunAccepted

FOLLOW_SECONDS = 0.5
SHORT_ID = 8
# In every line of a run's log.
KNOWN = ("run_id", "pipeline", "pipeline_id", "epoch")
# Lines reach the API a moment after they are written, and the last ones after the end of the run.
LAST_LINES_SECONDS = 1.5
# How many runs are searched for a shortened id.
RUNS_SEARCHED = 1000

RESULT_COLUMNS = [
    Column("pipeline", lambda run: run.pipeline, is_name=True),
    Column("status", lambda run: run.status),
    Column("read", lambda run: run.rows_read, leaves=1),
    Column("inserted", lambda run: run.metrics.get("inserted"), leaves=2),
    Column("updated", lambda run: run.metrics.get("updated"), leaves=3),
    Column("deleted", lambda run: run.metrics.get("deleted", run.rows_deleted), leaves=4),
    Column("unchanged", lambda run: run.metrics.get("unchanged"), leaves=6),
    Column("seconds", lambda run: Decimal(f"{run.duration_seconds:.2f}"), leaves=5),
    Column("rows/s", lambda run: round(run.rows_per_second) if run.rows_per_second is not None else None, leaves=8),
]
HISTORY_COLUMNS = [
    Column("run", lambda run: str(run.id)[:SHORT_ID], is_name=True),
    *RESULT_COLUMNS[:2],
    Column("started", lambda run: ago(run.started_at), leaves=2),
    *RESULT_COLUMNS[2:-1],
    Column("trigger", lambda run: run.trigger, leaves=7),
]


Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end of the run; the exit code is its outcome.")]
Timeout = Annotated[float | None, typer.Option(help="With --wait: give up after this many seconds.")]


def run(
    names: several.Names = None,
    *,
    labels: several.Labels = None,
    wait: Wait = False,
    timeout: Timeout = None,
    since: Annotated[str | None, typer.Option(help="Backfill: read again from this cursor value on.")] = None,
    until: Annotated[str | None, typer.Option(help="Backfill: up to, but not including, this cursor value.")] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", help="A check that may fail in this run; may be repeated.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Request a run. With --wait, show its progress and exit with 0 only if it succeeded."""
    with remote.api() as client:
        attempts = several.Attempts(several.chosen(client, names, labels))
        accepted = attempts.of(lambda name: client.run(name, since=since, until=until, accept=accept or ()))
        ended = [_watch(client, one, timeout) for one in accepted] if wait else []
    if not wait:
        several.show(accepted, attempts.names, output, show_accepted)
    elif len(attempts.names) == 1:
        _show_outcome(ended[0], output)
    else:
        show_runs(ended) if output is Format.TABLE else show_data(ended, output)
    attempts.end()
    if not all(map(succeeded, ended)):
        raise typer.Exit(ExitCode.FAILED)


def resume(
    pipeline: PipelineName, *, wait: Wait = False, timeout: Timeout = None, output: Output = Format.TABLE
) -> None:
    """Continue a paused pipeline where it stopped."""
    with remote.api() as client:
        accepted = client.resume(pipeline)
        if not wait:
            show_accepted(accepted, output)
            return
        ended = _watch(client, accepted, timeout)
    _show_outcome(ended, output)


def _show_outcome(ended: "Run", output: Format) -> None:
    if output is Format.TABLE:
        show_runs([ended])
    else:
        show_data(ended, output)
    if not succeeded(ended):
        raise typer.Exit(ExitCode.FAILED)


def _watch(client: "Client", accepted: "RunAccepted", timeout: float | None) -> "Run":
    try:
        with watching() as watcher:
            ended = client.wait_for_run(
                accepted.pipeline_id,
                requested_at=accepted.run_requested_at,
                asked=accepted.asked,
                on_progress=watcher.see,
                timeout_seconds=timeout,
            )
            watcher.finish(ended)
    except KeyboardInterrupt:
        local.say(f"the run continues without this command: see `vitrina status {accepted.pipeline}`")
        raise
    return ended


def runs(
    pipeline: OptionalPipelineName = None,
    status: Annotated[list[str] | None, typer.Option(help="Only these outcomes; may be repeated.")] = None,
    since: Annotated[str | None, typer.Option(help="Only runs since then: 2h, 7d, 2025-03-01, ...")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, newest first.", min=1)] = 20,
    output: Output = Format.TABLE,
) -> None:
    """Show the history of runs, newest first."""
    with remote.api() as client:
        found = client.list_runs(pipeline, status=status or (), since=moment(since), limit=limit)
    show_list(found, HISTORY_COLUMNS, output, empty="no runs yet: request one with `vitrina run NAME --wait`")
    for one in found if output is Format.TABLE else ():
        if one.error_message:
            print(clean(f"{str(one.id)[:SHORT_ID]}  {one.pipeline}: {one.error_message}"))


def logs(
    pipeline: PipelineName,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Id of a run, or the beginning of it. [default: the latest run]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")] = False,
    level: Annotated[str, typer.Option(help="Lowest level to show: info, warning or error.")] = "info",
    output: Output = Format.TABLE,
) -> None:
    """Show what a run logged."""
    with remote.api() as client:
        found = find_run(client, pipeline, run_id)
        _await_last_lines(found)
        seen = client.run_log(found.id, level=level)
        if output is not Format.TABLE and not follow:
            show_data(seen, output)
            return
        print_lines(seen)
        while follow and is_open(found):
            time.sleep(FOLLOW_SECONDS)
            # Read before the lines, so that no line from before the end is missed.
            found = client.get_run(found.id)
            _await_last_lines(found)
            later = client.run_log(found.id, after=seen[-1].id if seen else 0, level=level)
            print_lines(later)
            seen = later or seen
        if found.finished_at is not None:
            print_line(found.finished_at, found.status, _outcome(found))


def _await_last_lines(run: "Run") -> None:
    if run.finished_at is not None:
        since_end = (datetime.now(UTC) - run.finished_at).total_seconds()
        time.sleep(min(max(LAST_LINES_SECONDS - since_end, 0), LAST_LINES_SECONDS))


def find_run(client: "Client", pipeline: str, run_id: str | None) -> "Run":
    """Find the run with that id or beginning of an id, or else the latest one."""
    for found in client.list_runs(pipeline, limit=1 if run_id is None else RUNS_SEARCHED):
        if run_id is None or str(found.id).startswith(run_id.lower()):
            return found
    if run_id is None:
        raise NotFound(f"pipeline {pipeline} has not run yet: request a run with `vitrina run {pipeline}`")
    raise NotFound(f"pipeline {pipeline} has no run {run_id}: `vitrina runs {pipeline}` lists them")


def show_runs(found: "list[Run]", *, title: str | None = None) -> None:
    show_columns(found, RESULT_COLUMNS, title=title)
    for one in found:
        if one.error_message:
            local.say(clean(f"{one.pipeline}: {one.error_message}"))
            if one.next_step:
                local.say(clean(f"  next step: {one.next_step}"))
        for check in one.metrics.get("checks", ()):
            _show_check(check)


def _show_check(check: "dict[str, Any]") -> None:
    """Show a failed check with the first rows that violate it, which the API shows to operators."""
    if check["result"] == "passed":
        return
    local.say(clean(f"  check {check['name']} {check['result']}: {check['found']}"))
    rows = check.get("offending_rows", ())
    for row in [rows] if isinstance(rows, str) else rows:
        local.say(clean(f"    {text(row)}"))


def succeeded(ended: "Run") -> bool:
    from vitrina.status import RunStatus

    return ended.status == RunStatus.SUCCESS


def is_open(found: "Run") -> bool:
    from vitrina.status import RunStatus

    return found.status == RunStatus.RUNNING


def print_lines(lines: "list[LogLine]") -> None:
    for line in lines:
        told = {name: value for name, value in line.payload.items() if name not in KNOWN and value is not None}
        print_line(line.at, line.topic, "  ".join(f"{name}={text(value)}" for name, value in told.items()))


def print_line(at: datetime, topic: str, details: str) -> None:
    print(clean(f"{text(at)}  {topic:<14}  {details}"), flush=True)


def _outcome(run: "Run") -> str:
    counts = f"{run.rows_read:,} rows read, {run.rows_written:,} written, {run.duration_seconds:.2f} s"
    step = f" ({run.next_step})" if run.next_step else ""
    return f"{counts}: {run.error_message}{step}" if run.error_message else counts


def moment(since: str | None) -> datetime | None:
    """Parse `2h` or `7d` before now, or an ISO date or time (UTC unless it says otherwise)."""
    if since is None:
        return None
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        if since[-1:] in units and since[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(**{units[since[-1]]: int(since[:-1])})
        at = datetime.fromisoformat(since)
    except (ValueError, OverflowError):  # OverflowError: before the year 1
        raise typer.BadParameter(f"{since!r} is not a time: write 30m, 2h, 7d, or 2025-03-01T12:00:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
