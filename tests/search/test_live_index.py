"""A search index that is live: documents follow the rows of a query, deleted ones too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.marts import CALLER, FILMS, SOURCE, Marts
from tests.support.search_servers import Target
from vitrina.connectors.search.client import SearchClient
from vitrina.services import pipelines as services
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

pytestmark = pytest.mark.one_server


@pytest.fixture
def marts(database: Settings, metastore: Connection, tmp_path: Path, search: Target) -> Iterator[Marts]:
    assert database.admin_url
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-admin") as admin:
        made = Marts(database, admin, metastore, tmp_path)
        made.more = {"ELASTICSEARCH_URL": search.url, "VITRINA_ALLOWED_TARGETS": "analytics.*,es:*"}
        made.sql(SOURCE)
        yield made
        made.stop()
        made.drop_feeds()


def test_documents_follow_their_rows(marts: Marts, client: SearchClient, index: str) -> None:
    marts.live("found", FILMS, target_table=f"es:{index}")
    marts.start_runner()
    marts.await_following("found")
    for statement in (
        "UPDATE content.film SET title = 'renamed' WHERE id = 7",
        "DELETE FROM content.film WHERE id IN (8, 9)",
        "UPDATE content.rating SET film_id = 3 WHERE film_id = 4",
        "INSERT INTO content.film VALUES (51, 'new', 1)",
    ):
        marts.sql(statement)
    marts.settle("found")
    marts.await_true("the index shows it", lambda: _documents(client, index) == _rows(marts))


def test_a_delete_without_where_is_refused_before_a_document_is_gone(
    marts: Marts, client: SearchClient, index: str
) -> None:
    marts.sql("INSERT INTO content.film SELECT n, 'film ' || n, n % 5 + 1 FROM generate_series(100, 400) n")
    marts.live("found", FILMS, target_table=f"es:{index}")
    marts.start_runner()
    marts.await_following("found")
    before = _documents(client, index)
    marts.sql("DELETE FROM content.film WHERE id > 20")
    marts.await_failed("found", "options.allow_shrink")
    assert _documents(client, index) == before


def test_more_refused_documents_than_agreed_end_the_following(marts: Marts, client: SearchClient, index: str) -> None:
    marts.sql("UPDATE content.film SET title = '2001-02-03'")
    dates = {"index": {"mappings": {"properties": {"title": {"type": "date"}}}}, "max_dead_letters": 2}
    marts.live("found", FILMS, target_table=f"es:{index}", options=dates)
    marts.start_runner()
    marts.await_following("found")
    for statement in (
        "UPDATE content.film SET title = 'no date' WHERE id IN (1, 2)",
        "UPDATE content.film SET title = 'no date either' WHERE id = 1",  # it is refused already
        "UPDATE content.film SET title = '2002-02-03' WHERE id = 2",  # and this one no more
        "UPDATE content.film SET title = 'no date' WHERE id = 3",
    ):
        marts.sql(statement)
        marts.settle("found")
    before = _documents(client, index)
    assert (before["1"][0], before["2"][0]) == ("2001-02-03", "2002-02-03")
    with marts.admin.transaction():
        marts.sql("UPDATE content.film SET title = 'no date' WHERE id = 4")
        marts.sql("DELETE FROM content.film WHERE id = 5")
    [end] = marts.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 AS lsn")
    marts.await_failed("found", "3 row(s) of the source were rejected")
    assert "more than options.max_dead_letters (2)" in marts.row("found")["last_error"]
    assert _documents(client, index) == before
    assert (marts.place("found") or {})["lsn"] < end["lsn"]
    open_letters = marts.sql("SELECT DISTINCT document_id FROM etl.etl_dead_letters WHERE resolved_at IS NULL")
    assert {row["document_id"] for row in open_letters} == {"1", "3", "4"}
    marts.sql("UPDATE content.film SET title = '2003-02-03' WHERE title LIKE 'no date%'")
    marts.request("found")
    marts.await_true("the index shows it", lambda: _documents(client, index) == _rows(marts))


def test_an_index_that_is_deleted_by_hand_is_loaded_again(marts: Marts, client: SearchClient, index: str) -> None:
    marts.live("found", FILMS, target_table=f"es:{index}")
    marts.start_runner()
    marts.await_following("found")
    services.request_pause(marts.metastore, CALLER, "found")
    marts.await_true("paused", lambda: marts.row("found")["status"] == "PAUSED")
    for name in client.list_indexes(f"{index}*"):
        client.delete_index(name)
    marts.sql("UPDATE content.film SET title = 'renamed' WHERE id = 7")
    services.resume(marts.metastore, CALLER, "found")
    marts.await_true("it is there again", lambda: bool(client.list_indexes(f"{index}*")))
    marts.await_following("found")
    marts.await_true("the index shows it", lambda: _documents(client, index) == _rows(marts))


def _documents(client: SearchClient, index: str) -> dict[str, tuple[Any, ...]]:
    client.refresh(index)
    hits = client.search(index, {"size": 1000, "query": {"match_all": {}}})["hits"]["hits"]
    return {hit["_id"]: _shown(hit["_source"]) for hit in hits}


def _rows(marts: Marts) -> dict[str, tuple[Any, ...]]:
    return {str(row["id"]): _shown(row) for row in marts.sql(FILMS)}


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["title"], row["studio"], int(row["votes"]), int(row["total"])
