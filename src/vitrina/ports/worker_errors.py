"""Errors on their way from a worker to the runner: the kind by its name, and what it says."""

from vitrina import errors
from vitrina.errors import VitrinaError


def packed(exc: BaseException) -> tuple[str, str]:
    """Name the nearest error of ours, and what it says."""
    if isinstance(exc, VitrinaError):
        kind = next(each.__name__ for each in type(exc).__mro__ if each.__module__ == errors.__name__)
        return kind, exc.message
    return "FatalError", f"internal error in a worker: {type(exc).__name__}: {exc}"


def unpacked(found: tuple[str, str]) -> VitrinaError:
    """Make the error again, as far as its kind takes a message alone."""
    kind, message = found
    try:
        made = getattr(errors, kind)(message)
    except TypeError:
        return errors.FatalError(message)
    return made if isinstance(made, VitrinaError) else errors.FatalError(message)
