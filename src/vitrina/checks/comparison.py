"""What a runner compares: a target and its source, opened as the two sides that `vitrina.checks` asks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vitrina.errors import FatalError
from vitrina.loads import inspection
from vitrina.loads.job import Job, Opened
from vitrina.ports.compare import Comparable, ComparableSide, ComparesKeys, Comparison, Rescans
from vitrina.ports.target import Scans
from vitrina.store import state


@dataclass
class Compared:
    """A pipeline that was looked at, and the comparison that fits its target."""

    job: Job
    comparison: Comparison

    @contextmanager
    def both_sides(self) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        """Open source and target. Checkpoint, target, source are read in this order: `vitrina.checks.compare`."""
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        self.job = replace(self.job, checkpoint=found)
        with self.comparison.sides(found) as sides:
            yield sides

    @contextmanager
    def both_keys(self) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        """Open both sides for their keys alone, where the comparison can; whole rows show the same, later."""
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        self.job = replace(self.job, checkpoint=found)
        own = self.comparison
        with own.key_sides(found) if isinstance(own, ComparesKeys) else own.sides(found) as sides:
            yield sides


def inspect(opened: Opened) -> Compared:
    """Choose how to compare: the target's own fastest way, or reading it all back."""
    if not isinstance(opened.target, Comparable):
        _required_scans(opened)
    return of_job(look_into(opened))


def of_job(job: Job) -> Compared:
    """Choose the same for a pipeline that was looked into."""
    target = job.target
    if isinstance(target, Comparable):
        return Compared(job, target.compare(job))
    # Imported here: it needs pyarrow, and half a second for it.
    from vitrina.checks import scan_comparison

    return Compared(job, scan_comparison.ScanComparison(job, _required_scans(job), target.form))


def _required_scans(opened: Opened) -> Scans:
    """Refuse a target that cannot be read back."""
    from vitrina.checks import scan_comparison

    return scan_comparison.required(opened.target, opened.definition.final_target)


def look_into(opened: Opened) -> Job:
    """Inspect it from its beginning. In mode full a source starts there each time, so it can be read twice."""
    if opened.source.runs_when_described and opened.definition.mode == "incremental":
        raise FatalError(
            f"the rows come from the Python source {opened.definition.python_source!r} in mode incremental: it gives"
            " what is new since its own checkpoint, and nobody can ask it for everything that it has ever given, so"
            f" there is nothing to compare {opened.definition.final_target} with; only a source in mode full can be"
            " reconciled"
        )
    return inspection.look_into(opened)


def knows_age(job: Job) -> bool:
    """Tell whether each row says if it can have been delivered yet."""
    return isinstance(job.source, Rescans) and job.source.cursor_name is not None
