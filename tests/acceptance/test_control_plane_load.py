"""Many clients at once on few pipelines: no 5xx, no lost update, no illegal transition in the recorded history."""

import asyncio
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.integration.api import api_process
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import MOVES
from vitrina.store import database as postgres
from vitrina.store import leases, recovery
from vitrina.store.database import Connection

# The whole exercise: VITRINA_LOAD_SECONDS=60 VITRINA_LOAD_CLIENTS=200
SECONDS = float(os.environ.get("VITRINA_LOAD_SECONDS", "6"))
CLIENTS = int(os.environ.get("VITRINA_LOAD_CLIENTS", "60"))
PIPELINES = 50
LEGAL = {(move.source, move.target) for move in MOVES}

pytestmark = pytest.mark.timeout(300)


def test_many_clients_on_few_pipelines(database: Settings, metastore: Connection, tmp_path: Path) -> None:
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="load", role=Role.OPERATOR)
    metastore.execute(
        "INSERT INTO etl.etl_pipelines (name, source_query, target_table)"
        " SELECT 'p' || n, 'SELECT 1 AS id', 'analytics.p' || n FROM generate_series(0, %s) n",
        [PIPELINES - 1],
    )
    with api_process(database, tmp_path) as (_, url), a_runner(database):
        statuses, seconds, patched = asyncio.run(play(url, secret))

    total = sum(statuses.values())
    ordered = sorted(seconds)
    sys.stdout.write(
        f"\n{CLIENTS} clients, {SECONDS:g} s: {total} requests, {total / SECONDS:.0f}/s,"
        f" p50 {1000 * ordered[len(ordered) // 2]:.0f} ms, p99 {1000 * ordered[int(len(ordered) * 0.99)]:.0f} ms,"
        f" {dict(sorted(statuses.items()))}\n"
    )
    assert total > CLIENTS
    assert {status for status in statuses if status >= 500} == set()
    assert set(statuses) <= {200, 202, 409, 412}

    # Every accepted change raised the version by one, and none was overwritten unseen.
    versions = metastore.execute("SELECT name, version, batch_size FROM etl.etl_pipelines").fetchall()
    for row in versions:
        assert row["version"] == 1 + patched[row["name"]], row
        # Each client wrote the number that it had read plus one.
        assert row["batch_size"] == 5000 + patched[row["name"]], row
    assert sum(patched.values()) > 0

    history = metastore.execute(
        "SELECT payload ->> 'pipeline' AS name, payload ->> 'from' AS before, payload ->> 'to' AS after"
        " FROM etl.etl_events WHERE topic = 'status' ORDER BY id"
    ).fetchall()
    assert history
    at = dict.fromkeys((row["name"] for row in versions), "IDLE")
    for move in history:
        assert move["before"] == at[move["name"]], move  # no move was made from a status that was no longer there
        assert (move["before"], move["after"]) in LEGAL, move
        at[move["name"]] = move["after"]


async def play(url: str, secret: str) -> tuple[Counter[int], list[float], Counter[str]]:
    statuses: Counter[int] = Counter()
    seconds: list[float] = []
    patched: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS, keepalive_expiry=3)
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60, trust_env=False) as client:
        deadline = time.monotonic() + SECONDS

        async def act(chance: random.Random) -> None:
            while time.monotonic() < deadline:
                name = f"p{chance.randrange(PIPELINES)}"
                path = f"/api/v1/pipelines/{name}"
                verb = chance.choice(["get", "status", "list", "run", "pause", "patch"])
                started = time.monotonic()
                response = await one(client, path, verb)
                seconds.append(time.monotonic() - started)
                statuses[response.status_code] += 1
                if verb == "patch" and response.status_code == 200:
                    patched[name] += 1

        await asyncio.gather(*(act(random.Random(number)) for number in range(CLIENTS)))
    return statuses, seconds, patched


async def one(client: httpx.AsyncClient, path: str, verb: str) -> httpx.Response:
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
    """Takes up requests and concludes them, as fast as it can: the other side of the status machine."""
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
        except BaseException as exc:  # noqa: BLE001 - handed to the test below
            failures.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
