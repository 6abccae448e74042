"""Run 200 clients on 50 pipelines for a minute: `python -m bench.control_plane` (`--clients`, `--seconds`)."""

import argparse
import asyncio
from pathlib import Path

from bench.report import write_figures
from bench.servers import prepared
from tests.acceptance.test_control_plane_load import refuse_illegal_moves, refuse_lost_updates
from tests.integration.api import api_process
from tests.support.crowd import PIPELINES, Heard, a_runner, define_pipelines, play
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    wish = parser.parse_args()
    with prepared() as (settings, directory):
        heard = exercise(settings, directory, clients=wish.clients, seconds=wish.seconds)
    write(heard, clients=wish.clients, seconds=wish.seconds)


def exercise(settings: Settings, directory: Path, *, clients: int, seconds: float) -> Heard:
    """Run against the real API, and check the recorded history against the rules before any figure is reported."""
    with database.connect(settings.require_database_url(), "bench") as metastore:
        _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="load", role=Role.OPERATOR)
        define_pipelines(metastore)
        with api_process(settings, directory) as (_, url), a_runner(settings):
            heard = asyncio.run(play(url, secret, clients=clients, seconds=seconds))
        assert set(heard.statuses) <= {200, 202, 409, 412}, heard.statuses
        refuse_lost_updates(metastore, heard.patched)
        refuse_illegal_moves(metastore)
    return heard


def write(heard: Heard, *, clients: int, seconds: float) -> None:
    figures = {
        "clients": clients,
        "seconds": seconds,
        "requests": heard.requests,
        "requests_per_second": round(heard.requests / seconds),
        "p50_ms": round(1000 * heard.quantile(0.5)),
        "p99_ms": round(1000 * heard.quantile(0.99)),
        "statuses": {str(status): count for status, count in sorted(heard.statuses.items())},
        "accepted_changes": sum(heard.patched.values()),
    }
    write_figures(
        "control_plane",
        "Control plane under load",
        f"Reads, run, pause and PATCH mixed on {PIPELINES} pipelines; clients and API share the machine. No 5xx,"
        " no lost update, no illegal move (checked).",
        figures,
    )


if __name__ == "__main__":
    main()
