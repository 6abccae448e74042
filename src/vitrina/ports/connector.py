"""What a package says of the system that it connects, and what it is given when a run opens it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import UUID

from vitrina.ports.pipeline import Pipeline

if TYPE_CHECKING:
    import psycopg
    from pydantic import BaseModel

    from vitrina.ports.batch import Endable
    from vitrina.ports.ranges import Engine, EngineOpening
    from vitrina.ports.source import Source
    from vitrina.ports.target import Target

# `vitrina.settings.Settings`, which stand above the ports: they ask the registry whose a URL is.
Settings = Any
TidyUp = Callable[["psycopg.Connection[Any]", Settings], None]

# Of a target after its prefix: no way up and out of the place that the operator named, nothing that a shell reads.
ANY_NAME = r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,150}"


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
        """Sleep. Raise as `check` does, and when a pause is requested, if the run can be resumed from here."""
        ...

    def tell(self, reason: str | None) -> None:
        """Report what is waited for, from any thread; None when the wait is over."""
        ...

    def show(self) -> None:
        """Record what is waited for; called by the run's own thread."""
        ...

    def guard(self, session: Any) -> None:
        """End a session of Postgres with the lease, also in the middle of a statement."""
        ...

    def let_go(self, session: Any) -> bool:
        """Stop guarding a session; False when it was ended, or the lease is over."""
        ...

    def attach(self, workers: "Endable") -> None:
        """Close these workers, from another thread, when the lease is over."""
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

    definition: Pipeline
    # `options.<name>`, validated by the connector's own model.
    options: "BaseModel | None"
    # What follows the prefix in `target_table`, or the name of the source.
    name: str
    url: str | None = field(repr=False)
    work: Work
    context: Context
    # For Vitrina's own connectors alone (`vitrina.inside`).
    inside: object = field(default=None, repr=False)


@dataclass(frozen=True)
class Finding:
    """What a check found out, and what to do about it: one line of doctor."""

    status: Literal["OK", "WARNING", "PROBLEM"]
    finding: str
    next_step: str = ""


@dataclass(frozen=True, kw_only=True)
class Connector:
    """A system that rows come from or go to, or that brings them. Found by the entry point group `vitrina.connectors`.

    Every process loads it, the API too: the module that holds it imports no driver. The functions do, when called.
    """

    # Stands in `source_type` and `options.<name>`; runners report what they have by it.
    name: str
    summary: str = ""
    # Of the URLs in VITRINA_CONN_<NAME>: the text before `://`.
    schemes: tuple[str, ...] = ()
    # Its targets are `<prefix>:<name>` in `target_table`. None: it has none, or they are `schema.table`.
    prefix: str | None = None
    # What may follow the prefix: a regular expression that the whole name must match.
    target_name: str = ANY_NAME
    # The model of `options.<name>`. Its JSON Schema is shown by the API, and the console makes a form of it.
    options: "type[BaseModel] | None" = None
    # Parameters of its URLs whose values are masked wherever text is written. Passwords are without being named.
    secrets: frozenset[str] = frozenset()

    # What its targets can do beside taking rows. A pipeline that asks for what is not declared here is refused by name.
    # They delete, or leave out, the rows that `options.delete_when` marks.
    takes_delete_when: bool = False
    # Their merges remove rows by key (`ports.target.Removes`), for repairs and for `options.deletes.scan`.
    removes_rows: bool = False

    open_source: "Callable[[Opening], Source] | None" = None
    open_target: "Callable[[Opening], Target] | None" = None

    # Brings ranges of the key elsewhere (`options.engine`). Its model of options has the field `connection`.
    open_engine: "Callable[[EngineOpening], Engine] | None" = None
    # Says in what the engine at a URL differs from this process, for `vitrina validate`.
    check_engine: Callable[[str], Sequence[str]] | None = None

    # Sessions that a run holds at once on a connection of the operator's, for VITRINA_CONN_<NAME>_MAX_CONNECTIONS.
    source_sessions: int = 0
    target_sessions: int = 0

    # Why a URL is not taken, without repeating any of its values; None when it is.
    url_problem: Callable[[str], str | None] | None = None
    # The same for a URL that a user sends: it must not name files or sockets of the runner's machine.
    kept_url_problem: Callable[[str], str | None] | None = None
    # Looks at a connection, writes nothing: for `vitrina doctor` and `vitrina connections test`.
    check: Callable[[str, Settings], Iterator[Finding]] | None = None
    # Removes what interrupted loads left in its systems; once a minute, with a session of the metastore.
    tidy_up: TidyUp | None = None
    # What a named connection, or the default one, says of itself: two names for one place are found out by it.
    place: Callable[[Settings, str | None], str | None] | None = None
    # Namespace and name of a dataset in lineage, from the connection's URL and the name after the prefix.
    dataset: Callable[[str | None, str], tuple[str, str]] | None = None

    # Loads what answers queries besides runs (`vitrina.inside.queries`). None: it is not asked in SQL.
    queries: Callable[[], Any] | None = None

    # Loads what follows the log of its databases, a `vitrina.ports.live.Feeds`, for live mode. None: it has none.
    feeds: Callable[[], Any] | None = None

    # Opens a client of its system at its default place, to ask it something that no port has.
    open_client: Callable[[Settings], Any] | None = None

    # Filled by the registry.
    package: str = field(default="", compare=False)
    version: str = field(default="", compare=False)

    @property
    def is_source(self) -> bool:
        return self.open_source is not None

    @property
    def is_target(self) -> bool:
        return self.open_target is not None

    @property
    def is_engine(self) -> bool:
        return self.open_engine is not None

    def accepts_target(self, name: str) -> bool:
        return re.fullmatch(self.target_name, name) is not None

    def describe(self) -> dict[str, Any]:
        """Describe it in plain JSON, as a runner reports it and the API shows it."""
        return {
            "name": self.name,
            "summary": self.summary,
            "package": self.package,
            "version": self.version,
            "schemes": list(self.schemes),
            "prefix": self.prefix,
            "source": self.is_source,
            "target": self.is_target,
            "options": self.options_schema,
        }

    @property
    def options_schema(self) -> Mapping[str, Any] | None:
        return self.options.model_json_schema() if self.options else None
