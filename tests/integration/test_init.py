"""`vitrina init` and `vitrina new`: from a PostgreSQL with tables of its own to a scheduled mart that is compared."""

import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
import yaml

from tests.conftest import url_of
from tests.docs import blocks, forks
from tests.docs.blocks import ROOT
from vitrina.embedded.cluster import DATABASE
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import APP_ROLE, READER_ROLE
from vitrina.store.database import with_login

DURABLE = {"fsync": "on", "full_page_writes": "on"}  # doctor warns of a server that forgets

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total numeric(12, 2),
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON shop.orders (updated_at);
CREATE FUNCTION shop.touch() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.updated_at := now(); RETURN NEW; END';
CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.touch();
INSERT INTO shop.orders (customer, total) SELECT 'customer ' || n, n / 7.0 FROM generate_series(1, 500) AS n;
"""

pytestmark = pytest.mark.timeout(600)


@dataclass
class Shop:
    """A database of somebody who has never heard of Vitrina, and an empty directory."""

    program: Path
    directory: Path
    admin_url: str

    @property
    def where(self) -> str:
        """The database without a login."""
        parts = urlsplit(self.admin_url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    @property
    def env_file(self) -> Path:
        return self.directory / ".env"

    def vitrina(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINA_", "PG"))}
        return subprocess.run(
            [self.program, *words],
            cwd=self.directory,
            env=kept | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def done(self, *words: str, **variables: str) -> str:
        ended = self.vitrina(*words, **variables)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def refused(self, code: int, *words: str, **variables: str) -> str:
        ended = self.vitrina(*words, **variables)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stderr

    def init(self, *more: str) -> tuple[str, ...]:
        return ("init", "--yes", "--database-url", self.admin_url, "--sources", "shop", *more)

    def ask(self, statement: str, url: str | None = None) -> Any:
        with psycopg.connect(url or self.admin_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


@pytest.fixture(scope="module")
def strange_server() -> Iterator[TemporaryServer]:
    """Nobody has made Vitrina's roles there."""
    bindir = os.environ.get("VITRINA_TEST_PG_BINDIR")
    with TemporaryServer(Path(bindir) if bindir else None, settings=DURABLE) as running:
        yield running


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory, forks.ready(Path(directory) / "bin") as found:
        yield found


@pytest.fixture
def shop(strange_server: TemporaryServer, program: Path, tmp_path: Path) -> Iterator[Shop]:
    name = f"shop_{uuid4().hex[:8]}"
    server = Shop(program, tmp_path, url_of(strange_server.urls.admin, DATABASE))
    server.ask(f"CREATE DATABASE {name}")
    found = Shop(program, tmp_path, url_of(strange_server.urls.admin, name))
    found.ask(SHOP)
    yield found
    server.ask(f"DROP DATABASE {name} WITH (FORCE)")
    # Ours first: others may have granted them something.
    roles = "SELECT array_agg(rolname::text ORDER BY rolname DESC) FROM pg_roles WHERE rolname !~ '^(pg_|postgres)'"
    for role in server.ask(roles) or ():
        server.ask(f'DROP ROLE "{role}"')


def command_of_the_guide(flag: str, url: str) -> list[str]:
    """The words of the guide's `vitrina init` with that flag."""
    page = ROOT / "docs/how-to/own-postgres.md"
    [found] = [block.script for block in blocks.of(page) if block.is_command and flag in block.script]
    program, *words = shlex.split(found.replace("\\\n", "").partition(" > ")[0])
    assert program == "vitrina"
    return [url if word.startswith("postgresql://") else word for word in words]


def test_from_an_empty_directory_to_a_scheduled_mart_that_equals_its_source(shop: Shop) -> None:
    """By the command of the guide, with the address of this server."""
    said = shop.vitrina(*command_of_the_guide("--table", shop.admin_url))
    assert said.returncode == 0, said.stdout + said.stderr
    assert "key id: the primary key of shop.orders" in said.stderr
    assert "guarantee exact" in said.stderr
    assert "analytics.orders equals its source: 500 rows compared" in said.stderr
    assert "PROBLEM" not in said.stdout
    assert shop.ask("SELECT count(*) FROM analytics.orders") == 500
    saved = shop.ask("SELECT to_jsonb(p) FROM etl.etl_pipelines p")
    assert (saved["mode"], saved["incremental_key"], saved["schedule_interval"]) == ("incremental", "updated_at", "5m")
    assert stat.S_IMODE(shop.env_file.stat().st_mode) == 0o600
    written = shop.env_file.read_text()
    assert "VITRINA_ALLOWED_SOURCE_SCHEMAS=shop\n" in written
    assert "VITRINA_ALLOWED_TARGETS=analytics.*\n" in written
    assert str(urlsplit(shop.admin_url).password) not in written  # the administrator's login is not kept
    assert "content" not in written

    again = shop.vitrina(*shop.init())
    assert again.returncode == 0, again.stdout + again.stderr
    assert "was prepared already" in again.stderr
    assert ".env: is as it should be" in again.stderr
    assert shop.env_file.read_text() == written

    # Upgrades need no administrator: the application's own login migrates.
    assert shop.done("migrate").strip() == shop.ask("SELECT version_num FROM etl.alembic_version")


def test_an_administrator_may_run_the_statements_instead(shop: Shop) -> None:
    script = shop.done(*command_of_the_guide("--print-sql", shop.where), "--target", "marts")
    assert "SCRAM-SHA-256$" in script
    passwords = [urlsplit(line.partition("=")[2]).password for line in shop.env_file.read_text().splitlines()]
    assert not any(password in script for password in passwords if password)
    shop.ask(script)
    said = shop.vitrina("init", "--yes")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "was prepared already" in said.stderr
    assert "VITRINA_ALLOWED_TARGETS=marts.*" in shop.env_file.read_text()
    assert shop.ask("SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'marts'") == APP_ROLE


def test_new_writes_what_apply_takes_and_says_why(shop: Shop) -> None:
    shop.done(*shop.init())
    said = shop.vitrina("new", "--from", "default.shop.orders", "--to", "analytics.sales")
    assert said.returncode == 0, said.stderr
    assert said.stdout == "sales.yaml\n"
    text = (shop.directory / "sales.yaml").read_text()
    assert text.startswith("# - key id: the primary key of shop.orders\n")
    assert yaml.safe_load(text)["spec"]["incremental_key"] == "updated_at"
    assert "sales.yaml exists: --force replaces it" in shop.refused(
        3, "new", "--from", "shop.orders", "--name", "sales"
    )
    assert "there is no table shop.order; shop has: orders" in shop.refused(2, "new", "--from", "shop.order")
    assert "connection 'old' is not configured" in shop.refused(3, "new", "--from", "old.shop.orders")
    assert "is not a table" in shop.refused(3, "new", "--from", "orders")
    assert "not allowed here" in shop.refused(3, "new", "--from", "shop.orders", "--to", "shop.copy")


def test_odd_names_and_passwords(shop: Shop) -> None:
    """A schema with capitals and a blank, logins with any character."""
    password = "p@ss/w:ö?#%"
    shop.ask(f"CREATE ROLE \"boss@shop\" LOGIN SUPERUSER PASSWORD '{password}'")
    shop.ask('ALTER SCHEMA shop RENAME TO "Мой Shop"; ALTER TABLE "Мой Shop".orders RENAME TO "Orders.Old"')
    shop.ask("""CREATE OR REPLACE FUNCTION "Мой Shop".touch() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN NEW.updated_at := now(); RETURN NEW; END'""")
    boss = with_login(shop.admin_url, "boss@shop", password)
    table = '"Мой Shop"."Orders.Old"'
    words = ("init", "--yes", "--database-url", boss, "--sources", "Мой Shop", "--table", table)
    said = shop.vitrina(*words, VITRINA_APP_PASSWORD="a@b/c", VITRINA_READER_PASSWORD="'ü' $x")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "analytics.orders_old equals its source: 500 rows" in said.stderr
    raw = f"postgresql://boss@shop:{password}@127.0.0.1/shop"
    assert "write @ as %40" in shop.refused(3, "init", "--yes", "--force", "--database-url", raw, "--sources", "shop")


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        pytest.param({"password": "wrong"}, 4, "password authentication failed", id="wrong password"),
        pytest.param({"path": "/nothing"}, 4, 'database "nothing" does not exist', id="no such database"),
        pytest.param({"path": ""}, 3, "it names no database", id="no database named"),
        pytest.param({"query": "options=-c%20x"}, 3, "must not set options", id="options"),
        pytest.param({"port": "1"}, 4, "cannot connect to", id="nobody listens"),
    ],
)
def test_a_database_that_cannot_be_used(shop: Shop, change: dict[str, str], code: int, said: str) -> None:
    parts = urlsplit(shop.admin_url)
    password, port = change.pop("password", str(parts.password)), change.pop("port", str(parts.port))
    url = parts._replace(netloc=f"{parts.username}:{quote(password)}@{parts.hostname}:{port}", **change).geturl()
    assert said in shop.refused(code, "init", "--yes", "--database-url", url, "--sources", "shop")
    assert not shop.env_file.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sources", "shops"), "has no schema 'shops' to read from; it has: public, shop"),
        (("--sources", "analytics"), "that is the schema of the marts"),
        (("--sources", "pg_catalog"), "queries may not read the server's catalogs or the metastore"),
        (("--sources", "shop", "--target", "Marts"), "lower-case"),
        ((), "set it, because there is no terminal to ask on"),
    ],
)
def test_schemas_that_cannot_be_used(shop: Shop, flags: tuple[str, ...], said: str) -> None:
    ended = shop.vitrina("init", "--yes", "--database-url", shop.admin_url, *flags)
    assert ended.returncode in (2, 3)
    assert said in " ".join(ended.stderr.split())
    assert not shop.env_file.exists()
    assert shop.ask("SELECT count(*) FROM pg_roles WHERE rolname ~ '^vitrina'") == 0


def test_an_administrator_without_the_rights_is_told_which(shop: Shop) -> None:
    shop.ask("CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    clerk = with_login(shop.admin_url, "clerk", "clerk")
    said = shop.refused(3, "init", "--yes", "--database-url", clerk, "--sources", "shop")
    assert "clerk may not create roles (CREATEROLE), create schemas (CREATE ON DATABASE" in said
    assert "--print-sql" in said
    shop.ask("ALTER ROLE clerk SUPERUSER; ALTER ROLE clerk SET default_transaction_read_only = on")
    assert "sessions of clerk are read-only" in shop.refused(
        3, "init", "--yes", "--database-url", clerk, "--sources", "shop"
    )
    assert not shop.env_file.exists()


def test_a_plain_owner_with_createrole_is_enough(shop: Shop) -> None:
    """As on managed servers, where nobody is a superuser."""
    shop.ask("CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'owner'; GRANT pg_read_all_stats TO owner WITH ADMIN OPTION")
    shop.ask(f"GRANT CREATE ON DATABASE {urlsplit(shop.admin_url).path[1:]} TO owner; ALTER SCHEMA shop OWNER TO owner")
    shop.ask("ALTER TABLE shop.orders OWNER TO owner")
    owner = with_login(shop.admin_url, "owner", "owner")
    shop.done("init", "--yes", "--database-url", owner, "--sources", "shop")
    shop.ask("CREATE TABLE shop.later (id int PRIMARY KEY)", owner)
    assert "vitrina_reader may not read" not in shop.vitrina("doctor").stdout  # tables of tomorrow are readable too


def test_a_role_of_another_installation_is_left_alone(shop: Shop) -> None:
    shop.ask(f"CREATE ROLE {APP_ROLE} LOGIN PASSWORD 'theirs'")
    said = shop.refused(5, *shop.init())
    assert f"the role {APP_ROLE} already exists" in said
    assert "VITRINA_APP_PASSWORD" in said
    assert not shop.env_file.exists()
    assert shop.ask("SELECT 1", with_login(shop.admin_url, APP_ROLE, "theirs")) == 1
    shop.done(*shop.init("--reset-passwords"))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        shop.ask("SELECT 1", with_login(shop.admin_url, APP_ROLE, "theirs"))


def test_a_file_that_says_otherwise_is_kept(shop: Shop) -> None:
    shop.env_file.write_text("DJANGO_KEY='x'\nexport VITRINA_ALLOWED_TARGETS=old.*\n# mine")
    said = shop.refused(5, *shop.init("--target", "analytics"))
    assert ".env exists and has another VITRINA_" in said
    assert shop.ask("SELECT count(*) FROM pg_roles WHERE rolname = 'vitrina_reader'") == 0
    shop.done(*shop.init("--target", "analytics", "--force"))
    lines = shop.env_file.read_text().splitlines()
    assert lines[:2] == ["DJANGO_KEY='x'", "# mine"]
    assert "VITRINA_ALLOWED_TARGETS=analytics.*" in lines
    assert stat.S_IMODE(shop.env_file.stat().st_mode) == 0o600
    assert "old.*" in (shop.directory / ".env.before").read_text()


def test_a_variable_that_would_win_over_the_file_is_named(shop: Shop) -> None:
    said = shop.refused(3, *shop.init(), VITRINA_DATABASE_URL=shop.admin_url)
    assert "VITRINA_DATABASE_URL is set in the environment" in said


def test_the_reader_s_role_reads_the_sources_and_nothing_else(shop: Shop) -> None:
    shop.done(*shop.init())
    values = dict(line.split("=", 1) for line in shop.env_file.read_text().splitlines() if line.startswith("VITRINA"))
    reader = values["VITRINA_READER_URL"]
    assert urlsplit(reader).username == READER_ROLE
    assert shop.ask("SELECT count(*) FROM shop.orders", reader) == 500
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        shop.ask("DELETE FROM shop.orders", reader)
