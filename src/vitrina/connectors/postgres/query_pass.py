"""Determine where an incremental pass over a query begins and where the next one will; stored in the checkpoint."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres import cursor_facts
from vitrina.connectors.postgres.cursor import Cursor, SafePoint, Watermark
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.query_window import QueryWindow
from vitrina.connectors.postgres.source import Bounds
from vitrina.ports.batch import Part, Position
from vitrina.ports.checkpoint import Accepted, Checkpoint
from vitrina.sentences import say

# A digest pays off from this many rows with one cursor value; fewer are transferred faster than it is computed.
WORTH_A_DIGEST_ROWS = 1000

# Keys of the checkpoint's identity.
_TIES = "ties"  # rows whose cursor equals the safe point, as they were before the pass that read them
_AHEAD = "ahead"  # the last pass saw values from the future, which do not show how far the others are


class QueryPass:
    """Represent one pass without an upper bound. The safe point moves only when the pass ends."""

    def __init__(self, source: OpenedQuery, cursor: Cursor, found: Checkpoint) -> None:
        self._source = source
        self._cursor = cursor
        self.hold: dict[str, Any] | None = None
        self.warnings: tuple[str, ...] = ()
        self.checkpoint = found
        self._upto = self._begin(found)

    def _begin(self, found: Checkpoint) -> Watermark:
        """Begin, or resume with the watermark that an interrupted pass began with."""
        source = self._source
        if found.last_key is not None and not source.backfill:
            return Watermark.recalled(found.held_upto)
        upto, self.warnings = _watermark(source, self._cursor, found)
        self.hold = upto.hold
        if source.backfill:
            return upto
        self.checkpoint = self._begun(replace(found, fingerprint=source.identity), upto)
        return Watermark.recalled(self.checkpoint.held_upto)

    def _begun(self, found: Checkpoint, upto: Watermark) -> Checkpoint:
        """Begin at the safe point, or after the rows there if they have not changed."""
        if found.identity.get(_AHEAD):
            newest = cursor_facts.newest_cursor(self._source, self._cursor, from_the_future=False)
            upto = replace(upto, newest=newest)
        found = replace(found, held_upto=upto.remembered, last_key=None, last_id=None)
        ties = found.identity.get(_TIES)
        if ties is None or ties["value"] != found.safe_upto:
            return found
        # Computed before anything is read: a row that arrives in between is read, and changes the next digest.
        seen = _look_at_ties(self._source, self._cursor, ties["value"])
        if seen == ties:
            found = replace(found, last_key=found.safe_upto)
        return found.identified(**{_TIES: seen})

    def windows(self) -> Iterator[QueryWindow]:
        """Yield the window of new rows and then, if the option requests it, that of rows without a cursor value."""
        yield QueryWindow(bounds=self._bounds(), by_cursor=True, after=self._position())
        if self._source.definition.options.null_cursor == "read" and not self._source.backfill:
            # Steps accept no rows without a position, so these form one batch.
            yield QueryWindow(bounds=Bounds(nulls="alone"), by_cursor=not self._source.definition.steps)

    def _bounds(self) -> Bounds:
        backfill = self._source.backfill
        if backfill:
            return Bounds(since=backfill.get("since"), until=backfill.get("until"))
        return Bounds(since=self.checkpoint.safe_upto)

    def _position(self) -> Position | None:
        found = self.checkpoint
        if found.last_key is None or self._source.backfill:
            return None
        return (found.last_key, found.last_id) if self._cursor.id else (found.last_key,)

    def after(self, checkpoint: Checkpoint, part: Part) -> Checkpoint:
        """Move past one merged part. A backfill moves only the batch number."""
        if self._source.backfill:
            return replace(checkpoint, batch_no=part.number)
        rows = checkpoint.rows + part.staged_rows
        key, *rest = part.last or (None,)
        if key is None:  # a pass cannot resume from a row without a cursor value
            return replace(checkpoint, batch_no=part.number, rows=rows)
        return replace(checkpoint, batch_no=part.number, rows=rows, last_key=key, last_id=rest[0] if rest else None)

    def ended(self, checkpoint: Checkpoint, rows_read: int) -> Checkpoint:
        """Move the safe point as far as allowed."""
        source, upto = self._source, self._upto
        if source.backfill:
            return checkpoint
        last = checkpoint.last_key
        found = _safe_point(source, self._cursor, checkpoint, upto, last=last)
        # A value from the future is ignored.
        highest = upto.newest if found.is_ahead else last
        safe, is_ahead = found.safe, found.is_ahead
        ties = _ties_at(safe, checkpoint, rows_read) if safe == highest else None
        return _remembering(
            replace(
                checkpoint,
                safe_upto=safe,
                held_upto=upto.held_upto,
                last_key=None,
                last_id=None,
                accepted=Accepted(),
            ),
            {_TIES: ties, _AHEAD: is_ahead or None, **_of_source(source)},
        )


def watermark_of_load(source: OpenedQuery, cursor: Cursor, found: Checkpoint) -> tuple[Watermark, tuple[str, ...]]:
    """Compute in advance how far a load will get; it does not read in the order of the cursor."""
    newest = cursor_facts.newest_cursor(source, cursor, from_the_future=False) if cursor.is_clock else None
    upto, warnings = _watermark(source, cursor, found)
    return replace(upto, newest=newest), warnings


def loaded(source: OpenedQuery, cursor: Cursor, done: Checkpoint, held: str | None, rows: int) -> Checkpoint:
    """Move the checkpoint after a load, which did not read in the order of the cursor."""
    upto = Watermark.recalled(held)
    # Delivered rows distinguish a mart that was emptied by hand from one that is still empty.
    done = replace(done, safe_upto=None, rows=rows, fingerprint=source.identity)
    safe = _safe_point(source, cursor, done, upto, last=upto.newest).safe
    ties = _ties_at(safe, done, rows) if safe == upto.newest else None
    return _remembering(
        replace(done, safe_upto=safe, held_upto=upto.held_upto),
        {_TIES: ties, _AHEAD: None, **_of_source(source)},
    )


def _watermark(source: OpenedQuery, cursor: Cursor, found: Checkpoint) -> tuple[Watermark, tuple[str, ...]]:
    newest = None if cursor.is_clock else cursor_facts.newest_cursor(source, cursor)
    warning = None if source.backfill else _lower_numbers(source, cursor, found.safe_upto, newest)
    held = found.held_upto
    # A finished pass stores the pair of a sequence cursor, not a whole watermark.
    upto = cursors.watermark(
        source.statistics,
        cursor,
        source.definition.options,
        safe=found.safe_upto,
        held=held if held and not held.startswith("{") else None,
        newest=newest,
    )
    return upto, (warning,) if warning else ()


def _lower_numbers(source: OpenedQuery, cursor: Cursor, safe: str | None, newest: str | None) -> str | None:
    """Warn about lower numbers. A restarted sequence looks like rows deleted at its end."""
    if not cursor.is_number or newest is None or safe is None:
        return None
    highest, reached = Decimal(newest), Decimal(safe)
    if not (highest.is_finite() and reached.is_finite() and highest < reached):
        return None
    name = source.definition.name
    return say("warning.cursor_went_back", column=cursor.key, newest=newest, checkpoint=safe, name=name)


def _of_source(source: OpenedQuery) -> dict[str, Any]:
    return {
        cursor_facts.CHANGES: cursor_facts.count_changes(source),
        cursor_facts.SOURCE: cursor_facts.source_identity(source),
    }


def _ties_at(safe: str | None, found: Checkpoint, rows_read: int) -> dict[str, Any] | None:
    """Return what the next pass should know about the rows that it would read again."""
    known = found.identity.get(_TIES)
    if known and known["value"] == safe and "rows" in known:
        return known if known["rows"] >= WORTH_A_DIGEST_ROWS else None
    return {"value": safe} if safe is not None and rows_read >= WORTH_A_DIGEST_ROWS else None


def _remembering(found: Checkpoint, keys: dict[str, Any]) -> Checkpoint:
    identity = {name: value for name, value in (found.identity | keys).items() if value is not None}
    return replace(found, identity=identity)


def _safe_point(
    source: OpenedQuery, cursor: Cursor, found: Checkpoint, upto: Watermark, *, last: str | None
) -> SafePoint:
    return cursors.safe_point(
        source.statistics,
        cursor,
        source.definition.options,
        safe=found.safe_upto,
        upto=upto.upto,
        last=last,
        otherwise=upto.newest,
        is_exact=cursor_facts.guarantee(source) == "exact",
    )


def _look_at_ties(source: OpenedQuery, cursor: Cursor, value: str) -> dict[str, Any]:
    """Count the rows with this cursor value; the server computes an order-independent digest of them."""
    changing = {*source.definition.options.stamps, *source.judged.volatile_columns}
    columns = [SQL("q.{}").format(Identifier(c.name)) for c in source.result if c.name not in changing]
    row = SQL("ROW({})::text").format(SQL(", ").join(columns))
    digest = SQL(
        "concat_ws('/', count(*), sum(pg_catalog.hashtextextended({0}, 0)), sum(pg_catalog.hashtextextended({0}, 1)))"
    ).format(row)
    same = SQL("{} = {}").format(cursor.columns("q")[0], cursor.literal(value))
    found = str(source.reader.value(source.query.select([digest], Bounds(since=value, only=same))))
    return {"value": value, "rows": int(found.partition("/")[0]), "digest": found}
