"""Find which database a pipeline's target connection leads to, and who else writes there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vitrina import targets
from vitrina.definition import Definition
from vitrina.errors import ConfigError, FatalError, RunError
from vitrina.ports import registry
from vitrina.ports.checkpoint import Checkpoint
from vitrina.sentences import say
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.store import databases, leases, named_sessions, pipelines, state
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.targets import Target


def hold(
    claim: Claim, definition: Definition, settings: Settings, metastore: Connection, target_session: Connection
) -> None:
    """Hold the target by its database before anything is changed there.

    Raise `TargetTaken` if another run holds it.
    """
    name = _target_connection(definition)
    _recognise(name, settings, metastore, target_session)
    leases.hold_database(metastore, claim)
    _refuse_rival(claim, definition, metastore, name)


def _refuse_rival(claim: Claim, definition: Definition, metastore: Connection, name: str) -> None:
    other = pipelines.find_rival(metastore, claim.pipeline_id, definition)
    if other and (other["target_connection"] or DEFAULT_CONNECTION).lower() != name:
        # Sharing is no way out for a history.
        keeps_history = definition.options.history or other["keeps_history"]
        raise FatalError(
            f"target {definition.final_target} is already written by pipeline {other['name']}: the connections"
            f" {name!r} and {other['target_connection'] or DEFAULT_CONNECTION!r} are one database, and"
            f" {_ONE_WRITER if keeps_history else _DELETES_OF_OTHERS}"
        )


_ONE_WRITER = "a mart with options.history can have only one writer; choose another target"
_DELETES_OF_OTHERS = (
    "a full load deletes rows that its own source does not have; choose another target, or set options.shared_target"
    " on both"
)


def hold_place(claim: Claim, definition: Definition, settings: Settings, metastore: Connection) -> None:
    """Hold a target of another system, to which another pipeline may write under another connection name."""
    name = definition.options.target_connection
    connector = registry.get(targets.connector_of(definition.final_target) or registry.POSTGRES)
    if name is None or connector.place is None:
        return
    identity = connector.place(settings, name)
    if identity is None:
        return
    is_default = _is_default(connector.place, settings, identity)
    databases.recognise_place(metastore, name.lower(), f"{connector.name}:{identity}", is_default=is_default)
    leases.hold_database(metastore, claim)
    _refuse_rival(claim, definition, metastore, name.lower())


def _is_default(place: Callable[[Settings, str | None], str | None], settings: Settings, identity: str) -> bool:
    try:
        return place(settings, None) == identity
    except (ConfigError, RunError):
        return False  # not set or not answering, so no writer can use it either


def checkpoint_to_show(
    claim: Claim, definition: Definition, settings: Settings, metastore: Connection, target_session: Connection
) -> tuple[Checkpoint, str | None]:
    """Find the checkpoint that a run would resume from, and the reason if the stored one is not used."""
    name = _target_connection(definition)
    found = state.peek(metastore, claim.pipeline_id)
    if name == DEFAULT_CONNECTION:
        here = found.mirror_of is None
    else:
        _recognise(name, settings, metastore, target_session)
        seen = databases.look(target_session)
        reset = state.find_reset(metastore, claim.pipeline_id) is not None
        here = reset or found.mirror_of in (state.UNKNOWN_DATABASE, seen.identity if seen else None)
    if here:
        return found, None
    delivered = found.safe_upto is not None or found.last_key is not None
    reason = another_database(definition.final_target) if delivered else None
    return Checkpoint(batch_no=found.batch_no), reason


def another_database(target: Target | str) -> str:
    return say("plan.checkpoint_elsewhere", target=target)


def is_elsewhere(definition: Definition) -> bool:
    """Return whether the target's own database keeps the checkpoint; otherwise the metastore does."""
    return _target_connection(definition) != DEFAULT_CONNECTION


def _target_connection(definition: Definition) -> str:
    in_postgres = targets.connector_of(definition.final_target) == registry.POSTGRES
    return ((definition.options.target_connection if in_postgres else None) or DEFAULT_CONNECTION).lower()


def _recognise(name: str, settings: Settings, metastore: Connection, target_session: Connection) -> str:
    @contextmanager
    def reach(other: str) -> Iterator[Connection]:
        url = settings.connection_url(other)
        with named_sessions.connect(settings, url, other, "vitrina:same-database", {}) as session:
            yield session

    return databases.recognise(metastore, name, target_session, reach)
