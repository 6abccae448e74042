"""The containers' processes, started here with the variables and secrets that the compose file gives them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import psycopg
import pytest
import yaml
from psycopg import sql

from tests.conftest import admin, url_of
from tests.support.ports import kept_port
from tests.support.waiting import until
from vitrina.embedded.temporary import TemporaryServer

ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "infra" / "docker-compose.yml").read_text())["services"]
VITRINA = str(Path(sys.executable).with_name("vitrina"))


class Stand:
    """A fresh database, and the secrets that infra/make-secrets makes for it."""

    def __init__(self, folder: Path, server: TemporaryServer, database: str, metrics_port: str) -> None:
        self._folder = folder
        # Each container has its own; here all share one machine.
        self.metrics_port = metrics_port
        self._make_secrets(server)
        self._point_at(server, database)

    def environment(self, service: str) -> dict[str, str]:
        given = {name: default_of(str(value)) for name, value in SERVICES[service]["environment"].items()}
        if "VITRINA_METRICS_PORT" in given:
            given |= {"VITRINA_METRICS_PORT": self.metrics_port, "VITRINA_METRICS_HOST": "127.0.0.1"}
        return {"PATH": "/usr/bin:/bin"} | {
            name: v.replace("/secrets/", f"{self._folder}/") for name, v in given.items()
        }

    def migrate(self) -> None:
        command, environment = [VITRINA, *SERVICES["etl_migrate"]["command"]], self.environment("etl_migrate")
        subprocess.run(command, env=environment, cwd=self._folder, check=True, timeout=60)

    @contextmanager
    def running(self, service: str, *replaced_command: str) -> Iterator[None]:
        command = [VITRINA, *(replaced_command or SERVICES[service]["command"])]
        with subprocess.Popen(command, env=self.environment(service), cwd=self._folder) as process:
            try:
                yield
                assert process.poll() is None, f"{service} left by itself with {process.returncode}"
            finally:
                process.terminate()

    def _make_secrets(self, server: TemporaryServer) -> None:
        for volume in ("admin", "app", "runner"):
            (self._folder / volume).mkdir()
        script = (ROOT / "infra" / "make-secrets").read_text().replace("/secrets/", f"{self._folder}/")
        # The server is shared by all tests, and a role has one password in all of its databases.
        chosen = {
            "VITRINA_APP_PASSWORD": server.urls.app_password,
            "VITRINA_READER_PASSWORD": server.urls.reader_password,
        }
        subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin"} | chosen, check=True)

    def _point_at(self, server: TemporaryServer, database: str) -> None:
        """What `etl_db` is called, and who its superuser is, differs here; the rest of the URLs stays as made."""
        address = re.search(r"@([^/]+)/", server.urls.app)
        assert address
        app_url = self._folder / "app" / "database_url"
        made = app_url.read_text()
        app_url.unlink()
        app_url.write_text(made.replace("etl_db:5432/cinema", f"{address[1]}/{database}"))
        admin_url = self._folder / "admin" / "admin_url"
        admin_url.unlink()
        admin_url.write_text(url_of(server.urls.admin, database))


@pytest.fixture
def stand(server: TemporaryServer, template: str, tmp_path: Path) -> Iterator[Stand]:
    name = f"stand_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with kept_port() as port:
        yield Stand(tmp_path, server, name, str(port))
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def api_port() -> Iterator[int]:
    with kept_port() as port:
        yield port


def test_the_migration_prepares_what_api_and_runner_log_in_to(stand: Stand) -> None:
    stand.migrate()
    with psycopg.connect(Path(stand.environment("etl_api")["VITRINA_DATABASE_URL_FILE"]).read_text()) as session:
        assert session.execute("SELECT current_user, count(*) FROM etl.etl_pipelines").fetchone() == ("vitrina_app", 0)


def test_the_runner_is_healthy_while_it_works_and_not_before_or_after(stand: Stand) -> None:
    stand.migrate()
    assert not is_healthy(stand)
    with stand.running("etl_runner"):
        until(lambda: is_healthy(stand))
    assert not is_healthy(stand)


def test_the_api_becomes_healthy_and_answers_nobody_without_a_token(stand: Stand, api_port: int) -> None:
    stand.migrate()
    port = str(api_port)
    command = [port if part == "8000" else part for part in SERVICES["etl_api"]["command"]]
    _, python, *probe = [part.replace(":8000/", f":{port}/") for part in SERVICES["etl_api"]["healthcheck"]["test"]]
    assert python == "python"
    with stand.running("etl_api", *command):
        until(lambda: subprocess.run([sys.executable, *probe], capture_output=True, check=False).returncode == 0)
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{port}/api/v1/pipelines", timeout=60)
        with refused.value as answer:
            assert answer.code == HTTPStatus.UNAUTHORIZED


def is_healthy(stand: Stand) -> bool:
    port = SERVICES["etl_runner"]["environment"]["VITRINA_METRICS_PORT"]
    _, python, *probe = SERVICES["etl_runner"]["healthcheck"]["test"]
    assert python == "python"
    here = [part.replace(f":{port}/", f":{stand.metrics_port}/") for part in probe]
    return subprocess.run([sys.executable, *here], capture_output=True, check=False).returncode == 0


def default_of(value: str) -> str:
    """What compose makes of `${NAME:-default}` when there is no .env."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", value)
