"""Run many clients at once on few pipelines, against a runner's side of the status machine."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import httpx

from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store import leases, recovery
from vitrina.store.database import Connection

PIPELINES = 50


@dataclass
class Heard:
    """Hold the answers to the clients: status codes, seconds, accepted changes by pipeline."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    patched: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def quantile(self, part: float) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * part)]


def define_pipelines(metastore: Connection) -> None:
    metastore.execute(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table)"
        " SELECT 'p' || n, 'SELECT 1 AS id', 'analytics.p' || n FROM generate_series(0, %s) n",
        [PIPELINES - 1],
    )


async def play(url: str, secret: str, *, clients: int, seconds: float) -> Heard:
    """Let every client pick a pipeline and a verb and wait for the answer, until the time is up."""
    heard = Heard()
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients, keepalive_expiry=3)
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60, trust_env=False) as client:
        deadline = time.monotonic() + seconds

        async def act(chance: random.Random) -> None:
            while time.monotonic() < deadline:
                name = f"p{chance.randrange(PIPELINES)}"
                verb = chance.choice(["get", "status", "list", "run", "pause", "patch"])
                started = time.monotonic()
                response = await _one(client, f"/api/v1/pipelines/{name}", verb)
                heard.seconds.append(time.monotonic() - started)
                heard.statuses[response.status_code] += 1
                if verb == "patch" and response.status_code == 200:
                    heard.patched[name] += 1

        await asyncio.gather(*(act(random.Random(number)) for number in range(clients)))
    return heard


async def _one(client: httpx.AsyncClient, path: str, verb: str) -> httpx.Response:
    if verb == "get":
        return await client.get(path)
    if verb == "list":
        return await client.get("/api/v1/pipelines", params={"limit": 20})
    if verb == "status":
        return await client.get(f"{path}/status")
    if verb == "patch":
        seen = (await client.get(path)).json()
        headers = {"If-Match": f'"{seen["version"]}"'}
        return await client.patch(path, json={"batch_size": seen["batch_size"] + 1}, headers=headers)
    return await client.post(f"{path}/{verb}")


@contextmanager
def a_runner(settings: Settings) -> Iterator[None]:
    """Claim requested pipelines and conclude them as fast as possible, as the other side of the status machine."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with postgres.connect(settings.require_database_url(), "vitrina:test-runner") as connection:
                while not stop.is_set():
                    recovery.pause_unclaimed(connection)
                    claim = leases.claim_next(connection, uuid4(), 30)
                    if claim is None:
                        stop.wait(0.01)
                    else:
                        leases.conclude_run(connection, claim)
        except BaseException as exc:  # noqa: BLE001 - passed to the test below
            failures.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
