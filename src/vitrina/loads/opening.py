"""Open a run: check the definition, connect, take the target over from older epochs, open source and target."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from vitrina.definition import Definition
from vitrina.errors import ConfigError
from vitrina.inside import queries
from vitrina.inside.opening import Inside
from vitrina.inside.queries import Reader
from vitrina.loads import kept_connections, places, steps
from vitrina.loads.context import NoContext, RunContext
from vitrina.loads.job import Opened
from vitrina.loads.run_sessions import RunSessions
from vitrina.loads.steps import PlannedSteps
from vitrina.ports import registry
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Connector, Opening, Work
from vitrina.ports.source import Source
from vitrina.ports.target import Target
from vitrina.revalidation import definition_of, revalidate
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store import database, pipelines, session_limits, target_schema
from vitrina.store import sessions as older_sessions
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.ledger import Ledger
from vitrina.targets import parse_target

if TYPE_CHECKING:
    import pyarrow as pa


class Connect(Protocol):
    """Open a session of the run on the named connection."""

    def __call__(
        self, url: str, name: str | None, session: Mapping[str, str], may_be_kept: Callable[[], bool] = ..., /
    ) -> Connection: ...


def open_job(
    claim: Claim,
    settings: Settings,
    sessions: ExitStack,
    *,
    context: RunContext,
    conclusion: ExitStack | None = None,
) -> Opened:
    """Check the definition, connect, and seize the target. Older epochs of this pipeline cannot commit afterwards.

    `conclusion` closes the metastore's session, for callers that need it after the others are closed.
    """
    definition = _accepting(claim, definition_of(claim))
    session_limits.require_room(definition, settings)
    judged = revalidate(definition, settings)
    planned = steps.planned(definition, settings, sessions, claim.run_id, attach=context.attach)
    metastore = _open_metastore(claim, settings, definition, conclusion or sessions, context)
    settings = kept_connections.for_run(settings, metastore, definition)
    connect = _connector(claim, settings, definition, sessions, context)
    around = _Environment(definition, settings, claim, metastore, sessions, connect, context)
    target, reader = _open_target(around), _open_reader(around)
    ledger = _take_over(around, metastore, target, reader)
    checkpoint = ledger.seize()
    target.seize()
    reason = places.another_database(definition.final_target) if ledger.was_elsewhere else None
    source = _open_source(around, judged, reader, checkpoint)
    return _Pieces(judged, reader, source, target, planned).opened(around, metastore, ledger, checkpoint, reason)


def _accepting(claim: Claim, definition: Definition) -> Definition:
    """Disable the guards that a user accepted for this run."""
    if not claim.accepted_checks:
        return definition
    from vitrina.loads import checks

    return checks.accepting(definition, claim.accepted_checks)


def _open_metastore(
    claim: Claim, settings: Settings, definition: Definition, sessions: ExitStack, context: RunContext
) -> Connection:
    connect = _connector(claim, settings, definition, sessions, context)
    context.metastore = connect(settings.require_database_url(), None, {})
    return context.metastore


def _take_over(around: "_Environment", metastore: Connection, target: Target, reader: Reader) -> Ledger:
    """End the sessions of older epochs and hold the target, so that no other runner writes to it."""
    claim, definition, settings = around.claim, around.definition, around.settings
    home = target.session or metastore
    for connection in {id(c): c for c in (metastore, home, reader.connection)}.values():
        older_sessions.end_older(connection, claim)
    if home is not metastore:
        places.hold(claim, definition, settings, metastore, home)
    else:
        places.hold_place(claim, definition, settings, metastore)
    return Ledger(claim, metastore, home)


def open_for_inspection(row: dict[str, Any], settings: Settings, metastore: Connection, sessions: ExitStack) -> Opened:
    """Open the same without a claim. The caller must not write with it."""
    claim = _claim_for_inspection(row)
    definition = definition_of(claim)
    judged = revalidate(definition, settings)
    context = NoContext()
    connect = _connector(claim, settings, definition, sessions, context)
    settings = kept_connections.for_run(settings, metastore, definition)
    around = _Environment(definition, settings, claim, None, sessions, connect, context)
    reader, target = _open_reader(around), _open_target(around)
    home = target.session or metastore
    if places.is_elsewhere(definition):
        target_schema.refuse_unprepared(home)
    checkpoint, reason = places.checkpoint_to_show(claim, definition, settings, metastore, home)
    source = _open_source(replace(around, metastore=metastore), judged, reader, checkpoint)
    pieces = _Pieces(judged, reader, source, target, steps.planned(definition, settings, sessions))
    return pieces.opened(around, metastore, Ledger(claim, metastore), checkpoint, reason)


def _claim_for_inspection(row: dict[str, Any]) -> Claim:
    no_id = UUID(int=0)
    # Newer than any run's epoch, so that a run which begins during the inspection does not end these sessions.
    return Claim(row["id"], row["name"], 10**18 - 1, no_id, no_id, row["version"], row | {"requested_range": None})


def open_source_alone(definition: Definition, settings: Settings, claim: Claim, sessions: ExitStack) -> Source:
    """Open a source that is not a query, to read its rows. There is no target, and nothing is recorded."""
    context = NoContext()
    connect = _connector(claim, settings, definition, sessions, context)
    around = _Environment(definition, settings, claim, None, sessions, connect, context)
    return _open_source(around, None, None, Checkpoint())


@dataclass(frozen=True)
class _Environment:
    """Hold what source and target are opened with. Without a metastore session, a mart gets a session for itself."""

    definition: Definition
    settings: Settings
    claim: Claim
    metastore: Connection | None
    sessions: ExitStack
    connect: Connect
    context: RunContext | NoContext


@dataclass(frozen=True)
class _Pieces:
    """Hold what was opened."""

    judged: CheckedQuery | None
    reader: Reader
    source: Source
    target: Target
    steps: PlannedSteps

    def opened(
        self,
        around: _Environment,
        metastore: Connection,
        ledger: Ledger,
        checkpoint: Checkpoint,
        starts_over: str | None,
    ) -> Opened:
        return Opened(
            settings=around.settings,
            claim=around.claim,
            definition=around.definition,
            judged=self.judged,
            metastore=metastore,
            reader=self.reader,
            source=self.source,
            target=self.target,
            ledger=ledger,
            checkpoint=checkpoint,
            reference=references(self.reader, around.settings),
            steps=self.steps,
            starts_over_because=starts_over,
        )


def _open_reader(around: _Environment) -> Reader:
    definition, settings = around.definition, around.settings
    # If the source is of another kind, the default database answers the reference queries of steps.
    name = definition.source_connection if definition.reads_postgres else DEFAULT_CONNECTION
    url = database.reader_url(settings, name)

    def connect(more: Mapping[str, str]) -> Connection:
        return around.connect(url, name, {**database.READ_ONLY, **more}, lambda: not reader.ends_with_run)

    reader = queries.installed().open_reader(settings, url, around.claim.session_name, connect)
    return reader


def _open_source(around: _Environment, judged: CheckedQuery | None, reader: Reader | None, found: Checkpoint) -> Source:
    """Open the source. It ends with the lease; the sessions of a query are those of the run."""
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


def _open_target(around: _Environment) -> Target:
    name = parse_target(around.definition.final_target, around.settings.target_policy)
    connector = registry.get(name.connector)
    if connector.open_target is None:
        raise ConfigError(f"the connector {connector.name} opens no targets")
    url = around.settings.target_url(connector.name, around.definition.options.target_connection)
    target = connector.open_target(_opening(around, connector, name.name, url))
    around.sessions.callback(target.close)
    return target


def _opening(around: _Environment, connector: Connector, name: str, url: str | None, **of_query: Any) -> Opening:
    claim = around.claim
    writes = around.metastore is not None
    work = Work(claim.pipeline_id, claim.name, claim.run_id, claim.epoch, claim.session_name, writes=writes)
    own = Inside(
        definition=around.definition,
        settings=around.settings,
        claim=claim,
        metastore=around.metastore,
        sessions=around.sessions,
        connect=around.connect,
        lend=RunSessions(around.settings, claim.session_name, around.context, around.context.pool).lend,
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
        inside=own if connector.package == registry.OWN_PACKAGE else None,
    )


def references(reader: Reader, settings: Settings) -> "Callable[[str], pa.Table]":
    """Answer the reference queries of steps, running each once."""
    found: dict[str, pa.Table] = {}

    def load(query: str) -> "pa.Table":
        if query not in found:
            found[query] = reader.look_up(settings, query)
        return found[query]

    return load


def _others_on_target(around: _Environment) -> list[str]:
    definition = around.definition
    if around.metastore is None:
        return []
    on_target = pipelines.list_on_target(
        around.metastore, definition.final_target, definition.options.target_connection
    )
    return [other["name"] for other in on_target if other["id"] != around.claim.pipeline_id]


def _connector(
    claim: Claim, settings: Settings, definition: Definition, sessions: ExitStack, context: RunContext | NoContext
) -> Connect:
    """Build the function that opens the sessions of one run with its limits, until `sessions` is closed."""
    lender = RunSessions(settings, claim.session_name, context, context.pool)
    limits = {
        "lock_timeout": "30000",
        "idle_in_transaction_session_timeout": str(int(settings.lease_ttl_seconds * 1000)),
    }

    def connect(
        url: str, name: str | None, session: Mapping[str, str], may_be_kept: Callable[[], bool] = lambda: True
    ) -> Connection:
        timeout = {"statement_timeout": str(int(statement_timeout(definition, settings, name) * 1000))}
        wanted = limits | timeout | dict(session)
        return sessions.enter_context(lender.lend(url, name, wanted, may_be_kept=may_be_kept))

    return connect


def statement_timeout(definition: Definition, settings: Settings, *connections: str | None) -> float:
    """Return the longest statement timeout of these connections, in seconds."""
    own, limit = definition.options.statement_timeout_seconds, max(map(settings.statement_timeout_on, connections))
    return min(own, limit) if own else limit
