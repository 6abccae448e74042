"""Load one range of the key in a worker: read it, pass it through the steps and write it as one part."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, cast
from uuid import UUID

from vitrina.definition import Definition
from vitrina.loads import steps
from vitrina.loads.job import Job
from vitrina.ports.batch import Batch, Part, Position, Stopwatch
from vitrina.ports.ranges import (
    FilledRange,
    FillHandle,
    RangeSource,
    ShortcutForRanges,
    SourceHandle,
    Splits,
    TakesRanges,
    Task,
    WriterHandle,
)
from vitrina.ports.source import BaseSource, Description, Form, Source, Window
from vitrina.ports.target import Load
from vitrina.settings import Settings

if TYPE_CHECKING:
    from vitrina.transforms.pipeline import Learned, RunsSteps


def handle_of(job: Job, load: Load, window: Window, started_at: datetime) -> FillHandle:
    """Describe to other processes how to load ranges of this job."""
    if job.plan.route == "copy" and isinstance(job.shortcut, ShortcutForRanges):
        return job.shortcut.handle(load, window, job.plan)
    if not isinstance(job.source, Splits) or not isinstance(load, TakesRanges):
        raise TypeError(f"{job.source.name} is not loaded in ranges")
    step_pipeline = job.fitted.step_pipeline
    return ArrowHandle(
        job.source.handle(window),
        load.handle(),
        job.definition,
        replace(job.described, outline=None),
        job.run_id,
        job.claim.epoch,
        job.target.form,
        started_at,
        step_pipeline.steps.learned() if step_pipeline else None,
    )


@dataclass(frozen=True)
class ArrowHandle:
    """Describe ranges whose rows are read by steps, or travel as Arrow for another reason."""

    source: SourceHandle
    writer: WriterHandle
    definition: Definition
    described: Description
    run_id: UUID
    epoch: int
    form: Form
    # The same moment for all workers of a run.
    started_at: datetime
    # What the runner learned about the columns after the steps; None if rows pass unchanged.
    learned: "Learned | None"

    @property
    def modules(self) -> tuple[str, ...]:
        steps = ("vitrina.transforms.remote", "vitrina.transforms.builtin") if self.learned else ()
        return (__name__, "vitrina.loads.flow", *steps, *self.source.modules)

    def open(self, settings: Settings) -> "ArrowFiller":
        return ArrowFiller(self, settings)


class ArrowFiller:
    """Read, transform and write ranges, in a worker."""

    def __init__(self, handle: ArrowHandle, settings: Settings) -> None:
        # Imported here: workers that pass on COPY data need neither pyarrow nor its half second of import.
        from vitrina.loads.flow import Flow

        self._flow = Flow
        self._handle = handle
        self._opened = ExitStack()
        self._source = self._opened.enter_context(closing(handle.source.open(settings)))
        self._writer = self._opened.enter_context(handle.writer.open(settings))
        self._steps = self._open_steps(handle.learned, settings) if handle.learned else None

    def _open_steps(self, learned: "Learned", settings: Settings) -> "RunsSteps":
        handle = self._handle
        # One process is enough for the steps of a worker, which is one of several.
        options = handle.definition.options.model_copy(update={"parallel": 1})
        definition = handle.definition.model_copy(update={"options": options})
        planned = steps.planned(definition, settings, self._opened, handle.run_id, started_at=handle.started_at)
        look_up = cast(RangeSource, self._source).look_up
        environment = steps.StepEnvironment(definition, settings, handle.run_id, planned, look_up, handle.started_at)
        step_pipeline = steps.open_step_pipeline(environment, handle.described, handle.form, self._source.name)
        step_pipeline.steps.adopt(learned)
        return step_pipeline.steps

    def fill(self, task: Task, progressed: Callable[[int], None]) -> FilledRange:
        before = self._steps.rejected() if self._steps else {}
        source = _OnePart(self._source, task.most_rows, progressed)
        window = Window(upto=task.range.upto, snapshot=task.snapshot, batch_rows=lambda: task.batch_rows)
        flow = self._flow(source, window, self._steps, self._writer, self._handle.epoch)
        parts = list(flow.parts(task.number, task.range.after))
        part = parts[0] if parts else Part(task.number, 0, None)
        after = self._steps.rejected() if self._steps else {}
        rejected = {place: count - before.get(place, 0) for place, count in after.items()}
        return FilledRange(part, source.reached, rejected)

    def close(self) -> None:
        self._opened.close()


class _OnePart(BaseSource):
    """Yield the batches of a source as pieces of one part, up to a number of rows."""

    def __init__(self, source: Source, most_rows: int, progressed: Callable[[int], None]) -> None:
        self.name = source.name
        self.reached: Position | None = None
        self._source = source
        self._left = most_rows
        self._progressed = progressed

    def describe(self, window: Window) -> Description:
        return self._source.describe(window)

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        watch = Stopwatch()
        with closing(self._source.read(window, form)) as batches:
            for batch in batches:
                self._progressed(batch.read)
                self._left -= batch.read
                for stage, lap in batch.watch.timings.items():
                    watch.add(stage, lap.seconds, lap.began)
                last = batch.last
                yield Batch(batch.take(), watch=watch)
                del batch
                if self._left <= 0:
                    # There may be more rows; a range that turns out to be empty costs little.
                    self.reached = last
                    return
