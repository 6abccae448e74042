"""Waiting for a search server that is blocked: also for what comes before and after documents."""

from collections.abc import Callable
from typing import TypeVar

from vitrina.connectors.search.bulk import Limits
from vitrina.connectors.search.client import Blocked

T = TypeVar("T")


def patiently(move: Callable[[], T], tell: Callable[[str | None], None], rest: Callable[[float], None]) -> T:
    """Make the move as soon as no block (flood stage) refuses it.

    `tell` hears why nothing moves, and None when it moves again; `rest` sleeps, or raises when it should not.
    """
    circuit, waited = Limits().circuit(), False
    while True:
        try:
            done = move()
        except Blocked as exc:
            circuit.fail(exc)
            circuit.check_patience()
            waited = True
            tell(exc.message)
            rest(circuit.seconds_to_wait)
        else:
            if waited:
                tell(None)
            return done
