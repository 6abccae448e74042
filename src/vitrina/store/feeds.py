"""Query feeds on behalf of live pipelines: register tables, wait until they are in the log, read changes."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from vitrina.ports.live import Change, FeedNames
from vitrina.settings import DEFAULT_CONNECTION, feed_variable
from vitrina.store import database, feed_segments
from vitrina.store.database import Connection

# Wakes the owner: a pipeline registered, or a follower waits for a position in the log.
ASKED = "vitrina_feed_asked"
# Wakes followers: changes were stored. Its payload is the feed's id.
STORED = "vitrina_feed_stored"

# A source that writes all the time is followed within milliseconds; for a quiet one, the owner has to be asked.
_ASK_AFTER_SECONDS = 0.02
_STEP_SECONDS = 0.005
# Sizes of page headers of the log, in bytes. The end of the log may lie after a header that no record follows yet.
_PAGE_HEADERS = (24, 40)


@dataclass(frozen=True)
class FeedRow:
    """Hold one feed."""

    id: UUID
    database: str
    connection: str | None
    slot: str
    publication: str
    stored_upto: int

    @property
    def names(self) -> FeedNames:
        return FeedNames(self.slot, self.publication, session_name(self.id))


def session_name(feed_id: UUID) -> str:
    """Return the name of every connection of a feed to its source, unique to this installation."""
    return f"vitrina:feed:{feed_id}"


def ensure(connection: Connection, identity: str, name: str | None) -> FeedRow:
    """Find or create the feed of a source database, identified by the result of `databases.look`."""
    name = None if name in (None, DEFAULT_CONNECTION) else str(name).lower()
    feed_id = uuid4()
    # Named after installation and connection; the id is unique to this installation.
    called = f"vitrina_{(name or DEFAULT_CONNECTION)[:30]}_{feed_id.hex[:12]}"
    connection.execute(
        """
        INSERT INTO etl.etl_feeds (id, database, connection, slot, publication) VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (database) DO NOTHING
        """,
        [feed_id, identity, name, called, called],
    )
    return _row(database.one(connection.execute("SELECT * FROM etl.etl_feeds WHERE database = %s", [identity])))


def list_all(connection: Connection) -> list[FeedRow]:
    return [_row(row) for row in connection.execute("SELECT * FROM etl.etl_feeds ORDER BY connection NULLS FIRST, id")]


def _row(found: Mapping[str, Any]) -> FeedRow:
    return FeedRow(**{name: found[name] for name in FeedRow.__dataclass_fields__})


def register(
    connection: Connection,
    feed_id: UUID,
    pipeline_id: UUID,
    tables: Mapping[str, Sequence[str]],
    *,
    afresh: bool = False,
) -> None:
    """Register the columns of each table that a pipeline needs, before its full load.

    What is registered already stays ready, with its position, unless `afresh`, which is for a changed catalog.
    """
    wanted = {relation: sorted(set(columns)) for relation, columns in sorted(tables.items())}
    with connection.transaction():
        revision = _next_revision(connection, feed_id)
        connection.execute(
            """
            INSERT INTO etl.etl_feed_followers AS f (pipeline_id, feed_id, tables, revision)
            VALUES (%(pipeline)s, %(feed)s, %(tables)s, %(revision)s)
            ON CONFLICT (pipeline_id) DO UPDATE
            SET feed_id = excluded.feed_id, tables = excluded.tables, revision = excluded.revision,
                ready_upto = NULL, passed_upto = NULL, problem = NULL, must_reload = NULL,
                registered_at = clock_timestamp()
            WHERE %(afresh)s OR f.feed_id <> excluded.feed_id OR f.tables <> excluded.tables
               OR f.must_reload IS NOT NULL
            """,
            {
                "pipeline": pipeline_id,
                "feed": feed_id,
                "tables": Jsonb(wanted),
                "revision": revision,
                "afresh": afresh,
            },
        )
        connection.execute("SELECT pg_notify(%s, %s)", [ASKED, str(feed_id)])


def unregister(connection: Connection, pipeline_id: UUID) -> None:
    """Remove a pipeline's registration. The owner drops slot and publication when no follower is left."""
    with connection.transaction():
        row = connection.execute(
            "DELETE FROM etl.etl_feed_followers WHERE pipeline_id = %s RETURNING feed_id", [pipeline_id]
        ).fetchone()
        if row:
            _next_revision(connection, row["feed_id"])
            connection.execute("SELECT pg_notify(%s, %s)", [ASKED, str(row["feed_id"])])


def _next_revision(connection: Connection, feed_id: UUID) -> int:
    row = connection.execute(
        "UPDATE etl.etl_feeds SET revision = revision + 1 WHERE id = %s RETURNING revision", [feed_id]
    ).fetchone()
    if row is None:
        raise LookupError(f"there is no feed {feed_id}: it was dropped, so ensure() has to be called again")
    return int(row["revision"])


def ready(connection: Connection, feed_id: UUID, pipeline_id: UUID) -> int | None:
    """Return the log position from which on all of its tables are logged, or None; then `problem` has the reason."""
    row = _follower(connection, feed_id, pipeline_id)
    return row["ready_upto"] if row and row["must_reload"] is None else None


def problem(connection: Connection, feed_id: UUID, pipeline_id: UUID) -> str | None:
    """Return what a follower waits for, with the statements for an operator to run if there are any."""
    feed = connection.execute(
        """
        SELECT connection, problem, claim_id IS NOT NULL AND lease_until > clock_timestamp() AS is_owned
        FROM etl.etl_feeds WHERE id = %s
        """,
        [feed_id],
    ).fetchone()
    row = _follower(connection, feed_id, pipeline_id)
    if feed is None or row is None:
        return "the feed was dropped"
    if feed["problem"]:
        return str(feed["problem"])
    if not feed["is_owned"]:
        variable = feed_variable(feed["connection"])
        return f"no runner follows the source's log: set {variable} where runners are, a login with REPLICATION"
    waits_for: str | None = row["problem"]
    return waits_for


def must_reload(connection: Connection, feed_id: UUID, pipeline_id: UUID) -> str | None:
    """Return why changes that a follower has not read are lost; `register` and a full load correct that."""
    row = _follower(connection, feed_id, pipeline_id)
    return row["must_reload"] if row else "the feed was dropped"


def _follower(connection: Connection, feed_id: UUID, pipeline_id: UUID) -> dict[str, Any] | None:
    return connection.execute(
        "SELECT * FROM etl.etl_feed_followers WHERE feed_id = %s AND pipeline_id = %s", [feed_id, pipeline_id]
    ).fetchone()


def stored_upto(connection: Connection, feed_id: UUID) -> int:
    """Return the position up to which every committed change is stored."""
    row = connection.execute("SELECT stored_upto FROM etl.etl_feeds WHERE id = %s", [feed_id]).fetchone()
    return int(row["stored_upto"]) if row else 0


def wait_stored(connection: Connection, feed_id: UUID, lsn: int, seconds: float) -> bool:
    """Wait until everything up to a position is stored. Return False if it takes longer.

    The owner records its position when it stores changes, and when it is asked. It does not do so all the time, because
    if source and metastore are one server, each record would cause another.
    """
    wanted = _without_page_header(connection, feed_id, lsn)
    started, asked = time.monotonic(), False
    while stored_upto(connection, feed_id) < wanted:
        waited = time.monotonic() - started
        if waited > seconds:
            return False
        if not asked and waited > _ASK_AFTER_SECONDS:
            asked = True
            connection.execute("SELECT pg_notify(%s, %s)", [ASKED, f"{feed_id} {wanted}"])
        time.sleep(_STEP_SECONDS)
    return True


def _without_page_header(connection: Connection, feed_id: UUID, lsn: int) -> int:
    """Step back before a page header: the position after it is reported although no record lies between."""
    row = connection.execute("SELECT block_bytes FROM etl.etl_feeds WHERE id = %s", [feed_id]).fetchone()
    into_page = lsn % row["block_bytes"] if row else 0
    return lsn - into_page if into_page in _PAGE_HEADERS else lsn


def read(
    connection: Connection, feed_id: UUID, after: int, limit: int, *, relations: Collection[str] | None = None
) -> list[Change]:
    """Read whole transactions after a position, in the order of their commits, until there are about `limit` changes.

    A transaction that is too large to list keys comes as one `truncate` for each of its tables: every key is stale.
    """
    return feed_segments.read(connection, feed_id, after, limit, relations)


def passed(connection: Connection, feed_id: UUID, pipeline_id: UUID, upto: int) -> None:
    """Record that changes up to a position are not needed any more; unneeded segments are dropped."""
    connection.execute(
        """
        UPDATE etl.etl_feed_followers SET passed_upto = %(upto)s
        WHERE feed_id = %(feed)s AND pipeline_id = %(pipeline)s AND ready_upto IS NOT NULL
          AND passed_upto < %(upto)s
        """,
        {"feed": feed_id, "pipeline": pipeline_id, "upto": upto},
    )
