"""What comes out of the log of a real server, by kind of change and replica identity."""

from tests.live.followed import Source, all_changes, opened, short, transactions
from vitrina.connectors.postgres import replication

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text, rating float8, seen timestamptz)"


def test_insert_update_and_delete_keep_the_wanted_columns_alone(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id title")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1, 'Alien', 8.5, now()), (2, NULL, 1, NULL)")
        source.sql("UPDATE content.film SET title = 'Aliens', rating = 8.4 WHERE id = 1")
        source.sql("UPDATE content.film SET id = 3 WHERE id = 2")
        source.sql("DELETE FROM content.film WHERE id = 3")
        found = all_changes(feed, 4)
    assert [short(change) for change in found] == [
        ("content.film", "insert", None, {"id": "1", "title": "Alien"}),
        ("content.film", "insert", None, {"id": "2", "title": None}),
        ("content.film", "update", {"id": "1"}, {"id": "1", "title": "Aliens"}),
        ("content.film", "update", {"id": "2"}, {"id": "3", "title": None}),
        ("content.film", "delete", {"id": "3"}, None),
    ]
    assert [change.number for change in found] == [0, 1, 0, 0, 0]
    assert len({change.lsn for change in found}) == 4
    assert [change.lsn for change in found] == sorted(change.lsn for change in found)


def test_full_identity_gives_old_values_of_every_wanted_column(source: Source) -> None:
    source.sql(f"{FILM}; ALTER TABLE content.film REPLICA IDENTITY FULL")
    source.publish(film="id title")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1, 'Alien', 8.5, NULL)")
        source.sql("UPDATE content.film SET title = NULL")
        source.sql("DELETE FROM content.film")
        found = all_changes(feed, 3)
    assert [short(change)[1:] for change in found[1:]] == [
        ("update", {"id": "1", "title": "Alien"}, {"id": "1", "title": None}),
        ("delete", {"id": "1", "title": None}, None),
    ]


def test_an_index_identity_gives_its_columns(source: Source) -> None:
    source.sql(
        f"{FILM}; ALTER TABLE content.film ALTER title SET NOT NULL;"
        " CREATE UNIQUE INDEX by_title ON content.film (title);"
        " ALTER TABLE content.film REPLICA IDENTITY USING INDEX by_title"
    )
    source.publish(film="id title")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1, 'Alien')")
        source.sql("UPDATE content.film SET title = 'Aliens'")
        source.sql("UPDATE content.film SET rating = 1")
        source.sql("DELETE FROM content.film")
        found = all_changes(feed, 4)
    assert [change.old for change in found] == [None, {"title": "Alien"}, {"title": "Aliens"}, {"title": "Aliens"}]


def test_a_large_value_that_did_not_change_comes_from_the_old_image_or_is_unknown(source: Source) -> None:
    source.sql("CREATE TABLE content.film (id int PRIMARY KEY, title text, plot text)")
    source.sql("ALTER TABLE content.film ALTER plot SET STORAGE EXTERNAL")
    source.publish(film="id plot")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1, 'Alien', repeat('x', 10000))")
        source.sql("UPDATE content.film SET title = 'Aliens'")
        source.sql("ALTER TABLE content.film REPLICA IDENTITY FULL")
        source.sql("UPDATE content.film SET title = 'Alien 3'")
        found = all_changes(feed, 3)
    assert found[1].new == {"id": "1"}
    assert found[2].new == {"id": "1", "plot": "x" * 10_000}


def test_values_are_written_as_in_all_our_sessions(source: Source) -> None:
    source.sql("ALTER DATABASE " + source.url.rpartition("/")[2] + " SET datestyle = 'SQL, DMY'")
    source.sql("ALTER DATABASE " + source.url.rpartition("/")[2] + " SET timezone = 'Asia/Tokyo'")
    source.sql("CREATE TABLE content.film (id timestamptz PRIMARY KEY, bytes bytea, naïve text)")
    source.publish(film="id bytes naïve")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES ('2026-01-02 03:04:05+00', '\\x00ff', 'žluťoučký')")
        (found,) = all_changes(feed, 1)
    assert found.new == {"id": "2026-01-02 03:04:05+00", "bytes": "\\x00ff", "naïve": "žluťoučký"}


def test_rollbacks_are_not_seen_and_subtransactions_are_one(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    with source.feed() as feed:
        source.sql("BEGIN; INSERT INTO content.film VALUES (1); ROLLBACK")
        source.sql(
            "BEGIN; INSERT INTO content.film VALUES (2); SAVEPOINT s; INSERT INTO content.film VALUES (3);"
            " ROLLBACK TO s; SAVEPOINT t; INSERT INTO content.film VALUES (4); COMMIT"
        )
        source.sql("BEGIN; INSERT INTO content.film VALUES (5); PREPARE TRANSACTION 'later'")
        source.sql("INSERT INTO content.film VALUES (6)")
        source.sql("COMMIT PREPARED 'later'")
        found = all_changes(feed, 3)
    assert [change.new for change in found] == [{"id": "2"}, {"id": "4"}, {"id": "6"}, {"id": "5"}]
    assert len({change.xid for change in found[:2]}) == 1


def test_partitions_are_mapped_to_their_root_also_when_one_is_emptied(source: Source) -> None:
    source.sql(
        "CREATE TABLE content.seen (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE content.seen_25 PARTITION OF content.seen FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');"
        "CREATE TABLE content.seen_26 PARTITION OF content.seen FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
    )
    source.publish(seen="id at")
    with source.feed() as feed:
        source.sql("INSERT INTO content.seen VALUES (1, '2025-05-05')")
        source.sql("UPDATE content.seen SET at = '2026-05-05'")
        source.sql("TRUNCATE content.seen_26")
        source.sql("TRUNCATE content.seen")
        found = all_changes(feed, 4)
    assert {change.relation for change in found} == {"content.seen"}
    assert [change.kind for change in found] == ["insert", "delete", "insert", "truncate", "truncate"]


def test_columns_that_are_added_and_dropped_are_followed(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id title year")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1, 'Alien')")
        source.sql("ALTER TABLE content.film DROP COLUMN title, ADD COLUMN year int")
        source.sql("INSERT INTO content.film (id, year) VALUES (2, 1986)")
        found = all_changes(feed, 2)
    assert [change.new for change in found] == [{"id": "1", "title": "Alien"}, {"id": "2", "year": "1986"}]


def test_a_large_transaction_comes_in_pieces(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    many = replication.PIECE * 3 + 1
    with source.feed() as feed:
        source.sql(f"INSERT INTO content.film SELECT generate_series(1, {many})")
        pieces = list(transactions(feed, 1))
    assert [len(piece.changes) for piece in pieces] == [*[replication.PIECE] * 3, 1]
    assert [piece.last for piece in pieces] == [False, False, False, True]
    assert [change.number for piece in pieces for change in piece.changes] == list(range(many))
    assert pieces[-1].upto > pieces[-1].lsn


def test_what_was_not_confirmed_comes_again_and_what_was_stored_does_not(source: Source) -> None:
    source.sql(FILM)
    source.publish(film="id")
    with source.feed() as feed:
        source.sql("INSERT INTO content.film VALUES (1)")
        source.sql("INSERT INTO content.film VALUES (2)")
        first, second = transactions(feed, 2)
        feed.confirm(first.upto)
    with source.feed() as feed:
        assert next(iter(transactions(feed, 1))).lsn == second.lsn
    with source.feed(after=second.upto) as feed:
        source.sql("INSERT INTO content.film VALUES (3)")
        assert [change.new for change in all_changes(feed, 1)] == [{"id": "3"}]


def test_position_moves_although_nothing_that_is_followed_changes(source: Source) -> None:
    source.sql(f"{FILM}; CREATE TABLE content.other (id int)")
    source.publish(film="id")
    with source.feed() as feed, opened(source) as followed:
        source.sql("INSERT INTO content.other VALUES (1)")
        followed.write_out()
        wanted = followed.written_upto()
        for _ in range(200):
            if feed.position >= wanted:
                break
            assert feed.receive(0.05) is None
        assert feed.position >= wanted - 40
