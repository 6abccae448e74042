"""Rows that a registered Python source makes: each batch is staged, and announced with the checkpoint it came with."""

import json
import time
from collections.abc import Iterator, Mapping

from vitrina import failpoints
from vitrina.adapters.readers.arrow import Stager
from vitrina.adapters.transforms import landing
from vitrina.adapters.transforms.landing import Landing
from vitrina.adapters.transforms.sources import OpenSource
from vitrina.ports import Filled, Stopwatch


class PythonSource:
    """A position is the source's own checkpoint, as JSON."""

    def __init__(self, source: OpenSource, stager: Stager, landings: Mapping[str, Landing]) -> None:
        self._source = source
        self._stager = stager
        self._landings = landings

    def batches(self, first_number: int, after: tuple[str, ...] | None) -> Iterator[Filled]:
        started, watch = time.monotonic(), Stopwatch()
        # The first batch was looked at before the target was prepared for it.
        watch.add("read", self._source.peek_seconds, time.time())
        found = self._source.batches(json.loads(after[0]) if after else None)
        number = first_number
        while (made := watch.next_of("read", found)) is not None:
            batch, checkpoint = made
            if batch.num_rows:
                with watch.lap("stage"):
                    self._stager.stage(landing.to_stage(batch, self._landings), number)
            failpoints.hit("batch.filled")
            seconds = time.monotonic() - started
            yield Filled(number, batch.num_rows, (json.dumps(checkpoint),), seconds, laps=watch.laps)
            number += 1
            started, watch = time.monotonic(), Stopwatch()

    def close(self) -> None:
        """The source's own waiting cannot be interrupted; its next batch finds no stage any more."""
        self._stager.close()
