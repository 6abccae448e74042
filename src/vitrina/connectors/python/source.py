"""Rows that a registered Python source makes: each batch is staged, and announced with the checkpoint it came with."""

import json
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from vitrina import failpoints
from vitrina.connectors.postgres.stream import StagesTables
from vitrina.ports.batch import Part, Position, Stopwatch, delivered_in
from vitrina.transforms import to_target
from vitrina.transforms.sources import OpenSource
from vitrina.transforms.to_target import Landing


class PythonSource:
    """A position is the source's own checkpoint, as JSON."""

    def __init__(self, source: OpenSource, stager: StagesTables, landings: Mapping[str, Landing]) -> None:
        self._source = source
        self._stager = stager
        self._landings = landings

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        started, watch = time.monotonic(), Stopwatch()
        # The first batch was looked at before the target was prepared for it.
        watch.add("read", self._source.peek_seconds, time.time())
        found = self._source.batches(json.loads(after[0]) if after and after[0] else None)
        number = first_number
        while (made := watch.next_of("read", found)) is not None:
            batch, checkpoint = made
            with watch.lap(self._stager.timed_as):
                rows = to_target.to_stage(batch, self._landings) if batch.num_rows else pa.table({})
                staged = self._stager.begin(rows, number)()
            failpoints.hit("batch.filled")
            seconds, position = time.monotonic() - started, (json.dumps(checkpoint),)
            delivered = delivered_in(staged.letters, staged.delivered)
            yield Part(
                number,
                batch.num_rows,
                position,
                seconds,
                staged.rows,
                staged.letters,
                watch.laps,
                delivered=delivered,
            )
            number += 1
            started, watch = time.monotonic(), Stopwatch()

    def close(self) -> None:
        self._source.close()
        self._stager.close()
