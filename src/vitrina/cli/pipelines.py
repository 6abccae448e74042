"""Commands for pipelines: list, get, create, delete, pause, enable, disable, cancel, rollback, status, state."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import files, local, remote, several
from vitrina.cli.output import Column, Format, Output, ago, duration, show_list, show_one
from vitrina.cli.remote import OptionalPipelineName, PipelineName
from vitrina.errors import Conflict

if TYPE_CHECKING:
    from vitrina.schemas import Accepted, Checkpoint, Pipeline, PipelineStatus

# Ranges that are named; a cluster may run hundreds.
_SHOWN_RANGES = 8

group = typer.Typer(help="List pipelines; get, create or delete one.", rich_markup_mode=None)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

LIST_COLUMNS = [
    Column("name", lambda p: p.name, is_name=True),
    Column("status", lambda p: p.status),
    Column("enabled", lambda p: p.enabled, leaves=2),
    Column("mode", lambda p: p.mode, leaves=1),
    Column("target", lambda p: p.target_table, is_name=True, leaves=1),
    Column("schedule", lambda p: p.schedule_interval),
    Column("batch size", lambda p: p.batch_size, leaves=4),
    Column("version", lambda p: p.version, leaves=3),
]
STATUS_COLUMNS = [
    Column("name", lambda p: p.name, is_name=True),
    Column("status", lambda p: p.status),
    Column("since", lambda p: p.status_since, leaves=2),
    Column("enabled", lambda p: p.enabled, leaves=3),
    Column("next run", lambda p: p.next_run_at, leaves=1),
    Column("last error", lambda p: p.last_error),
]
STATE_COLUMNS = [
    Column("pipeline", lambda row: row["pipeline"], is_name=True),
    Column("last key", lambda row: row["last_processed_key"]),
    Column("last id", lambda row: row["last_processed_id"]),
    Column("safe up to", lambda row: row["safe_upto"]),
    Column("batch", lambda row: row["batch_no"], leaves=2),
    Column("updated", lambda row: row["updated_at"], leaves=1),
]
NO_PIPELINES = "no pipelines: create one with `vitrina pipelines create -f FILE`, or try `vitrina demo`"


@group.callback(invoke_without_command=True)
def list_pipelines(
    context: typer.Context,
    *,
    status: Annotated[list[str] | None, typer.Option(help="Only these statuses; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Only names that contain this.")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Only these.")] = None,
    output: Output = Format.TABLE,
) -> None:
    if context.invoked_subcommand:
        return
    with remote.api() as client:
        found = client.list_pipelines(status=status or (), name=name, target=target, enabled=enabled)
    narrowed = any(value is not None for value in (status, name, target, enabled))
    show_list(found, LIST_COLUMNS, output, empty="no pipeline matches" if narrowed else NO_PIPELINES)


@group.command()
def get(pipeline: PipelineName, output: Output = Format.TABLE) -> None:
    """Show how a pipeline is defined."""
    with remote.api() as client:
        show_pipeline(client.get_pipeline(pipeline), output)


@group.command()
def create(file: files.FileOption, output: Output = Format.TABLE) -> None:
    """Create a pipeline from a YAML or JSON file with its fields."""
    definition = files.read_definition(file)
    with remote.api() as client:
        show_pipeline(client.create_pipeline(definition), output)


@group.command()
def delete(pipeline: PipelineName, yes: Yes = False) -> None:
    """Delete a pipeline with its history. The target table stays."""
    confirm(f"Delete pipeline {pipeline} and its history?", yes)
    with remote.api() as client:
        client.delete_pipeline(pipeline)


def pause(names: several.Names = None, labels: several.Labels = None, output: Output = Format.TABLE) -> None:
    """Stop at the next batch, until `resume` or `run`."""
    several.ask(names, labels, lambda client, name: client.pause(name), output, show_accepted)


def cancel(names: several.Names = None, labels: several.Labels = None, output: Output = Format.TABLE) -> None:
    """Withdraw a waiting run, or end the current one. Rows that it committed stay."""
    several.ask(names, labels, lambda client, name: client.cancel(name), output, show_accepted)


def enable(names: several.Names = None, labels: several.Labels = None, output: Output = Format.TABLE) -> None:
    """Allow pipelines to run, on request and by their schedule."""
    several.ask(names, labels, lambda client, name: client.enable(name), output, show_accepted)


def disable(names: several.Names = None, labels: several.Labels = None, output: Output = Format.TABLE) -> None:
    """Stop pipelines from running until `enable`. A current run is finished."""
    several.ask(names, labels, lambda client, name: client.disable(name), output, show_accepted)


def rollback(
    pipeline: PipelineName,
    version: Annotated[
        int | None,
        typer.Option("--to", metavar="VERSION", help="Version to restore. [default: the previous one]", min=1),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Make an older definition of a pipeline the newest one.

    Checkpoint and mart stay; `vitrina run` fills the mart by that definition again.
    """
    with remote.api() as client:
        now = client.get_pipeline(pipeline)
        wanted = version or now.version - 1
        if wanted < 1:
            raise Conflict(f"pipeline {now.name} is at version {now.version}: there is no earlier version")
        restored = client.roll_back(pipeline, wanted)
    local.say(f"{restored.name}: version {restored.version} is defined like version {wanted}")
    show_pipeline(restored, output)


def status(pipeline: OptionalPipelineName = None, output: Output = Format.TABLE) -> None:
    """Show what a pipeline is doing, or the status of all of them."""
    with remote.api() as client:
        if pipeline is None:
            show_list(client.list_pipelines(), STATUS_COLUMNS, output, empty=NO_PIPELINES)
        else:
            seen = client.status(pipeline)
            show_one(seen, _status_fields(seen), output)


def state(
    pipeline: OptionalPipelineName = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Discard the checkpoint, so that the next run starts over.")
    ] = False,
    cursor: Annotated[str | None, typer.Option(help="With --reset: continue from this cursor value instead.")] = None,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Show where the next batch starts, or --reset it."""
    if (reset and pipeline is None) or (cursor is not None and not reset):
        raise typer.BadParameter("--reset needs the name of a pipeline, and --cursor needs --reset")
    if reset:
        confirm(f"Reset the checkpoint of {pipeline}?", yes)
    with remote.api() as client:
        if pipeline is None:
            rows = [_state_row(found.name, client.state(found.id)) for found in client.list_pipelines()]
            show_list(rows, STATE_COLUMNS, output, empty=NO_PIPELINES)
            return
        checkpoint = client.reset_state(pipeline, cursor=cursor) if reset else client.state(pipeline)
        show_one(checkpoint, checkpoint.model_dump(exclude={"pipeline_id"}), output)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; a script has to pass --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Pass --yes, because there is no terminal to ask on")
    typer.confirm(question, abort=True, err=True)


def show_pipeline(pipeline: "Pipeline", output: Format) -> None:
    fields = pipeline.model_dump()
    fields["run_after"] = [edge.pipeline for edge in pipeline.run_after]
    fields["tasks"] = [f"{task.order_index} {task.task_type}: {task.body}" for task in pipeline.tasks]
    show_one(pipeline, {"name": fields.pop("name"), **fields}, output)


def show_accepted(accepted: "Accepted", output: Format) -> None:
    fields = {"pipeline": accepted.pipeline, "status": accepted.status, "next": accepted.message}
    show_one(accepted, fields, output)


def _status_fields(seen: "PipelineStatus") -> dict[str, object]:
    run, lag, recent = seen.run, seen.lag, seen.recent
    return {
        "pipeline": seen.pipeline,
        "status": seen.status,
        "since": seen.since,
        "enabled": seen.enabled,
        "version": seen.version,
        "needs attention": "; ".join(seen.needs_attention.values()) or None,
        "runner": _runner_line(seen),
        "progress": _progress_line(seen),
        "ranges under way": _under_way_line(seen),
        "following": seen.following and f"as of {seen.following.as_of}, {duration(seen.following.lag_seconds)} behind",
        "checkpoint": _checkpoint_line(seen.checkpoint),
        "guarantee": seen.guarantee,
        "held back by": seen.hold,
        "waiting": seen.progress and run and run.metrics.get("waiting"),
        "last run": run and f"{run.status} {duration(run.duration_seconds)}, {run.rows_read:,} rows read",
        "last success": lag.last_success_at,
        "data as of": lag.data_as_of if seen.waits_for else None,
        "runs after": "; ".join(edge.message for edge in seen.waits_for) or None,
        "next run": seen.next_run_at,
        "last error": seen.last_error and seen.last_error.message,
        "next step": seen.last_error and seen.last_error.next_step,
        "recent runs": recent.runs
        and f"{recent.succeeded} of {recent.runs} succeeded, p50 {duration(recent.p50_seconds)},"
        f" p95 {duration(recent.p95_seconds)}",
    }


def _runner_line(seen: "PipelineStatus") -> str | None:
    runner = f"{seen.runner.host} (pid {seen.runner.pid})" if seen.runner else None
    if not seen.lease_is_over:
        return runner
    heard = f", last heartbeat {ago(seen.runner.heartbeat_at)}" if seen.runner and seen.runner.heartbeat_at else ""
    return f"{runner or 'an unknown runner'}{heard}: its lease is over, the next runner continues"


def _progress_line(seen: "PipelineStatus") -> str | None:
    progress = seen.progress
    if progress is None or seen.following:
        return None
    percent = f"{progress.percent:.0f} % " if progress.percent is not None else ""
    left = f", {duration(progress.eta_seconds)} left" if progress.eta_seconds is not None else ""
    speed = f", {progress.rows_per_second:,.0f} rows/s" if progress.rows_per_second else ""
    ranges = progress.ranges
    pieces = f"{ranges.done:,} of {ranges.done + ranges.left:,} ranges" if ranges else f"{progress.batches:,} batches"
    return f"{percent}{progress.rows_read:,} rows in {pieces}{speed}{left}"


def _under_way_line(seen: "PipelineStatus") -> str | None:
    """Name the ranges of the key under way, with the rows that were read of each."""
    ranges = seen.progress.ranges if seen.progress else None
    if ranges is None or not ranges.under_way:
        return None
    shown = ranges.under_way[:_SHOWN_RANGES]
    names = [f"{one.range} ({one.rows:,} rows)" if one.rows is not None else one.range for one in shown]
    more = f" and {len(ranges.under_way) - len(shown)} more" if len(ranges.under_way) > len(shown) else ""
    running = f"; the cluster runs {ranges.running:,} of them" if ranges.running is not None else ""
    return f"{', '.join(names)}{more}{running}"


def _checkpoint_line(checkpoint: "Checkpoint | None") -> str | None:
    if checkpoint is None:
        return None
    key = checkpoint.last_processed_key or checkpoint.safe_upto
    return f"{key} (batch {checkpoint.batch_no:,})" if key else None


def _state_row(name: str, checkpoint: "Checkpoint") -> dict[str, object]:
    return {"pipeline": name, **checkpoint.model_dump()}
