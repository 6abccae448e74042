"""A repair under the pipeline's lease, as a run of its own: whoever else would write waits until it is over."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import structlog

from vitrina.checks import repair as rules
from vitrina.checks.compare import Verdict
from vitrina.checks.repair import Repaired
from vitrina.connectors.postgres.load import MartTarget
from vitrina.errors import Disconnected, LeaseLost, VitrinaError
from vitrina.loads import job as jobs
from vitrina.loads.context import RunContext
from vitrina.loads.control import RunControl, clock
from vitrina.observe.run_meter import RunMeter
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store import database, leases, runs
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters

Hold = Callable[[Claim, float], AbstractContextManager[RunControl]]


def repair(
    request: dict[str, Any], metastore: Connection, settings: Settings, verdict: Verdict, hold: Hold
) -> dict[str, Any]:
    """Claim, write what is confirmed, give the lease back; what was done."""
    asked_at = clock()
    claim = leases.claim_idle(metastore, request["pipeline_id"], request["runner_id"], settings.lease_ttl_seconds)
    counters = Counters(metrics={"repair": rules.plan(verdict.confirmed)})
    with hold(claim, asked_at) as control:
        try:
            done = _mend(claim, settings, verdict, control, counters)
        except (LeaseLost, Disconnected):
            raise  # the lease is not ours to give back: recovery does it
        except VitrinaError as exc:
            _conclude(metastore, claim, counters)
            leases.finish_run(metastore, claim.run_id, RunStatus.FAILED, exc.code, exc.message)
            raise
        _conclude(metastore, claim, counters)
    return {**rules.outcome(done, verdict.total), "run_id": str(claim.run_id)}


def _conclude(metastore: Connection, claim: Claim, counters: Counters) -> None:
    runs.record_progress(metastore, claim.run_id, counters, attempts=1)
    leases.conclude_run(metastore, claim, answered=False)


def _mend(claim: Claim, settings: Settings, verdict: Verdict, control: RunControl, counters: Counters) -> Repaired:
    log = structlog.get_logger().bind(pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id))
    meter = RunMeter()
    meter.counters = counters
    context = RunContext(claim, control, meter, log)
    # A paused pipeline is repaired without becoming anything else than paused.
    context.ignores_pause = claim.row["status"] == Status.PAUSE_REQUESTED
    with ExitStack() as sessions, database.translated(f"repairing {claim.name}"):
        opened = jobs.open_job(claim, settings, sessions, context=context)
        if isinstance(opened.target, MartTarget):
            from vitrina.checks import mart_repair

            return mart_repair.mend(opened, verdict, control, counters, ignores_pause=context.ignores_pause)
        # Imported here: it needs pyarrow, and half a second for it.
        from vitrina.checks import index_repair

        return index_repair.mend(opened, verdict, control, counters, ignores_pause=context.ignores_pause)
