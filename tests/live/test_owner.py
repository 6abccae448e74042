"""A feed with its owner: registered, ready, stored, confirmed, taken over, lost and found again."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.conftest import admin, settings_for
from tests.live.platform import Platform, until
from tests.support.ahead import Ahead
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import LeaseLost, TransientError
from vitrina.ports.live import Transaction
from vitrina.runner import feeds as runner_feeds
from vitrina.settings import Settings
from vitrina.store import database, feed_owner, feed_segments, feeds
from vitrina.store.migrate import migrate

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text)"


def test_a_follower_becomes_ready_and_reads_what_changed(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    ready = platform.ready(films)
    platform.sql(
        "INSERT INTO content.film VALUES (1, 'Alien'); UPDATE content.film SET id = 2; DELETE FROM content.film"
    )
    found = platform.changes(ready)
    assert [(change.kind, change.old, change.new) for change in found] == [
        ("insert", None, {"id": "1"}),
        ("update", {"id": "1"}, {"id": "2"}),
        ("delete", {"id": "2"}, None),
    ]
    assert platform.changes(found[1].lsn) == found[2:]
    assert feeds.read(platform.bench.metastore, platform.feed.id, ready, 10, relations=["content.person"]) == []


def test_nothing_is_confirmed_that_is_not_stored(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    for number in range(20):
        platform.sql(f"INSERT INTO content.film VALUES ({number})")
        (row,) = platform.bench.sql(
            "SELECT s.confirmed_flush_lsn - '0/0' <= f.stored_upto AS holds FROM etl.etl_feeds f"
            " JOIN pg_replication_slots s ON s.slot_name = f.slot"
        )
        assert row["holds"]
    platform.settled()
    until(lambda: confirmed(platform) >= feeds.stored_upto(platform.bench.metastore, platform.feed.id))


def confirmed(platform: Platform) -> int:
    (row,) = platform.bench.sql(
        f"SELECT confirmed_flush_lsn - '0/0' AS lsn FROM pg_replication_slots WHERE slot_name = '{platform.feed.slot}'"
    )
    return int(row["lsn"])


def test_a_second_follower_adds_its_table_and_columns(platform: Platform) -> None:
    platform.sql(f"{FILM}; CREATE TABLE content.person (id int PRIMARY KEY, name text)")
    films = platform.follow("films", film="id")
    platform.start()
    first = platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (1, 'Alien')")
    both = platform.follow("both", film="id title", person="id")
    second = platform.ready(both)
    platform.sql("INSERT INTO content.film VALUES (2, 'Aliens'); INSERT INTO content.person VALUES (3, 'Ripley')")
    assert [change.new for change in platform.changes(second)] == [{"id": "2", "title": "Aliens"}, {"id": "3"}]
    assert len(platform.changes(first)) == 3
    assert platform.must_reload(films) is None


def test_a_transaction_that_was_open_when_the_table_was_published_is_waited_for(platform: Platform) -> None:
    """What it changed before is not in the log, although it commits later."""
    platform.sql(f"{FILM}; CREATE TABLE content.person (id int PRIMARY KEY)")
    first = platform.follow("persons", person="id")
    platform.start()
    platform.ready(first)
    with psycopg.connect(platform.bench.admin.info.dsn, password=platform.bench.admin.info.password) as open_session:
        open_session.execute("INSERT INTO content.film VALUES (1)")
        films = platform.follow("films", film="id")
        until(lambda: f"pid {open_session.info.backend_pid}" in platform.problem(films))
        assert feeds.ready(platform.bench.metastore, platform.feed.id, films) is None
        open_session.commit()
    ready = platform.ready(films)
    assert platform.problem(films) == ""
    platform.sql("INSERT INTO content.film VALUES (2)")
    assert [change.new for change in platform.changes(ready)] == [{"id": "2"}]


def test_a_table_without_identity_is_told_and_followed_once_it_has_one(platform: Platform) -> None:
    platform.sql("CREATE TABLE content.film (id int)")
    films = platform.follow("films", film="id")
    platform.start()
    until(lambda: "REPLICA IDENTITY FULL" in platform.problem(films))
    platform.sql("INSERT INTO content.film VALUES (1); UPDATE content.film SET id = 2")
    platform.sql(platform.problem(films).rpartition("run: ")[2])
    platform.ready(films)


def test_an_identity_that_is_lost_ends_following_and_spares_the_application(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (1); ALTER TABLE content.film DROP CONSTRAINT film_pkey")
    until(lambda: "no replica identity" in (platform.must_reload(films) or ""))
    platform.sql("UPDATE content.film SET id = 2")


def test_a_swapped_table_and_a_new_partition_mean_reload(platform: Platform) -> None:
    platform.sql(f"{FILM}; CREATE TABLE content.seen (id int, at int, PRIMARY KEY (id, at)) PARTITION BY LIST (at)")
    platform.sql("CREATE TABLE content.seen_1 PARTITION OF content.seen FOR VALUES IN (1)")
    films, seen = platform.follow("films", film="id"), platform.follow("seen", seen="id")
    platform.start()
    platform.ready(films)
    platform.ready(seen)
    platform.sql("CREATE TABLE content.seen_2 PARTITION OF content.seen FOR VALUES IN (2)")
    until(lambda: platform.must_reload(seen) is not None)
    assert platform.must_reload(films) is None
    platform.sql("ALTER TABLE content.film RENAME TO old; CREATE TABLE content.film (id int PRIMARY KEY)")
    until(lambda: platform.must_reload(films) is not None)
    platform.register(films, {"film": "id"})
    assert platform.must_reload(films) is None
    ready = platform.ready(films)
    platform.sql("INSERT INTO content.old VALUES (1); INSERT INTO content.film VALUES (2)")
    assert [change.new for change in platform.changes(ready)] == [{"id": "2"}]


def test_the_same_registration_keeps_its_place_unless_it_is_made_afresh(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    ready = platform.ready(films)
    platform.register(films, {"film": "id"})
    assert feeds.ready(platform.bench.metastore, platform.feed.id, films) == ready
    platform.register(films, {"film": "id"}, afresh=True)
    assert platform.ready(films) > ready


def test_segments_are_dropped_when_all_have_passed_them(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_segments, "SEGMENT_CHANGES", 100)
    platform.sql(FILM)
    quick, slow = platform.follow("quick", film="id"), platform.follow("slow", film="id")
    platform.start()
    ready = max(platform.ready(quick), platform.ready(slow))
    for start in range(0, 1000, 100):
        platform.sql(f"INSERT INTO content.film SELECT generate_series({start}, {start + 99})")
        platform.settled()
    found = platform.changes(ready)
    assert [change.new for change in found] == [{"id": str(number)} for number in range(1000)]
    before = segments(platform)
    assert len(before) >= 8
    pass_on(platform, quick, found[-1].lsn)
    time.sleep(1)
    assert segments(platform) == before
    pass_on(platform, slow, found[499].lsn)
    until(lambda: len(segments(platform)) <= len(before) - 4)
    assert platform.changes(found[499].lsn) == found[500:]
    pass_on(platform, slow, found[-1].lsn)
    until(lambda: len(segments(platform)) == 1)
    assert len(tables(platform)) == 1


def pass_on(platform: Platform, pipeline_id: UUID, upto: int) -> None:
    feeds.passed(platform.bench.metastore, platform.feed.id, pipeline_id, upto)


def segments(platform: Platform) -> list[int]:
    return list(feed_segments.list_all(platform.bench.metastore, platform.feed.id))


def tables(platform: Platform) -> list[str]:
    return [
        row["relname"]
        for row in platform.bench.sql(r"SELECT relname FROM pg_class WHERE relname ~ '^feed_segment_\d+$'")
    ]


def test_a_follower_too_far_behind_must_reload_and_holds_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_segments, "SEGMENT_CHANGES", 500)
    platform.settings = platform.settings.model_copy(update={"max_change_backlog": 1_000})
    platform.sql(FILM)
    lazy, busy = platform.follow("lazy", film="id"), platform.follow("busy", film="id")
    platform.start()
    ready = max(platform.ready(busy), platform.ready(lazy))
    platform.sql("INSERT INTO content.film SELECT generate_series(1, 900)")
    found = platform.changes(ready)
    time.sleep(1)
    assert platform.must_reload(lazy) is None
    pass_on(platform, busy, found[-1].lsn)
    platform.sql("INSERT INTO content.film SELECT generate_series(901, 1101)")
    until(lambda: "VITRINA_MAX_CHANGE_BACKLOG" in (platform.must_reload(lazy) or ""))
    assert platform.must_reload(busy) is None
    assert feeds.ready(platform.bench.metastore, platform.feed.id, lazy) is None
    until(lambda: len(segments(platform)) == 1)
    assert len(platform.changes(found[-1].lsn)) == 201


def test_another_runner_goes_on_where_the_first_one_left(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    first = platform.start()
    ready = platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (1)")
    platform.settled()
    first.stop()
    platform.sql("INSERT INTO content.film VALUES (2)")
    platform.start()
    platform.sql("INSERT INTO content.film VALUES (3)")
    assert [change.new for change in platform.changes(ready)] == [{"id": "1"}, {"id": "2"}, {"id": "3"}]
    assert platform.must_reload(films) is None


def test_an_owner_whose_lease_is_over_stores_nothing_more(platform: Platform) -> None:
    """It is not told, and goes on: its commit and its walsender are refused."""
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    ready = platform.ready(films)
    platform.bench.sql("UPDATE etl.etl_feeds SET lease_until = 'epoch'")
    platform.start()
    for number in range(50):
        platform.sql(f"INSERT INTO content.film VALUES ({number})")
    assert [change.new for change in platform.changes(ready)] == [{"id": str(number)} for number in range(50)]
    until(lambda: sum(owner.is_running for keeper in platform.keepers for owner in keeper._owners.values()) == 1)


def test_a_slot_that_is_dropped_by_hand_means_reload_and_heals(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    drop = f"SELECT pg_drop_replication_slot('{platform.feed.slot}')"
    until(lambda: dropped(platform, drop))
    until(lambda: "was dropped" in (platform.must_reload(films) or ""))
    platform.register(films, {"film": "id"})
    ready = platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (1)")
    assert len(platform.changes(ready)) == 1


def dropped(platform: Platform, statement: str) -> bool:
    try:
        platform.bench.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        platform.bench.sql(statement)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_a_publication_that_is_dropped_by_hand_means_reload_and_heals(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    platform.sql(f"DROP PUBLICATION {platform.feed.publication}; INSERT INTO content.film VALUES (1)")
    until(lambda: platform.must_reload(films) is not None)
    platform.register(films, {"film": "id"})
    ready = platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (2)")
    assert [change.new for change in platform.changes(ready)] == [{"id": "2"}]


def test_a_source_that_was_confirmed_further_than_what_is_stored_means_reload(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    first = platform.start()
    ready = platform.ready(films)
    platform.sql("INSERT INTO content.film VALUES (1)")
    platform.settled()
    first.stop()
    platform.bench.sql(f"UPDATE etl.etl_feeds SET stored_upto = {ready}")
    platform.start()
    until(lambda: "discarded" in (platform.must_reload(films) or ""))


def test_the_last_follower_takes_slot_and_publication_along(platform: Platform) -> None:
    platform.sql(FILM)
    films, others = platform.follow("films", film="id"), platform.follow("others", film="id")
    platform.start()
    platform.ready(films)
    feeds.unregister(platform.bench.metastore, films)
    platform.bench.metastore.execute("DELETE FROM etl.etl_pipelines WHERE id = %s", [others])
    until(lambda: not platform.exists())
    until(lambda: not feeds.list_all(platform.bench.metastore))
    assert platform.bench.sql("SELECT 1 AS found FROM pg_publication") == []


def test_without_a_runner_that_has_the_login_it_is_said_which_is_missing(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    assert "VITRINA_FEED_URL" in platform.problem(films)
    platform.settings = platform.settings.model_copy(update={"feed_url": None})
    platform.start()
    assert "VITRINA_FEED_URL" in platform.problem(films)


def test_a_login_that_leads_to_another_database_is_refused(platform: Platform, settings_elsewhere: Settings) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.settings = platform.settings.model_copy(update={"feed_url": settings_elsewhere.admin_url})
    platform.start()
    until(lambda: "leads to a different database" in platform.problem(films))


def test_waiting_for_a_place_works_while_a_transaction_stays_open_and_nothing_commits(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    with psycopg.connect(platform.bench.admin.info.dsn, password=platform.bench.admin.info.password) as open_session:
        for number in range(30):
            open_session.execute("INSERT INTO content.film VALUES (%s)", [number])
            row = open_session.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
            assert row
            assert feeds.wait_stored(platform.bench.metastore, platform.feed.id, int(row[0]), 2)


def test_a_place_right_after_a_page_header_is_not_waited_for(platform: Platform) -> None:
    platform.bench.sql("UPDATE etl.etl_feeds SET stored_upto = 8192 * 7")
    metastore, feed_id = platform.bench.metastore, platform.feed.id
    assert feeds.wait_stored(metastore, feed_id, 8192 * 7 + 24, 0)
    assert feeds.wait_stored(metastore, feed_id, 8192 * 7 + 40, 0)
    assert not feeds.wait_stored(metastore, feed_id, 8192 * 7 + 32, 0)


def test_a_transaction_that_is_too_large_concerns_every_key(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_segments, "MOST_OF_TRANSACTION", 3_000)
    platform.sql(f"{FILM}; CREATE TABLE content.person (id int PRIMARY KEY)")
    both = platform.follow("both", film="id", person="id")
    platform.start()
    ready = platform.ready(both)
    platform.sql("INSERT INTO content.film SELECT generate_series(1, 3000)")
    platform.bench.sql(
        "WITH f AS (INSERT INTO content.film SELECT generate_series(3001, 6001)) INSERT INTO content.person VALUES (1)"
    )
    platform.sql("INSERT INTO content.person VALUES (2)")
    platform.settled()
    whole = feeds.read(platform.bench.metastore, platform.feed.id, ready, 100)
    assert len(whole) == 3_000
    *large, last = feeds.read(platform.bench.metastore, platform.feed.id, whole[-1].lsn, 100)
    assert sorted((change.relation, change.kind) for change in large) == [
        ("content.film", "truncate"),
        ("content.person", "truncate"),
    ]
    assert last.new == {"id": "2"}
    assert feeds.read(platform.bench.metastore, platform.feed.id, last.lsn, 100) == []


def test_reading_in_small_pages_gives_each_change_once(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_segments, "SEGMENT_CHANGES", 40)
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    position = platform.ready(films)
    sizes = [1, 7, 3, 12, 1, 1, 30, 2, 9, 4] * 3
    for number, size in enumerate(sizes):
        platform.sql(f"INSERT INTO content.film SELECT generate_series({number * 100}, {number * 100 + size - 1})")
    platform.settled()
    expected = [change.new for change in feeds.read(platform.bench.metastore, platform.feed.id, position, 100_000)]
    assert len(expected) == sum(sizes)
    paged: list[object] = []
    while found := feeds.read(platform.bench.metastore, platform.feed.id, position, 8):
        assert len(found) >= 8 or len(paged) + len(found) == len(expected)
        paged += [change.new for change in found]
        position = found[-1].lsn
    assert paged == expected


def test_a_silent_owner_that_holds_its_row_locked_is_ended(platform: Platform) -> None:
    """It stands still between its last statement and COMMIT: nobody could take the feed, nor register with it."""
    metastore = platform.bench.metastore
    (late,) = feed_owner.claim_free(metastore, uuid4(), 0.05, ["default"])
    with database.connect(platform.settings.require_database_url(), late.session_name) as session:
        session.execute("BEGIN")
        feed_owner.advance(session, late, 1)
        until(lambda: bool(feed_owner.claim_free(metastore, uuid4(), 30, ["default"])))
        (row,) = platform.bench.sql("SELECT epoch FROM etl.etl_feeds")
        assert row["epoch"] > late.epoch
        with pytest.raises(psycopg.OperationalError):
            session.execute("COMMIT")


def test_a_lease_is_extended_while_a_large_transaction_is_stored(platform: Platform) -> None:
    """Otherwise it is taken for silent, ended, and begins again for ever."""
    metastore = platform.bench.metastore
    (claim,) = feed_owner.claim_free(metastore, uuid4(), 1, ["default"])
    with database.connect(platform.settings.require_database_url(), claim.session_name) as session:
        session.execute("BEGIN")
        feed_segments.begin(session, claim.feed_id, 1)
        assert feed_owner.extend(metastore, [claim.claim_id], 3600) == {claim.claim_id}
        (row,) = platform.bench.sql("SELECT lease_until > now() + interval '30 min' AS is_extended FROM etl.etl_feeds")
        assert row["is_extended"]
        session.execute("ROLLBACK")


def test_two_owners_cannot_both_commit(platform: Platform) -> None:
    metastore = platform.bench.metastore
    (old,) = feed_owner.claim_free(metastore, uuid4(), 30, ["default"])
    assert feed_owner.claim_free(metastore, uuid4(), 30, ["default"]) == []
    platform.bench.sql("UPDATE etl.etl_feeds SET lease_until = 'epoch'")
    (new,) = feed_owner.claim_free(metastore, uuid4(), 30, ["default"])
    assert new.epoch > old.epoch
    assert feed_owner.extend(metastore, [old.claim_id, new.claim_id], 30) == {new.claim_id}
    with pytest.raises(LeaseLost):
        feed_owner.advance(metastore, old, 100)
    feed_owner.advance(metastore, new, 100)
    assert feeds.stored_upto(metastore, platform.feed.id) == 100


@pytest.fixture
def settings_elsewhere(copies: Ahead[str], server: TemporaryServer) -> Iterator[Settings]:
    name = copies.take()
    yield settings_for(server, name)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_server_that_crashes_under_everybody_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and metastore are restarted at once, without a shutdown: the owner goes on by itself."""
    monkeypatch.setattr(runner_feeds, "BACKOFF_SECONDS", (0.2,))
    bindir = os.environ.get("VITRINA_TEST_PG_BINDIR")
    with TemporaryServer(Path(bindir) if bindir else None) as server, ExitStack() as sessions:
        settings = settings_for(server, "postgres")
        assert settings.admin_url
        with psycopg.connect(settings.admin_url.get_secret_value(), autocommit=True) as session:
            session.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings)
        platform = Platform(opened_bench(settings, sessions))
        try:
            platform.sql(FILM)
            films = platform.follow("films", film="id")
            platform.start()
            ready = platform.ready(films)
            for number in range(3):
                platform.sql(f"INSERT INTO content.film VALUES ({number})")
                server.restart("immediate")
                platform.bench = opened_bench(settings, sessions)
            platform.sql("INSERT INTO content.film VALUES (3)")
            assert [change.new for change in platform.changes(ready)] == [{"id": str(number)} for number in range(4)]
            assert platform.must_reload(films) is None
        finally:
            platform.close()


def opened_bench(settings: Settings, sessions: ExitStack) -> Workbench:
    assert settings.admin_url
    admin_session = database.connect(settings.admin_url.get_secret_value(), "vitrina:test-admin")
    metastore = database.connect(settings.require_database_url(), "vitrina:test")
    sessions.callback(admin_session.close)
    sessions.callback(metastore.close)
    return Workbench(settings, admin_session, metastore)


def test_an_identity_that_is_lost_during_a_large_transaction_spares_the_application(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large one is held up in the middle; the table leaves the publication all the same."""
    platform.sql(f"{FILM}; CREATE TABLE content.person (id int PRIMARY KEY)")
    films, persons = platform.follow("films", film="id"), platform.follow("persons", person="id")
    platform.start()
    platform.ready(films)
    platform.ready(persons)
    held, stored = threading.Event(), feed_owner.Storage.add

    def add_slowly(self: feed_owner.Storage, piece: Transaction) -> None:
        stored(self, piece)
        if not piece.last:
            held.set()
            time.sleep(0.3)

    monkeypatch.setattr(feed_owner.Storage, "add", add_slowly)
    platform.sql("INSERT INTO content.person VALUES (1); INSERT INTO content.film SELECT generate_series(1, 60000)")
    assert held.wait(30)
    platform.sql("ALTER TABLE content.person DROP CONSTRAINT person_pkey")
    until(lambda: not platform.bench.sql("SELECT 1 AS found FROM pg_publication_tables WHERE tablename = 'person'"), 5)
    platform.sql("UPDATE content.person SET id = 2")
    assert platform.bench.sql("SELECT 1 AS found FROM etl.etl_feeds WHERE stored_changes < 60000")
    monkeypatch.setattr(feed_owner.Storage, "add", stored)
    until(lambda: platform.must_reload(persons) is not None)
    assert platform.must_reload(films) is None


def test_a_source_that_cannot_be_reached_is_said_without_its_address(platform: Platform) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    away = SecretStr("postgresql://feeder:secret@127.0.0.1:1/nowhere")
    platform.settings = platform.settings.model_copy(update={"feed_url": away})
    platform.start()
    until(lambda: "cannot be reached with VITRINA_FEED_URL" in platform.problem(films))
    assert not [word for word in ("127.0.0.1", "feeder", "secret", "nowhere") if word in platform.problem(films)]


def test_a_segment_that_is_being_read_holds_nothing_up(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_segments, "SEGMENT_CHANGES", 10)
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    ready = platform.ready(films)
    for start in range(0, 50, 10):
        platform.sql(f"INSERT INTO content.film SELECT generate_series({start}, {start + 9})")
        platform.settled()
    first = segments(platform)[0]
    with psycopg.connect(platform.settings.require_database_url()) as reader:
        reader.execute(f"SELECT count(*) FROM etl.feed_segment_{first}".encode())
        pass_on(platform, films, platform.changes(ready)[-1].lsn)
        for number in range(100, 105):
            platform.sql(f"INSERT INTO content.film VALUES ({number})")
            platform.settled()
            time.sleep(0.3)
        assert first in segments(platform)
        with pytest.raises(TransientError, match="try again"):
            feed_owner.forget(platform.bench.metastore, platform.feed.id, with_followers=True)
        assert platform.must_reload(films) is None
    until(lambda: first not in segments(platform))
