"""Execute one attempt of one run, from its claim to its conclusion."""

import time
from contextlib import ExitStack

import structlog

from vitrina import failpoints
from vitrina.loads import inspection, opening, profiles
from vitrina.loads.context import RunContext
from vitrina.loads.control import Paused, RunControl
from vitrina.loads.full import full
from vitrina.loads.incremental import incremental, save_position
from vitrina.loads.job import Job
from vitrina.loads.live import Again, forget_position, live
from vitrina.loads.run import Run
from vitrina.observe.run_meter import RunMeter
from vitrina.runner.watchdog import silence_limit
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import database, leases
from vitrina.store.leases import Claim
from vitrina.store.session_pool import SessionPool


class PipelineExecutor:
    """Run one claim once. The dispatcher sorts what this raises into retry, failure and loss."""

    def __init__(self, settings: Settings, pool: SessionPool | None = None) -> None:
        self._settings = settings
        self._pool = pool

    def execute(self, claim: Claim, control: RunControl, meter: RunMeter) -> Status:
        """Open the sessions, plan, move the data and conclude. Return the pipeline's status afterwards."""
        log = structlog.get_logger().bind(
            pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id), epoch=claim.epoch
        )
        control.silence_limit_seconds = silence_limit(self._settings.statement_timeout_seconds)
        started = time.monotonic()
        with ExitStack() as conclusion, ExitStack() as sessions:
            context = RunContext(claim, control, meter, log, self._pool)
            opened = opening.open_job(claim, self._settings, sessions, context=context, conclusion=conclusion)
            definition = opened.definition
            used = (None, definition.source_connection, definition.options.target_connection)
            control.silence_limit_seconds = silence_limit(opening.statement_timeout(definition, self._settings, *used))
            failpoints.hit("run.seized")
            with database.translated(f"writing to {definition.final_target}"):
                job = inspection.inspect(opened)
            meter.planned(job, time.monotonic() - started)
            log.info("run.planned", route=job.plan.route, paging=job.plan.paging, key=list(job.plan.key))
            failpoints.hit("run.planned")
            run = Run(job, control=control, meter=meter, context=context, log=log)
            try:
                move_data(run)
                if definition.options.profile:
                    profiles.keep(run)
            except Paused:
                sessions.close()
                return self._conclude(job, meter, boundary=True)
            except Again as again:
                sessions.close()
                return self._begin_again(job, meter, again)
            # Close before the end is published: the next run may need these sessions' share of a connection limit.
            sessions.close()
            return self._conclude(job, meter, answered=run.answers_request)

    def _begin_again(self, job: Job, meter: RunMeter, again: Again) -> Status:
        """Close the run's row and request the next run of the live pipeline in the same transaction."""
        failpoints.hit("run.concluding")
        with database.translated("concluding the run"):
            meter.note("ended_because", again.reason)
            meter.record(job.metastore, job.claim)
            status = leases.begin_again(job.metastore, job.claim, again.reason, loads=again.loads)
        failpoints.hit("run.concluded")
        return status

    def _conclude(self, job: Job, meter: RunMeter, *, boundary: bool = False, answered: bool = False) -> Status:
        failpoints.hit("run.concluding")
        with database.translated("concluding the run"):
            status = leases.conclude_run(
                job.metastore,
                job.claim,
                boundary=boundary,
                answered=answered,
                done=meter.total(),
            )
        failpoints.hit("run.concluded")
        return status


def move_data(run: Run) -> None:
    """Load everything, load what is new, or follow the source, depending on mode and plan."""
    with run.recording_checks():
        _move_data(run)


def _move_data(run: Run) -> None:
    job = run.job
    if job.starts_over_because:
        run.log_started_over(job.starts_over_because)
    run.adjust_target()
    if job.definition.mode == "live":
        live(run)
        return
    forget_position(run)
    if not job.has_target:
        save_position(run)
    elif job.plan.loads_at_once:
        full(run)
    else:
        incremental(run)
