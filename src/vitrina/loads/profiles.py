"""Profile the target after a run, if the definition requests it."""

from vitrina.errors import FatalError, RunError
from vitrina.loads.run import Run
from vitrina.ports.profile import Profiles, TargetProfile
from vitrina.ports.profiling import profile_of
from vitrina.ports.target import Scans, Target
from vitrina.sentences import say
from vitrina.store import requests

# The requester of such a profile.
REQUESTED_BY = "run"


def look(target: Target, name: str) -> TargetProfile | None:
    """Ask the target for its profile, or compute it by reading the target back; None if it does not exist yet."""
    if isinstance(target, Profiles):
        return target.profile()
    if isinstance(target, Scans):
        return profile_of(target.scan())
    raise FatalError(say("target.no_profile", target=name))


def _warn(run: Run, message: str) -> None:
    run.log.warning("run.not_profiled", error=message)
    run.meter.warn(say("run.not_profiled", message=message))


def keep(run: Run) -> None:
    """Profile the target before the run releases it. A failure does not affect the rows."""
    if not run.job.definition.options.profile:
        return
    try:
        found = look(run.job.target, run.job.definition.final_target)
    except RunError as exc:
        _warn(run, exc.message)
        return
    except Exception as exc:  # noqa: BLE001 - whatever fails in a connector, the rows are in their target
        _warn(run, f"internal error: {type(exc).__name__}")
        return
    if found is not None:
        result = {"target": run.job.definition.final_target, **found.as_dict()}
        of_run = {"run_id": str(run.job.claim.run_id)}
        requests.insert_done(
            run.job.metastore, "profile", run.job.pipeline_id, of_run, requested_by=REQUESTED_BY, result=result
        )
