"""Where an incremental pass begins and where the next one will: what the checkpoint keeps beside the safe point."""

from dataclasses import replace
from typing import Any

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.cursor import Watermark
from vitrina.connectors.postgres.source import Bounds
from vitrina.loads import incremental
from vitrina.loads.job import Job
from vitrina.ports.checkpoint import Accepted, Checkpoint

# So many rows with one cursor value are worth a digest: fewer have travelled before it is computed.
WORTH_A_DIGEST_ROWS = 1000

# Keys of the checkpoint's identity.
_TIES = "ties"  # rows whose cursor is the safe point itself, as they were before the pass that read them
_AHEAD = "ahead"  # the last pass saw values from the future, which say nothing of where the others stand


def begun(job: Job, found: Checkpoint, upto: Watermark) -> Checkpoint:
    """The checkpoint of a pass that begins at the safe point, or behind the rows there when they are as they were."""
    if found.identity.get(_AHEAD):
        upto = replace(upto, newest=incremental.newest_cursor(job, from_the_future=False))
    found = replace(found, held_upto=upto.remembered, last_key=None, last_id=None)
    ties = found.identity.get(_TIES)
    if ties is None or ties["value"] != found.safe_upto:
        return found
    # Taken before anything is read: a row that comes in between is read, and makes the next digest another one.
    seen = _look_at_ties(job, ties["value"])
    if seen == ties:
        found = replace(found, last_key=found.safe_upto)
    return found.identified(**{_TIES: seen})


def ended(job: Job, found: Checkpoint, upto: Watermark, rows_read: int) -> Checkpoint:
    """The checkpoint behind a pass: the safe point has moved as far as it may."""
    highest, is_ahead = _highest(job, found.last_key, upto)
    safe = _safe_point(job, found, upto, highest)
    ties = _ties_at(safe, found, rows_read) if safe == highest else None
    return _remembering(
        replace(found, safe_upto=safe, held_upto=upto.held_upto, last_key=None, last_id=None, accepted=Accepted()),
        {_TIES: ties, _AHEAD: is_ahead or None, **_of_source(job)},
    )


def loaded(job: Job, found: Checkpoint, upto: Watermark, rows_read: int) -> Checkpoint:
    """The checkpoint behind a load, which did not read in the order of the cursor."""
    safe = _safe_point(job, found, upto, upto.newest)
    ties = _ties_at(safe, found, rows_read) if safe == upto.newest else None
    return _remembering(
        replace(found, safe_upto=safe, held_upto=upto.held_upto),
        {_TIES: ties, _AHEAD: None, **_of_source(job)},
    )


def _of_source(job: Job) -> dict[str, Any]:
    return {
        incremental.CHANGES: incremental.count_changes(job),
        incremental.SOURCE: incremental.source_identity(job),
    }


def _ties_at(safe: str | None, found: Checkpoint, rows_read: int) -> dict[str, Any] | None:
    """What the next pass should know of the rows that it would read again."""
    known = found.identity.get(_TIES)
    if known and known["value"] == safe and "rows" in known:
        return known if known["rows"] >= WORTH_A_DIGEST_ROWS else None
    return {"value": safe} if safe is not None and rows_read >= WORTH_A_DIGEST_ROWS else None


def _remembering(found: Checkpoint, keys: dict[str, Any]) -> Checkpoint:
    identity = {name: value for name, value in (found.identity | keys).items() if value is not None}
    return replace(found, identity=identity)


def _highest(job: Job, last: str | None, upto: Watermark) -> tuple[str | None, bool]:
    """The highest value seen, and whether one from the future had to be left aside for it."""
    assert job.cursor is not None
    if last is None or not job.cursor.is_clock:
        return last, False
    is_ahead = cursors.is_ahead(job.source_statistics, job.cursor, last)
    return (upto.newest if is_ahead else last), is_ahead


def _safe_point(job: Job, found: Checkpoint, upto: Watermark, highest: str | None) -> str | None:
    assert job.cursor is not None
    return cursors.safe_point(
        job.source_statistics,
        job.cursor,
        job.definition.options,
        safe=found.safe_upto,
        upto=upto.upto,
        highest=highest,
        is_exact=incremental.guarantee(job) == "exact",
    )


def _look_at_ties(job: Job, value: str) -> dict[str, Any]:
    """How many rows have this cursor value, and a digest of them all that the server computes, in any order."""
    assert job.cursor is not None
    assert job.judged is not None
    changing = {*job.definition.options.stamps, *job.judged.volatile_columns}
    columns = [SQL("q.{}").format(Identifier(c.name)) for c in job.result if c.name not in changing]
    row = SQL("ROW({})::text").format(SQL(", ").join(columns))
    digest = SQL(
        "concat_ws('/', count(*), sum(pg_catalog.hashtextextended({0}, 0)), sum(pg_catalog.hashtextextended({0}, 1)))"
    ).format(row)
    same = SQL("{} = {}").format(job.cursor.columns("q")[0], job.cursor.literal(value))
    found = str(job.reader.value(job.query.select([digest], Bounds(since=value, only=same))))
    return {"value": value, "rows": int(found.partition("/")[0]), "digest": found}
