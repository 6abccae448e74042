"""What a package says of the system that it connects, and what it is given when a run opens it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from pydantic import BaseModel

    from vitrina.definition import Definition
    from vitrina.ports.batch import Endable
    from vitrina.ports.source import Source
    from vitrina.ports.target import Target


class Context(Protocol):
    """A run's line to the rest of the runner."""

    # Whether the runner before was lost: what it sent last may still be on its way.
    @property
    def recovers(self) -> bool: ...

    def check(self) -> None:
        """Raise when the lease is lost or the runner is shutting down."""
        ...

    def require_held(self) -> None:
        """Ask the metastore whether the claim is still ours, right before what no fence covers."""
        ...

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        """Sleep; raises as `check` does, and when a pause is asked for, where the run can be continued from."""
        ...

    def tell(self, reason: str | None) -> None:
        """Say what is waited for, from any thread; None: it is over."""
        ...

    def show(self) -> None:
        """Put on record what is waited for; called by the run's own thread."""
        ...

    def guard(self, session: Any) -> None:
        """End a session of Postgres with the lease, also in the middle of a statement."""
        ...

    def attach(self, workers: "Endable") -> None:
        """Close whatever else is at work with the lease, from another thread."""
        ...

    def log(self, level: str, event: str, **values: Any) -> None: ...


@dataclass(frozen=True)
class Work:
    """Whose work a source or target is opened for. A look without a claim writes nothing."""

    pipeline_id: UUID
    pipeline: str
    run_id: UUID
    epoch: int
    session_name: str
    writes: bool = True


@dataclass(frozen=True)
class Opening:
    """Everything that a connector is given."""

    definition: "Definition"
    # `options.<scheme>`, validated by the connector's own model.
    options: "BaseModel | None"
    # What follows the prefix in `target_table`, or the name of the source.
    name: str
    url: str | None = field(repr=False)
    work: Work
    context: Context


class Finding(NamedTuple):
    """One line of doctor."""

    ok: bool
    what: str
    advice: str = ""


@dataclass(frozen=True)
class Connector:
    """A system that rows come from or go to. Found by the entry point group `vitrina.connectors`.

    Importing the module that holds it must import nothing heavy: each function imports what it needs.
    """

    name: str
    schemes: tuple[str, ...]
    options: "type[BaseModel] | None" = None
    # Names of options that hold secrets.
    secrets: frozenset[str] = frozenset()
    open_source: "Callable[[Opening], Source] | None" = None
    open_target: "Callable[[Opening], Target] | None" = None
    # Sessions that a run opens, by the name of the connection.
    sessions: "Callable[[Definition], Mapping[str, int]] | None" = None
    check: Callable[[str], Iterable[Finding]] | None = None
    # Namespace and name of a dataset in lineage events, from what follows the prefix and the URL.
    dataset: Callable[[str, str | None], tuple[str, str]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
