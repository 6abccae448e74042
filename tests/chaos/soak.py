"""Run steady work for an hour: memory, connections and lag stay flat. `python -m tests.chaos.soak --every 2s`."""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import gil
from tests.chaos.arena import KINDS, STEPPED, Arena
from tests.conftest import settings_for
from vitrina.embedded.cluster import DATABASE
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database, requests
from vitrina.store.migrate import migrate

SAMPLE_SECONDS = 10.0
# How long a change may take to reach its mart; schedules of a few seconds leave this much room.
LAG_LIMIT_SECONDS = 30.0
LOOK_SECONDS = 0.2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Queries that produce large plans, large JSON and large rows; the last passes a step.
GIANTS: dict[str, tuple[str, ...]] = {
    "SELECT 1 AS id, repeat('x', 100000000) AS x": (),
    "SELECT i AS id, (SELECT jsonb_agg(j) FROM generate_series(1, 900) j) AS x FROM generate_series(1, 1000) i": (),
    "SELECT i AS id, 1 AS version, repeat('x', 7000) AS applied FROM generate_series(1, 1000) AS i": ("arena_drop",),
}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """Hold one measurement."""

    megabytes: float
    connections: int
    lag_seconds: float
    cores: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", default="2s", help="the schedule of each of the five pipelines")
    parser.add_argument("--giants", action="store_true", help="ask for previews of very large plans, JSON and rows")
    options = parser.parse_args()
    with TemporaryServer() as server, tempfile.TemporaryDirectory() as directory:
        settings = settings_for(server, DATABASE)
        with database.connect(server.urls.admin, "vitrina:soak") as admin:
            admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings)
        watched = {"CHAOS_WATCH_GIL": "1"}
        with Arena(settings, Path(directory), lease_seconds=10.0, environment=watched) as arena:
            arena.prepare([kind for kind in KINDS if kind not in STEPPED], schedule_interval=options.every)
            arena.start_runners(2)
            samples = _work(arena, options.minutes * 60, giants=options.giants)
            arena.sql("UPDATE etl.etl_pipelines SET schedule_interval = NULL")
            arena.await_quiet()
            arena.request(*arena.ids)
            arena.await_quiet()
            held = gil.longest(arena.plans)
            resting = _resting_connections(arena)
            problems = [*arena.violations(), *_judge(samples, resting), *_judge_held(held, gil.stacks(arena.plans))]
            runs = arena.sql("SELECT status, count(*) AS n FROM etl.etl_runs GROUP BY 1 ORDER BY 1")
            failed = arena.sql(
                "SELECT coalesce(error_code, 'no code') || ', ' || attempts || ' attempt(s): ' || error_message AS why,"
                " count(*) AS n FROM etl.etl_runs WHERE status = 'FAILED' GROUP BY 1"
            )
    _tell(samples)
    sys.stdout.write(f"longest time without any other Python: {', '.join(f'{s:.2f} s' for s in held.values())}\n")
    sys.stdout.write(f"runs kept: { {row['status']: row['n'] for row in runs} }\n")
    for row in failed:
        sys.stdout.write(f"{row['n']} run(s) failed: {row['why']}\n")
    for problem in problems or ["flat: nothing grew, nothing lagged, nothing was lost or doubled"]:
        sys.stdout.write(f"{problem}\n")
    return int(bool(problems))


def _work(arena: Arena, seconds: float, *, giants: bool) -> list[Sample]:
    samples = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began, busy = time.monotonic(), _cpu_seconds(arena)
        arena.change_source()
        if giants:
            _ask_for_giants(arena)
        lag = _arrival(arena)
        time.sleep(max(0.0, began + SAMPLE_SECONDS - time.monotonic()))
        cores = (_cpu_seconds(arena) - busy) / (time.monotonic() - began)
        samples.append(Sample(_megabytes(arena), _connections(arena), lag, cores))
        sys.stdout.write(f"{samples[-1]}\n")
        sys.stdout.flush()
        # The record of every row ever applied belongs to the test and would grow forever.
        arena.sql("DELETE FROM audit.applied WHERE seq < (SELECT max(seq) - 20000 FROM audit.applied)")
    return samples


def _ask_for_giants(arena: Arena) -> None:
    """Request previews that keep a runner busy: a plan of many megabytes, JSON of maximum size, a step."""
    for query, steps in GIANTS.items():
        tasks = [{"order_index": 0, "task_type": "SQL", "body": query}]
        tasks += [{"order_index": i, "task_type": "PYTHON", "body": name} for i, name in enumerate(steps, 1)]
        definition = {"name": "giant", "source_query": query, "target_table": "analytics.giant", "target_key": ["id"]}
        payload = {"definition": definition | ({"tasks": tasks} if steps else {}), "limit": 1000}
        requests.insert(arena.admin, "preview", None, payload, "soak")


def _arrival(arena: Arena) -> float:
    """Return the seconds until the last change is in the mart, or a bit more than the limit if it does not arrive."""
    began = time.monotonic()
    while time.monotonic() < began + LAG_LIMIT_SECONDS:
        [row] = arena.sql(
            "SELECT count(*) AS behind FROM content.item i LEFT JOIN analytics.inc_pages m USING (id)"
            " WHERE m.version IS DISTINCT FROM i.version"
        )
        if not row["behind"]:
            break
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def _connections(arena: Arena) -> int:
    [row] = arena.sql("SELECT count(*) AS n FROM pg_stat_activity WHERE application_name LIKE 'vitrina:%'")
    return int(row["n"])


def _resting_connections(arena: Arena) -> int:
    """Return the fewest connections seen when no run is active, as sessions that end are visible a little longer."""
    end = time.monotonic() + LAG_LIMIT_SECONDS
    fewest = _connections(arena)
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        fewest = min(fewest, _connections(arena))
    return fewest


def _megabytes(arena: Arena) -> float:
    statms = [Path(f"/proc/{runner.process.pid}/statm").read_text() for runner in arena.runners]
    return sum(int(statm.split()[1]) * PAGE_BYTES for statm in statms) / 1e6


def _cpu_seconds(arena: Arena) -> float:
    """Return the CPU time of the runners: fields 14 and 15 (user and system), counted after the name in brackets."""
    stats = [Path(f"/proc/{runner.process.pid}/stat").read_text() for runner in arena.runners]
    return sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats) / TICKS_PER_SECOND


def _tell(samples: list[Sample]) -> None:
    """Print the four quarters next to each other, so that growth shows."""
    size = max(1, len(samples) // 4)
    for name in ("megabytes", "connections", "lag_seconds", "cores"):
        quarters = [[getattr(s, name) for s in samples[i * size : (i + 1) * size]] for i in range(4)]
        means = "  ".join(f"{statistics.mean(part):8.2f}" for part in quarters if part)
        least = "  ".join(f"{min(part):8.2f}" for part in quarters if part)
        worst = max(getattr(sample, name) for sample in samples)
        sys.stdout.write(f"{name:12} mean of each quarter {means}   lowest {least}   highest {worst:.2f}\n")


def _judge_held(held: dict[int, float], stacks: str) -> list[str]:
    if not held:
        return ["no runner told for how long it could run no Python"]
    return [
        f"runner {pid} could run no other Python for {seconds:.1f} s: {stacks}"
        for pid, seconds in held.items()
        if seconds > gil.LIMIT_SECONDS
    ]


def _judge(samples: list[Sample], resting: int) -> list[str]:
    """Compare the second half with the first, after a tenth for warming up."""
    settled = samples[max(1, len(samples) // 10) :]
    early, late = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    if not early:
        return ["too short to tell: give it more --minutes"]
    problems = []
    before, after = (statistics.mean(sample.megabytes for sample in part) for part in (early, late))
    if after > before * 1.1:
        problems.append(f"megabytes grew from {before:.1f} to {after:.1f}")
    # Any measurement may fall into the middle of runs on a busy machine. What leaks is there at rest, too.
    before, after = (min(sample.connections for sample in part) for part in (early, late))
    if min(after, resting) > before:
        problems.append(f"connections at rest grew from {before} to {min(after, resting)}")
    worst = max(sample.lag_seconds for sample in settled)
    if worst > LAG_LIMIT_SECONDS:
        problems.append(f"a change waited {worst:.1f} s for its mart")
    return problems


if __name__ == "__main__":
    sys.exit(main())
