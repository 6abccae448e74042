"""Everything that one run needs, found out and opened: definition, source, target, sessions, plan."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from pydantic import ValidationError

from vitrina import sqlguard, taskplan
from vitrina.definition import Definition
from vitrina.errors import ConfigError, FatalError, InvalidQuery, SourceQueryFailed
from vitrina.loads import kept_connections, places, recomputed, steps
from vitrina.loads.context import NoContext, RunContext
from vitrina.loads.plan import Capabilities, Plan, plan
from vitrina.loads.steps import Fitted, PlannedSteps, Surroundings
from vitrina.ports import registry
from vitrina.ports.batch import Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Connector, Context, Inside, Opening, Work
from vitrina.ports.queries import Reader
from vitrina.ports.schema import Column
from vitrina.ports.source import Description, Form, Passes, Source, Window
from vitrina.ports.target import Prepared, Shortcut, Target, Wanted
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard import Judged
from vitrina.store import database, named_sessions, pipelines, room, runs, target_schema
from vitrina.store import sessions as older_sessions
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger
from vitrina.targets import parse_target

if TYPE_CHECKING:
    import pyarrow as pa

Connect = Callable[[str, str | None, Mapping[str, str]], Connection]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """One run's belongings. Sessions are closed by the ExitStack that opened them."""

    settings: Settings
    claim: Claim
    definition: Definition
    judged: Judged | None  # None: no query is read
    metastore: Connection
    reader: Reader
    source: Source
    target: Target
    ledger: Ledger
    checkpoint: Checkpoint
    steps: PlannedSteps = field(default_factory=PlannedSteps)
    starts_over_because: str | None = None
    # Answers the queries of steps that look things up, each once.
    reference: "Callable[[str], pa.Table]"

    @property
    def backfill(self) -> dict[str, Any] | None:
        """A range that was asked for; the live checkpoint stays where it is."""
        return _backfill(self.definition, self.claim)

    @property
    def run_id(self) -> UUID:
        return self.claim.run_id

    @property
    def around_steps(self) -> Surroundings:
        return Surroundings(self.definition, self.settings, self.run_id, self.steps, self.reference)


@dataclass(frozen=True, kw_only=True)
class Job(Opened):
    """And what was found out about them: everything that moving the rows depends on."""

    described: Description
    fitted: Fitted
    prepared: Prepared
    plan: Plan
    shortcut: Shortcut | None = None
    # False: no row came, and there is no target yet; only the source's checkpoint may have to be kept.
    has_target: bool = True

    @property
    def output(self) -> tuple[Column, ...]:
        return self.fitted.output

    @property
    def key(self) -> tuple[str, ...]:
        return self.prepared.key

    @property
    def reading_key(self) -> tuple[str, ...]:
        """The part of the key that the source itself gives: what a load can be read, and continued, in the order of."""
        given = {column.name for column in self.described.columns}
        return tuple(name for name in self.key if name in given)

    @property
    def pipeline_id(self) -> UUID:
        return self.claim.pipeline_id

    @property
    def has_steps(self) -> bool:
        return bool(self.steps)

    @property
    def stamps(self) -> frozenset[str]:
        """Columns that differ in every run by nature."""
        return frozenset(self.definition.options.stamps) | self.fitted.stamps

    @property
    def arrives_as(self) -> dict[str, str] | None:
        return self.fitted.arrives_as

    def rows(
        self, found: Checkpoint, *, in_order: bool = False, sample: int | None = None, form: Form = "exact"
    ) -> "Iterator[tuple[pa.Table, bool]]":
        """Read the source again, for a comparison (`ports.compare.Looked`)."""
        return recomputed.rows(self, found, in_order=in_order, sample=sample, form=form)

    @property
    def code_digests(self) -> list[str]:
        """Change with the code of the Python functions at work."""
        found = [step.digest for step in self.steps]
        return found + ([self.described.digest] if self.described.digest else [])


def definition_of(claim: Claim) -> Definition:
    try:
        return pipelines.definition_of(claim.row)
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors(include_url=False))
        raise FatalError(say("run.bad_row", problems=problems)) from exc


def judge(definition: Definition, settings: Settings) -> Judged | None:
    """The definition may have been written with psql: it is judged again before anything runs."""
    taskplan.check(definition, settings.target_policy)
    return _judge_query(definition, settings)


def judge_reading(definition: Definition, settings: Settings) -> Judged | None:
    """The same for who only reads, wherever it would write."""
    taskplan.check(definition, None)
    return _judge_query(definition, settings)


def _judge_query(definition: Definition, settings: Settings) -> Judged | None:
    if definition.python_source or not definition.reads_postgres:
        return None
    if definition.query is None:
        raise FatalError(say("run.no_query"))
    try:
        return sqlguard.judge(definition.query, settings.sql_policy)
    except InvalidQuery as exc:
        raise SourceQueryFailed(exc.message) from exc


def open_job(
    claim: Claim,
    settings: Settings,
    sessions: ExitStack,
    *,
    context: RunContext,
    conclusion: ExitStack | None = None,
) -> Opened:
    """Judge, connect, seize. From here on an older epoch of this pipeline cannot commit.

    `conclusion` closes the metastore's session, for who needs it when the others are closed.
    """
    definition = definition_of(claim)
    room.require_room(definition, settings)
    judged = judge(definition, settings)
    planned = steps.planned(definition, settings, sessions, claim.run_id, attach=context.attach)
    parse_target(definition.final_target, settings.target_policy)
    connect = _connector(claim, settings, definition, sessions, context.guard)
    connect_last = _connector(claim, settings, definition, conclusion, context.guard) if conclusion else connect
    metastore = connect_last(settings.require_database_url(), None, {})
    context.metastore = metastore
    settings = kept_connections.for_run(settings, metastore, definition)
    around = _Around(definition, settings, claim, metastore, sessions, connect, context)
    target = _open_target(around)
    reader = _open_reader(around)
    home = target.session or metastore
    for connection in {id(c): c for c in (metastore, home, reader.connection)}.values():
        older_sessions.end_older(connection, claim)
    if home is not metastore:
        places.hold(claim, definition, settings, metastore, home)
    else:
        places.hold_place(claim, definition, settings, metastore)
    ledger = Ledger(claim, metastore, home)
    checkpoint = ledger.seize()
    target.seize()
    return Opened(
        settings=settings,
        claim=claim,
        definition=definition,
        judged=judged,
        metastore=metastore,
        reader=reader,
        source=_open_source(around, judged, reader, checkpoint),
        target=target,
        ledger=ledger,
        checkpoint=checkpoint,
        reference=references(reader, settings),
        steps=planned,
        starts_over_because=places.another_database(definition.final_target) if ledger.was_elsewhere else None,
    )


def open_for_inspection(row: dict[str, Any], settings: Settings, metastore: Connection, sessions: ExitStack) -> Opened:
    """The same belongings without a claim: nothing may be written with them."""
    nobody = UUID(int=0)
    # Newer than any run's epoch: a run that begins meanwhile must not end these sessions.
    claim = Claim(row["id"], row["name"], 10**18 - 1, nobody, nobody, row["version"], row | {"requested_range": None})
    definition = definition_of(claim)
    judged = judge(definition, settings)
    parse_target(definition.final_target, settings.target_policy)
    connect = _connector(claim, settings, definition, sessions)
    settings = kept_connections.for_run(settings, metastore, definition)
    around = _Around(definition, settings, claim, None, sessions, connect, NoContext())
    reader = _open_reader(around)
    target = _open_target(around)
    home = target.session or metastore
    if places.is_elsewhere(definition):
        target_schema.refuse_unprepared(home)
    checkpoint, reason = places.checkpoint_to_show(claim, definition, settings, metastore, home)
    return Opened(
        settings=settings,
        claim=claim,
        definition=definition,
        judged=judged,
        metastore=metastore,
        reader=reader,
        source=_open_source(replace(around, metastore=metastore), judged, reader, checkpoint),
        target=target,
        ledger=Ledger(claim, metastore),
        checkpoint=checkpoint,
        reference=references(reader, settings),
        steps=steps.planned(definition, settings, sessions),
        starts_over_because=reason,
    )


def open_source_alone(definition: Definition, settings: Settings, claim: Claim, sessions: ExitStack) -> Source:
    """Open a source that is no query, for a look at its rows: there is no target, and nothing is on record."""
    connect = _connector(claim, settings, definition, sessions)
    around = _Around(definition, settings, claim, None, sessions, connect, NoContext())
    return _open_source(around, None, None, Checkpoint())


@dataclass(frozen=True)
class _Around:
    """What source and target are opened with. Without a session of the metastore, a mart gets one of its own."""

    definition: Definition
    settings: Settings
    claim: Claim
    metastore: Connection | None
    sessions: ExitStack
    connect: Connect
    context: Context


def _open_reader(around: _Around) -> Reader:
    definition, settings = around.definition, around.settings
    # Beside a source of another kind, the default database answers the queries of steps that look things up.
    name = definition.source_connection if definition.reads_postgres else DEFAULT_CONNECTION
    url = database.reader_url(settings, name)

    def connect(more: Mapping[str, str]) -> Connection:
        return around.connect(url, name, {**database.READ_ONLY, **more})

    return registry.queries().open_reader(settings, url, around.claim.session_name, connect)


def _open_source(around: _Around, judged: Judged | None, reader: Reader | None, found: Checkpoint) -> Source:
    """Open what the rows come from. It ends with the lease; a query's sessions are the run's own."""
    definition = around.definition
    connector = registry.get(definition.source_connector)
    if connector.open_source is None:
        raise ConfigError(f"the connector {connector.name} opens no sources")
    url = None if definition.python_source else around.settings.connection_url(definition.source_connection)
    name = definition.python_source or definition.source_table or definition.query or ""
    opening = _opening(around, connector, name, url, judged=judged, reader=reader, checkpoint=found)
    source = connector.open_source(opening)
    if not definition.reads_postgres:
        around.sessions.callback(source.close)
        around.context.attach(source)
    return source


def _open_target(around: _Around) -> Target:
    name = parse_target(around.definition.final_target, around.settings.target_policy)
    connector = registry.get(name.connector)
    if connector.open_target is None:
        raise ConfigError(f"the connector {connector.name} opens no targets")
    url = around.settings.target_url(connector.name, around.definition.options.target_connection)
    target = connector.open_target(_opening(around, connector, name.name, url))
    around.sessions.callback(target.close)
    return target


def _opening(around: _Around, connector: Connector, name: str, url: str | None, **of_query: Any) -> Opening:
    claim = around.claim
    writes = around.metastore is not None
    work = Work(claim.pipeline_id, claim.name, claim.run_id, claim.epoch, claim.session_name, writes=writes)
    own = Inside(
        settings=around.settings,
        claim=claim,
        metastore=around.metastore,
        sessions=around.sessions,
        connect=around.connect,
        others=lambda: _others_on_target(around),
        **of_query,
    )
    return Opening(
        definition=around.definition,
        options=around.definition.options.of(connector.name),
        name=name,
        url=url,
        work=work,
        context=around.context,
        _inside=own if connector.package == registry.OWN_PACKAGE else None,
    )


def references(reader: Reader, settings: Settings) -> "Callable[[str], pa.Table]":
    """Answer the queries of steps that look things up, each asked once."""
    found: dict[str, pa.Table] = {}

    def load(query: str) -> "pa.Table":
        if query not in found:
            found[query] = reader.look_up(settings, query)
        return found[query]

    return load


def _others_on_target(around: _Around) -> list[str]:
    definition = around.definition
    if around.metastore is None:
        return []
    on_target = pipelines.list_on_target(
        around.metastore, definition.final_target, definition.options.target_connection
    )
    return [other["name"] for other in on_target if other["id"] != around.claim.pipeline_id]


def _backfill(definition: Definition, claim: Claim) -> dict[str, Any] | None:
    asked: dict[str, Any] | None = claim.row["requested_range"]
    return asked if definition.mode == "incremental" else None


def _connector(
    claim: Claim,
    settings: Settings,
    definition: Definition,
    sessions: ExitStack,
    guard: Callable[[Connection], object] | None = None,
) -> Callable[[str, str | None, Mapping[str, str]], Connection]:
    """Fresh sessions for each run, named after the claim: one failure cannot poison another."""
    limits = {
        "lock_timeout": "30000",
        "idle_in_transaction_session_timeout": str(int(settings.lease_ttl_seconds * 1000)),
    }

    def connect(url: str, name: str | None, session: Mapping[str, str]) -> Connection:
        timeout = {"statement_timeout": str(int(statement_timeout(definition, settings, name) * 1000))}
        connection = named_sessions.connect(settings, url, name, claim.session_name, limits | timeout | dict(session))
        sessions.callback(_close_quietly, connection)
        if guard:
            guard(connection)
        return connection

    return connect


def statement_timeout(definition: Definition, settings: Settings, *connections: str | None) -> float:
    """Longest single statement, in seconds, on any of these connections."""
    own, limit = definition.options.statement_timeout_seconds, max(map(settings.statement_timeout_on, connections))
    return min(own, limit) if own else limit


def _close_quietly(connection: Connection) -> None:
    with suppress(psycopg.Error):  # it is gone either way
        connection.close()


# --- what is found out ---------------------------------------------------------------------------------------------


def inspect(opened: Opened, *, create_target: bool = True) -> Job:
    """Describe the rows, prepare the target, ask the source how it would be read, and choose."""
    if not opened.source.runs_when_described:
        return _inspect(opened, create_target=create_target)
    # Before the source is asked to go on: it never gave what is asked for, or that is no longer in the target.
    opened = _believing(opened)
    if not create_target:  # it runs when it is asked to, not when it is looked at
        return _without_rows(opened, Description(), None)
    return _inspect(opened, create_target=True)


def look_into(opened: Opened) -> Job:
    """From its beginning, to compare what the source gives with what is there: the target stays as it is."""
    if opened.source.runs_when_described:
        opened = replace(opened, checkpoint=Checkpoint())
    return _inspect(opened, create_target=False)


def _inspect(opened: Opened, *, create_target: bool) -> Job:
    described = opened.source.describe(_next_window(opened))
    if not described.columns and described.schema is None:
        return _without_rows(opened, described, _prepared_for_nothing(opened) if create_target else None)
    if not opened.source.runs_when_described:
        opened = _believing(opened)
    fitted = steps.fit(opened.around_steps, opened.source, described, opened.target.form, opened.target.known)
    shortcut = opened.target.meet(opened.source)
    prepared = opened.target.prepare(_wanted(opened, described, fitted), create=create_target)
    if fitted.passage:
        fitted.passage.steps.key = prepared.key
    opened = _noticing_emptied(opened, prepared)
    known = _capabilities(opened, described, prepared, shortcut)
    chosen = plan(opened.definition, known)
    return _job(opened, described=described, fitted=fitted, prepared=prepared, shortcut=shortcut, plan=chosen)


def _without_rows(opened: Opened, described: Description, prepared: Prepared | None) -> Job:
    """No row came, so nobody can tell the columns."""
    found = prepared or Prepared((), exists=False, is_empty=True)
    chosen = plan(opened.definition, _capabilities(opened, described, found, None))
    fitted = Fitted((), frozenset())
    return _job(
        opened, described=described, fitted=fitted, prepared=found, plan=chosen, has_target=prepared is not None
    )


def _prepared_for_nothing(opened: Opened) -> Prepared | None:
    return opened.target.prepare_nothing(replaces=opened.definition.mode == "full")


def _job(opened: Opened, **found: Any) -> Job:
    return Job(**{one.name: getattr(opened, one.name) for one in fields(Opened)}, **found)


def _next_window(opened: Opened) -> Window:
    """What the source is about to be asked for: within an interrupted load, or after the last pass."""
    found = opened.checkpoint
    if opened.definition.mode == "incremental":
        return Window(after=(found.safe_upto,) if found.safe_upto else None)
    return Window(after=resume_point(found) if found.stage else None)


def resume_point(found: Checkpoint) -> Position | None:
    """Where an interrupted load goes on."""
    return tuple(json.loads(found.last_key)) if found.last_key else None


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


def _believing(opened: Opened) -> Opened:
    """Forget a checkpoint that says nothing about this source, or about this target: it would pass rows by."""
    found, source = opened.checkpoint, opened.source
    if opened.definition.mode != "incremental" or opened.backfill or not isinstance(source, Passes):
        return opened
    if found.stage is not None and not opened.target.loads_first_pass:
        return opened  # the run itself gives the unfinished load up
    reason = source.disowned(found) or _lost(opened)
    if reason:
        return replace(opened, checkpoint=found.blank(), starts_over_because=reason)
    if opened.starts_over_because:
        return replace(opened, checkpoint=found.blank())
    return replace(opened, checkpoint=source.fitting(found))


def _lost(opened: Opened) -> str | None:
    return None if opened.checkpoint.stage is not None else opened.target.lost(opened.checkpoint)


def _noticing_emptied(opened: Opened, prepared: Prepared) -> Opened:
    """Behind steps no first pass is loaded at once: what was delivered is delivered again, batch by batch."""
    found = opened.checkpoint
    if opened.definition.mode != "incremental" or opened.backfill or found.stage is not None:
        return opened
    if not (opened.steps and found.rows and opened.target.loads_first_pass and prepared.is_empty):
        return opened
    reason = say("plan.recreated", target=opened.definition.final_target)
    return replace(opened, checkpoint=found.blank(), starts_over_because=reason)


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
        estimated_rows=described.estimated_rows,
        pageable=shortcut is not None and shortcut.pageable,
        foreign_functions=shortcut.foreign_functions if shortcut else frozenset(),
        target_is_empty=prepared.is_empty,
        has_checkpoint=found.safe_upto is not None or found.last_key is not None or bool(backfill),
        has_unfinished_load=found.stage is not None and not backfill,
        has_delivered=found.rows > 0 and not backfill,
        key=prepared.key,
        key_is_read=any(name in given for name in prepared.key),
        rows_per_second=_measured_rate(opened, described.estimated_rows),
        guarantee=passes.guarantee() if passes else None,
        warnings=(*prepared.warnings, *(passes.warnings(found) if passes else ())),
        starts_over_because=opened.starts_over_because,
    )


def _measured_rate(opened: Opened, estimated_rows: int) -> float | None:
    """Return the rate of the last large run, where it could matter for the plan."""
    if estimated_rows < runs.LARGE_ROWS:
        return None
    return runs.find_rate(opened.metastore, opened.claim.pipeline_id)
