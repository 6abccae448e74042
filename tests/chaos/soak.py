"""An hour of steady work: memory, connections and lag stay flat. `python -m tests.chaos.soak [--minutes 60]`."""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.arena import KINDS, Arena
from tests.conftest import settings_for
from vitrina.embedded.cluster import DATABASE
from vitrina.embedded.temporary import TemporaryServer
from vitrina.store import database
from vitrina.store.migrate import migrate

SAMPLE_SECONDS = 10.0
# A lag is a change that is not in a mart yet; schedules of two seconds and five pipelines leave this much room.
LAG_LIMIT_SECONDS = 30.0


@dataclass(frozen=True)
class Sample:
    """One look."""

    megabytes: float
    connections: int
    lag_seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    with TemporaryServer() as server, tempfile.TemporaryDirectory() as directory:
        settings = settings_for(server, DATABASE)
        with database.connect(server.urls.admin, "vitrina:soak") as admin:
            admin.execute("CREATE SCHEMA content; CREATE SCHEMA ugc")
        migrate(settings)
        with Arena(settings, Path(directory), lease_seconds=10.0) as arena:
            arena.prepare(list(KINDS), schedule_interval="2s")
            arena.start_runners(2)
            samples = _work(arena, minutes * 60)
            arena.sql("UPDATE etl.etl_pipelines SET schedule_interval = NULL")
            arena.await_quiet()
            arena.request(*arena.ids)
            arena.await_quiet()
            problems = [*arena.violations(), *_judge(samples)]
    for problem in problems or ["flat: nothing grew, nothing lagged, nothing was lost or doubled"]:
        sys.stdout.write(f"{problem}\n")
    return int(bool(problems))


def _work(arena: Arena, seconds: float) -> list[Sample]:
    samples = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        arena.change_source()
        time.sleep(SAMPLE_SECONDS)
        samples.append(_look(arena))
        sys.stdout.write(f"{samples[-1]}\n")
        sys.stdout.flush()
        # The record of every row ever applied is the test's own and would grow for ever.
        arena.sql("DELETE FROM audit.applied WHERE seq < (SELECT max(seq) - 20000 FROM audit.applied)")
    return samples


def _look(arena: Arena) -> Sample:
    [row] = arena.sql(
        """
        SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'vitrina:%') AS connections,
               (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - i.updated_at)), 0)::float8
                FROM content.item i LEFT JOIN analytics.inc_pages m USING (id)
                WHERE m.version IS DISTINCT FROM i.version) AS lag
        """
    )
    return Sample(sum(_megabytes(r.process.pid) for r in arena.runners), row["connections"], row["lag"])


def _megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _judge(samples: list[Sample]) -> list[str]:
    """The first tenth is warming up; after it, the second half may not be above the first."""
    settled = samples[max(1, len(samples) // 10) :]
    early, late = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    if not early:
        return ["too short to tell: give it more --minutes"]
    problems = []
    for name, allowance in (("megabytes", 1.1), ("connections", 1.25)):
        before, after = (statistics.mean(getattr(s, name) for s in part) for part in (early, late))
        if after > before * allowance:
            problems.append(f"{name} grew from {before:.1f} to {after:.1f}")
    worst = max(sample.lag_seconds for sample in settled)
    if worst > LAG_LIMIT_SECONDS:
        problems.append(f"a change waited {worst:.1f} s for its mart")
    return problems


if __name__ == "__main__":
    sys.exit(main())
