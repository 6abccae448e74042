"""Rows that a registered Python source makes: each batch is staged, and announced with the checkpoint it came with."""

import json
import time
from collections.abc import Iterator, Mapping

from vitrina import failpoints
from vitrina.adapters.readers.arrow import Stager
from vitrina.adapters.transforms import landing
from vitrina.adapters.transforms.landing import Landing
from vitrina.adapters.transforms.sources import OpenSource
from vitrina.ports import Filled


class PythonSource:
    """A position is the source's own checkpoint, as JSON."""

    def __init__(self, source: OpenSource, stager: Stager, landings: Mapping[str, Landing]) -> None:
        self._source = source
        self._stager = stager
        self._landings = landings

    def batches(self, first_number: int, after: tuple[str, ...] | None) -> Iterator[Filled]:
        started = time.monotonic()
        found = self._source.batches(json.loads(after[0]) if after else None)
        for number, (batch, checkpoint) in enumerate(found, first_number):
            if batch.num_rows:
                self._stager.stage(landing.to_stage(batch, self._landings), number)
            failpoints.hit("batch.filled")
            yield Filled(number, batch.num_rows, (json.dumps(checkpoint),), time.monotonic() - started)
            started = time.monotonic()

    def close(self) -> None:
        """The source's own waiting cannot be interrupted; its next batch finds no stage any more."""
        self._stager.close()
