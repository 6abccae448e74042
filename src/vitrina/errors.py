"""Errors that Vitrina raises, sorted by what to do next.

`RequestError`: the caller can fix it. `RunError`: a run failed; the subclass says whether a retry helps.
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
    """Escape characters that PostgreSQL or UTF-8 does not accept, so that recording an error cannot fail."""
    return message.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


# --- the caller can fix it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldError:
    """Represent one wrong field of a request: its path and the error."""

    path: str
    message: str
    code: str = "invalid"
    # Position in the text of the field, counted from 1.
    line: int | None = None
    column: int | None = None


class RequestError(VitrinaError):
    """The request cannot be carried out."""

    code = "bad_request"


class NotFound(RequestError):
    """The named resource does not exist."""

    code = "not_found"


class Conflict(RequestError):
    """The state of the resource does not allow the request."""

    code = "conflict"


class PreconditionFailed(RequestError):
    """The resource has changed since the caller read it."""

    code = "precondition_failed"


class Invalid(RequestError):
    """A value is not valid."""

    code = "invalid"

    def __init__(self, message: str, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class InvalidField(Invalid):
    """One field is not valid."""

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
    """The request has no valid token."""

    code = "unauthenticated"


class Forbidden(RequestError):
    """The token's role may not do this."""

    code = "forbidden"


class TooManyRequests(RequestError):
    """There were too many attempts; wait before the next one."""

    code = "too_many_requests"


# --- the installation has to be corrected-----------------------------------------------------------------------


class ConfigError(VitrinaError):
    """A setting is missing or wrong."""

    code = "config"


class OtherVersion(ConfigError):
    """The metastore does not have the version of this program."""


class CannotConnect(VitrinaError):
    """A database or server does not answer."""

    code = "cannot_connect"


# --- a run failed ----------------------------------------------------------------------------------------------


class RunError(VitrinaError):
    """A run cannot continue."""

    code = "run_error"
    # The rows themselves were refused: their unfinished load is discarded with the run, and they are read again.
    discards_load: bool = False


class TransientError(RunError):
    """A retry from the checkpoint may succeed."""

    code = "transient"


class SnapshotGone(TransientError):
    """The snapshot of a load does not exist on the server that was asked for it."""


class Disconnected(TransientError):
    """The connection to a database or server was lost: the run ends, recovery takes over."""

    code = "disconnected"


class FeedLost(TransientError):
    """The log of a source cannot be read from the stored position; the pipelines that follow it are loaded again."""

    code = "feed_lost"


class FatalError(RunError):
    """A retry cannot succeed; a person has to act."""

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
    """A Python step raised an error, or returned something that a step may not return."""

    code = "step_failed"


class NotCarried(FatalError):
    """A value of the source has no exact form in Arrow, so it cannot be passed to a step."""

    code = "not_carried"


class ShrinkRefused(FatalError):
    """Publishing would delete more of the mart than the guard allows."""

    code = "shrink_refused"
    discards_load = True

    def __init__(self, message: str, guard: str | None = "shrink") -> None:
        super().__init__(message)
        # The name by which users accept it (`vitrina.data_checks.GUARDS`); None: they cannot.
        self.guard = guard


class CheckFailed(FatalError):
    """A check of the definition failed; none of these rows is published."""

    code = "check_failed"
    discards_load = True

    def __init__(self, message: str, outcomes: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        # The outcome of each check (`vitrina.ports.checks.Outcome`), for the history of runs.
        self.outcomes = outcomes


class BadCheck(FatalError):
    """A check of the definition cannot be evaluated on these rows."""

    code = "bad_check"


class RecordError(RunError):
    """One record cannot be processed; the others can."""

    code = "record"


class LeaseLost(RunError):
    """Another runner holds the pipeline now: stop without any further write."""

    code = "lease_lost"


class TargetTaken(RunError):
    """Another pipeline is writing to the same target: wait until it is done."""

    code = "target_taken"
