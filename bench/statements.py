"""Print what each statement of a load took, by the server's own clock, for Vitrina and for the hand-written one.

python -m bench.statements [--rows 1000000] [--only full,first_pass,upsert,aggregate] [--repeat 2]
"""

import argparse
import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

from bench import references
from bench.cinema import FILMS
from bench.postgres import bench
from bench.report import timed
from bench.scenarios import INCREMENTAL, Bench

ENTRY = re.compile(r"LOG:  duration: ([\d.]+) ms  \w+[^:]*: +(.*(?:\n\t.*)*)")
# What differs from run to run: values, and names of stages.
CHANGING = re.compile(r"'[^']*'|-?\b\d+\b|p_[0-9a-f]+_\w+")
SHOWN = 10
# Lines are written to the file a moment after their statement.
LOG_SECONDS = 0.3


def main() -> None:
    arguments = parse()
    arguments.peers, arguments.bindir = [], None
    with bench(arguments) as measured:
        measured.warm_up()
        log = _log_everything(measured)
        for _ in range(arguments.repeat):
            for name in arguments.only:
                SCENARIOS[name](measured, log)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--home", type=Path, default=Path(gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _log_everything(measured: Bench) -> Path:
    with measured.cinema.connect() as connection:
        connection.execute("ALTER SYSTEM SET log_min_duration_statement = 0")
        connection.execute("SELECT pg_reload_conf()")
        [directory] = connection.execute("SHOW data_directory").fetchone() or [""]
    return Path(directory).parents[1] / "postgres.log"


def _full(measured: Bench, log: Path) -> None:
    show("by hand: fresh table", log, lambda: references.fresh_table(measured.cinema))
    show("full load into an empty mart", log, measured.load_films)


def _first_pass(measured: Bench, log: Path) -> None:
    show("first pass of an incremental one", log, measured.load_incremental)


def _upsert(measured: Bench, log: Path) -> None:
    references.fresh_table(measured.cinema)
    measured.platform.define("films_incremental", FILMS, **INCREMENTAL)
    measured.platform.run("films_incremental")
    measured.spoil_incremental()
    show("by hand: batched upsert", log, lambda: references.batched_upsert(measured.cinema))
    show("incremental upsert", log, lambda: measured.platform.run("films_incremental"))


def _aggregate(measured: Bench, log: Path) -> None:
    show("by hand: aggregate", log, lambda: references.aggregate(measured.cinema))
    show("aggregate", log, measured.load_ratings)


SCENARIOS: dict[str, Callable[[Bench, Path], None]] = {
    "full": _full,
    "first_pass": _first_pass,
    "upsert": _upsert,
    "aggregate": _aggregate,
}


def show(work: str, log: Path, do: Callable[[], object]) -> None:
    time.sleep(LOG_SECONDS)
    begin = log.stat().st_size
    seconds = timed(do)
    time.sleep(LOG_SECONDS)
    with log.open("rb") as file:
        file.seek(begin)
        written = file.read().decode(errors="replace")
    took: dict[str, list[float]] = defaultdict(list)
    for found in ENTRY.finditer(written):
        took[CHANGING.sub("?", " ".join(found[2].split()))].append(float(found[1]))
    print(f"\n{work}: {seconds:.2f} s")
    for statement, times in sorted(took.items(), key=lambda entry: -sum(entry[1]))[:SHOWN]:
        print(f"{sum(times):9.1f} ms {len(times):5} x  {statement[:110]}", flush=True)


if __name__ == "__main__":
    main()
