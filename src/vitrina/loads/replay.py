"""A runner sends refused rows again: each is read anew from the source by its key, and its letter marked resolved."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.checks.repairs import Hold
from vitrina.checks.sides import Key
from vitrina.checks.tables import Field, TableSide, one_form, refuse_strange_keys
from vitrina.connectors.postgres import carriage
from vitrina.connectors.postgres.pushdown import Paging
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.connectors.postgres.stage import stage_name
from vitrina.errors import Conflict, Disconnected, FatalError, LeaseLost, NotFound, VitrinaError
from vitrina.loads import job as jobs
from vitrina.loads.control import RunControl, clock
from vitrina.loads.job import Job
from vitrina.loads.table_run import Run
from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import DeadLetter, Filling, Part
from vitrina.ports.checkpoint import Checkpoint
from vitrina.settings import Settings
from vitrina.status import RunStatus, can_move
from vitrina.store import database, dead_letters, leases, pipelines, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    from vitrina.loads.search_replay import SearchReplay

# In one request; what is left waits for the next.
MAX_LETTERS = 10_000
_LETTERS_AT_ONCE = 1_000

Letter = dict[str, Any]


@dataclass
class Report:
    """What became of the letters; `unclear` ones do not say which row they are about."""

    letters: int = 0
    sent: int = 0
    refused: int = 0
    gone: int = 0
    unclear: int = 0
    remaining: int = 0
    run_id: str | None = None


def replay(request: dict[str, Any], metastore: Connection, settings: Settings, hold: Hold) -> dict[str, Any]:
    """Under the pipeline's lease, as a run of its own: whoever else would write waits until it is over."""
    row = pipelines.find(metastore, request["pipeline_id"])
    if row is None:
        raise NotFound(f"pipeline {request['pipeline_id']} was deleted meanwhile")
    _refuse_others(row, metastore)
    numbers = request["payload"].get("letters")
    letters = dead_letters.list_open(metastore, row["id"], numbers=numbers, limit=MAX_LETTERS)
    report = Report(letters=len(letters))
    if letters:
        _replay_leased(request, metastore, settings, hold, letters=letters, report=report)
    report.remaining = dead_letters.count_open(metastore, row["id"])
    structlog.get_logger().info("replay.done", pipeline=row["name"], pipeline_id=str(row["id"]), **asdict(report))
    return asdict(report)


def _refuse_others(row: dict[str, Any], metastore: Connection) -> None:
    definition = pipelines.definition_of(row)
    if not can_move("claim_idle", row["status"]):
        raise Conflict(
            f"pipeline {row['name']} is {row['status']}: nothing is sent again beside a run; wait until it is IDLE or"
            " PAUSED, then ask again"
        )
    if definition.python_source:
        raise FatalError(
            f"the rows come from the Python source {definition.python_source!r}, which cannot be asked for single ones:"
            " run the pipeline"
        )
    if state.peek(metastore, row["id"]).stage is not None:
        raise Conflict(
            f"pipeline {row['name']} has an unfinished full load, and its letters belong to that: run it to its end,"
            " then ask again"
        )


def _replay_leased(
    request: dict[str, Any],
    metastore: Connection,
    settings: Settings,
    hold: Hold,
    *,
    letters: Sequence[Letter],
    report: Report,
) -> None:
    asked_at = clock()
    claim = leases.claim_idle(metastore, request["pipeline_id"], request["runner_id"], settings.lease_ttl_seconds)
    report.run_id = str(claim.run_id)
    meter = RunMeter()
    with hold(claim, asked_at) as control:
        try:
            with ExitStack() as sessions, database.translated(f"sending rows of {claim.name} again"):
                _send_all(_open(claim, settings, control, meter, sessions), letters, report)
        except (LeaseLost, Disconnected):
            raise  # the lease is not ours to give back: recovery does it
        except VitrinaError as exc:
            _conclude(metastore, claim, meter, report)
            leases.finish_run(metastore, claim.run_id, RunStatus.FAILED, exc.code, exc.message)
            raise
        _conclude(metastore, claim, meter, report)


def _conclude(metastore: Connection, claim: Claim, meter: RunMeter, report: Report) -> None:
    meter.note("replay", asdict(report))
    meter.record(metastore, claim)
    leases.conclude_run(metastore, claim, answered=False)


def _open(
    claim: Claim, settings: Settings, control: RunControl, meter: RunMeter, sessions: ExitStack
) -> "MartReplay | SearchReplay":
    job = jobs.open_job(claim, settings, sessions, guard=control.guard, attach=control.attach)
    plan = jobs.inspect(job, create_target=False)
    if not job.target_writer.exists:
        raise FatalError(f"{job.target} does not exist yet: run the pipeline first")
    _refuse_made_keys(job)
    log = structlog.get_logger().bind(pipeline=claim.name, pipeline_id=str(claim.pipeline_id), run_id=str(claim.run_id))
    # Rows travel, also where the database could have filled the stage itself.
    plan = replace(plan, route="arrow", page_rows=None)
    return _kind_of(job)(job, plan, control=control, meter=meter, log=log, sessions=sessions)


def _kind_of(job: Job) -> "type[MartReplay] | type[SearchReplay]":
    if isinstance(job.target, PostgresTarget):
        return MartReplay
    # Imported here: pipelines into tables need neither pyarrow nor a search client.
    from vitrina.loads.search_replay import SearchReplay

    return SearchReplay


def _refuse_made_keys(job: Job) -> None:
    written = {column.name: column.type for column in job.output}
    for name in job.key:
        if written[name] == "bytea":
            raise FatalError(f"the key column {name!r} is bytea, and letters do not hold it as Postgres reads it")
        if name not in job.types or _family(job.types[name]) != _family(written[name]):
            raise FatalError(
                f"Python steps make the key column {name!r}, so a letter does not say which row of the source it is"
                " about: run the pipeline"
            )
    enums = job.reader.connection.execute(
        "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
    ).fetchall()
    refuse_strange_keys(_fields(job), frozenset(row["name"] for row in enums))


def _family(kind: str) -> str:
    base = carriage.base_type(kind)
    return "text" if base == "character varying" else base


# --- a part of the letters after the other ------------------------------------------------------------------------


def _send_all(run: "MartReplay | SearchReplay", letters: Sequence[Letter], report: Report) -> None:
    for start in range(0, len(letters), _LETTERS_AT_ONCE):
        _send_some(run, letters[start : start + _LETTERS_AT_ONCE], report)


def _send_some(run: "MartReplay | SearchReplay", letters: Sequence[Letter], report: Report) -> None:
    """What the source has now counts, not what it had when the row was refused."""
    told = [(letter, key) for letter in letters if (key := key_of(letter, run.job.key))]
    report.unclear += len(letters) - len(told)
    if not told:
        return
    keys = _in_one_form(run.job, [key for _, key in told])
    present = _present(run.job, keys)
    refused = run.send(_side(run.job).has_key(sorted(present))) if present else []
    again = [key for letter in refused if (key := key_of(_as_row(letter), run.job.key))]
    refused_keys = set(_in_one_form(run.job, again)) if again else set()
    reasons = {
        (letter.document_id, dead_letters.without_numbers(dead_letters.sayable(letter.error))) for letter in refused
    }
    outcome: dict[dead_letters.Resolution, list[int]] = {"sent": [], "gone": [], "superseded": []}
    for (letter, _), key in zip(told, keys, strict=True):
        if key not in present:
            outcome["gone"].append(letter["id"])
        elif key not in refused_keys:
            outcome["sent"].append(letter["id"])
        elif (letter["document_id"], dead_letters.without_numbers(letter["error"])) not in reasons:
            outcome["superseded"].append(letter["id"])
    run.resolve(outcome)
    report.sent += len(outcome["sent"])
    report.gone += len(outcome["gone"])
    report.refused += len(told) - len(outcome["sent"]) - len(outcome["gone"])


def _as_row(letter: DeadLetter) -> Letter:
    return {"document_id": letter.document_id, "document": dead_letters.as_kept(letter.document)}


def key_of(letter: Letter, names: Sequence[str]) -> Key | None:
    """The key's values as text, from the document when it has them, else from its id; None: nobody can tell."""
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
    """Joined with `|`; one that stands in a value has a backslash before it, and so has a backslash."""
    return [re.sub(r"\\(.)", r"\1", part) for part in re.findall(r"(?:[^|\\]|\\.)+", document_id)]


# --- questions to the source --------------------------------------------------------------------------------------


def _fields(job: Job) -> tuple[Field, ...]:
    return tuple(Field(name, SQL("q.{}").format(Identifier(name)), job.types[name]) for name in job.key)


def _side(job: Job) -> TableSide:
    head, source = job.query.wrapped(Bounds())
    return TableSide(job.reader.connection, head, source, _fields(job), (), translate_read)


def _in_one_form(job: Job, keys: Sequence[Key]) -> list[Key]:
    """Equal keys as one text each, in the order given: 1.0 and 1.00 are one key."""
    names = [f"k{position}" for position in range(len(job.key))]
    fields = [
        Field(name, SQL("u.{}::{}").format(Identifier(name), SQL(job.types[column])), job.types[column])
        for name, column in zip(names, job.key, strict=True)
    ]
    found = job.reader.value(
        SQL("SELECT jsonb_agg({} ORDER BY u.n) FROM unnest({}) WITH ORDINALITY AS u({}, n)").format(
            _key_texts(fields),
            SQL(", ").join(SQL("{}::text[]").format(Literal(list(column))) for column in zip(*keys, strict=True)),
            SQL(", ").join(map(Identifier, names)),
        )
    )
    return [tuple(key) for key in found]


def _present(job: Job, keys: Sequence[Key]) -> set[Key]:
    found = job.reader.value(
        job.query.select(
            [SQL("coalesce(jsonb_agg(DISTINCT {}), '[]')").format(_key_texts(_fields(job)))],
            Bounds(only=_side(job).has_key(sorted(set(keys)))),
        )
    )
    return {tuple(key) for key in found}


def _key_texts(fields: Sequence[Field]) -> Composed:
    return SQL("jsonb_build_array({})").format(SQL(", ").join(SQL("{}::text").format(one_form(f)) for f in fields))


# --- sending ------------------------------------------------------------------------------------------------------


class Replaying(Run):
    """A run that moves some rows and leaves the checkpoint where it is."""

    @property
    def job(self) -> Job:
        return self._job

    def _batches_of(self, source: Filling) -> Iterator[Part]:
        with self._ahead(source, None) as batches:
            yield from batches

    def resolve(self, outcome: dict[dead_letters.Resolution, list[int]]) -> None:
        """In a fenced transaction: a runner that lost the lease resolves nothing."""
        with database.translated("resolving dead letters"), self._job.metastore.transaction():
            for how, numbers in outcome.items():
                dead_letters.resolve(self._job.metastore, numbers, how)
            leases.touch(self._job.metastore, self._job.claim)
            self._control.require_lease()

    def _row_paging(self) -> Paging:
        """Of several rows with one key the latest must come last."""
        return self._pass_paging() if self._job.cursor else Paging()

    def _after_merge(self, filled: Part) -> Checkpoint:
        return replace(self._checkpoint, batch_no=filled.number)

    def _settle(self, *, obey_pause: bool = True) -> None:
        super()._settle(obey_pause=False)  # a paused pipeline stays on its way to PAUSED; the letters are few


class MartReplay(Replaying):
    """Into a table: rows that a step failed on are passed through the steps again, and merged."""

    def send(self, only: Composable) -> list[DeadLetter]:
        names = (stage_name(str(self._job.claim.pipeline_id), suffix) for suffix in ("a", "b"))
        types = self._row_paging().order.types
        stages = self._created(tuple(self._stage(name, cursor_types=types) for name in names))
        refused: list[DeadLetter] = []
        for filled in self._batches_of(self._arrow_source(stages, Bounds(only=only), self._row_paging())):
            self._merge_batch(stages[filled.number % len(stages)], filled)
            refused += filled.letters
        self._drop_stages()
        return refused
