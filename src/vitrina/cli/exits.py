"""Define exit codes that scripts can rely on, and print errors as one readable line."""

import sys
from enum import IntEnum

from vitrina import errors


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1  # a run failed, differences or problems were found
    USAGE = 2
    INVALID_CONFIG = 3
    CANNOT_CONNECT = 4
    CONFLICT = 5


# The first matching class decides.
EXIT_CODES: tuple[tuple[type[errors.VitrinaError], ExitCode], ...] = (
    (errors.NotFound, ExitCode.USAGE),
    (errors.Conflict, ExitCode.CONFLICT),
    (errors.PreconditionFailed, ExitCode.CONFLICT),
    (errors.Invalid, ExitCode.INVALID_CONFIG),
    (errors.Unauthenticated, ExitCode.INVALID_CONFIG),
    (errors.Forbidden, ExitCode.INVALID_CONFIG),
    (errors.ConfigError, ExitCode.INVALID_CONFIG),
    (errors.CannotConnect, ExitCode.CANNOT_CONNECT),
    (errors.Disconnected, ExitCode.CANNOT_CONNECT),
)


def code_of(error: errors.VitrinaError) -> ExitCode:
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), ExitCode.FAILED)


def report(error: errors.VitrinaError) -> ExitCode:
    """Print an error to standard error, field by field if it is about fields, and return the exit code."""
    from vitrina.cli.output import clean

    sys.stderr.write(clean(f"error: {error.message}\n"))
    fields = error.fields if isinstance(error, errors.Invalid) else ()
    for field in fields:
        if field.message not in error.message:
            sys.stderr.write(clean(f"  {field.path}: {field.message}\n"))
    return code_of(error)
