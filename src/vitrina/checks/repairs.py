"""A repair under the pipeline's lease, as a run of its own: whoever else would write waits until it is over."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from vitrina.checks import repair as rules
from vitrina.checks.compare import Verdict
from vitrina.checks.repair import Repaired
from vitrina.errors import Disconnected, LeaseLost, VitrinaError
from vitrina.loads import job as jobs
from vitrina.loads.control import RunControl, clock
from vitrina.settings import Settings
from vitrina.status import RunStatus, Status
from vitrina.store import database, leases, runs
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters
from vitrina.targets import SearchTarget

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
    with ExitStack() as sessions, database.translated(f"repairing {claim.name}"):
        job = jobs.open_job(claim, settings, sessions, guard=control.guard, attach=control.attach)
        # A paused pipeline is repaired without becoming anything else than paused.
        ignores_pause = claim.row["status"] == Status.PAUSE_REQUESTED
        if isinstance(job.target, SearchTarget):
            # Imported here: it needs pyarrow, and half a second for it.
            from vitrina.checks import index_repair

            return index_repair.mend(job, verdict, control, counters, ignores_pause=ignores_pause)
        from vitrina.checks import mart_repair

        return mart_repair.mend(job, verdict, control, counters, ignores_pause=ignores_pause)
