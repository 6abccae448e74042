"""Pass errors from a worker to the runner, as the name of the class and the message."""

from vitrina import errors
from vitrina.errors import VitrinaError


def packed(exc: BaseException) -> tuple[str, str]:
    """Return the name of the nearest Vitrina error class, and the message."""
    if isinstance(exc, VitrinaError):
        kind = next(each.__name__ for each in type(exc).__mro__ if each.__module__ == errors.__name__)
        return kind, exc.message
    return "FatalError", f"internal error in a worker: {type(exc).__name__}: {exc}"


def unpacked(found: tuple[str, str]) -> VitrinaError:
    """Build the error again, if its class takes a message alone; else a `FatalError`."""
    kind, message = found
    try:
        made = getattr(errors, kind)(message)
    except TypeError:
        return errors.FatalError(message)
    return made if isinstance(made, VitrinaError) else errors.FatalError(message)
