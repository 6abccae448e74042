"""The pages about a database of one's own, typed from the first command to the last, on a real server."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout
from tests.integration.test_init import DURABLE, SHOP
from vitrina.embedded.temporary import TemporaryServer

OWN = ROOT / "docs/how-to/own-postgres.md"
OTHER = ROOT / "docs/how-to/other-source.md"
CUSTOMERS = """
CREATE TABLE shop.customers (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO shop.customers SELECT n, 'customer ' || n FROM generate_series(1, 50) AS n;
"""
SALES = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id int PRIMARY KEY, customer_id int, total numeric, updated_at timestamptz NOT NULL);
INSERT INTO sales.orders SELECT n, n, n, now() - interval '1 hour' FROM generate_series(1, 50) AS n;
"""

pytestmark = pytest.mark.timeout(900)


class Reader(Checkout):
    """Types what a page says is not run by the other tests, too; its servers are ours."""

    def __init__(self, directory: Path, server: TemporaryServer) -> None:
        super().__init__(directory)
        self.server = server
        admin = urlsplit(server.urls.admin)
        self._names = {
            "PASSWORD@db.example.com:5432/shop": f"{admin.password}@{admin.hostname}:{admin.port}/own",
            "//db.example.com:5432/shop": f"//{admin.hostname}:{admin.port}/own",
            "@shop-db.example.com:5432/shop": f"@{admin.hostname}:{admin.port}/sold",
        }

    def follow(self, block: Block) -> str:
        note = "keeps running" if block.text.strip() == "vitrina dev" else None
        return self.run(dataclasses.replace(block, note=note))

    def _here(self, script: str) -> str:
        for name, address in self._names.items():
            script = script.replace(name, address)
        script = script.replace("vitrina dev", 'vitrina dev --port "$PORT"')
        return super()._here(script)

    def ask(self, database: str, statement: str) -> object:
        url = urlunsplit(urlsplit(self.server.urls.admin)._replace(path=f"/{database}"))
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    bindir = os.environ.get("VITRINA_TEST_PG_BINDIR")
    with (
        tempfile.TemporaryDirectory() as directory,
        TemporaryServer(Path(bindir) if bindir else None, settings=DURABLE) as server,
    ):
        Path(directory).chmod(0o755)
        found = Reader(Path(directory), server)
        for database, contents in {"own": SHOP + CUSTOMERS, "sold": SALES}.items():
            found.ask("postgres", f"CREATE DATABASE {database}")
            found.ask(database, contents)
        try:
            yield found
        finally:
            found.close()


def commands(page: Path) -> list[Block]:
    return [block for block in blocks.of(page) if block.is_command or block.title]


def test_your_own_postgresql_and_then_another_database(reader: Reader) -> None:
    for block in commands(OWN):
        reader.follow(block)
    assert reader.ask("own", "SELECT count(*) FROM analytics.orders") == 500
    assert reader.ask("own", "SELECT count(*) FROM etl.etl_pipelines WHERE name = 'customers'") == 1

    # The next page fills the same mart from another database, whose schema has to be allowed.
    reader.end_all_but(0)
    settings = reader.directory / ".env"
    settings.write_text(settings.read_text().replace("SCHEMAS=shop", "SCHEMAS=shop,sales"))
    reader.run(Block(OWN, 0, "bash", None, "vitrina dev\n", "keeps running"))
    reader.run(Block(OWN, 0, "bash", None, "vitrina pipelines delete orders --yes\n", None))
    reader.ask("own", "DROP TABLE analytics.orders")
    for block in commands(OTHER):
        reader.follow(block)
        if block.title and block.language == "sql":
            reader.ask("sold", block.text)
    assert reader.ask("own", "SELECT count(*) FROM analytics.orders") == 50
