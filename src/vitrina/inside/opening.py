"""What only Vitrina's own connectors are given when a run opens them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from vitrina.definition import Definition
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.connector import Opening
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery
from vitrina.store.database import Connection
from vitrina.store.leases import Claim


@dataclass(frozen=True)
class Inside:
    """What only Vitrina's own connectors are given, which are a part of the runner: its settings and sessions."""

    definition: Definition
    settings: Settings
    claim: Claim
    # None: a look without a claim; a mart gets a session of its own then.
    metastore: Connection | None
    sessions: ExitStack
    connect: Callable[[str, str | None, Mapping[str, str]], Connection]
    # For a part of the run, with these settings alone.
    lend: Callable[[str, str | None, Mapping[str, str]], AbstractContextManager[Connection]]
    # Pipelines that write to the same target.
    others: Callable[[], Sequence[str]]
    # Of a query: what the guard said of it, the session that reads it, and where the last run came to.
    judged: CheckedQuery | None = None
    reader: Any = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


def inside_of(opening: Opening) -> Inside:
    """Return what the runner put into the opening of a connector of ours."""
    if not isinstance(opening.inside, Inside):
        raise RuntimeError("only a runner opens Vitrina's own connectors")
    return opening.inside
