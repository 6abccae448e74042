"""Every error that Vitrina raises on purpose, sorted by what to do next.

`RequestError`: the caller can fix it. `RunError`: a run met it; the subclass says whether trying again helps.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


class VitrinaError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str) -> None:
        self.message = message if _storable(message) == message else _storable(message)
        super().__init__(self.message)


def _storable(message: str) -> str:
    """Escape what PostgreSQL or UTF-8 does not accept: the end of a run must not fail on its reason."""
    return message.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


# --- the caller can fix it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldError:
    """One wrong field of a request: where it is and what is wrong with it."""

    path: str
    message: str
    code: str = "invalid"
    # Where in the text of the field, both counted from 1.
    line: int | None = None
    column: int | None = None


class RequestError(VitrinaError):
    """The request cannot be carried out as it stands."""

    code = "bad_request"


class NotFound(RequestError):
    """The thing that was named does not exist."""

    code = "not_found"


class Conflict(RequestError):
    """The thing is in a state in which this may not be done."""

    code = "conflict"


class PreconditionFailed(RequestError):
    """Another caller changed it since you read it."""

    code = "precondition_failed"


class Invalid(RequestError):
    """A value is not acceptable."""

    code = "invalid"

    def __init__(self, message: str, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class InvalidField(Invalid):
    """One field is not acceptable."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message, (FieldError(path, message),))


class ForbiddenTarget(InvalidField):
    """The target is not on the allow-list."""

    code = "forbidden_target"

    def __init__(self, message: str) -> None:
        super().__init__("target_table", message)


class InvalidQuery(InvalidField):
    """The source query may not run."""

    code = "invalid_query"

    def __init__(self, message: str, *, construct: str, line: int, column: int) -> None:
        super().__init__("source_query", message)
        self.construct = construct
        self.line = line
        self.column = column


class Unauthenticated(RequestError):
    """No valid token came with the request."""

    code = "unauthenticated"


class Forbidden(RequestError):
    """The token's role may not do this."""

    code = "forbidden"


class TooManyRequests(RequestError):
    """Too many attempts; wait a little."""

    code = "too_many_requests"


# --- the installation is not right -----------------------------------------------------------------------------


class ConfigError(VitrinaError):
    """A setting is missing or wrong."""

    code = "config"


class OtherVersion(ConfigError):
    """The metastore is not of this program's version."""


class CannotConnect(VitrinaError):
    """A database or server does not answer."""

    code = "cannot_connect"


# --- a run met it ----------------------------------------------------------------------------------------------


class RunError(VitrinaError):
    """A run cannot go on."""

    code = "run_error"
    # The rows themselves were refused: an unfinished load of them is given up with the run, and read again.
    discards_load: bool = False


class TransientError(RunError):
    """Trying again from the checkpoint may help."""

    code = "transient"


class SnapshotGone(TransientError):
    """The snapshot that a load is read in is not there, on the server that was asked for it."""


class Disconnected(TransientError):
    """The connection to a database or server was lost: the run ends, recovery takes over."""

    code = "disconnected"


class FeedLost(TransientError):
    """The log of a source cannot be read on from where it was stored: its followers are loaded again."""

    code = "feed_lost"


class FatalError(RunError):
    """Trying again changes nothing; a person has to act."""

    code = "fatal"


class SourceQueryFailed(FatalError):
    """The source query was refused or failed."""

    code = "source_query_failed"


class TargetMismatch(FatalError):
    """The target table does not fit the query's result."""

    code = "target_mismatch"


class BadKey(FatalError):
    """The key of the target is missing, NULL or not unique in the source."""

    code = "bad_key"
    discards_load = True


class DuplicateKeys(BadKey):
    """Several rows of the source have one key."""


class StageLost(TransientError):
    """The target no longer holds what the checkpoint counted: the load starts over."""

    code = "stage_lost"
    discards_load = True


class StepFailed(FatalError):
    """A Python step raised, or gave something that a step may not give."""

    code = "step_failed"


class NotCarried(FatalError):
    """A value of the source has no exact form in Arrow, so no step can be given it."""

    code = "not_carried"


class ShrinkRefused(FatalError):
    """Publishing would delete more of the mart than the guard allows."""

    code = "shrink_refused"
    discards_load = True

    def __init__(self, message: str, guard: str | None = "shrink") -> None:
        super().__init__(message)
        # By which name people accept it (`vitrina.data_checks.GUARDS`); None: they cannot.
        self.guard = guard


class CheckFailed(FatalError):
    """A check of the definition failed: nothing of these rows is published."""

    code = "check_failed"
    discards_load = True

    def __init__(self, message: str, outcomes: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        # What came of each check (`vitrina.ports.checks.Outcome`), for the history of runs.
        self.outcomes = outcomes


class BadCheck(FatalError):
    """A check of the definition cannot be judged on these rows."""

    code = "bad_check"


class RecordError(RunError):
    """One record cannot be processed; the others can."""

    code = "record"


class LeaseLost(RunError):
    """Another runner holds the pipeline now: leave without touching anything."""

    code = "lease_lost"


class TargetTaken(RunError):
    """Another pipeline writes to the same target just now: wait until it is done."""

    code = "target_taken"
