"""Follow a PostgreSQL database under the feed's login: implements `ports.live`."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from psycopg import sql

from vitrina.connectors.postgres import publication, slots
from vitrina.connectors.postgres.pgoutput import Decoder, Relation, Wanted
from vitrina.connectors.postgres.replication import Replication
from vitrina.errors import ConfigError, VitrinaError
from vitrina.ports.connector import Finding
from vitrina.ports.live import FeedFigures, FeedNames, Published, SlotState
from vitrina.settings import Settings
from vitrina.store import database, databases
from vitrina.store.database import Connection

# Managed servers grant the right to read the log by membership in a role of their own.
_MANAGED_ROLES = ("rds_replication", "mdb_replication")
# The same catalog queries run continuously; a generic plan halves their cost.
_SESSION = {"statement_timeout": "30000", "plan_cache_mode": "force_generic_plan"}


def open(url: str, names: FeedNames, settings: Settings) -> "FollowedPostgres":
    return FollowedPostgres(url, names, settings)


def drop(url: str, names: FeedNames, settings: Settings) -> Sequence[str]:
    with _connect(url, "vitrina:feeds", settings) as session, database.translated("dropping a feed"):
        dropped = [f"slot {names.slot}"] if slots.drop(session, names) else []
        return [*dropped, *([f"publication {names.publication}"] if slots.drop_publication(session, names) else [])]


def check(url: str, settings: Settings) -> Iterator[Finding]:
    try:
        session = _connect(url, "vitrina:doctor", settings)
    except VitrinaError as exc:
        yield Finding("PROBLEM", exc.message, "correct the login of the feed")
        return
    with session, database.translated("looking at a database that is to be followed"):
        findings = [*_server(session, settings), *_login(session), *_room(session)]
    yield from findings
    if all(found.status != "PROBLEM" for found in findings):
        yield Finding("OK", f"{database.describe(url)} can be followed")


class FollowedPostgres:
    """Hold one session for statements, beside the replication connections that `open` makes."""

    def __init__(self, url: str, names: FeedNames, settings: Settings) -> None:
        self._url = url
        self._names = names
        self._settings = settings
        self._session = _connect(url, f"{names.session}:sql", settings)

    @property
    def session(self) -> Connection:
        """Return the session, so that another thread can end it."""
        return self._session

    def identity(self) -> str | None:
        seen = databases.look(self._session)
        return seen.identity if seen else None

    def require_fit(self) -> None:
        findings = [*_server(self._session, self._settings), *_login(self._session)]
        problems = [f"{found.finding}: {found.next_step}" for found in findings if found.status == "PROBLEM"]
        if problems:
            raise ConfigError("; ".join(problems))
        publication.ensure(self._session, self._names)

    def end_other_owners(self) -> None:
        slots.end_users(self._session, self._names)

    def ensure_slot(self, timeline: int | None) -> SlotState:
        return slots.ensure(self._session, self._names, timeline)

    def drop_slot(self) -> None:
        slots.drop(self._session, self._names)

    def drop(self) -> None:
        slots.drop(self._session, self._names)
        slots.drop_publication(self._session, self._names)

    def publish(self, wanted: Mapping[str, frozenset[str]]) -> Published:
        publication.ensure(self._session, self._names)
        return publication.publish(self._session, self._names, wanted)

    def started_before(self) -> int:
        return self._number("pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint")

    def oldest_running(self) -> int:
        return self._number("pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint")

    def oldest_transaction(self) -> str | None:
        return slots.oldest_transaction(self._session)

    def written_upto(self) -> int:
        return self._number("pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_catalog.pg_lsn")

    def block_bytes(self) -> int:
        return self._number("pg_catalog.current_setting('wal_block_size')::bigint")

    def write_out(self) -> None:
        self._session.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'vitrina', '')")

    def figures(self) -> FeedFigures:
        row = database.one(
            self._session.execute(
                """
                SELECT pg_catalog.pg_current_wal_lsn() - '0/0'::pg_catalog.pg_lsn AS written,
                       (SELECT pg_catalog.pg_current_wal_lsn() - s.restart_lsn
                        FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %(slot)s) AS retained,
                       (SELECT s.wal_status
                        FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %(slot)s) AS wal_status,
                       pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_slot_wal_keep_size')) AS keep
                """,
                {"slot": self._names.slot},
            )
        )
        return FeedFigures(
            written_upto=int(row["written"]),
            retained_bytes=None if row["retained"] is None else int(row["retained"]),
            wal_status=row["wal_status"],
            keep_bytes=int(row["keep"]) if row["keep"] >= 0 else None,
        )

    def open(
        self, published: Callable[[], Published], columns: Callable[[], Mapping[str, frozenset[str]]]
    ) -> Replication:
        def want(found: Relation) -> Wanted | None:
            relation = published().relation_of(found.oid)
            wanted = columns().get(relation) if relation else None
            return Wanted(relation, wanted) if relation and wanted is not None else None

        return Replication(self._url, self._names, self._settings, Decoder(want))

    def close(self) -> None:
        self._session.close()

    def _number(self, expression: str) -> int:
        row = database.one(self._session.execute(f"SELECT {expression} AS number"))
        return int(row["number"])


def _connect(url: str, session_name: str, settings: Settings) -> Connection:
    return database.connect(
        url, session_name, connect_timeout_seconds=settings.connect_timeout_seconds, settings=_SESSION
    )


def _server(session: Connection, settings: Settings) -> Iterator[Finding]:
    row = database.one(
        session.execute(
            """
            SELECT pg_catalog.current_setting('wal_level') AS wal_level, pg_catalog.pg_is_in_recovery() AS is_standby,
                   pg_catalog.pg_size_bytes(pg_catalog.current_setting('max_slot_wal_keep_size')) AS keep
            """
        )
    )
    if row["is_standby"]:
        yield Finding("PROBLEM", "it is a standby, whose log is not followed", "give the address of its primary")
        return
    if row["wal_level"] != "logical":
        yield Finding(
            "PROBLEM",
            f"wal_level is {row['wal_level']}, so its log does not say which rows changed",
            "ALTER SYSTEM SET wal_level = logical, then restart the server",
        )
    if row["keep"] < 0 and not settings.feed_unlimited_wal:
        yield Finding(
            "PROBLEM",
            "max_slot_wal_keep_size is -1: the source's disk would fill while Vitrina is switched off",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'; SELECT pg_reload_conf(); or allow it with"
            " VITRINA_FEED_UNLIMITED_WAL=true",
        )


def _login(session: Connection) -> Iterator[Finding]:
    row = database.one(
        session.execute(
            """
            SELECT r.rolreplication OR r.rolsuper
                   OR EXISTS (SELECT FROM pg_catalog.pg_roles g
                              WHERE g.rolname = ANY(%s) AND pg_catalog.pg_has_role(g.oid, 'MEMBER')) AS replicates,
                   pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS creates
            FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
            """,
            [list(_MANAGED_ROLES)],
        )
    )
    login = sql.Identifier(session.info.user).as_string(session)
    place = sql.Identifier(session.info.dbname).as_string(session)
    if not row["replicates"]:
        yield Finding("PROBLEM", f"{session.info.user} may not read the log", f"ALTER ROLE {login} REPLICATION")
    if not row["creates"]:
        yield Finding(
            "PROBLEM",
            f"{session.info.user} may not make a publication",
            f"GRANT CREATE ON DATABASE {place} TO {login}",
        )


def _room(session: Connection) -> Iterator[Finding]:
    """Check whether replication slots and WAL senders are available for a new feed."""
    row = database.one(
        session.execute(
            """
            SELECT pg_catalog.current_setting('max_replication_slots')::int AS slots,
                   pg_catalog.current_setting('max_wal_senders')::int AS senders,
                   (SELECT count(*) FROM pg_catalog.pg_replication_slots) AS used_slots,
                   (SELECT count(*) FROM pg_catalog.pg_stat_replication) AS used_senders
            """
        )
    )
    for setting, used, limit in (
        ("max_replication_slots", row["used_slots"], row["slots"]),
        ("max_wal_senders", row["used_senders"], row["senders"]),
    ):
        if used >= limit:
            yield Finding(
                "WARNING",
                f"all {limit} of {setting} are used",
                f"ALTER SYSTEM SET {setting} = {limit + 4}, then restart the server",
            )
