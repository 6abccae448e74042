"""CPU of a triggerer with a thousand deferred tasks: `python -m bench.airflow_deferred`, after `make test-airflow`.

A real API and the provider's own triggers, in one event loop as a triggerer runs them, in Airflow's environment. What
counts is the CPU time of that process: for each look, and for all looks of a thousand tasks at the default pace.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--triggers", type=int, default=1000)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--poll-seconds", type=float, default=10)
    arguments.add_argument("--watch", nargs="*", help=argparse.SUPPRESS)
    wanted = arguments.parse_args()
    if wanted.watch is not None:
        asyncio.run(watch(wanted.watch, wanted.triggers, wanted.seconds, wanted.poll_seconds))
        return
    found = measure(wanted.triggers, wanted.seconds, wanted.poll_seconds)
    (ROOT / "bench/results/airflow_deferred.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    sys.exit(found["cores_at_full_pace"] >= 1)


def measure(triggers: int, seconds: float, poll_seconds: float) -> dict[str, float]:
    """Start a Vitrina whose pipelines wait for a runner that never comes, and watch them."""
    from tests.conftest import settings_for
    from tests.integration.api import create, serving, without_auth
    from vitrina.embedded.temporary import TemporaryServer
    from vitrina.store.migrate import migrate

    with TemporaryServer() as server, tempfile.TemporaryDirectory() as home:
        settings = without_auth(settings_for(server, "postgres"), log_level="error")
        migrate(settings)
        with serving(settings) as api:
            watched = []
            for number in range(20):
                name = create(api, name=f"p{number}")["name"]
                asked = api.post(f"/api/v1/pipelines/{name}/run").raise_for_status().json()
                watched.append(f"{name}={asked['run_requested_at']}")
            pace = ["--triggers", str(triggers), "--seconds", str(seconds), "--poll-seconds", str(poll_seconds)]
            told = subprocess.run(
                [ROOT / ".airflow/bin/python", __file__, *pace, "--watch", *watched],
                env={
                    "PATH": os.environ["PATH"],
                    "AIRFLOW_HOME": home,
                    "AIRFLOW_CONN_VITRINA_DEFAULT": json.dumps({"conn_type": "vitrina", "host": str(api.base_url)}),
                },
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


async def watch(watched: list[str], triggers: int, seconds: float, poll_seconds: float) -> None:
    """What the triggerer does with them; in Airflow's environment."""
    from vitrina_airflow.api import AsyncApi
    from vitrina_airflow.triggers import VitrinaRunTrigger

    looks = 0
    look = AsyncApi.look

    async def counted(api: AsyncApi, request: object) -> object:
        nonlocal looks
        looks += 1
        return await look(api, request)

    AsyncApi.look = counted
    requests = [one.partition("=") for one in watched]

    async def follow(number: int) -> None:
        pipeline, _, asked = requests[number % len(requests)]
        trigger = VitrinaRunTrigger(
            conn_id="vitrina_default", poll_seconds=poll_seconds, pipeline=pipeline, requested_at=asked
        )
        async for event in trigger.run():
            raise AssertionError(f"nothing was to end: {event}")

    following = [asyncio.create_task(follow(number)) for number in range(triggers)]
    await asyncio.sleep(poll_seconds * 2)
    before, looks, began = cpu_seconds(), 0, time.monotonic()
    await asyncio.sleep(seconds)
    spent, passed = cpu_seconds() - before, time.monotonic() - began
    assert not any(task.done() for task in following)
    for task in following:
        task.cancel()
    per_look = spent / looks
    told = {
        "triggers": triggers,
        "poll_seconds": poll_seconds,
        "looks_per_second": round(looks / passed, 1),
        "cpu_milliseconds_per_look": round(per_look * 1000, 3),
        "cores_measured": round(spent / passed, 3),
        "cores_at_full_pace": round(per_look * triggers / poll_seconds, 3),
    }
    print(json.dumps(told))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
