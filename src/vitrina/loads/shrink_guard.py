"""Stop a live run whose target would lose more than half of its rows within a minute."""

import time
from collections import deque
from collections.abc import Callable

from vitrina.errors import ShrinkRefused
from vitrina.loads.run import Run
from vitrina.ports.batch import Counts
from vitrina.ports.live import Corrects
from vitrina.sentences import say

# A target that loses more than half of its rows within this time has probably met a DELETE without WHERE.
_SHRINK_WINDOW_SECONDS = 60.0
_FEW_DELETES = 100


class ShrinkGuard:
    """Refuse to delete more than half of a target within a minute."""

    def __init__(self) -> None:
        # Approximate number of rows in the target. Not every target distinguishes inserted rows from updated ones.
        self.rows = 0
        # Lower bound: rows that were inserted since the count are not included.
        self._least = 0
        self._deleted: deque[tuple[float, int]] = deque()

    def count(self, rows: int) -> None:
        self.rows = self._least = rows

    def refuse_more(self, at_most: int, exactly: Callable[[], int], load: Corrects, run: Run) -> None:
        """Refuse deletes that could not be undone, before they are sent."""
        if self._is_too_much(at_most, run):
            self.count(load.count_rows())
            self._refuse(exactly(), run)

    def refuse(self, counts: Counts, load: Corrects, run: Run) -> None:
        """Refuse deletes in the transaction that would make them visible."""
        self._deleted.append((time.monotonic(), counts.deleted))
        self.rows += counts.inserted - counts.deleted
        self._least -= counts.deleted
        if self._is_too_much(0, run):
            self.count(load.count_rows())
            self._refuse(0, run)

    def _refuse(self, more: int, run: Run) -> None:
        if self._is_too_much(more, run):
            removed, rows = self._recent + more, self._least + self._recent
            target = run.job.definition.final_target
            raise ShrinkRefused(say("run.would_shrink", removed=removed, rows=rows, target=target))

    def _is_too_much(self, more: int, run: Run) -> bool:
        recent, options = self._recent, run.job.definition.options
        most = max(_FEW_DELETES, (self._least + recent) * options.shrink_limit)
        return not options.allow_shrink and recent + more > most

    @property
    def _recent(self) -> int:
        """Return how many rows were deleted within the last minute."""
        begins = time.monotonic() - _SHRINK_WINDOW_SECONDS
        while self._deleted and self._deleted[0][0] < begins:
            self._deleted.popleft()
        return sum(number for _, number in self._deleted)
