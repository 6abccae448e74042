"""Measure what a start costs: `python -m bench.start` (`--rounds 15`), CPU of short commands and memory of a runner.

Commands call a real API, and only the CPU of their own process counts, from the start of Python to its exit. Commands
take turns, so that changes of the machine's speed affect all. The memory is that of a runner at rest, and after runs
that need more of it: what a run has loaded stays.
"""

import argparse
import os
import resource
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.report import write_table
from bench.servers import prepared
from bench.small_runs import QUERY, Sessions, define, open_sessions, run
from tests.integration.api import api_process
from tests.support.processes import VITRINA, runner_process
from tests.support.waiting import until
from vitrina.definition import Definition
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import pipelines

WANTED_SECONDS = 0.35
# The last one calls nothing, and is there to compare.
COMMANDS = {
    "`vitrina status full`": ["status", "full"],
    "`vitrina pipelines`": ["pipelines"],
    "`vitrina runs full`": ["runs", "full"],
    "`vitrina state full`": ["state", "full"],
    "`vitrina run full`": ["run", "full"],
    "`vitrina --help`": ["--help"],
}
# By then a runner has started all its threads and looked for everything that it repeats rarely.
REST_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    wish = parser.parse_args()
    with prepared() as (settings, directory), open_sessions(settings) as sessions:
        define(sessions)
        memory = measure_memory(sessions, settings, directory)
        commands = measure_commands(sessions, settings, directory, wish.rounds)
    write(commands, memory, wish.rounds)


@dataclass(frozen=True)
class Memory:
    """Hold the memory of a runner, and whether it has loaded pyarrow."""

    resident_mb: float
    has_pyarrow: bool


def measure_memory(sessions: Sessions, settings: Settings, directory: Path) -> dict[str, Memory]:
    fields = {"name": "arrow", "source_query": QUERY, "target_table": "analytics.arrow", "target_key": ["id"]}
    through_arrow = Definition.model_validate(fields | {"options": {"route": "arrow"}})
    pipelines.insert(sessions.metastore, through_arrow, pipeline_id=None, managed_by=None)
    found = {}
    with runner_process(settings, directory) as runner:
        until(lambda: sessions.metastore.execute("SELECT FROM etl.etl_runners").fetchone() is not None)
        found["a runner at rest"] = _memory_after_rest(runner.pid)
        for kind in ("full", "incremental"):
            run(sessions, kind)
        found["after runs within one database"] = _memory_after_rest(runner.pid)
        run(sessions, "arrow")
        found["after a run through Arrow"] = _memory_after_rest(runner.pid)
    return found


def _memory_after_rest(pid: int) -> Memory:
    time.sleep(REST_SECONDS)
    process = Path(f"/proc/{pid}")
    resident = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    return Memory(int(resident.split()[1]) / 1024, "libarrow" in (process / "maps").read_text())


def measure_commands(sessions: Sessions, settings: Settings, directory: Path, rounds: int) -> dict[str, list[float]]:
    _, secret = tokens.create(sessions.metastore, Caller("setup", Role.ADMIN), name="start", role=Role.OPERATOR)
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with api_process(settings, directory) as (_, url):
        environment = {"PATH": os.environ["PATH"], "VITRINA_API_URL": url, "VITRINA_TOKEN": secret}
        for number in range(-1, rounds):  # the first round compiles and caches
            for name, words in COMMANDS.items():
                spent = _cpu_seconds(words, environment, directory)
                if number >= 0:
                    found[name].append(spent)
    return found


def _cpu_seconds(words: list[str], environment: dict[str, str], directory: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([VITRINA, *words], env=environment, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write(commands: dict[str, list[float]], memory: dict[str, Memory], rounds: int) -> None:
    rows: dict[str, dict[str, object]] = {}
    for name, spent in commands.items():
        median = statistics.median(spent)
        rows[name] = {
            "CPU_s": f"{median:.2f}",
            "from_to": f"{min(spent):.2f} to {max(spent):.2f}",
            "goal": WANTED_SECONDS,
            "met": "yes" if median <= WANTED_SECONDS else "**no**",
        }
    for name, found in memory.items():
        rows[name] = {"memory_MB": round(found.resident_mb), "has_pyarrow": "yes" if found.has_pyarrow else "no"}
    intro = (
        "Seconds of CPU of commands that call an API on the same machine, from the start of the process to its exit;"
        " and the resident memory of a runner."
    )
    write_table("start", "What a start costs", intro, rows, {"rounds": rounds})


if __name__ == "__main__":
    main()
