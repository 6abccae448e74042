"""A real Vitrina for tests with Airflow: API, runner, pipelines; and the gate through which Airflow speaks to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.integration.api import api_process
from tests.support.http_fault_proxy import Answer, DropConnection, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina import schemas
from vitrina.client import Client
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database as postgres

# A machine that is busy takes its time; whoever waits in vain has found a fault.
PATIENCE = 600
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
    """A request of this kind, behind the first few, stops before or after Vitrina answered it, until it is let go."""

    method: str
    ending: str
    after: bool = False
    passing: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    is_lost: bool = False

    def wait(self) -> None:
        assert self.arrived.wait(PATIENCE), f"no {self.method} …{self.ending} came"

    def let_go(self, *, lost: bool = False) -> None:
        """Let it pass; one that is lost gets no answer, although there may be one."""
        self.is_lost = lost
        self.gone.set()

    def is_about(self, request: Request) -> bool:
        return request.method == self.method and request.path.partition("?")[0].endswith(self.ending)

    def stop(self, request: Request) -> None:
        self.port = request.client_port
        self.arrived.set()
        if not self.gone.wait(PATIENCE) or self.is_lost:
            raise DropConnection


class Gate(HttpFault):
    """Holds requests back. One that Vitrina does not answer, because it was killed just then, does not count."""

    def __init__(self) -> None:
        super().__init__()
        self._holds: list[Hold] = []
        self._guard = threading.Lock()

    def hold(self, method: str, ending: str, *, after: bool = False, passing: int = 0) -> Hold:
        made = Hold(method, ending, after, passing)
        with self._guard:
            self._holds.append(made)
        return made

    def triggerer_looks_at(self, pipeline: str) -> Hold:
        """Hold what the triggerer hears first about its run; the worker looks twice before the task waits."""
        return self.hold("GET", f"/pipelines/{pipeline}/status", after=True, passing=2)

    def handle(self, request: Request, forward: Forward) -> Answer:
        self._stop(request, after=False)
        answer = forward(request)
        self._stop(request, after=True)
        with self._guard:
            for hold in self._holds:
                hold.passing -= hold.is_about(request)
        return answer

    def _stop(self, request: Request, *, after: bool) -> None:
        with self._guard:
            due = [hold for hold in self._holds if hold.after == after and not hold.passing and hold.is_about(request)]
            for hold in due[:1]:
                self._holds.remove(hold)
        for hold in due[:1]:
            hold.stop(request)


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

    def runs(self, pipeline: str) -> list[schemas.Run]:
        return self.client.list_runs(pipeline, limit=None)

    def asked(self, pipeline: str) -> int:
        """How many runs were asked for, by the audit: also those that came to nothing."""
        entries = self.client.list_audit(object=f"pipeline:{pipeline}")
        return len([entry for entry in entries if entry.action == "run"])

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


def connection_of(vitrina: Cinema) -> dict[str, Any]:
    """Airflow's connection to it; patient, so that a request that is held back is not given up."""
    return {
        "conn_type": "vitrina",
        "host": vitrina.gate.url,
        "password": vitrina.token,
        "extra": json.dumps({"timeout_seconds": PATIENCE}),
    }
