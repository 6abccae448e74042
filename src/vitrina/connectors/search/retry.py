"""Wait for a blocked search server, for requests other than documents."""

from collections.abc import Callable
from typing import TypeVar

from vitrina.connectors.search.bulk import Limits
from vitrina.connectors.search.client import Blocked

T = TypeVar("T")


def retry_while_blocked(move: Callable[[], T], tell: Callable[[str | None], None], rest: Callable[[float], None]) -> T:
    """Make the request, and repeat it while a block (flood stage) refuses it.

    `tell` receives the reason while waiting, and None afterwards. `rest` sleeps, or raises if the run must stop.
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
