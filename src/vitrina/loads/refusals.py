"""Handle a load that could not be published: read it again if its rows were refused, otherwise publish it later."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from vitrina.errors import Disconnected, LeaseLost, RunError
from vitrina.loads.control import Stopping
from vitrina.store import database

# 22: a value; 23: a constraint; 44: WITH CHECK OPTION; 54: too large for an index; P0: a trigger of the mart.
_BECAUSE_OF_ROWS = ("22", "23", "44", "54", "P0")


@contextmanager
def of_publish(read_at: datetime | None) -> Iterator[None]:
    """Mark what a publish refuses: the same rows would be refused again, and the source may have changed by then."""
    try:
        yield
    except (Stopping, LeaseLost, Disconnected):
        raise  # nothing is decided: the runner that takes over publishes
    except RunError as exc:
        state = database.sqlstate_of(exc)
        if state and state.startswith(_BECAUSE_OF_ROWS):
            exc.discards_load = True
        exc.message += f"; {_next_run(exc, read_at)}"
        raise


@contextmanager
def of_reading() -> Iterator[None]:
    """Mark rows without a key that filling a stage refuses. After any other error a load resumes where it ended."""
    try:
        yield
    except RunError as exc:
        if exc.discards_load:
            exc.message += f"; {_next_run(exc, None)}"
        raise


def _next_run(exc: RunError, read_at: datetime | None) -> str:
    if exc.discards_load or read_at is None:
        return "the next run reads the source again"
    return f"the next run publishes what was read at {read_at.astimezone(UTC):%H:%M} UTC"
