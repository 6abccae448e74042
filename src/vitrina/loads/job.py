"""Everything that one run needs, found out and opened: definition, query, target, sessions, plan."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.sql import SQL, Identifier
from pydantic import ValidationError

from vitrina import explain, sqlguard, taskplan
from vitrina.connectors.postgres import advice, money, plan_check
from vitrina.connectors.postgres import sessions as source_sessions
from vitrina.connectors.postgres.cursor import Cursor
from vitrina.connectors.postgres.provenance import Provenance
from vitrina.connectors.postgres.source import Bounds, Order, Query, SqlReader
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.definition import Definition
from vitrina.errors import FatalError, InvalidQuery, SourceQueryFailed
from vitrina.loads import columns, incremental, kept_connections, places, sources, steps
from vitrina.loads.plan import Capabilities, Plan, plan
from vitrina.loads.steps import PlannedSteps
from vitrina.ports.batch import Endable
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard import Judged
from vitrina.store import database, pipelines, room, runs, target_schema
from vitrina.store import sessions as older_sessions
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger
from vitrina.targets import PostgresTarget, Target, parse_target

if TYPE_CHECKING:
    from vitrina.connectors.search.target import ElasticsearchWriter
    from vitrina.transforms.pipeline import Passage
    from vitrina.transforms.sources import OpenSource
    from vitrina.transforms.to_target import Landing


@dataclass
class Job:
    """One run's belongings. Sessions are closed by the ExitStack that opened them."""

    settings: Settings
    claim: Claim
    definition: Definition
    target: Target
    judged: Judged | None  # None: a Python source makes the rows
    metastore: Connection
    reader: SqlReader
    target_connection: Connection  # where the checkpoint moves: the metastore's own for a search target
    target_writer: "PostgresWriter | ElasticsearchWriter"
    ledger: Ledger
    checkpoint: Checkpoint
    reader_url: str = field(repr=False)
    target_url: str = field(repr=False)
    # What the query gives, and what is written: the same, unless Python steps stand between.
    result: list[Column] = field(default_factory=list)
    output: list[Column] = field(default_factory=list)
    steps: PlannedSteps = field(default_factory=PlannedSteps)
    passage: "Passage | None" = None
    source: "OpenSource | None" = None
    # How the columns behind steps, or of a source, are staged and written.
    landings: "dict[str, Landing]" = field(default_factory=dict)
    cursor: Cursor | None = None
    key: tuple[str, ...] = ()
    on_standby: bool = False
    provenance: Provenance = field(default_factory=Provenance)
    estimated_rows: int = 0
    starts_over_because: str | None = None
    # Columns that this pipeline wrote before, no longer gives, and is to set to NULL.
    columns_to_clear: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)

    @property
    def table(self) -> PostgresTarget:
        assert isinstance(self.target, PostgresTarget)
        return self.target

    @property
    def writer(self) -> PostgresWriter:
        """Of a run into a table."""
        assert isinstance(self.target_writer, PostgresWriter)
        return self.target_writer

    @property
    def index(self) -> "ElasticsearchWriter":
        """Of a run into a search index."""
        assert not isinstance(self.target_writer, PostgresWriter)
        return self.target_writer

    @property
    def query(self) -> Query:
        assert self.judged is not None
        return Query(self.judged, self.cursor)

    @property
    def backfill(self) -> dict[str, Any] | None:
        """A range that was asked for; the live checkpoint stays where it is."""
        asked: dict[str, Any] | None = self.claim.row["requested_range"]
        return asked if self.definition.mode == "incremental" else None

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.result}

    @property
    def run_id(self) -> UUID:
        return self.claim.run_id

    @property
    def code_digests(self) -> list[str]:
        """Change with the code of the Python functions at work."""
        found = [step.digest for step in self.steps]
        return found + ([self.source.digest] if self.source else [])

    @property
    def reading_key(self) -> tuple[str, ...]:
        """The part of the key that the query itself gives: what a load can be read, and continued, in the order of."""
        return tuple(name for name in self.key if name in self.types)

    @cached_property
    def reads_metastore(self) -> bool:
        """Whether the source is the metastore's own database: the reader's login may point to a copy of it."""
        if self.definition.source_connection != DEFAULT_CONNECTION:
            return False
        return database.place(self.reader.connection) == database.place(self.metastore)

    @property
    def source_statistics(self) -> Connection:
        """The session that may see when other sessions' transactions began, on the server that is read."""
        return self.metastore if self.reads_metastore else self.reader.connection


def definition_of(claim: Claim) -> Definition:
    try:
        return pipelines.definition_of(claim.row)
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors(include_url=False))
        raise FatalError(f"the pipeline's row is not valid: {problems}") from exc


def judge(definition: Definition, settings: Settings) -> Judged | None:
    """The definition may have been written with psql: it is judged again before anything runs."""
    taskplan.check(definition, settings.target_policy)
    if definition.python_source:
        return None
    if definition.query is None:
        raise FatalError("the pipeline has no source query")
    try:
        return sqlguard.judge(definition.query, settings.sql_policy)
    except InvalidQuery as exc:
        raise SourceQueryFailed(exc.message) from exc


def open_job(
    claim: Claim,
    settings: Settings,
    sessions: ExitStack,
    *,
    guard: Callable[[Connection], object] | None = None,
    attach: Callable[[Endable], object] | None = None,
    conclusion: ExitStack | None = None,
) -> Job:
    """Judge, connect, seize. From here on an older epoch of this pipeline cannot commit.

    `conclusion` closes the metastore's session, for who needs it when the others are closed.
    """
    definition = definition_of(claim)
    room.require_room(definition, settings)
    judged = judge(definition, settings)
    planned = steps.planned(definition, settings, sessions, claim.run_id, attach=attach)
    source = sources.open_source(definition, settings, claim, sessions, attach)
    target = parse_target(definition.final_target, settings.target_policy)
    connect = _connector(claim, settings, definition, sessions, guard)
    connect_last = _connector(claim, settings, definition, conclusion, guard) if conclusion else connect
    metastore = connect_last(settings.require_database_url(), None, {})
    settings = kept_connections.for_run(settings, metastore, definition)
    target_name = definition.options.target_connection
    target_url = settings.connection_url(target_name)
    remote = target_name not in (None, DEFAULT_CONNECTION)
    target_connection = connect(target_url, target_name, {}) if remote else metastore
    reader_url = database.reader_url(settings, definition.source_connection)
    reader_session = source_sessions.with_extensions(
        settings, lambda more: connect(reader_url, definition.source_connection, {**database.READ_ONLY, **more})
    )
    reader = SqlReader(reader_session, reader_url, claim.session_name)
    writer = _writer(claim, target, definition, settings, connection=target_connection, sessions=sessions)
    for connection in {id(c): c for c in (metastore, target_connection, reader.connection)}.values():
        older_sessions.end_older(connection, claim)
    if remote:
        places.hold(claim, definition, settings, metastore, target_connection)
    ledger = Ledger(claim, metastore, target_connection)
    checkpoint = ledger.seize()
    return Job(
        settings=settings,
        claim=claim,
        definition=definition,
        target=target,
        judged=judged,
        metastore=metastore,
        reader=reader,
        reader_url=reader_url,
        target_connection=target_connection,
        target_writer=writer,
        target_url=target_url,
        ledger=ledger,
        checkpoint=checkpoint,
        steps=planned,
        source=source,
        starts_over_because=places.another_database(target) if ledger.was_elsewhere else None,
    )


def _writer(
    claim: Claim,
    target: Target,
    definition: Definition,
    settings: Settings,
    *,
    connection: Connection,
    sessions: ExitStack,
) -> "PostgresWriter | ElasticsearchWriter":
    if isinstance(target, PostgresTarget):
        return PostgresWriter(connection, claim, target, definition.options, memory_mb=settings.merge_memory_mb)
    # Imported here: pipelines into tables need neither pyarrow nor a search client.
    from vitrina.connectors.search.target import ElasticsearchWriter, open_client

    writer = ElasticsearchWriter(open_client(settings), claim, target, definition.options)
    sessions.callback(writer.close)
    return writer


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
        connection = source_sessions.connect(settings, url, name, claim.session_name, limits | timeout | dict(session))
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


def open_for_inspection(row: dict[str, Any], settings: Settings, metastore: Connection, sessions: ExitStack) -> Job:
    """The same belongings without a claim: nothing may be written with them."""
    nobody = UUID(int=0)
    # Newer than any run's epoch: a run that begins meanwhile must not end these sessions.
    claim = Claim(row["id"], row["name"], 10**18 - 1, nobody, nobody, row["version"], row | {"requested_range": None})
    definition = definition_of(claim)
    judged = judge(definition, settings)
    target = parse_target(definition.final_target, settings.target_policy)
    connect = _connector(claim, settings, definition, sessions)
    settings = kept_connections.for_run(settings, metastore, definition)
    target_url = settings.connection_url(definition.options.target_connection)
    reader_url = database.reader_url(settings, definition.source_connection)
    reader_session = source_sessions.with_extensions(
        settings, lambda more: connect(reader_url, definition.source_connection, {**database.READ_ONLY, **more})
    )
    connection = connect(target_url, definition.options.target_connection, {})
    if definition.options.target_connection not in (None, DEFAULT_CONNECTION):
        target_schema.refuse_unprepared(connection)
    checkpoint, reason = places.checkpoint_to_show(claim, definition, settings, metastore, connection)
    return Job(
        settings=settings,
        claim=claim,
        definition=definition,
        target=target,
        judged=judged,
        metastore=metastore,
        reader=SqlReader(reader_session, reader_url, claim.session_name),
        reader_url=reader_url,
        target_connection=connection,
        target_writer=_writer(claim, target, definition, settings, connection=connection, sessions=sessions),
        target_url=target_url,
        ledger=Ledger(claim, metastore),
        checkpoint=checkpoint,
        steps=steps.planned(definition, settings, sessions),
        source=sources.open_source(definition, settings, claim, sessions),
        starts_over_because=reason,
    )


def inspect(job: Job, *, create_target: bool = True) -> Plan:
    """Describe the result, prepare the target, ask Postgres how the query would run, and choose."""
    if job.source:
        return sources.inspect(job, create_target=create_target)
    assert job.judged is not None
    job.result = job.reader.describe(job.judged)
    if job.definition.mode == "incremental":
        incremental.inspect(job)
        _refuse_unreadable_cursor(job)
    elif job.judged.parameters:
        raise SourceQueryFailed(
            f":{sorted(job.judged.parameters)[0]} is for incremental pipelines; this one is in mode 'full'"
        )
    admitted = _admit(job)
    job.output, stamps = job.result, job.judged.volatile_columns
    if job.steps:
        job.passage, job.output = steps.fit(job)
        stamps, job.landings = job.passage.stamps, job.passage.landings
    if isinstance(job.target, PostgresTarget):
        money.refuse_unlike(job.reader.connection, job.target_connection, job.result)
    job.key = job.target_writer.prepare(
        job.output,
        wanted_key=job.definition.target_key,
        ignorable=frozenset(filter(None, (job.definition.incremental_key, job.definition.incremental_id_key)))
        if job.cursor
        else frozenset(),
        stamps=frozenset(job.definition.options.stamps) | stamps,
        create=create_target,
    )
    if job.passage:
        job.passage.steps.key = job.key
    columns.settle(job)
    _forget_useless_checkpoint(job)
    return plan(job.definition, _capabilities(job, admitted))


def _refuse_unreadable_cursor(job: Job) -> None:
    """Values that people gave: the checkpoint that `reset-state` set, or the ends of a range."""
    assert job.cursor is not None
    if _cursor_was_another(job):
        return
    asked = job.backfill or {}
    given = {"the checkpoint": job.checkpoint.safe_upto, "since": asked.get("since"), "until": asked.get("until")}
    for what, value in given.items():
        try:
            if value is not None:
                job.reader.connection.execute(SQL("SELECT {}").format(job.cursor.literal(value)))
        except psycopg.DataError as exc:
            raise FatalError(
                f"{what} is {value!r}, which is no value of incremental_key {job.cursor.key} ({job.cursor.key_type}):"
                " ask with one that is; a checkpoint is set with `vitrina state NAME --reset --cursor VALUE`"
            ) from exc


def _forget_useless_checkpoint(job: Job) -> None:
    """A checkpoint that says nothing about this cursor, or about this mart, would pass rows by."""
    found = job.checkpoint
    if job.cursor is None or job.backfill or found.stage is not None:
        return
    if _cursor_was_another(job):
        job.starts_over_because = "the cursor, its source or the target is another one than at the last checkpoint"
    elif _source_was_another(job):
        job.starts_over_because = (
            f"the source connection {job.definition.source_connection} leads to another database than at the last"
            " checkpoint"
        )
    elif _mart_was_another(job):
        job.starts_over_because = f"{job.target} was emptied, replaced or restored by hand"
    elif job.steps and found.rows and isinstance(job.target, PostgresTarget) and job.target_writer.is_empty():
        job.starts_over_because = f"{job.target} was emptied or recreated by hand"
    if job.starts_over_because:
        job.checkpoint = found.blank()
    elif found.fingerprint not in (None, cursor_identity(job)):
        # Another id: where the pass was interrupted says nothing now. It begins again at what is safe.
        job.checkpoint = replace(found, last_key=None, last_id=None)


def _source_was_another(job: Job) -> bool:
    known, seen = job.checkpoint.identity.get(incremental.SOURCE), incremental.source_identity(job)
    return known is not None and seen is not None and known != seen


def _mart_was_another(job: Job) -> bool:
    known = job.checkpoint.identity.get("mart")
    if known is None or not isinstance(job.target, PostgresTarget):
        return False
    return not job.writer.is_same(known)


def _cursor_was_another(job: Job) -> bool:
    """One that was reset, or that an earlier version of the platform wrote, does not say whose it is."""
    found = job.checkpoint
    if found.stage is not None or found.fingerprint is None:
        return False
    return found.fingerprint.partition("/")[0] != cursor_identity(job).partition("/")[0]


def cursor_identity(job: Job) -> str:
    """What the values of a checkpoint are values of: the key's, a slash, the id's."""
    assert job.cursor is not None
    parts = (job.definition.source_connection, job.cursor.key, job.cursor.family, job.cursor.zone, str(job.target))
    return f"{_digest(*parts)}/{_digest(job.cursor.id, job.cursor.id_type)}"


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _admit(job: Job) -> plan_check.Admitted:
    found = plan_check.admit(job.reader, job.query, job.settings, max_cost=job.definition.options.max_cost)
    job.estimated_rows = int(found.plan[0]["Plan"]["Plan Rows"])
    return found


def admit_pass(job: Job, bounds: Bounds) -> None:
    """Ask again about what is about to be read: `:since` and `:until` may change what a query reads, and its cost."""
    if job.judged is not None:
        plan_check.admit(
            job.reader,
            job.query,
            job.settings,
            statement=job.query.select([SQL("q.*")], bounds),
            max_cost=job.definition.options.max_cost,
        )


def _measured_rate(job: Job) -> float | None:
    """Return the rate of the last large run, where it could matter for the plan."""
    if job.estimated_rows < runs.LARGE_ROWS:
        return None
    return runs.find_rate(job.metastore, job.claim.pipeline_id)


def _capabilities(job: Job, admitted: plan_check.Admitted) -> Capabilities:
    same = (job.definition.options.target_connection or DEFAULT_CONNECTION) == job.definition.source_connection
    return Capabilities(
        same_database=same and job.reads_metastore,
        target_is_table=isinstance(job.target, PostgresTarget),
        has_steps=bool(job.steps),
        estimated_rows=job.estimated_rows,
        pageable=explain.is_pageable(admitted.plan),
        foreign_functions=frozenset(admitted.functions_of_unknown_effect),
        target_is_empty=job.target_writer.is_empty(),
        has_checkpoint=job.checkpoint.safe_upto is not None
        or job.checkpoint.last_key is not None
        or bool(job.backfill),
        has_unfinished_load=job.checkpoint.stage is not None and not job.backfill,
        has_delivered=job.checkpoint.rows > 0 and not job.backfill,
        key=job.key,
        key_is_read=bool(job.reading_key),
        rows_per_second=_measured_rate(job),
        guarantee=incremental.guarantee(job),
        warnings=(*job.warnings, *incremental.warnings(job)),
        starts_over_because=job.starts_over_because,
    )


def order_of_key(job: Job) -> Order:
    """In the order of their key, rows can be read on behind any of them."""
    return Order(
        columns=tuple(SQL("q.{}").format(Identifier(name)) for name in job.reading_key),
        types=tuple(job.types[name] for name in job.reading_key),
        nullable=tuple(may_be_null(job, name) for name in job.reading_key),
    )


def collation(job: Job, name: str) -> str | None:
    """In which order the query gives a column of text: not always in that of the mart's own column."""
    if not job.types[name].startswith(("text", "character", "name")):
        return None
    head, source = job.query.wrapped(Bounds())
    found = job.reader.value(
        SQL("{} SELECT pg_catalog.pg_collation_for((SELECT q.{} FROM {} AS q LIMIT 0))").format(
            head, Identifier(name), source
        )
    )
    return None if found is None else str(found)


def may_be_null(job: Job, name: str) -> bool:
    """Whether a column of the query's result can be NULL, for all that is known."""
    assert job.judged is not None
    origin = next((column.origin for column in job.result if column.name == name), None)
    return origin is None or not advice.is_never_null(job.reader.connection, origin, job.judged.text)
