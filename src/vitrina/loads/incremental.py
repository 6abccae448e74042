"""What a run finds out about its cursor before it reads: where it comes from, in which zone, what it promises."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres import advice, provenance, sessions
from vitrina.connectors.postgres import cursor as cursors
from vitrina.connectors.postgres.source import Bounds
from vitrina.errors import FatalError
from vitrina.sentences import say
from vitrina.store import databases

if TYPE_CHECKING:
    from vitrina.loads.job import Job

# Key of the checkpoint's identity: how many rows of the source were ever written, at the end of the last pass.
CHANGES = "changes"
# Which database the values of the cursor are of: a connection may be pointed to another one.
SOURCE = "source"


def inspect(job: "Job") -> None:
    """Choose the cursor, or say why it cannot be resumed from."""
    options = job.definition.options
    cursor = cursors.cursor_of(job.definition, job.types)
    job.on_standby = cursors.is_standby(job.reader.connection)
    if job.on_standby:
        cursors.refuse_on_standby(cursor, options)
    if cursor.has_no_zone:
        cursor = replace(cursor, zone=options.cursor_timezone or _default_zone(job))
    job.cursor = cursor
    job.provenance = provenance.of_cursor(job.reader, cursor, _origin(job))
    _refuse_other_zone(job)


def _default_zone(job: "Job") -> str:
    """In which `now()` is written where nobody says otherwise. Ours says UTC, so it is asked of another session."""
    name = job.definition.source_connection
    found = sessions.find_timezone(job.settings, job.reader_url, name, job.claim.session_name)
    return "UTC" if found in ("Etc/UTC", "GMT", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu") else found


def _refuse_other_zone(job: "Job") -> None:
    """Values from the future were written in another zone: then no clock of ours says what may still come."""
    cursor = job.cursor
    if cursor is None or cursor.base_type != "timestamp without time zone":
        return
    newest = newest_cursor(job)
    if newest is None or not cursors.is_ahead(job.reader.connection, cursor, newest):
        return
    raise FatalError(say("run.cursor_in_future", column=cursor.key, newest=newest, zone=cursor.zone))


def guarantee(job: "Job") -> str | None:
    """What the pipeline promises about rows that commit late."""
    if job.cursor is None:
        return None
    return cursors.guarantee(
        job.cursor,
        job.definition.options,
        on_standby=job.on_standby,
        is_computed=not job.provenance.is_column,
        doubts=job.provenance.doubts,
    )


def warnings(job: "Job") -> list[str]:
    """Reasons to expect rows that come late, or never."""
    cursor, options = job.cursor, job.definition.options
    if cursor is None:
        return []
    found: list[str] = []
    if cursor.base_type == "timestamp without time zone" and not options.cursor_timezone:
        found.append(say("warning.zone_assumed", column=cursor.key, zone=cursor.zone))
    if job.on_standby:
        found.append(say("warning.standby", seconds=options.lookback_seconds))
    elif options.cursor_clock == "database" and job.provenance.doubts:
        found += [say("warning.not_exact", because=d) for d in job.provenance.doubts]
    elif guarantee(job) == "bounded-lag":
        found.append(say("warning.other_clock"))
    if guarantee(job) == "exact" and cursor.is_clock:
        before = job.checkpoint.identity.get(CHANGES)
        found += advice.clock_warnings(job.reader.connection, cursor, _origin(job), before)
    return found + advice.cursor_warnings(job.reader.connection, cursor, _origin(job), options)


def count_changes(job: "Job") -> dict[str, Any] | None:
    """What the next run compares with, where the database's clock is said to stamp the rows."""
    if guarantee(job) != "exact" or job.cursor is None or not job.cursor.is_clock:
        return None
    return advice.count_changes(job.reader.connection, _origin(job))


def source_identity(job: "Job") -> str | None:
    """A standby, and the server that it becomes, say the same; None where that may not be asked."""
    seen = databases.look(job.reader.connection)
    return seen.identity if seen else None


def _origin(job: "Job") -> tuple[int, int] | None:
    assert job.cursor is not None
    return next(column.origin for column in job.result if column.name == job.cursor.key)


def null_cursors(job: "Job") -> int:
    """Rows that an incremental pass can never see, because they do not say when they changed."""
    assert job.cursor is not None
    if job.definition.options.null_cursor == "read":
        return 0
    head, source = job.query.wrapped(Bounds())
    statement = SQL("{} SELECT count(*) FROM {} AS q WHERE q.{} IS NULL").format(
        head, source, Identifier(job.cursor.key)
    )
    return int(job.reader.value(statement) or 0)


def all_rows(job: "Job") -> Bounds:
    """Of the source, as a mart that is complete has them."""
    return Bounds(nulls="included" if job.definition.options.null_cursor == "read" else "left out")


def newest_cursor(job: "Job", *, from_the_future: bool = True) -> str | None:
    """The highest value of the cursor that there is, behind which others may come."""
    assert job.cursor is not None
    head, source = job.query.wrapped(Bounds())
    column = job.cursor.columns("q")[0]
    # Nothing comes behind NaN and Infinity: a checkpoint there would pass all later rows by.
    has_infinity = job.cursor.base_type == "numeric" or job.cursor.is_clock
    wanted = SQL("{} < 'infinity'").format(column) if has_infinity else SQL("true")
    if not from_the_future:
        wanted = SQL("{} <= {}").format(column, cursors.soon(job.cursor))
    found = job.reader.value(
        SQL("{0} SELECT ({1})::text FROM {2} AS q WHERE {1} IS NOT NULL AND {3} ORDER BY {1} DESC LIMIT 1").format(
            head, column, source, wanted
        )
    )
    return None if found is None else str(found)
