"""Determine how the rows of a source reach a load: form, route and order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from vitrina.loads.job import Job
from vitrina.ports import types
from vitrina.ports.batch import Filling, Position
from vitrina.ports.source import Window
from vitrina.ports.target import Load, Loading

if TYPE_CHECKING:
    from vitrina.loads.arrow_checks import RowGate
    from vitrina.ports.checks import Checks


def window_of(job: Job, after: Position | None = None) -> Window:
    """Build the window of a full load: everything, or what comes after the position where it was interrupted."""
    by_key = job.plan.paging != "one statement"
    return Window(
        after=after,
        order=job.reading_key if by_key else (),
        one_snapshot=job.definition.options.keeps_one_snapshot,
    )


def loading_of(job: Job, load: Loading, checks: "Checks | None") -> Loading:
    """Fill in how rows arrive, as planned, where the loading leaves it open."""
    if checks is not None:
        load = replace(load, checks=checks)
    if load.arrives_as is not None:
        return replace(load, route=job.plan.route)
    arrives_as = job.fitted.arrives_as
    if arrives_as is None and job.plan.route == "arrow":
        arrives_as = {column.name: types.staged_type(column.type) for column in job.described.columns}
    # Steps may make any number of rows of one, so the cursor value of a row is no longer known.
    versions = load.version_types if job.fitted.step_pipeline is None else ()
    return replace(
        load,
        arrives_as=arrives_as,
        version_types=versions,
        shortcut=job.shortcut,
        route=job.plan.route,
        in_one_statement=job.plan.paging == "one statement",
        in_one_batch=job.shortcut is not None and 0 < job.described.estimated_rows <= job.definition.batch_size,
    )


@contextmanager
def open_filling(
    job: Job, load: Load, window: Window, *, gate: "Callable[[], RowGate | None]" = lambda: None
) -> Iterator[Filling]:
    """Open what moves a window's rows to the load. Its sessions are closed with the block."""
    if job.plan.route != "arrow" and job.shortcut:
        with job.shortcut.fill(load, window, job.plan) as filling:
            yield filling
        return
    # Imported here: rows that Postgres moves by itself need neither pyarrow nor its half second of import.
    from vitrina.loads.flow import Flow

    step_pipeline = job.fitted.step_pipeline
    with load.writer() as writer:
        yield Flow(
            job.source, window, step_pipeline.steps if step_pipeline else None, writer, job.claim.epoch, gate=gate()
        )
