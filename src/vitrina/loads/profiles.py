"""What is in the target after a run, kept where people look at it when the definition asks for that."""

from vitrina.errors import FatalError, RunError
from vitrina.loads.run import Run
from vitrina.ports.profile import Profiles, TargetProfile
from vitrina.ports.profiling import profile_of
from vitrina.ports.target import Scans, Target
from vitrina.sentences import say
from vitrina.store import requests

# Who asked for such a profile.
REQUESTED_BY = "run"


def look(target: Target, name: str) -> TargetProfile | None:
    """Ask the target what is in it, or read it back; None if it does not exist yet."""
    if isinstance(target, Profiles):
        return target.profile()
    if isinstance(target, Scans):
        return profile_of(target.scan())
    raise FatalError(say("target.no_profile", target=name))


def _warn(run: Run, message: str) -> None:
    run.log.warning("run.not_profiled", error=message)
    run.meter.warn(say("run.not_profiled", message=message))


def keep(run: Run) -> None:
    """Look at the target, which the run is about to let go. The rows are right whether that succeeds or not."""
    if not run.job.definition.options.profile:
        return
    try:
        found = look(run.job.target, run.job.definition.final_target)
    except RunError as exc:
        _warn(run, exc.message)
        return
    except Exception as exc:  # noqa: BLE001 - whatever a connector stumbles over, the rows are in their target
        _warn(run, f"internal error: {type(exc).__name__}")
        return
    if found is not None:
        result = {"target": run.job.definition.final_target, **found.as_dict()}
        of_run = {"run_id": str(run.job.claim.run_id)}
        requests.insert_done(
            run.job.metastore, "profile", run.job.pipeline_id, of_run, requested_by=REQUESTED_BY, result=result
        )
