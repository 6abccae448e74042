"""Determine what a run must know before it reads: columns, key, resume position and plan."""

from dataclasses import fields, replace
from typing import Any

from vitrina.errors import FatalError
from vitrina.loads import processors, steps
from vitrina.loads.job import Job, Opened, resume_point
from vitrina.loads.passes import disowned
from vitrina.loads.plan import Capabilities, asked_workers, count_ranges, plan, why_not_cut
from vitrina.loads.steps import Fitted
from vitrina.ports.checkpoint import RANGES, Checkpoint
from vitrina.ports.checks import Judges
from vitrina.ports.live import Derivation, Derives
from vitrina.ports.ranges import Cut, Splits
from vitrina.ports.schema import Column
from vitrina.ports.source import BaseSource, Description, Passes, Window
from vitrina.ports.target import Prepared, Shortcut, Wanted
from vitrina.sentences import say
from vitrina.store import runs, session_limits


def inspect(opened: Opened, *, create_target: bool = True) -> Job:
    """Describe the rows, prepare the target, ask the source how it would be read, and choose a plan."""
    if not opened.source.runs_when_described:
        return _inspect(opened, create_target=create_target)
    # Before the source resumes: the checkpoint may belong to another source, or its rows may have left the target.
    opened = _without_foreign_checkpoint(opened)
    if not create_target:  # describing would run the source
        return _without_rows(opened, Description(), None)
    return _inspect(opened, create_target=True)


def look_into(opened: Opened) -> Job:
    """Inspect the pipeline from its beginning, to compare the source with the target without changing it."""
    if opened.source.runs_when_described:
        opened = replace(opened, checkpoint=Checkpoint())
    return _inspect(opened, create_target=False)


def output_of(opened: Opened) -> tuple[Column, ...]:
    """Return the columns that the source and its steps produce, whether they fit the target or not."""
    described = opened.source.describe(_next_window(opened))
    if not described.columns and described.schema is None:
        return ()
    return steps.fit(opened.step_environment, opened.source, described, opened.target.form, opened.target.known).output


def _inspect(opened: Opened, *, create_target: bool) -> Job:
    described = opened.source.describe(_next_window(opened))
    if not described.columns and described.schema is None:
        return _without_rows(opened, described, _prepared_for_nothing(opened) if create_target else None)
    if not opened.source.runs_when_described:
        opened = _without_foreign_checkpoint(opened)
    fitted = steps.fit(opened.step_environment, opened.source, described, opened.target.form, opened.target.known)
    _refuse_unfit_checks(opened, fitted)
    shortcut = opened.target.meet(opened.source)
    prepared = opened.target.prepare(_wanted(opened, described, fitted), create=create_target)
    if fitted.step_pipeline:
        fitted.step_pipeline.steps.key = prepared.key
    opened = _restarted_if_emptied(opened, prepared)
    derivation = _derive(opened, prepared)
    known = _capabilities(opened, described, prepared, shortcut)
    if derivation:
        warnings = (*known.warnings, *derivation.warnings)
        known = replace(known, followed=tuple(derivation.tables), warnings=warnings)
    known = _with_cut(opened, described, prepared, known)
    chosen = plan(opened.definition, known)
    return _job(
        opened,
        described=described,
        fitted=fitted,
        prepared=prepared,
        shortcut=shortcut,
        plan=chosen,
        derivation=derivation,
    )


def _refuse_unfit_checks(opened: Opened, fitted: Fitted) -> None:
    if opened.definition.checks:
        # Imported here, as below: pipelines without checks do not need it.
        from vitrina.loads import checks

        checks.refuse_unfit(opened, fitted.output, judges_itself=isinstance(opened.target, Judges))


def _advice_on_checks(opened: Opened) -> tuple[str, ...]:
    if not opened.definition.checks:
        return ()
    from vitrina.loads import checks

    return checks.advice(opened.definition)


def _derive(opened: Opened, prepared: Prepared) -> Derivation | None:
    """Find how changes lead to keys, or refuse to follow the query."""
    if opened.definition.mode != "live":
        return None
    if not isinstance(opened.source, Derives):
        raise FatalError(say("definition.live_needs_query"))
    if not opened.target.corrects:
        raise FatalError(say("run.live_target", target=opened.definition.final_target))
    return opened.source.derive(prepared.key)


def _without_rows(opened: Opened, described: Description, prepared: Prepared | None) -> Job:
    """Build the job of a run without rows, whose columns are unknown."""
    found = prepared or Prepared((), exists=False, is_empty=True)
    chosen = plan(opened.definition, _capabilities(opened, described, found, None))
    fitted = Fitted((), frozenset())
    return _job(
        opened, described=described, fitted=fitted, prepared=found, plan=chosen, has_target=prepared is not None
    )


def _prepared_for_nothing(opened: Opened) -> Prepared | None:
    definition = opened.definition
    return opened.target.prepare_nothing(replaces=definition.mode != "incremental" and not definition.options.only_adds)


def _job(opened: Opened, **found: Any) -> Job:
    return Job(**{one.name: getattr(opened, one.name) for one in fields(Opened)}, **found)


def _next_window(opened: Opened) -> Window:
    """Build the next window: within an interrupted load, or after the last pass."""
    found = opened.checkpoint
    if opened.definition.mode == "incremental" and not isinstance(opened.source, Passes):
        return Window(since=found.safe_upto)
    if opened.definition.mode == "incremental":
        return Window(after=(found.safe_upto,) if found.safe_upto else None)
    return Window(after=resume_point(found) if found.stage else None)


def _wanted(opened: Opened, described: Description, fitted: Fitted) -> Wanted:
    definition = opened.definition
    cursor = (definition.incremental_key, definition.incremental_id_key) if described.cursor else ()
    return Wanted(
        columns=fitted.output,
        key=tuple(definition.target_key) if definition.target_key else None,
        ignorable=frozenset(filter(None, cursor)),
        stamps=frozenset(definition.options.stamps) | fitted.stamps,
        found=opened.checkpoint,
    )


def _without_foreign_checkpoint(opened: Opened) -> Opened:
    """Discard a checkpoint written for another source or target; resuming from it would skip rows."""
    found, source = opened.checkpoint, opened.source
    if opened.definition.mode != "incremental" or opened.backfill:
        return opened
    if found.stage is not None and not opened.target.loads_first_pass:
        return opened  # the run itself discards the unfinished load
    passes = source if isinstance(source, Passes) else None
    reason = (passes.disowned(found) if passes else disowned(opened.definition, found)) or _lost(opened)
    if reason:
        return replace(opened, checkpoint=found.blank(), starts_over_because=reason)
    if opened.starts_over_because:
        return replace(opened, checkpoint=found.blank())
    return replace(opened, checkpoint=passes.fitting(found)) if passes else opened


def _lost(opened: Opened) -> str | None:
    return None if opened.checkpoint.stage is not None else opened.target.lost(opened.checkpoint)


def _restarted_if_emptied(opened: Opened, prepared: Prepared) -> Opened:
    """Start over in batches if the target was emptied and a first pass is not loaded at once."""
    found = opened.checkpoint
    if opened.definition.mode != "incremental" or opened.backfill or found.stage is not None:
        return opened
    if not (found.rows and prepared.is_empty) or not _is_read_in_passes(opened):
        return opened
    reason = say("plan.recreated", target=opened.definition.final_target)
    return replace(opened, checkpoint=found.blank(), starts_over_because=reason)


def _is_read_in_passes(opened: Opened) -> bool:
    """Return whether no plan could load what is missing at once, as with steps and sources that know only marks."""
    source = opened.source
    if not isinstance(source, Passes) or (isinstance(source, BaseSource) and source.refills_in_passes):
        return True
    return bool(opened.steps) and opened.target.loads_first_pass


def _capabilities(
    opened: Opened, described: Description, prepared: Prepared, shortcut: Shortcut | None
) -> Capabilities:
    found, backfill, source = opened.checkpoint, opened.backfill, opened.source
    passes = source if isinstance(source, Passes) and opened.definition.mode == "incremental" else None
    given = {column.name for column in described.columns}
    return Capabilities(
        same_database=shortcut is not None and shortcut.same_database,
        no_shortcut_because=None if shortcut else opened.target.no_shortcut_because,
        streamed_from=source.name if not described.columns else None,
        has_steps=bool(opened.steps),
        loads_first_pass=opened.target.loads_first_pass,
        takes_any_order=opened.target.takes_any_order,
        estimated_rows=described.estimated_rows,
        pageable=shortcut is not None and shortcut.pageable,
        foreign_functions=shortcut.foreign_functions if shortcut else frozenset(),
        target_is_empty=prepared.is_empty,
        has_checkpoint=found.safe_upto is not None or found.last_key is not None or bool(backfill),
        has_unfinished_load=found.stage is not None and not backfill,
        has_delivered=found.rows > 0 and not backfill,
        key=prepared.key,
        key_is_read=any(name in given for name in prepared.key),
        key_has_order=not described.unordered & set(prepared.key),
        rows_per_second=_measured_rate(opened, described.estimated_rows),
        guarantee=passes.guarantee() if passes else None,
        warnings=(
            *prepared.warnings,
            *(passes.warnings(found) if passes else ()),
            *_advice_on_checks(opened),
        ),
        starts_over_because=opened.starts_over_because,
        workers=_workers(opened, described),
        processors=processors.usable(),
        compare_sessions=_compare_sessions(opened),
        no_ranges_because=_no_ranges_because(opened),
        has_ranges_left=found.stage is not None and RANGES in found.identity,
    )


def _workers(opened: Opened, described: Description) -> int:
    definition = opened.definition
    asked = asked_workers(definition, described.estimated_rows, steps.workers_of(definition))
    return session_limits.workers_with_room(definition, opened.settings, asked)


def _compare_sessions(opened: Opened) -> int:
    limited = session_limits.find_limited(opened.definition, opened.settings)
    return 1 if limited else steps.workers_of(opened.definition)


def _with_cut(opened: Opened, described: Description, prepared: Prepared, known: Capabilities) -> Capabilities:
    """Ask the source into how many ranges of the key its rows can be split, if nothing else prevents it."""
    definition, source = opened.definition, opened.source
    if not definition.options.may_be_cut or why_not_cut(definition, known) or not isinstance(source, Splits):
        return known
    ranges = count_ranges(definition, known)
    if known.has_ranges_left:
        return replace(known, cut=Cut(ranges))
    given = {column.name for column in described.columns}
    order = [name for name in prepared.key if name in given]
    return replace(known, cut=source.plan_cut(order, ranges, known.workers))


def _no_ranges_because(opened: Opened) -> str | None:
    if not isinstance(opened.source, Splits):
        return say("plan.ranges_source", source=opened.source.name)
    if not opened.target.takes_ranges:
        return say("plan.ranges_target", target=opened.definition.final_target)
    return None


def _measured_rate(opened: Opened, estimated_rows: int) -> float | None:
    """Return the rate of the last large run, if it can matter for the plan."""
    if estimated_rows < runs.LARGE_ROWS:
        return None
    return runs.find_rate(opened.metastore, opened.claim.pipeline_id)
