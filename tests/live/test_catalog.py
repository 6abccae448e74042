"""What the log does not say: tables that are swapped, altered or partitioned under a follower."""

import pytest

from tests.live.marts import Marts
from tests.live.test_moments import breaks

VIEWED = "SELECT id, title FROM content.shown"
EVENTS = "SELECT id, day, note FROM content.event"
SETUP = """
CREATE VIEW content.shown AS SELECT id, title FROM content.film WHERE studio_id < 4;
CREATE TABLE content.event (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE content.event_1 PARTITION OF content.event FOR VALUES FROM (0) TO (10);
CREATE TABLE content.event_2 PARTITION OF content.event FOR VALUES FROM (10) TO (20);
INSERT INTO content.event SELECT n, n % 20, 'note ' || n FROM generate_series(1, 200) n;
GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader;
"""
SWAP = """
CREATE TABLE content.film_new (LIKE content.film INCLUDING ALL);
INSERT INTO content.film_new SELECT id, 'swapped ' || title, studio_id FROM content.film;
ALTER TABLE content.film_new REPLICA IDENTITY FULL;
GRANT SELECT ON content.film_new TO vitrina_reader;
BEGIN;
ALTER TABLE content.film RENAME TO film_old;
ALTER TABLE content.film_new RENAME TO film;
COMMIT
"""


@pytest.fixture
def marts(marts: Marts) -> Marts:
    marts.sql(SETUP)
    return marts


def _follow(marts: Marts, name: str, query: str, key: list[str]) -> None:
    marts.live(name, query, target_key=key)
    marts.start_runner()
    marts.await_following(name)


def a_view_that_is_replaced_is_followed(marts: Marts) -> None:
    _follow(marts, "shown", VIEWED, ["id"])
    marts.sql("UPDATE content.film SET title = 'renamed' WHERE id = 6")
    marts.await_equal("shown", VIEWED)
    marts.sql("CREATE OR REPLACE VIEW content.shown AS SELECT id, upper(title) AS title FROM content.film WHERE id > 9")
    marts.settle("shown")
    assert not marts.differences("shown", VIEWED)


def test_a_view_that_is_replaced_is_followed(marts: Marts) -> None:
    a_view_that_is_replaced_is_followed(marts)


def test_without_a_look_at_the_catalog_it_shows(marts: Marts) -> None:
    breaks(marts, "catalog_unseen", a_view_that_is_replaced_is_followed)


def test_a_partition_that_leaves_takes_its_rows_along(marts: Marts) -> None:
    _follow(marts, "events", EVENTS, ["id", "day"])
    marts.sql("UPDATE content.event SET note = 'x' WHERE id < 20; DELETE FROM content.event WHERE id = 30")
    marts.await_equal("events", EVENTS)
    marts.sql("ALTER TABLE content.event DETACH PARTITION content.event_2")
    marts.change("events", options={"allow_shrink": True})
    marts.await_equal("events", EVENTS)
    marts.sql("ALTER TABLE content.event ATTACH PARTITION content.event_2 FOR VALUES FROM (10) TO (20)")
    marts.await_equal("events", EVENTS)
    marts.sql("TRUNCATE content.event_1")
    marts.await_equal("events", EVENTS)


def test_a_table_that_is_swapped_by_its_name_is_followed(marts: Marts) -> None:
    marts.sql("DROP VIEW content.shown")
    films = "SELECT id, title FROM content.film"
    _follow(marts, "titles", films, ["id"])
    marts.sql(SWAP)
    marts.await_equal("titles", films)
    marts.sql("UPDATE content.film SET title = 'after' WHERE id = 3")
    marts.await_equal("titles", films)
