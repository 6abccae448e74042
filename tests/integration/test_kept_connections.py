"""Connections that are kept in the metastore: opened by runners that have the key, and by nobody else."""

import base64
import os
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.conftest import admin, url_of
from tests.support.workbench import Workbench
from vitrina import sealing
from vitrina.embedded.temporary import TemporaryServer
from vitrina.runner import housekeeping, requests
from vitrina.sealing import Sealed
from vitrina.settings import Settings
from vitrina.store import kept_connections
from vitrina.store.database import reader_url
from vitrina.unsealing import Keyring

SECRET, OTHER = os.urandom(32), os.urandom(32)


def with_keys(settings: Settings, *secrets: bytes) -> Settings:
    value = SecretStr(",".join(base64.b64encode(secret).decode() for secret in secrets))
    return settings.model_copy(update={"secret_key": value})


@pytest.fixture
def shop(server: TemporaryServer) -> Iterator[str]:
    """The URL of another database, under a login that may read it."""
    name = f"shop_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with psycopg.connect(url_of(server.urls.admin, name), autocommit=True) as connection:
        connection.execute(
            """
            CREATE SCHEMA content;
            CREATE TABLE content.orders (id int PRIMARY KEY, total numeric);
            INSERT INTO content.orders SELECT i, i FROM generate_series(1, 100) AS i;
            GRANT USAGE ON SCHEMA content TO vitrina_reader; GRANT SELECT ON content.orders TO vitrina_reader
            """
        )
    yield url_of(server.urls.reader, name)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def bench(workbench: Workbench, shop: str) -> Workbench:
    workbench.settings = with_keys(workbench.settings, SECRET).model_copy(update={"backoff_seconds": (0.01,)})
    keep(workbench, "shop", shop)
    workbench.pipeline("orders", "SELECT id, total FROM content.orders", source_connection="shop", target_key=["id"])
    return workbench


def keep(bench: Workbench, name: str, url: str, secret: bytes = SECRET) -> None:
    box = sealing.seal(Keyring([secret]).public_keys[0], name, url)
    if not kept_connections.insert(bench.metastore, name, box, by="test"):
        kept_connections.replace(bench.metastore, name, box, by="test")


def outcome(bench: Workbench) -> tuple[str, str]:
    run = bench.run("orders")
    return run["status"], run["error_message"] or ""


def test_a_runner_with_the_key_reads_through_it_without_a_restart(bench: Workbench, shop: str) -> None:
    assert outcome(bench) == ("SUCCESS", "")
    assert bench.sql("SELECT count(*) AS rows FROM analytics.orders") == [{"rows": 100}]

    keep(bench, "shop", reader_url(bench.settings, None))
    status, message = outcome(bench)
    assert (status, "content.orders" in message) == ("FAILED", True)

    keep(bench, "shop", shop)
    assert outcome(bench) == ("SUCCESS", "")


def test_requests_reach_it_too(bench: Workbench) -> None:
    request = {"id": uuid4(), "kind": "tables", "payload": {"connection": "shop"}}
    result, error = requests.perform(request, bench.metastore, bench.settings, lambda *_: pytest.fail("no lease"))
    assert error is None
    assert result is not None
    assert [table["name"] for table in result["tables"]] == ["orders"]

    assert bench.run("orders")["status"] == "SUCCESS"
    assert bench.reconcile("orders")["differences"] == 0


@pytest.mark.parametrize("keys", [[], [OTHER]])
def test_a_runner_without_the_key_says_which_setting_lacks_it(bench: Workbench, keys: list[bytes]) -> None:
    bench.settings = (
        with_keys(bench.settings, *keys) if keys else bench.settings.model_copy(update={"secret_key": None})
    )
    status, message = outcome(bench)
    assert status == "FAILED"
    assert "connection 'shop' was sealed with the key" in message
    assert "VITRINA_SECRET_KEY" in message


def test_pipelines_on_other_connections_do_not_mind_a_box_that_cannot_be_opened(bench: Workbench, shop: str) -> None:
    keep(bench, "archive", shop, OTHER)
    assert outcome(bench) == ("SUCCESS", "")
    housekeeping.tidy_up(bench.settings)


def test_a_box_that_was_moved_or_cut_in_the_metastore_does_not_open(bench: Workbench, shop: str) -> None:
    keep(bench, "archive", shop.replace("vitrina_reader", "somebody"))
    bench.sql(
        "UPDATE etl.etl_connections s SET sealed = o.sealed FROM etl.etl_connections o"
        " WHERE s.name = 'shop' AND o.name = 'archive'"
    )
    status, message = outcome(bench)
    assert status == "FAILED"
    assert "connection 'shop' cannot be opened: what the metastore keeps of it was changed" in message

    bench.sql("UPDATE etl.etl_connections SET sealed = substr(sealed, 1, 40)")
    status, message = outcome(bench)
    assert status == "FAILED"
    assert "connection 'shop' cannot be opened" in message


def test_the_environment_goes_before_the_metastore(bench: Workbench, shop: str) -> None:
    keep(bench, "shop", shop.replace("vitrina_reader", "nobody", 1))
    bench.settings = bench.settings.model_copy(update={"connections": {"shop": SecretStr(shop)}})
    assert outcome(bench) == ("SUCCESS", "")


def test_what_somebody_sealed_past_the_api_is_judged_all_the_same(bench: Workbench) -> None:
    keep(bench, "shop", "postgresql://u:p@/shop?host=/var/run/postgresql")
    status, message = outcome(bench)
    assert status == "FAILED"
    assert "connection 'shop': the URL must name a host: a socket on the runner's machine can be set only in" in message


def test_the_login_of_queries_cannot_look_at_the_boxes(bench: Workbench) -> None:
    with (
        psycopg.connect(reader_url(bench.settings, None)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM etl.etl_connections")


def test_sealing_anew_gives_way_to_whoever_entered_another_meanwhile(bench: Workbench, shop: str) -> None:
    before = kept_connections.list_sealed(bench.metastore)["shop"]
    keep(bench, "shop", shop)
    anew = Sealed("ab", b"box")
    assert not kept_connections.reseal(bench.metastore, "shop", before, anew)
