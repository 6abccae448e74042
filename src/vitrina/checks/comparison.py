"""What a runner compares: a target and its source, opened as the two sides that `vitrina.checks` asks."""

from contextlib import AbstractContextManager
from typing import Protocol

from psycopg.sql import SQL, Composable, Identifier

from vitrina.checks.opened import cursor_of, query_of
from vitrina.errors import FatalError
from vitrina.loads import job as jobs
from vitrina.loads.job import Job, Opened
from vitrina.ports.compare import Side

Sides = tuple[Side, Side]


class Comparison(Protocol):
    """One pipeline's source and target, which have been looked at before they are compared."""

    job: Job

    @property
    def compared(self) -> list[str]: ...

    @property
    def not_compared(self) -> list[str]: ...

    @property
    def full_guarantee(self) -> str:
        """What `full` is worth here."""
        ...

    def both_sides(self) -> AbstractContextManager[Sides]:
        """Source and target. Checkpoint, target, source are looked at in this order: `vitrina.checks.compare`."""
        ...


def look_into(opened: Opened) -> Job:
    """In mode full a source starts from its beginning each time, so it can be read twice."""
    if opened.source.runs_when_described and opened.definition.mode == "incremental":
        raise FatalError(
            f"the rows come from the Python source {opened.definition.python_source!r} in mode incremental: it gives"
            " what is new since its own checkpoint, and nobody can ask it for everything that it has ever given, so"
            f" there is nothing to compare {opened.definition.final_target} with; only a source in mode full can be"
            " reconciled"
        )
    return jobs.look_into(opened)


def knows_age(job: Job) -> bool:
    """With a cursor, each row says whether it can have been delivered yet."""
    return cursor_of(job) is not None


def is_read(job: Job) -> Composable:
    """Rows that do not say when they changed are left out by every run, too, unless it is told to read them."""
    cursor = cursor_of(job)
    if cursor is None or job.definition.options.null_cursor == "read":
        return SQL("true")
    return SQL("q.{} IS NOT NULL").format(Identifier(cursor.key))


def young(job: Job) -> Composable:
    """Whether the target may not have the row yet."""
    cursor = cursor_of(job)
    if cursor is None:
        return SQL("false")
    safe = job.checkpoint.safe_upto
    if safe is None:
        return SQL("true")  # no pass has come to its end
    # A number is drawn once; a moment that the database stamps may still come again. Otherwise the checkpoint is the
    # highest value that was read: all rows of an import may share it, and none of them would ever be judged.
    may_come_again = not cursor.is_number and query_of(job).guarantee() == "exact"
    operator = SQL(">=" if may_come_again else ">")
    column = cursor.columns("q")[0]
    # One without any may have come just now.
    return SQL("(({0} {1} {2}) IS NOT FALSE)").format(column, operator, cursor.literal(safe))
