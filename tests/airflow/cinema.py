"""A real Vitrina for tests with Airflow: API, runner, pipelines; and the gate through which Airflow speaks to it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.integration.api import api_process
from tests.support.http_fault_proxy import Answer, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina import answers
from vitrina.client import Client
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database as postgres

# Waited for in small steps, so that no limit of the runner's for locks ends the wait.
GATES = 4711
GATE = f"""
CREATE FUNCTION content.gate(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT pg_try_advisory_lock_shared({GATES}, hashtext(name)) LOOP
        PERFORM pg_sleep(0.1);
    END LOOP;
    PERFORM pg_advisory_unlock_shared({GATES}, hashtext(name));
    RETURN true;
END $$
"""


@dataclass
class Hold:
    """A request of this kind, behind the first few, stops before or after it reached Vitrina, until it is let go."""

    method: str
    ending: str
    after: bool = False
    passing: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def wait(self) -> None:
        assert self.arrived.wait(600), f"no {self.method} …{self.ending} came"

    def let_go(self) -> None:
        self.gone.set()

    def takes(self, request: Request) -> bool:
        if request.method != self.method or not request.path.partition("?")[0].endswith(self.ending):
            return False
        self.passing -= 1
        return self.passing < 0


class Gate(HttpFault):
    """Holds requests back."""

    def __init__(self) -> None:
        super().__init__()
        self._holds: list[Hold] = []
        self._guard = threading.Lock()

    def hold(self, method: str, ending: str, *, after: bool = False, passing: int = 0) -> Hold:
        made = Hold(method, ending, after, passing)
        with self._guard:
            self._holds.append(made)
        return made

    def handle(self, request: Request, forward: Forward) -> Answer:
        with self._guard:
            held = next((hold for hold in self._holds if hold.takes(request)), None)
            if held:
                self._holds.remove(held)
                held.port = request.client_port
                if not held.after:
                    held.arrived.set()
        if held is None:
            return forward(request)
        if not held.after:
            held.gone.wait(600)
            return forward(request)
        answer = forward(request)
        held.arrived.set()
        held.gone.wait(600)
        return answer


class Cinema:
    """A Vitrina with any number of small pipelines, each with a table of its own as source."""

    def __init__(self, settings: Settings, directory: Path, token: str, gate: HttpFaultProxy) -> None:
        self.settings = settings
        self.directory = directory
        self.token = token
        self.gate = gate
        self.holds = Gate()
        gate.fault = self.holds
        self.client = Client("http://127.0.0.1:1")
        self._api = ExitStack()
        self._lock = threading.Lock()
        self._made = 0

    def start_api(self) -> None:
        """Start an API; on another port than the one before, which the gate knows."""
        process, url = self._api.enter_context(api_process(self.settings, self.directory))
        self.gate.server_port = int(url.rpartition(":")[2])
        self.client.close()
        self.client = Client(url, self.token)
        self.process = process

    def kill_api(self) -> None:
        self.process.kill()
        self._api.close()

    def pipeline(self, rows: int = 10, *, name: str | None = None, **fields: Any) -> str:
        """Make a pipeline with so many rows to load."""
        with self._lock:
            self._made += 1
            name = name or f"p{self._made}"
        assert self.settings.admin_url
        with psycopg.connect(self.settings.admin_url.get_secret_value(), autocommit=True) as admin:
            for statement in (
                f"CREATE TABLE content.{name}_rows (id integer PRIMARY KEY)",
                f"INSERT INTO content.{name}_rows SELECT generate_series(1, {rows})",
                f"CREATE VIEW content.{name} AS SELECT id FROM content.{name}_rows WHERE content.gate('{name}')",
                f"GRANT SELECT ON content.{name}, content.{name}_rows TO vitrina_reader",
            ):
                admin.execute(statement.encode())
        definition = {
            "name": name,
            "source_query": f"SELECT id FROM content.{name}",
            "target_table": f"analytics.{name}",
            "target_key": ["id"],
        }
        self.client.create_pipeline(definition | fields)
        return name

    def runs(self, pipeline: str) -> list[answers.Run]:
        return self.client.list_runs(pipeline, limit=None)

    @contextmanager
    def blocked(self, *pipelines: str) -> Iterator[None]:
        """Runs of these pipelines begin, and do not get on, for the length of the block."""
        assert self.settings.admin_url
        with psycopg.connect(self.settings.admin_url.get_secret_value()) as admin:
            for name in pipelines:
                admin.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [GATES, name])
            yield

    def close(self) -> None:
        self.client.close()
        self._api.close()


@contextmanager
def cinema(settings: Settings, directory: Path) -> Iterator[Cinema]:
    """A whole Vitrina; its processes end with the block."""
    with postgres.connect(settings.require_database_url(), "vitrina:test") as metastore:
        _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="airflow", role=Role.ADMIN)
    assert settings.admin_url
    with psycopg.connect(settings.admin_url.get_secret_value(), autocommit=True) as admin:
        admin.execute(GATE.encode())
    with HttpFaultProxy(1) as gate, runner_process(settings, directory):
        made = Cinema(settings, directory, secret, gate)
        made.start_api()
        until(lambda: bool(made.client.list_runners()))
        try:
            yield made
        finally:
            made.close()
