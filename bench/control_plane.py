"""Run 200 clients on 50 pipelines for a minute: `python -m bench.control_plane` (`--clients`, `--seconds`).

The clients are one cheap process (crowd.py), and the CPU of the API's process alone is counted. The same
clients then read from a plain ASGI application under the same server, which is the upper bound for any application.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.api_cost import cpu_ms, plain
from bench.crowd import Heard, play
from bench.report import write_figures
from bench.servers import prepared
from tests.acceptance.test_control_plane_load import refuse_illegal_moves, refuse_lost_updates
from tests.integration.api import api_process
from tests.support.crowd import PIPELINES, a_runner, define_pipelines
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database

# The plain application answers the same request each time, so its figure needs less time.
CEILING_PART = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    wish = parser.parse_args()
    with prepared() as (settings, directory):
        api = exercise(settings, directory, clients=wish.clients, seconds=wish.seconds)
    ceiling = exercise_plain(clients=wish.clients, seconds=wish.seconds * CEILING_PART)
    write(api, ceiling, clients=wish.clients, seconds=wish.seconds)


@dataclass(frozen=True)
class Exercise:
    """Hold what the clients heard from a server, and the CPU of its process for all of it."""

    heard: Heard
    cpu_ms: float

    @property
    def cpu_ms_per_request(self) -> float:
        return self.cpu_ms / self.heard.requests


def exercise(settings: Settings, directory: Path, *, clients: int, seconds: float) -> Exercise:
    """Run against the real API, and check the recorded history against the rules before any figure is reported."""
    with database.connect(settings.require_database_url(), "bench") as metastore:
        _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="load", role=Role.OPERATOR)
        define_pipelines(metastore)
        with api_process(settings, directory) as (process, url), a_runner(settings):
            before = cpu_ms(process.pid)
            heard = play(int(url.rpartition(":")[2]), secret, clients=clients, seconds=seconds)
            spent = cpu_ms(process.pid) - before
        assert set(heard.statuses) <= {200, 202, 409, 412}, heard.statuses
        refuse_lost_updates(metastore, heard.patched)
        refuse_illegal_moves(metastore)
    return Exercise(heard, spent)


def exercise_plain(*, clients: int, seconds: float) -> Exercise:
    with tempfile.TemporaryDirectory() as directory, plain(Path(directory) / "plain") as side:
        before = cpu_ms(side.pid)
        heard = play(side.port, side.secret, clients=clients, seconds=seconds, only="/")
        return Exercise(heard, cpu_ms(side.pid) - before)


def write(api: Exercise, ceiling: Exercise, *, clients: int, seconds: float) -> None:
    heard = api.heard
    figures = {
        "clients": clients,
        "seconds": seconds,
        "requests": heard.requests,
        "requests_per_second": round(heard.requests / seconds),
        "p50_ms": round(1000 * heard.quantile(0.5)),
        "p99_ms": round(1000 * heard.quantile(0.99)),
        "API_CPU_ms_per_request": round(api.cpu_ms_per_request, 3),
        "plain_ASGI_CPU_ms_per_request": round(ceiling.cpu_ms_per_request, 3),
        "share_of_the_ceiling": round(ceiling.cpu_ms_per_request / api.cpu_ms_per_request, 3),
        "client_CPU_ms_per_request": round(1000 * heard.cpu_seconds / heard.requests, 3),
        "statuses": {str(status): count for status, count in sorted(heard.statuses.items())},
        "accepted_changes": sum(heard.patched.values()),
    }
    write_figures(
        "control_plane",
        "Control plane under load",
        f"Reads, run, pause and PATCH mixed on {PIPELINES} pipelines. The clients are a process of their own on the"
        " same machine, whose CPU is not counted. No 5xx, no lost update, no illegal move (checked).",
        figures,
    )


if __name__ == "__main__":
    main()
