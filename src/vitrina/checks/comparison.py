"""Open a target and its source as the two sides of a comparison, for a runner."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vitrina.errors import FatalError
from vitrina.loads import inspection, plan, steps
from vitrina.loads.job import Job, Opened
from vitrina.ports.compare import Comparable, ComparableSide, ComparesKeys, Comparison, Cuts, Rescans, SideCut
from vitrina.ports.target import Scans
from vitrina.sentences import say
from vitrina.settings import limit_variable
from vitrina.store import session_limits, state


@dataclass
class Compared:
    """Hold an inspected pipeline and the comparison that fits its target."""

    job: Job
    comparison: Comparison

    @contextmanager
    def both_sides(self) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        """Open source and target. The checkpoint is read first; see `vitrina.checks.compare`."""
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        self.job = replace(self.job, checkpoint=found)
        with self.comparison.sides(found) as sides:
            yield sides

    @contextmanager
    def both_keys(self) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        """Open both sides for their keys only, if the comparison can; whole rows show the same, only more slowly."""
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        self.job = replace(self.job, checkpoint=found)
        own = self.comparison
        with own.key_sides(found) if isinstance(own, ComparesKeys) else own.sides(found) as sides:
            yield sides


def cut(compared: Compared) -> tuple[SideCut, SideCut] | None:
    """Let several sessions ask each side, if `options.parallel` requests it; None: it does not.

    The reports say why not, or are filled in by the first look.
    """
    job = compared.job
    definition = job.definition
    sessions = steps.workers_of(definition)
    if definition.options.parallel == 1:
        return None
    obstacle = _why_not_cut(compared, sessions)
    if obstacle or not isinstance(compared.comparison, Cuts):
        return SideCut(obstacle=obstacle), SideCut(obstacle=obstacle)
    return compared.comparison.cut(sessions)


def _why_not_cut(compared: Compared, sessions: int) -> str | None:
    job = compared.job
    definition, rows = job.definition, job.described.estimated_rows
    if not isinstance(compared.comparison, Cuts):
        return say("plan.ranges_target", target=definition.final_target)
    limited = session_limits.find_limited(definition, job.settings)
    if limited:
        return say("check.cut_limited", variable=limit_variable(limited, "max_connections"))
    if sessions == 1:
        return say("plan.ranges_no_room")
    least = 2 * plan.range_rows(definition)
    return say("check.cut_few", rows=rows, least=least) if rows < least else None


def inspect(opened: Opened) -> Compared:
    """Choose how to compare: with the target's own comparison, or by reading it all back."""
    if not isinstance(opened.target, Comparable):
        _required_scans(opened)
    return of_job(look_into(opened))


def of_job(job: Job) -> Compared:
    """Choose the comparison for an inspected pipeline."""
    target = job.target
    if isinstance(target, Comparable):
        return Compared(job, target.compare(job))
    # Imported here, because it needs pyarrow, which takes half a second to load.
    from vitrina.checks import scan_comparison

    return Compared(job, scan_comparison.ScanComparison(job, _required_scans(job), target.form))


def _required_scans(opened: Opened) -> Scans:
    """Return the target if it can be read back; refuse it otherwise."""
    from vitrina.checks import scan_comparison

    return scan_comparison.required(opened.target, opened.definition.final_target)


def look_into(opened: Opened) -> Job:
    """Inspect the pipeline from its beginning, where a source in mode full always starts, so it can be read twice."""
    if opened.source.runs_when_described and opened.definition.mode == "incremental":
        raise FatalError(
            f"the rows come from the Python source {opened.definition.python_source!r} in mode incremental: it returns"
            " only what is new since its own checkpoint and cannot be asked for everything that it ever returned, so"
            f" there is nothing to compare {opened.definition.final_target} with; only a source in mode full can be"
            " reconciled"
        )
    return inspection.look_into(opened)


def knows_age(job: Job) -> bool:
    """Return whether each row tells if it can have been delivered yet."""
    return isinstance(job.source, Rescans) and job.source.cursor_name is not None
