"""Source, metastore and mart in three databases; and a transaction that is larger than what is followed key by key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.chaos.conftest import LONG, say
from tests.conftest import admin, url_of
from tests.live.marts import FILMS, SOURCE, Marts
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

LARGE = 1_000_000


@pytest.fixture
def places(server: TemporaryServer) -> Iterator[dict[str, str]]:
    """The addresses of a shop that is followed, and of a warehouse that holds its mart."""
    names = {kind: f"{kind}_{uuid4().hex[:12]}" for kind in ("shop", "warehouse")}
    for name in names.values():
        admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield {kind: url_of(server.urls.admin, name) for kind, name in names.items()}
    for name in names.values():
        admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def far(
    database: Settings, metastore: Connection, tmp_path: Path, places: dict[str, str]
) -> Iterator[tuple[Marts, "psycopg.Connection[Any]"]]:
    """Marts whose `sql` asks the shop, and a session in the warehouse."""
    assert database.admin_url
    with (
        postgres.connect(places["shop"], "vitrina:test-shop") as shop,
        psycopg.connect(places["warehouse"], autocommit=True) as warehouse,
    ):
        warehouse.execute("CREATE SCHEMA analytics")
        made = Shop(database, shop, metastore, tmp_path)
        made.more = {
            "VITRINA_CONN_SHOP": places["shop"],
            "VITRINA_CONN_SHOP_FEED": places["shop"],
            "VITRINA_CONN_WAREHOUSE": places["warehouse"],
        }
        made.sql("CREATE SCHEMA content")
        made.sql(SOURCE)
        yield made, warehouse
        made.stop()
        made.drop_feeds()


class Shop(Marts):
    """The metastore is in another database than the source."""

    def _is_well(self) -> bool:
        failed = self.metastore.execute(
            "SELECT name, last_error FROM etl.etl_pipelines WHERE status = 'FAILED'"
        ).fetchall()
        assert not failed, failed
        return True

    def count_runs(self, name: str) -> int:
        query = "SELECT count(*) AS n FROM etl.etl_runs WHERE pipeline_id = %s"
        return int(postgres.one(self.metastore.execute(query, [self.row(name)["id"]]))["n"])


def test_source_and_mart_in_other_databases_than_the_metastore(
    far: tuple[Marts, "psycopg.Connection[Any]"],
) -> None:
    marts, warehouse = far

    def is_equal() -> bool:
        wanted = sorted(tuple(row.values()) for row in marts.sql(FILMS))
        return sorted(warehouse.execute("TABLE analytics.films").fetchall()) == wanted

    marts.live("films", source_connection="shop", options={"target_connection": "warehouse"})
    marts.start_runner()
    marts.await_following("films")
    runs = marts.count_runs("films")
    for statement in (
        "INSERT INTO content.film VALUES (51, 'new', 1); UPDATE content.film SET title = 'renamed' WHERE id = 7",
        "DELETE FROM content.film WHERE id = 9; UPDATE content.rating SET film_id = 51 WHERE film_id = 10",
        "UPDATE content.studio SET name = upper(name) WHERE id = 3",
    ):
        marts.sql(statement)
        marts.await_true("the mart equals its query", is_equal)
    assert marts.count_runs("films") == runs, "all of it came by following, none by a full load"
    marts.kill(marts.runners[0])
    marts.sql("UPDATE content.film SET id = 1000 WHERE id = 11; DELETE FROM content.film WHERE id = 12")
    marts.start_runner()
    marts.await_true("it is taken over", lambda: marts.count_runs("films") == runs + 1)
    marts.await_true("the mart equals its query", is_equal)
    assert "loads_because" not in marts.run("films")["metrics"]


@pytest.mark.skipif(not LONG, reason="takes minutes: VITRINA_CHAOS=long")
@pytest.mark.timeout(1800)
def test_a_transaction_of_a_million_rows(marts: Marts) -> None:
    """It is answered with a full load; what comes after it is followed, and memory stays flat."""
    query = "SELECT id, value FROM content.large"
    marts.sql(
        f"""
        CREATE TABLE content.large (id int PRIMARY KEY, value int NOT NULL);
        INSERT INTO content.large SELECT n, 0 FROM generate_series(1, {LARGE}) n;
        ANALYZE content.large;
        GRANT SELECT ON content.large TO vitrina_reader;
        """
    )
    marts.live("large", query)
    marts.start_runner()
    marts.await_true("it follows", lambda: marts.is_following("large"), 600)
    marts.sql("UPDATE content.large SET value = value + 1")
    marts.await_equal("large", query, 900)
    marts.await_true("it follows", lambda: marts.is_following("large"), 600)
    marts.sql("DELETE FROM content.large WHERE id = 5; UPDATE content.large SET value = 7 WHERE id = 6")
    marts.await_equal("large", query, 300)
    peak = peak_megabytes(marts.runners[0].pid)
    say(f"a transaction of {LARGE:,} rows: the runner took {peak} MB at most")
    assert peak < 300


def peak_megabytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10
