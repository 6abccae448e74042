"""Replay dead letters: read each rejected row again from the source by its key, and resolve its dead letter."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import structlog

from vitrina.errors import Conflict, Disconnected, FatalError, LeaseLost, NotFound, VitrinaError
from vitrina.loads import followed, inspection, opening
from vitrina.loads.context import RunContext
from vitrina.loads.control import Hold, RunControl, clock
from vitrina.loads.incremental import begin, open_merge, start_over_where_lost
from vitrina.loads.job import Job
from vitrina.loads.run import Run
from vitrina.observe.run_meter import RunMeter
from vitrina.ports import types
from vitrina.ports.batch import DeadLetter, Key, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.source import Rereads, Window
from vitrina.ports.target import Load
from vitrina.settings import Settings
from vitrina.status import RunStatus
from vitrina.store import database, dead_letters, leases, pipelines, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim

# Maximum per request; the rest waits for the next one.
MAX_LETTERS = 10_000
_LETTERS_AT_ONCE = 1_000

Letter = dict[str, Any]
Outcome = dict[dead_letters.Resolution, list[int]]


@dataclass
class ReplayReport:
    """Report what happened to the dead letters. Those counted as `unclear` do not identify their row."""

    letters: int = 0
    sent: int = 0
    refused: int = 0
    gone: int = 0
    unclear: int = 0
    remaining: int = 0
    run_id: str | None = None


def replay(request: dict[str, Any], metastore: Connection, settings: Settings, hold: Hold) -> dict[str, Any]:
    """Replay rejected rows under the pipeline's lease, as a separate run: other writers wait until it is over."""
    row = pipelines.find(metastore, request["pipeline_id"])
    if row is None:
        raise NotFound(f"pipeline {request['pipeline_id']} was deleted meanwhile")
    _refuse_others(row, metastore)
    numbers = request["payload"].get("letters")
    letters = dead_letters.list_open(metastore, row["id"], numbers=numbers, limit=MAX_LETTERS)
    report = ReplayReport(letters=len(letters))
    if letters:
        _replay_leased(request, metastore, settings, hold, letters=letters, report=report)
    report.remaining = dead_letters.count_open(metastore, row["id"])
    structlog.get_logger().info("replay.done", pipeline=row["name"], pipeline_id=str(row["id"]), **asdict(report))
    return asdict(report)


def _refuse_others(row: dict[str, Any], metastore: Connection) -> None:
    definition = pipelines.definition_of(row)
    leases.refuse_beside_a_run(row, "pipeline.no_replay_now")
    if definition.python_source:
        raise FatalError(
            f"the rows come from the Python source {definition.python_source!r}, which cannot return single rows:"
            " run the pipeline"
        )
    if state.peek(metastore, row["id"]).stage is not None:
        raise Conflict(
            f"pipeline {row['name']} has an unfinished full load, to which its dead letters belong: run it to its end,"
            " then ask again"
        )


def _replay_leased(
    request: dict[str, Any],
    metastore: Connection,
    settings: Settings,
    hold: Hold,
    *,
    letters: Sequence[Letter],
    report: ReplayReport,
) -> None:
    asked_at = clock()
    claim = followed.claim(request, metastore, settings, "pipeline.no_replay_now")
    report.run_id = str(claim.run_id)
    meter = RunMeter()
    with hold(claim, asked_at) as control:
        try:
            with ExitStack() as sessions, database.translated(f"sending rows of {claim.name} again"):
                run, source = _open(claim, settings, control, meter, sessions)
                _send_all(run, source, letters, report)
        except (LeaseLost, Disconnected):
            raise  # the lease is lost; recovery releases it
        except VitrinaError as exc:
            _conclude(metastore, claim, meter, report)
            leases.finish_run(metastore, claim.run_id, RunStatus.FAILED, exc.code, exc.message)
            raise
        _conclude(metastore, claim, meter, report)


def _conclude(metastore: Connection, claim: Claim, meter: RunMeter, report: ReplayReport) -> None:
    meter.note("replay", asdict(report))
    meter.record(metastore, claim)
    leases.conclude_run(metastore, claim, answered=False)


def _open(
    claim: Claim, settings: Settings, control: RunControl, meter: RunMeter, sessions: ExitStack
) -> tuple[Run, Rereads]:
    log = structlog.get_logger().bind(pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id))
    context = RunContext(claim, control, meter, log)
    context.ignores_pause = True
    job = inspection.inspect(opening.open_job(claim, settings, sessions, context=context), create_target=False)
    if not job.prepared.exists:
        raise FatalError(f"{job.definition.final_target} does not exist yet: run the pipeline first")
    source = job.source
    if not isinstance(source, Rereads):
        raise FatalError(f"{source.name} cannot return single rows: run the pipeline")
    _refuse_made_keys(job, source)
    # Rows pass through the runner, even if the database could have filled the stage itself.
    job = replace(job, plan=replace(job.plan, route="arrow", page_rows=None))
    run = Run(job, control=control, meter=meter, context=context, log=log)
    run.obeys_pause = False  # a paused pipeline stays PAUSE_REQUESTED; a replay is short
    return run, source


def _refuse_made_keys(job: Job, source: Rereads) -> None:
    written = {column.name: column.type for column in job.output}
    given = _given(job)
    for name in job.key:
        if written[name] == "bytea":
            raise FatalError(f"the key column {name!r} is bytea, which dead letters do not store exactly")
        if name not in given or _family(given[name]) != _family(written[name]):
            raise FatalError(
                f"Python steps make the key column {name!r}, so a dead letter does not identify a row of the source:"
                " run the pipeline"
            )
    source.refuse_keys(job.key)


def _given(job: Job) -> dict[str, str]:
    """Return the columns of the source with their Postgres types, also if the source describes them in Arrow types."""
    if job.described.schema is None:
        return {column.name: column.type for column in job.described.columns}
    from vitrina.transforms.to_target import postgres_type

    return {field.name: postgres_type(field) or "text" for field in job.described.schema}


def _family(kind: str) -> str:
    base = types.base_type(kind)
    return "text" if base == "character varying" else base


def _send_all(run: Run, source: Rereads, letters: Sequence[Letter], report: ReplayReport) -> None:
    """Move the rows of the dead letters by their keys. The checkpoint does not move."""
    load: Load | None = None
    for start in range(0, len(letters), _LETTERS_AT_ONCE):
        found = _look_up(run.job.key, source, letters[start : start + _LETTERS_AT_ONCE])
        report.unclear += found.unclear
        refused: list[DeadLetter] = []
        if found.present:
            load = load or _open_load(run)
            refused = _send(run, load, sorted(found.present))
        if found.told:
            _resolve(run, _outcome(run.job.key, source, found, refused), found, report)
    if load is not None:
        # Publish what was written, and remove what was only needed to write it.
        load.publish(run.fence("ending the replay", lambda done: run.checkpoint, progressed=False))
        load.discard()


class _Found(NamedTuple):
    """Hold dead letters that identify their row, the keys of these rows, and the keys that the source still has."""

    told: list[Letter]
    keys: list[Key]
    present: set[Key]
    unclear: int


def _look_up(names: Sequence[str], source: Rereads, letters: Sequence[Letter]) -> _Found:
    told = [(letter, key) for letter in letters if (key := key_of(letter, names))]
    unclear = len(letters) - len(told)
    if not told:
        return _Found([], [], set(), unclear)
    keys = list(source.canonical(names, [key for _, key in told]))
    return _Found([letter for letter, _ in told], keys, set(source.present(names, keys)), unclear)


def _open_load(run: Run) -> Load:
    """Open the load. Writing rows alone would make a target that was replaced by hand look like the old one."""
    load = open_merge(run, watches=False)  # the replay resolves each dead letter itself
    start_over_where_lost(run, load)
    begin(run, load)
    return load


def _send(run: Run, load: Load, keys: Sequence[Key]) -> list[DeadLetter]:
    """Read these rows as they are now and write them as a pass would. Return those that were rejected."""
    refused: list[DeadLetter] = []
    with run.parts(load, Window(order=run.job.key, keys=keys)) as parts:
        for part in parts:
            run.commit(load, part, _numbered)
            refused += run.letters.latest
    return refused


def _numbered(found: Checkpoint, part: Part) -> Checkpoint:
    return replace(found, batch_no=part.number)


def _outcome(names: Sequence[str], source: Rereads, found: _Found, refused: Sequence[DeadLetter]) -> Outcome:
    """Classify dead letters: row sent, row deleted in the source, or replaced by a dead letter with another reason."""
    again = [key for letter in refused if (key := key_of(_as_row(letter), names))]
    refused_keys = set(source.canonical(names, again))
    reasons = {
        (letter.document_id, dead_letters.without_numbers(dead_letters.storable_reason(letter.error)))
        for letter in refused
    }
    outcome: Outcome = {"sent": [], "gone": [], "superseded": []}
    for letter, key in zip(found.told, found.keys, strict=True):
        if key not in found.present:
            outcome["gone"].append(letter["id"])
        elif key not in refused_keys:
            outcome["sent"].append(letter["id"])
        elif (letter["document_id"], dead_letters.without_numbers(letter["error"])) not in reasons:
            outcome["superseded"].append(letter["id"])
    return outcome


def _resolve(run: Run, outcome: Outcome, found: _Found, report: ReplayReport) -> None:
    """Resolve dead letters in a fenced transaction: a runner that lost the lease resolves nothing."""
    job = run.job
    with database.translated("resolving dead letters"), job.metastore.transaction():
        for how, numbers in outcome.items():
            dead_letters.resolve(job.metastore, numbers, how)
        leases.touch(job.metastore, job.claim)
        run.control.require_lease()
    report.sent += len(outcome["sent"])
    report.gone += len(outcome["gone"])
    report.refused += len(found.told) - len(outcome["sent"]) - len(outcome["gone"])


def _as_row(letter: DeadLetter) -> Letter:
    return {"document_id": letter.document_id, "document": dead_letters.as_kept(letter.document)}


def key_of(letter: Letter, names: Sequence[str]) -> Key | None:
    """Return the key's values as text, from the document or else from its id; None if neither has them."""
    document = letter["document"]
    if isinstance(document, dict) and document.keys() == {"doc", "doc_as_upsert"}:
        document = document["doc"]
    if isinstance(document, dict):
        values = [document.get(name) for name in names]
        return tuple(map(_text, values)) if all(isinstance(value, str | int | float) for value in values) else None
    if letter["document_id"].startswith("sha256:"):
        return None
    parts = _parts(letter["document_id"]) if len(names) > 1 else [letter["document_id"]]
    return tuple(parts) if len(parts) == len(names) and all(parts) else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parts(document_id: str) -> list[str]:
    """Split at `|`. Inside a value, a backslash precedes each `|` and each backslash."""
    return [re.sub(r"\\(.)", r"\1", part) for part in re.findall(r"(?:[^|\\]|\\.)+", document_id)]
