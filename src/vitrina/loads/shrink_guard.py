"""A live run leaves a target alone that would lose more than half of its rows within a minute."""

import time
from collections import deque
from collections.abc import Callable

from vitrina.errors import ShrinkRefused
from vitrina.loads.run import Run
from vitrina.ports.batch import Counts
from vitrina.ports.live import Corrects
from vitrina.sentences import say

# A target that loses more than half of its rows within this long has met a DELETE without WHERE.
_SHRINK_WINDOW_SECONDS = 60.0
_FEW_DELETES = 100


class ShrinkGuard:
    """Refuses to delete more than half of a target within a minute."""

    def __init__(self) -> None:
        # About how many rows the target has. Not every target tells an inserted row from an updated one.
        self.rows = 0
        # It has so many at least: those that were inserted since they were counted are left out.
        self._least = 0
        self._deleted: deque[tuple[float, int]] = deque()

    def count(self, rows: int) -> None:
        self.rows = self._least = rows

    def refuse_more(self, at_most: int, exactly: Callable[[], int], load: Corrects, run: Run) -> None:
        """Refuse deletes that could not be taken back, before they are sent."""
        if self._is_too_much(at_most, run):
            self.count(load.count_rows())
            self._refuse(exactly(), run)

    def refuse(self, counts: Counts, load: Corrects, run: Run) -> None:
        """Refuse what was deleted, in the transaction that would show it."""
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
        """How many rows were deleted within the last minute."""
        begins = time.monotonic() - _SHRINK_WINDOW_SECONDS
        while self._deleted and self._deleted[0][0] < begins:
            self._deleted.popleft()
        return sum(number for _, number in self._deleted)
