"""Plan what the next full load of a pipeline would change in its target, without writing to it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vitrina.checks import compare, comparison
from vitrina.checks.compare import Comparison, Detail
from vitrina.errors import BadCheck, BadKey, FatalError, TargetMismatch
from vitrina.loads import checks as run_checks
from vitrina.loads import inspection, load_input, opening
from vitrina.loads.job import Job, Opened
from vitrina.loads.plan import Plan
from vitrina.ports import types
from vitrina.ports.batch import Counts, PartId
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Difference, Kind
from vitrina.ports.data_plan import (
    SAMPLE_ROWS,
    DataDifference,
    Foresees,
    PlannedLoad,
    Sample,
    SampleKind,
)
from vitrina.ports.schema import Column
from vitrina.ports.target import Loading
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Errors that would refuse a run before it reads; the columns can be planned all the same.
_UNFIT = (TargetMismatch, BadKey, BadCheck)
_KINDS: dict[Kind, SampleKind] = {Kind.MISSING: "added", Kind.DIFFERING: "changed", Kind.EXTRA: "removed"}


@dataclass
class DataPlan:
    """Hold one plan. `as_dict` returns the form that is stored and shown."""

    target: str
    mode: str
    target_exists: bool = True
    added: Sequence[Column] = ()
    removed: Sequence[Column] = ()
    # Columns whose values no longer fit: before and after.
    retyped: Sequence[tuple[Column, Column]] = ()
    rows: DataDifference | None = None
    # Why the run would publish nothing.
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # How to read the plan: why rows are missing from it, or which rows it shows.
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        rows = self.rows
        return {
            "target": self.target,
            "mode": self.mode,
            "target_exists": self.target_exists,
            "columns": {
                "added": [_told(column) for column in self.added],
                "removed": [_told(column) for column in self.removed],
                "retyped": [
                    {"name": after.name, "before": before.type, "after": after.type} for before, after in self.retyped
                ],
            },
            "rows": rows.as_dict() if rows else None,
            "checks": [outcome.as_dict() for outcome in rows.checks] if rows else [],
            "refusals": self.refusals,
            "warnings": self.warnings,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


def _told(column: Column) -> dict[str, str]:
    return {"name": column.name, "type": column.type}


def make(row: Row, saved: Row | None, settings: Settings, metastore: Connection) -> DataPlan:
    """Plan the pipeline as `row` defines it. `saved` is its current definition; None if there is none yet."""
    started = time.monotonic()
    with ExitStack() as sessions:
        opened = opening.open_for_inspection(row, settings, metastore, sessions)
        made = DataPlan(opened.definition.final_target, opened.definition.mode)
        with database.translated(f"planning {opened.definition.final_target}"):
            _look(made, opened)
        if opened.target.known() is None and not isinstance(opened.target, Foresees):
            _compare_with_saved(made, saved, settings, metastore, opened)
    made.seconds = time.monotonic() - started
    return made


def _look(made: DataPlan, opened: Opened) -> None:
    if opened.source.runs_when_described and opened.definition.mode == "incremental":
        made.notes.append(say("plan.data_only_new", source=opened.source.name))
        return
    try:
        job = comparison.look_into(opened)
    except _UNFIT as exc:
        made.refusals.append(exc.message)
        _compare_columns(made, opened, inspection.output_of(opened))
        return
    made.target_exists = job.prepared.exists
    made.warnings += job.plan.warnings
    _compare_columns(made, opened, job.output)
    if not job.output:
        made.notes.append(say("plan.data_no_columns", source=opened.source.name))
        return
    _count_rows(made, job)


def _compare_columns(made: DataPlan, opened: Opened, output: Sequence[Column]) -> None:
    """Compare with the columns of the target, if it has column types."""
    known = opened.target.known()
    if known is None:
        made.added = list(output)
        return
    options = opened.definition.options
    # The target has neither a cursor that is read but not kept, nor the column that marks deleted rows.
    unkept = {opened.definition.incremental_key, opened.definition.incremental_id_key, options.delete_when}
    named = {column.name for column in output}
    written = (opened.checkpoint.identity.get("columns") or {}).get("names", ())
    made.added = [one for one in output if known.column(one.name) is None and one.name not in unkept]
    made.removed = [one for one in known.columns if one.name in written and one.name not in named]
    pairs = ((known.column(one.name), one) for one in output)
    made.retyped = [
        (before, after)
        for before, after in pairs
        if before is not None and not types.fits(after.type, getattr(before, "base_type", before.type))
    ]


def _compare_with_saved(
    made: DataPlan, saved: Row | None, settings: Settings, metastore: Connection, opened: Opened
) -> None:
    """Compare with the columns of the saved definition, for a target without column types."""
    if saved is None or opened.source.runs_when_described:
        return
    with ExitStack() as sessions:
        before = inspection.output_of(opening.open_for_inspection(saved, settings, metastore, sessions))
    after = {column.name: column for column in made.added}
    known = {column.name: column for column in before}
    made.added = [column for column in after.values() if column.name not in known]
    made.removed = [column for column in before if column.name not in after]
    pairs = [(known[name], column) for name, column in after.items() if name in known]
    made.retyped = [(one, other) for one, other in pairs if one.type != other.type]


def _count_rows(made: DataPlan, job: Job) -> None:
    try:
        made.rows = _staged(made, job) if isinstance(job.target, Foresees) else _compared(made, job)
    except FatalError as exc:
        # A run would fail in the same way: a repeated key, or a row on which the query fails.
        if isinstance(job.target, Foresees):
            made.refusals.append(exc.message)
        else:
            made.notes.append(say("plan.data_not_told", target=made.target, because=exc.message))
    if made.rows:
        made.refusals += made.rows.refusals
        made.notes += made.rows.notes
    if job.checkpoint.stage is not None:
        made.notes.append(say("plan.data_load_kept"))
    if job.definition.mode == "incremental":
        made.notes.append(say("plan.data_incremental"))


def _staged(made: DataPlan, job: Job) -> DataDifference:
    """Fill a separate load, as a full load would, and let the target compare it."""
    job = replace(job, plan=_of_full_load(job.plan))
    with _planned(job) as planned:
        made.added = list(planned.new_columns)
        found, rejected = _filled(job, planned)
        difference = planned.difference(found)
        return replace(difference, rejected=difference.rejected + rejected)


def _of_full_load(plan: Plan) -> Plan:
    """Return a plan that reads everything, even if the next run would read only what is new."""
    if plan.loads_at_once:
        return plan
    paging = "one statement" if plan.route == "pushdown" else plan.paging
    return replace(plan, paging=paging, page_rows=None, loads_at_once=True)


@contextmanager
def _planned(job: Job) -> Iterator[PlannedLoad]:
    if not isinstance(job.target, Foresees):
        raise TypeError(f"{job.target} cannot tell what a load would change")
    definition = job.definition
    loading = Loading("replace", deletes=job.plan.deletes, refuses_repeats=definition.mode != "incremental")
    latest = [name for name in (definition.incremental_key, definition.incremental_id_key) if name]
    checks = run_checks.of_run(job, set) if definition.checks else None
    planned = job.target.plan_load(
        load_input.loading_of(job, loading, checks), latest if definition.mode == "incremental" else []
    )
    planned.begin()
    try:
        yield planned
    finally:
        planned.discard()


def _filled(job: Job, planned: PlannedLoad) -> tuple[Checkpoint, int]:
    """Fill the load; return the accepted parts, and the number of rows that steps rejected."""
    found, rejected = Checkpoint(), 0
    window = replace(load_input.window_of(job), batch_rows=lambda: job.definition.batch_size)
    with load_input.open_filling(job, planned.load, window) as filled:
        for part in filled.parts(1, None):
            found = found.accepting(PartId(job.claim.epoch, part.number), part.staged_rows, None)
            rejected += len(part.letters)
    return found, rejected


# Targets that cannot plan a load are compared as reconcile does.


def _compared(made: DataPlan, job: Job) -> DataDifference:
    compared = comparison.of_job(job)
    with compared.both_sides() as (source, target):
        expected = compared.job.described.estimated_rows
        look = compare.look_fully(source, target, expected_rows=expected)
        details = compare.details(_first_of_each_kind(look), source, target)
    made.notes.append(say("plan.data_compared", target=made.target))
    here, there = look.rows or (0, 0)
    added, changed, extra = (look.counts[kind] for kind in (Kind.MISSING, Kind.DIFFERING, Kind.EXTRA))
    deletes = compared.job.plan.deletes
    return DataDifference(
        counts=Counts(added, changed, extra if deletes else 0, here - added - changed),
        rows_before=there,
        samples=[_sample(detail) for detail in details],
        stay=None if deletes else extra or None,
    )


def _first_of_each_kind(look: Comparison) -> list[Difference]:
    return [one for kind in Kind for one in [one for one in look.differences if one.kind is kind][:SAMPLE_ROWS]]


def _sample(detail: Detail) -> Sample:
    after = {**detail.key, **{name: source for name, (source, _) in detail.columns.items()}}
    before = {**detail.key, **{name: target for name, (_, target) in detail.columns.items()}}
    return Sample(
        _KINDS[detail.kind],
        None if detail.kind is Kind.MISSING else before,
        None if detail.kind is Kind.EXTRA else after,
    )
