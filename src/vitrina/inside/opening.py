"""Define what only Vitrina's own connectors receive when a run opens them."""

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
    """Hold what only Vitrina's own connectors receive, as parts of the runner: its settings and sessions."""

    definition: Definition
    settings: Settings
    claim: Claim
    # None: an inspection without a claim, in which a mart gets its own session.
    metastore: Connection | None
    sessions: ExitStack
    connect: Callable[[str, str | None, Mapping[str, str]], Connection]
    # Lends a session for a part of the run, with only these settings.
    lend: Callable[[str, str | None, Mapping[str, str]], AbstractContextManager[Connection]]
    # Returns the pipelines that write to the same target.
    others: Callable[[], Sequence[str]]
    # For a query: the checked query, the session that reads it, and the checkpoint of the last run.
    judged: CheckedQuery | None = None
    reader: Any = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


def inside_of(opening: Opening) -> Inside:
    """Return what the runner put into the opening of one of Vitrina's own connectors."""
    if not isinstance(opening.inside, Inside):
        raise RuntimeError("only a runner opens Vitrina's own connectors")
    return opening.inside
