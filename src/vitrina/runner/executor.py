"""One run of one pipeline, from its claim to its conclusion."""

import time
from contextlib import ExitStack

import structlog

from vitrina import failpoints
from vitrina.loads import job as jobs
from vitrina.loads.control import Paused, RunControl
from vitrina.loads.job import Job
from vitrina.loads.table_run import Run
from vitrina.observe.run_meter import RunMeter
from vitrina.runner.watchdog import silence_limit
from vitrina.settings import Settings
from vitrina.status import Status
from vitrina.store import database, leases
from vitrina.store.leases import Claim
from vitrina.targets import PostgresTarget


class PipelineExecutor:
    """Runs one claim once. Raises what `dispatcher` sorts into retry, failure, loss."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def execute(self, claim: Claim, control: RunControl, meter: RunMeter) -> Status:
        """Open, plan, move the data, conclude; returns the pipeline's status afterwards."""
        log = structlog.get_logger().bind(
            pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id), epoch=claim.epoch
        )
        control.silence_limit_seconds = silence_limit(self._settings.statement_timeout_seconds)
        started = time.monotonic()
        with ExitStack() as conclusion, ExitStack() as sessions:
            job = jobs.open_job(
                claim, self._settings, sessions, guard=control.guard, attach=control.attach, conclusion=conclusion
            )
            used = (None, job.definition.source_connection, job.definition.options.target_connection)
            control.silence_limit_seconds = silence_limit(jobs.statement_timeout(job.definition, self._settings, *used))
            failpoints.hit("run.seized")
            with database.translated(f"writing to {job.target}"):
                plan = jobs.inspect(job)
            meter.planned(job, plan, time.monotonic() - started)
            log.info("run.planned", route=plan.route, paging=plan.paging, key=list(plan.key))
            failpoints.hit("run.planned")
            run = _kind_of(job)(job, plan, control=control, meter=meter, log=log, sessions=sessions)
            try:
                run.move_data()
            except Paused:
                sessions.close()
                return self._conclude(job, meter, boundary=True)
            # Before anybody hears of the end: the next run may need the room that these took on a limited connection.
            sessions.close()
            return self._conclude(job, meter, answered=run.answers_request)

    def _conclude(self, job: Job, meter: RunMeter, *, boundary: bool = False, answered: bool = False) -> Status:
        failpoints.hit("run.concluding")
        with database.translated("concluding the run"):
            meter.record(job.metastore, job.claim)
            status = leases.conclude_run(job.metastore, job.claim, boundary=boundary, answered=answered)
        failpoints.hit("run.concluded")
        return status


def _kind_of(job: Job) -> type[Run]:
    # Imported here: runs that move rows inside Postgres need neither pyarrow nor a search client.
    if not isinstance(job.target, PostgresTarget):
        from vitrina.loads.search_run import SearchRun
        from vitrina.loads.search_source_run import SearchSourceRun

        return SearchSourceRun if job.source else SearchRun
    from vitrina.loads.source_run import SourceRun

    return SourceRun if job.source else Run
