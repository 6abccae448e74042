"""Repair under the pipeline's lease, in a separate run, so that other writers wait until it is over."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import structlog

from vitrina.checks import comparison
from vitrina.checks import repair as rules
from vitrina.checks.compare import Confirmation
from vitrina.checks.repair import Repaired
from vitrina.errors import Disconnected, FatalError, LeaseLost, VitrinaError
from vitrina.loads import followed, opening
from vitrina.loads.context import RunContext
from vitrina.loads.control import Hold, RunControl, clock
from vitrina.loads.run import Run
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.compare import Correctable
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store import database, leases
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

BATCH_ROWS = 5_000


def repair(
    request: dict[str, Any], metastore: Connection, settings: Settings, verdict: Confirmation, hold: Hold
) -> dict[str, Any]:
    """Claim the pipeline, write the confirmed corrections, release the lease, and return what was done."""
    asked_at = clock()
    claim = followed.claim(request, metastore, settings, "pipeline.no_repair_now")
    meter = RunMeter()
    meter.note("repair", rules.plan(verdict.confirmed))
    with hold(claim, asked_at) as control:
        try:
            done = _repair_claimed(claim, settings, verdict, control, meter)
        except (LeaseLost, Disconnected):
            raise  # the lease is lost; recovery releases it
        except VitrinaError as exc:
            _conclude(metastore, claim, meter)
            leases.finish_run(metastore, claim.run_id, RunStatus.FAILED, exc.code, exc.message)
            raise
        _conclude(metastore, claim, meter)
    return {**rules.outcome(done, verdict.total), "run_id": str(claim.run_id)}


def _conclude(metastore: Connection, claim: Claim, meter: RunMeter) -> None:
    meter.record(metastore, claim)
    leases.conclude_run(metastore, claim, answered=False)


def _repair_claimed(
    claim: Claim, settings: Settings, verdict: Confirmation, control: RunControl, meter: RunMeter
) -> Repaired:
    log = structlog.get_logger().bind(pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id))
    context = RunContext(claim, control, meter, log)
    # A paused pipeline stays paused while it is repaired.
    context.ignores_pause = claim.row["status"] == Status.PAUSE_REQUESTED
    with ExitStack() as sessions, database.translated(f"repairing {claim.name}"):
        opened = comparison.inspect(opening.open_job(claim, settings, sessions, context=context))
        job, compared = opened.job, opened.comparison
        if not isinstance(compared, Correctable):
            raise FatalError(f"{job.definition.final_target} can be compared, but not repaired: run the pipeline")
        # Rows pass through the runner, even if the database could have filled the stage itself.
        job = replace(job, plan=replace(job.plan, route="arrow", page_rows=None))
        run = Run(job, control=control, meter=meter, context=context, log=log)
        run.obeys_pause = not context.ignores_pause
        return rules.repair(run, compared, verdict, min(job.definition.batch_size, BATCH_ROWS))
