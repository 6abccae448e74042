"""Columns of a mart that its pipeline wrote before, and no longer gives: most rows would keep what they had then."""

from typing import TYPE_CHECKING, Any

from vitrina.errors import TargetMismatch
from vitrina.ports.checkpoint import Checkpoint
from vitrina.store import pipelines
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    from vitrina.loads.job import Job


def settle(job: "Job") -> None:
    """Refuse what nobody has decided about; `null` is carried out by the run, `keep` needs nothing."""
    left = _left(job)
    choice = job.definition.options.on_missing_columns
    if not left:
        return
    named = ", ".join(left)
    if choice is None:
        raise TargetMismatch(
            f"{job.target} has {named}, which this pipeline wrote before and no longer gives: most rows would keep old"
            " values; drop the column(s), give them again, or set options.on_missing_columns to 'keep' or 'null'"
        )
    if choice == "keep":
        job.warnings.append(f"{named} of {job.target} is no longer given: rows keep the values that they have")
        return
    _refuse_to_clear(job, left)
    job.columns_to_clear = left
    job.warnings.append(f"{named} of {job.target} is no longer given: it is set to NULL in all rows")


def written(checkpoint: Checkpoint, job: "Job") -> dict[str, Any]:
    """What the checkpoint remembers behind a batch: the columns so far, and those of this run."""
    return _remembered(job, [*_known(checkpoint, job), *job.writer.columns])


def cleared(checkpoint: Checkpoint, job: "Job") -> dict[str, Any]:
    """What it remembers when the columns that left were set to NULL."""
    return _remembered(job, [name for name in _known(checkpoint, job) if name not in job.columns_to_clear])


def _remembered(job: "Job", names: list[str]) -> dict[str, Any]:
    return {"of": str(job.target), "names": list(dict.fromkeys(names))}


def _left(job: "Job") -> tuple[str, ...]:
    if not isinstance(job.target, PostgresTarget) or not job.writer.exists:
        return ()
    in_table = {column.name for column in job.writer.table.columns if not column.generated}
    given = set(job.writer.columns)
    return tuple(name for name in _known(job.checkpoint, job) if name in in_table and name not in given)


def _known(checkpoint: Checkpoint, job: "Job") -> list[str]:
    known = checkpoint.identity.get("columns")
    return list(known["names"]) if known and known["of"] == str(job.target) else []


def _refuse_to_clear(job: "Job", left: tuple[str, ...]) -> None:
    required = [column.name for column in job.writer.table.columns if column.name in left and column.not_null]
    if required:
        raise TargetMismatch(
            f"{required[0]} of {job.target} cannot be set to NULL, as options.on_missing_columns asks: it is NOT NULL;"
            " drop the constraint or the column, or choose 'keep'"
        )
    definition = job.definition
    on_target = pipelines.list_on_target(job.metastore, definition.final_target, definition.options.target_connection)
    others = [other["name"] for other in on_target if other["id"] != job.claim.pipeline_id]
    if others:
        raise TargetMismatch(
            f"{', '.join(left)} of {job.target} cannot be set to NULL, as options.on_missing_columns asks: {others[0]}"
            " writes there as well, and its values would be lost; choose 'keep', or clear the column by hand"
        )
