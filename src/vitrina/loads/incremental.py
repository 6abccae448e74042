"""Run an incremental pass over what is new; each part becomes visible together with its checkpoint."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from vitrina import failpoints
from vitrina.errors import FatalError
from vitrina.loads.passes import MarkedPass
from vitrina.loads.run import Run
from vitrina.ports.batch import Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.source import Pass, Passes, Window
from vitrina.ports.target import Done, EndsWithPart, Load, Loading
from vitrina.sentences import say

After = Callable[[Checkpoint, Part], Checkpoint]


def incremental(run: Run) -> None:
    """Read what is new since the checkpoint, which moves only when the pass is complete."""
    _forget_full_load(run)
    load = open_merge(run)
    start_over_where_lost(run, load)
    following = _begin_pass(run)
    count_unseen(run)
    begin(run, load, answers=run.answers_request)
    run.letters.watch_steps()
    run.meter.started_from(run.checkpoint.last_key or run.checkpoint.safe_upto)
    windows, is_ended = [*following.windows()], False
    for window in windows:
        with run.until_paused(), run.parts(load, window) as parts:
            for part in parts:
                if part.ends and window is windows[-1] and isinstance(load, EndsWithPart):
                    run.commit_last(load, part, _ended_with(run, following, part))
                    is_ended = True
                else:
                    run.commit(load, part, following.after)
    if not is_ended:
        _end_pass(run, load, following)
    failpoints.hit("pass.ended")
    load.discard()
    run.settle(obey_pause=False)
    run.judge_target()


def open_merge(
    run: Run, *, arrives_as: dict[str, str] | None = None, latest_counts: bool = False, watches: bool = True
) -> Load:
    """Open the target for rows that are merged into it.

    `arrives_as` names the types if they differ from those of a run. With `latest_counts`, the latest of several rows
    with one key is written, also in mode full, where a load would refuse them. With `watches`, dead letters of rows
    that are accepted now are resolved.
    """
    source, target = run.job.source, run.job.target
    loading = Loading(
        "merge",
        arrives_as=arrives_as,
        version_types=source.version_types if isinstance(source, Passes) and not latest_counts else (),
        refuses_repeats=run.job.definition.mode != "incremental" and not latest_counts,
        watched=run.letters.open if watches and target.letter_budget is not None else None,
    )
    return target.open_load(run.loading(loading))


def begin(run: Run, load: Load, *, answers: bool = False) -> None:
    """Begin to merge. `answers`: nothing was read before the request that this run was claimed for, so it is answered.

    A later request stays recorded: it replaced the one of the claim.
    """
    is_answered = not answers

    def move(done: Done) -> Checkpoint:
        nonlocal is_answered
        if not is_answered:
            run.answer_request()
            is_answered = True
        return run.checkpoint.identified(**done.identity)

    # A target that creates nothing for a pass has nothing to record yet.
    load.begin(run.fence("beginning a pass", move, progressed=False))
    if not is_answered:
        run.answer_request()


def count_unseen(run: Run) -> None:
    """Report how many rows no pass will ever see."""
    source = run.job.source
    if run.job.definition.mode != "incremental" or not isinstance(source, Passes):
        return
    unseen = source.unseen()
    run.meter.rejected(unseen.rows)
    if unseen.rows:
        run.meter.warn(unseen.advice)


def _forget_full_load(run: Run) -> None:
    """Forget a load that began before the mode or the steps changed; it is no position for a pass."""
    if run.checkpoint.stage is not None:
        run.log_started_over(say("plan.definition_changed"))
        run.checkpoint = run.checkpoint.without_cursor()


def start_over_where_lost(run: Run, load: Load) -> None:
    found = run.checkpoint
    reason = load.obstacle(found)
    if reason is None:
        return
    run.log_started_over(reason)
    # Record this before the target is claimed. After the claim, the target would look like the one filled so far.
    run.record("starting over", replace(found, safe_upto=None, held_upto=None, last_key=None, last_id=None, rows=0))


def _begin_pass(run: Run) -> Pass:
    """Begin a pass, or resume an interrupted one with its original bounds."""
    if run.checkpoint.last_key is not None and not run.job.backfill:
        run.answers_request = False
    following = _following(run)
    for warning in following.warnings:
        run.meter.warn(warning)
    if run.answers_request:
        run.note_hold(following.hold)
    if run.job.backfill:
        run.meter.starts_over()
    run.checkpoint = following.checkpoint
    return following


def _following(run: Run) -> Pass:
    source = run.job.source
    if isinstance(source, Passes):
        return source.begin_pass(run.checkpoint)
    if run.job.backfill:
        raise FatalError(say("run.no_range", source=source.name))
    return MarkedPass(source, run.job.definition, run.checkpoint)


def _end_pass(run: Run, load: Load, following: Pass) -> None:
    ended = following.ended(run.checkpoint, run.meter.counters.rows_read)

    def move(done: Done) -> Checkpoint:
        run.meter.reached(ended.safe_upto)
        for name, value in done.notes.items():
            run.meter.note(name, value)
        return ended.identified(**done.identity)

    fence = run.fence("ending the pass", move, points=["pass.fenced"])
    load.publish(fence)
    fence.require_passed()


def _ended_with(run: Run, following: Pass, part: Part) -> Checkpoint:
    """Compute the checkpoint after the last part, before the transaction that merges it: this asks the source."""
    return following.ended(following.after(run.checkpoint, part), run.meter.counters.rows_read + part.rows)


def save_position(run: Run) -> None:
    """Save the position of the source when there were no rows and there is no target yet."""
    run.answer_request()
    source = run.job.source
    follows = run.job.definition.mode == "incremental"
    following = source.begin_pass(run.checkpoint) if follows and isinstance(source, Passes) else None
    checkpoint = following.checkpoint if following else run.checkpoint
    for window in following.windows() if following else (Window(),):
        with closing(source.read(window, "natural")) as batches:
            for batch in batches:
                for stage, lap in batch.watch.timings.items():
                    run.meter.spent(stage, lap.seconds)
                if following:
                    checkpoint = following.after(checkpoint, Part(checkpoint.batch_no, 0, batch.last))
    run.record("keeping the source's checkpoint", checkpoint, progressed=True)
