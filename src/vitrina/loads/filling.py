"""Who fills the stages of a run: Postgres itself, lines of COPY, or rows that somebody looks at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrina.connectors.postgres.copy import CopySource
from vitrina.connectors.postgres.pushdown import Paging, PushdownSource, SharedSnapshot
from vitrina.connectors.postgres.source import Bounds
from vitrina.connectors.postgres.stage import Stage
from vitrina.loads.job import Job, admit_pass
from vitrina.ports import batch as ports
from vitrina.store.database import Connection

if TYPE_CHECKING:
    from vitrina.connectors.postgres.stream import StagesTables


@dataclass(frozen=True)
class Routes:
    """What is read, and in which order and portions."""

    job: Job
    bounds: Bounds
    paging: Paging
    batch_size: Callable[[], int]
    max_snapshot_seconds: float | None

    def __post_init__(self) -> None:
        admit_pass(self.job, self.bounds)

    def by_postgres(
        self, stages: tuple[Stage, ...], probe: Connection, *, isolate: bool, snapshot: SharedSnapshot | None
    ) -> ports.Filling:
        job = self.job
        return PushdownSource(
            job.reader,
            probe,
            job.query,
            bounds=self.bounds,
            stages=stages,
            paging=self.paging,
            epoch=job.claim.epoch,
            target=job.table,
            isolate=isolate,
            snapshot=snapshot,
        )

    def by_copy(self, stages: tuple[Stage, ...], sink: Connection) -> ports.Filling:
        job = self.job
        return CopySource(
            job.reader,
            sink,
            job.query,
            bounds=self.bounds,
            stages=stages,
            paging=self.paging,
            epoch=job.claim.epoch,
            target=job.table,
            result=job.result,
            batch_size=self.batch_size,
            max_value_bytes=job.settings.max_value_mb << 20,
            max_snapshot_seconds=self.max_snapshot_seconds,
        )

    def through_arrow(self, stager: "StagesTables") -> ports.Filling:
        # Imported here: the other routes need neither pyarrow nor its half second.
        from vitrina.connectors.postgres.stream import ArrowSource

        job = self.job
        return ArrowSource(
            job.reader,
            job.query,
            bounds=self.bounds,
            result=job.result,
            paging=self.paging,
            stager=stager,
            batch_size=self.batch_size,
            max_value_bytes=job.settings.max_value_mb << 20,
            passage=job.passage,
            max_snapshot_seconds=self.max_snapshot_seconds,
        )
