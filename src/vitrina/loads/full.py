"""Run a full load: write everything the source has to a stage, then publish it in one step."""

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from vitrina import failpoints
from vitrina.errors import Disconnected, DuplicateKeys, FatalError, ShrinkRefused, TransientError
from vitrina.loads import incremental, refusals
from vitrina.loads.job import resume_point
from vitrina.loads.load_input import window_of
from vitrina.loads.run import Run
from vitrina.ports.batch import Part, PartId
from vitrina.ports.checkpoint import FRESHEST, Checkpoint
from vitrina.ports.checks import later
from vitrina.ports.source import Passes
from vitrina.ports.target import Done, Load, Loading
from vitrina.sentences import say
from vitrina.store import database, dead_letters

SNAPSHOT_OBSTACLE = say("plan.one_snapshot")
# Position of a Python source that set no checkpoint with its last batch.
_NO_CHECKPOINT = '["null"]'
# Reading for less than this is repeated after an interruption, rather than committed before the publication.
READ_AGAIN_SECONDS = 1.0


def full(run: Run) -> None:
    """Load everything. The first pass of an incremental pipeline is a full load too, if the target is empty."""
    load, must_fill = _continued(run) or (_begun(run), True)
    incremental.count_unseen(run)
    uncounted = None
    if must_fill and not _is_complete(run.checkpoint):
        with refusals.of_reading(), run.until_paused(filling=True):
            uncounted = _fill(run, load)
    try:
        with refusals.of_publish(run.checkpoint.load_started_at):
            _publish(run, load, uncounted)
    except DuplicateKeys:
        if not _follows(run):
            raise
        _merge_instead(run)


def _fill(run: Run, load: Load) -> Part | None:
    """Read what is missing. Return a part that the checkpoint does not count yet, because publishing counts it."""
    if run.plan.paging == "key ranges":
        # Imported here: most loads are not split into ranges.
        from vitrina.loads import ranged

        ranged.fill(run, load)
        return None
    started, uncounted = time.monotonic(), None
    with run.parts(load, window_of(run.job, resume_point(run.checkpoint))) as parts:
        for part in parts:
            if _is_read_again(run, part, time.monotonic() - started):
                uncounted = part
            else:
                run.commit(load, part, _counting(run))
    return uncounted


def _is_read_again(run: Run, part: Part, seconds: float) -> bool:
    """Return whether the whole load is one part that was read so fast that a lost runner's successor reads it again.

    Then publishing counts it, and it needs no transaction of its own. A pause keeps it instead.
    """
    is_whole = part.ends and part.last is None and run.job.target.session is not None
    return is_whole and seconds < READ_AGAIN_SECONDS and not run.control.pause_asked


def _counting(run: Run) -> "incremental.After":
    epoch = run.job.claim.epoch

    def after(found: Checkpoint, part: Part) -> Checkpoint:
        last = json.dumps(part.last) if part.last else None
        if part.judged and part.judged.latest:
            found = found.identified(**{FRESHEST: later(found.identity.get(FRESHEST, {}), part.judged.latest)})
        return found.accepting(PartId(epoch, part.number), part.staged_rows, last)

    return after


def _is_complete(found: Checkpoint) -> bool:
    """Return whether nothing is left to read. A load in one statement is complete once its only batch is committed."""
    return bool(found.accepted) and found.last_key is None


def _follows(run: Run) -> bool:
    return run.job.definition.mode == "incremental"


def _loading(run: Run, name: str | None = None) -> Loading:
    watched = run.letters.open if run.job.target.visible == "part" else None
    if watched is not None:
        run.letters.watch_steps()
    loading = Loading("replace", deletes=run.plan.deletes, name=name, watched=watched)
    return run.loading(replace(loading, refuses_repeats=not _follows(run)))


def _continued(run: Run) -> tuple[Load, bool] | None:
    """Find the interrupted load if it can be resumed, and whether anything is left to read. Log why it cannot be."""
    found = run.checkpoint
    if found.stage is None and (found.last_key is None or run.job.target.visible == "load"):
        return None
    load = run.job.target.open_load(_loading(run, found.stage))
    obstacle = _obstacle(run, load, found)
    if obstacle:
        run.log_started_over(obstacle)
        if _follows(run):  # the cursor may have changed, and all rows are read anyway
            run.checkpoint = found.without_cursor()
        return None
    must_fill = _resume(run, load)
    run.answers_request = False
    if found.load_started_at and not run.gate:
        run.dead_letters_before = dead_letters.count_open(
            run.job.metastore, run.job.claim.pipeline_id, since=found.load_started_at
        )
    if found.accepted or found.last_key:
        run.log.info("load.continued", rows=found.rows, batches=found.batch_no)
        run.meter.continued(found)
    return load, must_fill


def _resume(run: Run, load: Load) -> bool:
    fence = run.fence("going on with a load", lambda done: run.checkpoint.identified(**done.identity), progressed=False)
    try:
        return load.resume(fence)
    except TransientError as exc:
        _forget_lost(run, exc)
        raise


def _forget_lost(run: Run, exc: TransientError) -> None:
    """Forget the load, so that the next attempt starts from scratch.

    After a fatal error, the run's conclusion does it.
    """
    if exc.discards_load:
        run.forget_load()


def _obstacle(run: Run, load: Load, found: Checkpoint) -> str | None:
    options = run.job.definition.options
    if found.accepted and run.job.source.runs_when_described and found.last_key in (None, _NO_CHECKPOINT):
        return say("plan.source_sets_none")
    if found.fingerprint != run.fingerprint:
        return say("plan.definition_changed")
    if obstacle := load.obstacle(found):
        return obstacle
    if options.keeps_one_snapshot and not (_is_complete(found) or load.is_shown):
        return SNAPSHOT_OBSTACLE
    now = database.now(run.job.metastore)
    age = now - (found.load_started_at or now)
    if age > timedelta(seconds=options.max_stage_age_seconds):
        return say("plan.load_old", age=age)
    return None


def _begun(run: Run) -> Load:
    run.meter.starts_over()
    load = run.job.target.open_load(_loading(run))
    source = run.job.source
    marked = source.begin_load(run.checkpoint) if _follows(run) and isinstance(source, Passes) else None
    for warning in marked.warnings if marked else ():
        run.meter.warn(warning)
    begun = run.checkpoint.without_cursor()
    run.note_hold(marked.hold if marked else None)

    def move(done: Done) -> Checkpoint:
        return replace(
            begun,
            stage=load.name,
            fingerprint=run.fingerprint,
            # Answered with the checkpoint of the load, which nothing has read yet: a run that continues the load does
            # not answer the request. The time is from the database's clock, which dates dead letters too.
            load_started_at=run.answer_request(),
            held_upto=marked.mark if marked else None,
            identity=begun.identity | dict(done.identity),
        )

    fence = run.fence("beginning a load", move, progressed=False, points=["load.fenced"])
    load.begin(fence)
    fence.require_passed()
    return load


def _publish(run: Run, load: Load, uncounted: Part | None) -> None:
    run.control.check()
    started = time.monotonic()
    begun_at = run.checkpoint.load_started_at
    notes: dict[str, Any] = {}

    before = run.checkpoint
    if uncounted:
        # Only here: until the publication commits, the stored checkpoint does not have it.
        run.checkpoint = _counting(run)(before, uncounted)

    def move(done: Done) -> Checkpoint:
        run.letters.rebuilt(begun_at)
        if uncounted:
            run.meter.batch(uncounted, done.counts, 0.0)
        if done.judged:
            run.meter.checked(done.judged.outcomes, whole=True)
            run.letters.record_rejected(Part(0, 0, None, letters=done.judged.letters))
        run.meter.published(done.counts, time.monotonic() - started)
        notes.update(done.notes)
        for name, value in done.notes.items():
            run.meter.note(name, value)
        found = _after_load(run)
        return replace(found, identity=found.identity | dict(done.identity))

    points = ["batch.fenced", "publish.fenced"] if uncounted else ["publish.fenced"]
    fence = run.fence("publishing", move, points=points)
    try:
        run.judge_load(load)
        with run.until_paused():
            counts = load.publish(fence)
    except (TransientError, FatalError) as exc:
        if isinstance(exc, TransientError):
            _forget_lost(run, exc)
        if uncounted and _is_kept(exc):
            # Count it after all, so that the next attempt or run can publish what was read.
            run.checkpoint = before
            run.commit(load, uncounted, _counting(run), settles=False)
        if isinstance(exc, ShrinkRefused):
            run.record_guard(exc)
        raise
    fence.require_passed()
    if uncounted:
        run.after_part(uncounted)
    failpoints.hit("publish.committed")
    run.letters.rebuilt(begun_at, committed=True)
    run.log.info("run.published", **vars(counts), **notes, duration_ms=round((time.monotonic() - started) * 1000))
    load.discard()
    run.settle(obey_pause=False)


def _is_kept(exc: TransientError | FatalError) -> bool:
    """Return whether a load that could not be published is still there, as far as this session can tell."""
    return isinstance(exc, FatalError) or not (exc.discards_load or isinstance(exc, Disconnected))


def _after_load(run: Run) -> Checkpoint:
    found, source = run.checkpoint, run.job.source
    done = found.without_load()
    if not (_follows(run) and isinstance(source, Passes)):
        return done
    return source.loaded(done, found.held_upto, found.rows)


def _merge_instead(run: Run) -> None:
    """Merge several versions of a row batch by batch: the latest wins, as in every later pass."""
    run.log_started_over(say("plan.several_versions"))
    run.meter.starts_over()
    run.checkpoint = run.checkpoint.without_cursor()
    incremental.incremental(run)
