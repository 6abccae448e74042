"""Fill ranges without a database, in real worker processes: what a range is called says what becomes of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitrina.ports.batch import Part
from vitrina.ports.ranges import FilledRange, Task

ROWS = 30


@dataclass(frozen=True)
class Handle:
    modules = ()

    def open(self, settings: Any) -> "Filler":
        return Filler()


class Filler:
    def fill(self, task: Task, progressed: Callable[[int], None]) -> FilledRange:
        assert task.range.upto
        if task.range.upto[0] == "silent":
            time.sleep(600)
        for _ in range(ROWS):
            if task.range.upto[0] == "slow":
                time.sleep(0.1)
            progressed(1)
        return FilledRange(Part(task.number, ROWS, None))

    def close(self) -> None:
        """Nothing is open."""
