"""The source is never broken: what is published, what is refused, and what the application notices of it."""

import os
from pathlib import Path

import psycopg
import pytest

from tests.live.followed import Source, all_changes, names, opened, short
from tests.live.platform import until
from vitrina.connectors.postgres import feeds, publication, slots
from vitrina.connectors.postgres.feeds import FollowedPostgres
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import ConfigError, TransientError
from vitrina.settings import Settings
from vitrina.store.database import Connection

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text)"


@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        ("CREATE TABLE content.film (id int)", False),
        (f"{FILM}; ALTER TABLE content.film REPLICA IDENTITY NOTHING", False),
        ("CREATE TABLE content.film (id int PRIMARY KEY DEFERRABLE)", False),
        (f"{FILM}; ALTER TABLE content.film REPLICA IDENTITY FULL", True),
        (FILM, True),
    ],
    ids=["no key", "nothing", "deferrable", "full", "key"],
)
def test_a_table_without_identity_is_never_published(source: Source, made: str, allowed: bool) -> None:
    source.sql(made)
    published = source.publish(film="id")
    assert members(source) == (["content.film"] if allowed else [])
    assert ("content.film" in published.tables) is allowed
    if not allowed:
        assert 'ALTER TABLE "content"."film" REPLICA IDENTITY FULL' in published.problems["content.film"]
    # Whatever it is, the application goes on.
    source.sql("INSERT INTO content.film VALUES (1); UPDATE content.film SET id = 2; DELETE FROM content.film")


def test_an_identity_that_is_taken_away_ends_the_publication_of_the_table(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    source.sql("INSERT INTO content.film VALUES (1); ALTER TABLE content.film DROP CONSTRAINT film_pkey")
    assert "no replica identity" in source.publish(film="id").problems["content.film"]
    source.sql("UPDATE content.film SET id = 2")


def test_an_identity_that_goes_between_look_and_addition_is_noticed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.sql(FILM)
    looked = publication._problem

    def look_and_lose(
        session: Connection, relation: str, rows: list[dict[str, object]], columns: frozenset[str]
    ) -> str | None:
        found = looked(session, relation, rows, columns)
        source.sql("ALTER TABLE content.film REPLICA IDENTITY NOTHING")
        return found

    monkeypatch.setattr(publication, "_problem", look_and_lose)
    assert "no replica identity" in source.publish(film="id").problems["content.film"]
    assert members(source) == []


def test_a_partition_is_published_when_it_was_looked_at_and_not_by_its_root(source: Source) -> None:
    source.sql(
        "CREATE TABLE content.seen (id int, at date) PARTITION BY RANGE (at);"
        "CREATE TABLE content.seen_25 PARTITION OF content.seen FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');"
        "ALTER TABLE content.seen_25 REPLICA IDENTITY FULL"
    )
    assert source.publish(seen="id").problems == {}
    assert members(source) == ["content.seen_25"]
    source.sql(
        "CREATE TABLE content.seen_26 PARTITION OF content.seen FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    )
    source.sql("INSERT INTO content.seen VALUES (1, '2026-05-05'); UPDATE content.seen SET id = 2")
    assert "content.seen_26" in source.publish(seen="id").problems["content.seen"]
    source.sql("UPDATE content.seen SET id = 3; ALTER TABLE content.seen_26 REPLICA IDENTITY FULL")
    assert source.publish(seen="id").problems == {}
    assert members(source) == ["content.seen_25", "content.seen_26"]


def test_tables_that_nobody_wants_any_more_leave_it(source: Source) -> None:
    source.sql(f"{FILM}; CREATE TABLE content.person (id int PRIMARY KEY)")
    assert source.publish(film="id", person="id").changed
    assert not source.publish(film="id", person="id").changed
    assert source.publish(person="id").changed
    assert members(source) == ["content.person"]


def test_a_table_that_was_swapped_by_name_is_published_in_its_place(source: Source) -> None:
    source.sql(f"{FILM}; CREATE TABLE content.film_new (id int PRIMARY KEY, title text)")
    before = source.publish(film="id")
    source.sql("ALTER TABLE content.film RENAME TO film_old; ALTER TABLE content.film_new RENAME TO film")
    after = source.publish(film="id")
    assert before.tables["content.film"] != after.tables["content.film"]
    with source.feed() as feed:
        source.sql("INSERT INTO content.film_old VALUES (1); INSERT INTO content.film VALUES (2)")
        assert [short(change)[3] for change in all_changes(feed, 1)] == [{"id": "2"}]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("CREATE VIEW content.film AS SELECT 1 AS id", "is a view"),
        (
            "CREATE TABLE content.film (n int PRIMARY KEY, id int GENERATED ALWAYS AS (n + 1) STORED)",
            "generated column",
        ),
        ("CREATE UNLOGGED TABLE content.film (id int PRIMARY KEY)", "is unlogged"),
        ("SELECT 1", "there is no table content.film"),
    ],
)
def test_what_is_not_in_the_log_is_refused_by_name(source: Source, made: str, reason: str) -> None:
    source.sql(made)
    assert reason in source.publish(film="id").problems["content.film"]


def test_a_publication_that_was_changed_by_hand_is_refused(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    source.sql(f"ALTER PUBLICATION {source.names.publication} SET TABLE content.film WHERE (id > 1)")
    with pytest.raises(ConfigError, match="DROP PUBLICATION"):
        source.publish(film="id")


def test_a_login_without_rights_is_told_the_statements(source: Source, database: Settings) -> None:
    source.sql(f"{FILM}; CREATE ROLE feeder LOGIN PASSWORD 'feeder'")
    try:
        owner = source.url
        host = owner.rpartition("@")[2]
        source.url = f"postgresql://feeder:feeder@{host}"
        found = {f.next_step for f in feeds.check(source.url, database) if f.status == "PROBLEM"}
        assert 'ALTER ROLE "feeder" REPLICATION' in found
        assert any(step.startswith("GRANT CREATE ON DATABASE") for step in found)
        with psycopg.connect(owner, autocommit=True) as session:
            for step in found:
                session.execute(step.encode())
        assert [f.status for f in feeds.check(source.url, database)] == ["OK"]
        problem = source.publish(film="id").problems["content.film"]
        statement = problem.partition("A superuser runs: ")[2].partition(";")[0]
        with psycopg.connect(owner, autocommit=True) as session:
            session.execute(statement.encode())
        assert source.publish(film="id").problems == {}
    finally:
        feeds.drop(owner, source.names, database)
        source.url = owner
        source.sql(f"REVOKE ALL ON DATABASE {owner.rpartition('/')[2]} FROM feeder; DROP ROLE feeder")


def test_a_managed_server_gives_the_right_by_membership(source: Source, database: Settings) -> None:
    source.sql("CREATE ROLE rds_replication; CREATE ROLE managed LOGIN PASSWORD 'managed'")
    place = source.url.rpartition("/")[2]
    try:
        source.sql(f"GRANT CREATE ON DATABASE {place} TO managed")
        url = f"postgresql://managed:managed@{source.url.rpartition('@')[2]}"
        assert [f.next_step for f in feeds.check(url, database)] == ['ALTER ROLE "managed" REPLICATION']
        source.sql("GRANT rds_replication TO managed")
        assert [f.status for f in feeds.check(url, database)] == ["OK"]
    finally:
        source.sql(f"REVOKE ALL ON DATABASE {place} FROM managed; DROP ROLE managed; DROP ROLE rds_replication")


def test_a_server_that_is_not_set_up_is_refused_with_what_to_run(database: Settings) -> None:
    unfit = {"wal_level": "replica", "max_slot_wal_keep_size": "-1", "max_replication_slots": "0"}
    bindir = os.environ.get("VITRINA_TEST_PG_BINDIR")
    with TemporaryServer(Path(bindir) if bindir else None, settings=unfit) as server:
        found = {f.finding: f.next_step for f in feeds.check(server.urls.admin, database)}
        assert any("wal_level is replica" in finding for finding in found)
        assert any("disk would fill" in finding for finding in found)
        assert "all 0 of max_replication_slots are used" in found
        allowed = database.model_copy(update={"feed_unlimited_wal": True})
        assert not any("disk would fill" in f.finding for f in feeds.check(server.urls.admin, allowed))
        refused = FollowedPostgres(server.urls.admin, names(), database)
        with pytest.raises(ConfigError, match="wal_level = logical"):
            refused.require_fit()
        refused.close()


def test_a_slot_that_was_dropped_is_made_again_and_it_is_said(source: Source) -> None:
    source.publish()
    with opened(source) as followed:
        first = followed.ensure_slot(None)
        assert (first.is_new, first.lost) == (True, None)
        again = followed.ensure_slot(first.timeline)
        assert (again.is_new, again.confirmed) == (False, first.confirmed)
        followed.drop_slot()
        lost = followed.ensure_slot(first.timeline)
        assert lost.is_new
        assert lost.lost
        assert "was dropped" in lost.lost
        other = followed.ensure_slot(first.timeline + 1)
        assert other.lost
        assert "timeline" in other.lost


def test_a_slot_that_waits_for_a_transaction_says_for_which(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAKE_SECONDS", 1)
    source.sql(FILM)
    source.publish(film="id")
    with psycopg.connect(source.url) as open_session, opened(source) as followed:
        open_session.execute("INSERT INTO content.film VALUES (1)")
        # Others on this server have transactions too, but none stays open for long.
        until(lambda: f"pid {open_session.info.backend_pid}" in refusal(followed), 60)
        open_session.rollback()
        assert followed.ensure_slot(None).is_new


def refusal(followed: FollowedPostgres) -> str:
    with pytest.raises(TransientError) as refused:
        followed.ensure_slot(None)
    return refused.value.message


def test_a_new_owner_ends_the_walsender_of_the_one_before(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    with source.feed() as old:
        with opened(source) as followed:
            followed.end_other_owners()
        with source.feed() as new:
            source.sql("INSERT INTO content.film VALUES (1)")
            assert len(all_changes(new, 1)) == 1
            with pytest.raises((psycopg.OperationalError, TransientError)):
                old.receive(5)


def test_dropping_leaves_nothing(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    with source.feed():
        dropped = feeds.drop(source.url, source.names, source.settings)
    assert dropped == [f"slot {source.names.slot}", f"publication {source.names.publication}"]
    assert feeds.drop(source.url, source.names, source.settings) == []


def members(source: Source) -> list[str]:
    with psycopg.connect(source.url) as session:
        rows = session.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1",
            [source.names.publication],
        ).fetchall()
    return [row[0] for row in rows]
