"""Collect the checks of a run, evaluate those that the target cannot evaluate, and report the results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from vitrina import data_checks
from vitrina.data_checks import Freshness, Relationship, RowCheck, RowCount
from vitrina.definition import Definition
from vitrina.errors import BadCheck
from vitrina.ports.checkpoint import FRESHEST, Checkpoint
from vitrina.ports.checks import Checks, Found, Judgement, of_age, refuse_failed
from vitrina.ports.schema import Column
from vitrina.ports.types import base_type
from vitrina.sentences import Sentence, say
from vitrina.store import runs
from vitrina.table_names import quoted_column, quoted_table

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.loads.arrow_checks import RowGate
    from vitrina.loads.job import Job, Opened

_NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "real", "double precision"})
# Types whose text form is the same in every system.
_PLAIN = frozenset({"smallint", "integer", "bigint", "text", "character varying", "character", "uuid", "boolean"})


def accepting(definition: Definition, accepted: Collection[str]) -> Definition:
    """Disable the guards that a user accepted for this run; checks handle acceptance themselves."""
    allowed = {"allow_shrink": data_checks.SHRINK in accepted, "allow_empty": data_checks.EMPTY in accepted}
    wanted = {name: True for name, is_accepted in allowed.items() if is_accepted}
    if not wanted:
        return definition
    return definition.model_copy(update={"options": definition.options.model_copy(update=wanted)})


def of_run(job: "Job", watched: Callable[[], set[str]]) -> Checks | None:
    """Collect the checks of a run, or return None if there are none."""
    definition = job.definition
    listed = [check for check in definition.checks if not isinstance(check, data_checks.Shrink)]
    if not listed:
        return None
    rejects = any(isinstance(check, RowCheck) and check.severity == "reject" for check in listed)
    compared = [check for check in listed if isinstance(check, RowCount) and check.last_runs]
    history = {check.called: _history(job, check) for check in compared}
    return Checks(
        definition.name,
        definition.final_target,
        listed,
        job.claim.accepted_checks,
        history,
        frozenset(watched() if rejects else ()),
    )


def _history(job: "Job", check: RowCount) -> list[float]:
    """Read what earlier runs measured, back to the last run that a user accepted."""
    found: list[float] = []
    for value, result in runs.list_measured(job.metastore, job.pipeline_id, check.called, limit=check.last_runs or 1):
        found.append(value)
        if result == "accepted":
            break
    return found


def refuse_unfit(opened: "Opened", output: Sequence[Column], *, judges_itself: bool) -> None:
    """Refuse checks of columns that the result lacks, and checks that are impossible with this target."""
    types = {column.name: column.type for column in output}
    for check in opened.definition.checks:
        missing = [name for name in check.columns_read if name not in types]
        if missing:
            given = ", ".join(types)
            raise BadCheck(say("run.check_column", check=check.called, column=missing[0], columns=given))
        if isinstance(check, data_checks.SetCheck) and not judges_itself and opened.definition.mode != "full":
            target = opened.definition.final_target
            raise BadCheck(say("run.check_after_pass", check=check.called, kind=check.kind, target=target))
        if isinstance(check, Relationship) and not judges_itself and base_type(types[check.column]) not in _PLAIN:
            kind = types[check.column]
            raise BadCheck(say("run.check_type", check=check.called, column=check.column, type=kind))


def advice(definition: Definition) -> tuple[Sentence, ...]:
    """List the checks that are evaluated only after a pass."""
    late = [check for check in definition.checks if isinstance(check, data_checks.SetCheck)]
    if definition.mode == "full" or not late:
        return ()
    stop = ", ".join(check.called for check in late if check.severity == "fail")
    warn = ", ".join(check.called for check in late if check.severity == "warn")
    said = [say("plan.checks_stop", names=stop)] if stop else []
    return (*said, *([say("plan.checks_warn", names=warn)] if warn else []))


def open_gate(job: "Job", checks: Checks) -> "RowGate":
    """Create the gate that checks rows before they reach the target."""
    from vitrina.loads.arrow_checks import RowGate

    types = {column.name: base_type(column.type) for column in job.output}
    return RowGate(
        checks,
        key=job.key,
        numbers=frozenset(name for name, kind in types.items() if kind in _NUMBERS),
        gone=job.definition.options.delete_when,
        values_of=lambda check: _values_of(job, check),
    )


def _values_of(job: "Job", check: Relationship) -> "pa.ChunkedArray":
    other = quoted_column(check.to_column or check.column)
    table = quoted_table(check.to)
    query = f"SELECT DISTINCT o.{other}::text AS value FROM {table} AS o WHERE o.{other} IS NOT NULL"  # noqa: S608
    return job.reference(query).column("value")


def judge_load(checks: Checks, found: Checkpoint, now: datetime) -> Judgement:
    """Evaluate a load that the target is about to publish, by what was counted while it was read."""
    latest = found.identity.get(FRESHEST) or {}
    outcomes = tuple(
        checks.outcome(check, checks.count(check, found.rows))
        if isinstance(check, RowCount)
        else checks.outcome(check, _freshness(check, latest, now))
        for check in checks.of_sets
        if isinstance(check, RowCount | Freshness)
    )
    refuse_failed(checks, outcomes, "run.check_failed")
    return Judgement(outcomes)


def _freshness(check: Freshness, latest: Mapping[str, str], now: datetime) -> Found:
    at = latest.get(check.called)
    age = (now - datetime.fromisoformat(at)).total_seconds() if at else None
    return of_age(check, age)
