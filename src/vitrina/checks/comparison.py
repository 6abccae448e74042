"""What a runner compares: a target and its source, opened as the two sides that `vitrina.checks` asks."""

from contextlib import AbstractContextManager
from typing import Protocol

from psycopg.sql import SQL, Composable, Identifier

from vitrina.checks.sides import Side
from vitrina.errors import FatalError
from vitrina.loads import incremental
from vitrina.loads.job import Job
from vitrina.targets import SearchTarget

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


def inspect(job: Job) -> Comparison:
    """Find out what there is to compare, or say why it cannot be compared."""
    if isinstance(job.target, SearchTarget):
        # Imported here: it needs pyarrow, and half a second for it.
        from vitrina.checks.index_comparison import IndexComparison

        return IndexComparison(job)
    from vitrina.checks.mart_comparison import MartComparison

    return MartComparison(job)


def refuse_moving_source(job: Job) -> None:
    """In mode full a source starts from its beginning each time, so it can be read twice."""
    if job.source and job.definition.mode == "incremental":
        raise FatalError(
            f"the rows come from the Python source {job.source.name!r} in mode incremental: it gives what is"
            " new since its own checkpoint, and nobody can ask it for everything that it has ever given, so there is"
            f" nothing to compare {job.target} with; only a source in mode full can be reconciled"
        )


def knows_age(job: Job) -> bool:
    """With a cursor, each row says whether it can have been delivered yet."""
    return job.cursor is not None


def is_read(job: Job) -> Composable:
    """Rows that do not say when they changed are left out by every run, too, unless it is told to read them."""
    if job.cursor is None or job.definition.options.null_cursor == "read":
        return SQL("true")
    return SQL("q.{} IS NOT NULL").format(Identifier(job.cursor.key))


def young(job: Job) -> Composable:
    """Whether the target may not have the row yet."""
    if job.cursor is None:
        return SQL("false")
    safe = job.checkpoint.safe_upto
    if safe is None:
        return SQL("true")  # no pass has come to its end
    # A number is drawn once; a moment that the database stamps may still come again. Otherwise the checkpoint is the
    # highest value that was read: all rows of an import may share it, and none of them would ever be judged.
    may_come_again = not job.cursor.is_number and incremental.guarantee(job) == "exact"
    operator = SQL(">=" if may_come_again else ">")
    column = job.cursor.columns("q")[0]
    # One without any may have come just now.
    return SQL("(({0} {1} {2}) IS NOT FALSE)").format(column, operator, job.cursor.literal(safe))
