"""Define what a package declares about the system it connects, and what it receives when a run opens it."""

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

# `vitrina.settings.Settings`, a layer above the ports: the settings ask the registry which connector has a URL.
Settings = Any
TidyUp = Callable[["psycopg.Connection[Any]", Settings], None]

# A target's name after its prefix. It cannot leave the place that the operator configured, and is safe in a shell.
ANY_NAME = r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,150}"


class Context(Protocol):
    """Define how a connector reports to the run that opened it."""

    # Whether an earlier runner was lost: its last requests may still be under way.
    @property
    def recovers(self) -> bool: ...

    def check(self) -> None:
        """Raise if the lease is lost or the runner is shutting down."""
        ...

    def require_held(self) -> None:
        """Ask the metastore whether this run still holds the claim, right before an action that no fence covers."""
        ...

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        """Sleep. Raise as `check` does, and on a pause request if the run can resume from here (`may_pause`)."""
        ...

    def tell(self, reason: str | None) -> None:
        """Report what the run is waiting for, from any thread; None when the wait is over."""
        ...

    def show(self) -> None:
        """Record what the run is waiting for; called by the run's own thread."""
        ...

    def guard(self, session: Any) -> None:
        """End a PostgreSQL session when the lease ends, even in the middle of a statement."""
        ...

    def let_go(self, session: Any) -> bool:
        """Stop guarding a session; return False if it was ended or the lease is over."""
        ...

    def attach(self, workers: "Endable") -> None:
        """Close these workers, from another thread, when the lease ends."""
        ...

    def log(self, level: str, event: str, **values: Any) -> None: ...


@dataclass(frozen=True)
class Work:
    """Identify the run that a source or target is opened for. An inspection without a claim writes nothing."""

    pipeline_id: UUID
    pipeline: str
    run_id: UUID
    epoch: int
    session_name: str
    writes: bool = True


@dataclass(frozen=True)
class Opening:
    """Hold everything that a connector receives when it is opened."""

    definition: Pipeline
    # `options.<name>`, validated by the connector's own model.
    options: "BaseModel | None"
    # What follows the prefix in `target_table`, or the name of the source.
    name: str
    url: str | None = field(repr=False)
    work: Work
    context: Context
    # Only for Vitrina's own connectors (`vitrina.inside`).
    inside: object = field(default=None, repr=False)


@dataclass(frozen=True)
class Finding:
    """Hold what a check found and what to do about it: one line of `vitrina doctor`."""

    status: Literal["OK", "WARNING", "PROBLEM"]
    finding: str
    next_step: str = ""


@dataclass(frozen=True, kw_only=True)
class Connector:
    """Describe a source, target or engine of rows. It is found by the entry point group `vitrina.connectors`.

    Every process loads it, including the API, so its module must not import a driver. Its functions do so when called.
    """

    # Used in `source_type` and `options.<name>`. Runners report their connectors by this name.
    name: str
    summary: str = ""
    # URL schemes in VITRINA_CONN_<NAME>: the text before `://`.
    schemes: tuple[str, ...] = ()
    # Its targets are `<prefix>:<name>` in `target_table`. None: it has none, or they are `schema.table`.
    prefix: str | None = None
    # A regular expression that the whole name after the prefix must match.
    target_name: str = ANY_NAME
    # The model of `options.<name>`. The API shows its JSON Schema, from which the console builds a form.
    options: "type[BaseModel] | None" = None
    # URL parameters whose values are masked wherever text is written. Passwords are always masked.
    secrets: frozenset[str] = frozenset()

    # Optional capabilities of its targets. A pipeline that needs one that is not declared here is refused by name.
    # Targets delete, or leave out, the rows that `options.delete_when` marks.
    takes_delete_when: bool = False
    # Merges can remove rows by key (`ports.target.Removes`), for repairs and for `options.deletes.scan`.
    removes_rows: bool = False

    open_source: "Callable[[Opening], Source] | None" = None
    open_target: "Callable[[Opening], Target] | None" = None

    # Fills ranges of the key elsewhere (`options.engine`). Its options model has the field `connection`.
    open_engine: "Callable[[EngineOpening], Engine] | None" = None
    # Reports how the engine at a URL differs from this process, for `vitrina validate`. It raises `CannotConnect` if
    # the engine has not answered after so many seconds.
    check_engine: Callable[[str, float], Sequence[str]] | None = None

    # Sessions that a run holds at once on an operator's connection, for VITRINA_CONN_<NAME>_MAX_CONNECTIONS.
    source_sessions: int = 0
    target_sessions: int = 0

    # Returns why a URL is rejected, without repeating any of its values; None if it is accepted.
    url_problem: Callable[[str], str | None] | None = None
    # The same for a URL that a user sends, which must not name files or sockets of the runner's machine.
    kept_url_problem: Callable[[str], str | None] | None = None
    # Inspects a connection without writing, for `vitrina doctor` and `vitrina connections test`.
    check: Callable[[str, Settings], Iterator[Finding]] | None = None
    # Removes what interrupted loads left in its systems. Called once a minute with a session of the metastore.
    tidy_up: TidyUp | None = None
    # Identifies the system of a named connection, or of the default one, so that two names for one place are detected.
    place: Callable[[Settings, str | None], str | None] | None = None
    # Namespace and name of a dataset in lineage, from the connection's URL and the name after the prefix.
    dataset: Callable[[str | None, str], tuple[str, str]] | None = None

    # Loads what answers queries outside of runs (`vitrina.inside.queries`). None: the system has no SQL.
    queries: Callable[[], Any] | None = None

    # Loads what follows the log of its databases in live mode, a `vitrina.ports.live.Feeds`. None: not supported.
    feeds: Callable[[], Any] | None = None

    # Opens a client of the system at its default place, for questions that no port covers.
    open_client: Callable[[Settings], Any] | None = None

    # Set by the registry.
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
        """Return a description in plain JSON, as a runner reports it and the API shows it."""
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
