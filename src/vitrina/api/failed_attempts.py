"""Count wrong tokens by address, to slow down guessing."""

import threading
import time
from collections import OrderedDict, deque

_MOST_ADDRESSES = 10_000


class FailedAttempts:
    """Count wrong tokens by address. A right one passes, whatever others sent from the same address before."""

    def __init__(self, *, limit: int = 10, window_seconds: float = 60.0) -> None:
        self._limit, self._window = limit, window_seconds
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def failed(self, address: str) -> bool:
        """Count one more wrong token. Return True when there were too many recently."""
        with self._lock:
            too_many = self._recent(address) >= self._limit
            self._failures.setdefault(address, deque(maxlen=self._limit)).append(time.monotonic())
            self._failures.move_to_end(address)
            while len(self._failures) > _MOST_ADDRESSES:  # memory stays bounded whatever comes in
                self._failures.popitem(last=False)
            return too_many

    def _recent(self, address: str) -> int:
        since = time.monotonic() - self._window
        return sum(1 for moment in self._failures.get(address, ()) if moment > since)
