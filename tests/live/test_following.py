"""Live pipelines end to end: real runner processes keep marts equal to their queries."""

from tests.live.platform import FILMS, Platform


def test_a_mart_follows_inserts_updates_deletes_and_moved_keys(platform: Platform) -> None:
    platform.live("films")
    platform.start_runner()
    platform.await_following("films")
    platform.await_equal("films")
    runs = platform.count_runs("films")
    for statement in (
        "INSERT INTO content.film VALUES (51, 'new', 1)",
        "UPDATE content.film SET title = 'renamed' WHERE id = 7",
        "DELETE FROM content.film WHERE id = 9",
        "UPDATE content.rating SET film_id = 51 WHERE film_id = 10",
        "UPDATE content.film SET studio_id = 4 WHERE studio_id = 2",
        "UPDATE content.studio SET name = upper(name) WHERE id = 3",
        "DELETE FROM content.rating WHERE film_id = 12",
        "UPDATE content.film SET id = 1000 WHERE id = 11",
        "UPDATE content.film SET studio_id = NULL WHERE id = 13",
    ):
        platform.sql(statement)
        platform.await_equal("films", FILMS)
    assert platform.count_runs("films") == runs, "all of it came by following, none by a full load"
