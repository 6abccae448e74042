"""Compare the CPU of the same loads with two revisions: `python -m bench.compare_revisions OTHER_CHECKOUT [--pairs 9]`.

Each revision is a checkout with its own environment, servers and runner; this one is compared with the other. Loads
alternate, and the order changes from pair to pair, so that changes of the machine's speed affect both. The CPU seconds
of the runner, of its workers and of both PostgreSQL servers are counted, which vary far less than wall time on a busy
machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

LOADS = (
    *("full", "reload", "first_pass", "upsert", "remote", "arrow_step", "row_step", "aggregate"),
    *("full_existing", "small_reload", "small_incremental"),
)
# Into indexes of one server, which both sides use, each its own index.
SEARCH_LOADS = ("search_full", "search_upsert")
HERE = Path(__file__).resolve().parent.parent
WANTED_PERCENT = 5.0
# By then, other threads have finished what a run left to them, such as log lines.
_SETTLE_SECONDS = 0.3


def main() -> None:
    arguments = parse()
    if arguments.serve:
        serve(arguments)
        return
    with ExitStack() as stack:
        if set(arguments.only) & set(SEARCH_LOADS):
            from vitrina.embedded import search_server

            server = stack.enter_context(search_server.running(arguments.kind))
            os.environ |= {"ELASTICSEARCH_URL": server.url, "VITRINA_ALLOWED_TARGETS": "analytics.*,es:*"}
        sides = [Side("this", HERE, arguments), Side("other", arguments.other.resolve(), arguments)]
        for side in sides:
            stack.callback(side.stop)
        compare(sides[0], sides[1], arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="a checkout of the revision to compare with")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(LOADS), help=", ".join((*LOADS, *SEARCH_LOADS))
    )
    parser.add_argument("--kind", default="elasticsearch-8", help="of the search server")
    parser.add_argument("--name", default="revisions", help="of the file in bench/results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass
class Turn:
    """Hold one load: wall-clock seconds, and seconds of CPU."""

    seconds: float
    runner: float
    postgres: float

    @property
    def cpu(self) -> float:
        return self.runner + self.postgres


@dataclass
class Measured:
    """Hold the turns of one load, pair by pair."""

    load: str
    this: list[Turn] = field(default_factory=list)
    other: list[Turn] = field(default_factory=list)

    def percents(self, of: Callable[[Turn], float]) -> list[float]:
        return [100 * (of(one) / of(another) - 1) for one, another in zip(self.this, self.other, strict=True)]

    def line(self) -> str:
        percents = self.percents(lambda turn: turn.cpu)
        low, high = _quartiles(percents)
        cpu = statistics.median(turn.cpu for turn in self.this), statistics.median(turn.cpu for turn in self.other)
        return (
            f"| {self.load} | {cpu[1]:.2f} | {cpu[0]:.2f} | {statistics.median(percents):+.1f} % |"
            f" {low:+.1f} to {high:+.1f} % |"
        )


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


class Side:
    """Run the requested loads in a checkout, and report what they took."""

    def __init__(self, name: str, checkout: Path, arguments: argparse.Namespace) -> None:
        self.revision = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=checkout, capture_output=True, text=True, check=True
        ).stdout.strip()
        self._process = subprocess.Popen(
            [checkout / ".venv/bin/python", Path(__file__), "--serve", "--rows", str(arguments.rows)],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout), "VITRINA_BENCH_SIDE": name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, load: str) -> Turn:
        assert self._process.stdin
        assert self._process.stdout
        print(load, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the benchmark of {self.revision} ended in {load}")
        return Turn(**json.loads(answer))

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def compare(this: Side, other: Side, arguments: argparse.Namespace) -> None:
    measured = {load: Measured(load) for load in arguments.only}
    worse: list[str] = []
    for load in arguments.only:  # warm up both
        this.turn(load)
        other.turn(load)
    for number in range(arguments.pairs):
        for load, found in measured.items():
            order = ((this, found.this), (other, found.other))
            for side, turns in order if number % 2 else reversed(order):
                turns.append(side.turn(load))
        print(f"\npair {number + 1} of {arguments.pairs}, load average {os.getloadavg()[0]:.1f}", flush=True)
        worse = _write(arguments, this.revision, other.revision, list(measured.values()))
    if worse:
        sys.exit(f"more than {WANTED_PERCENT:g} % more CPU: {', '.join(worse)}")


def _write(arguments: argparse.Namespace, this: str, other: str, measured: list[Measured]) -> list[str]:
    """Write the report after each pair: an interrupted comparison leaves what it has measured."""
    from bench import report

    print(f"\n| load | CPU s, {other} | CPU s, {this} | median | middle half |\n|---|---|---|---|---|")
    print("\n".join(found.line() for found in measured), flush=True)
    described = report.machine() | {
        "rows": arguments.rows,
        "pairs": len(measured[0].this),
        "this": this,
        "other": other,
    }
    loads = {
        found.load: {
            "cpu_percent": round(statistics.median(found.percents(lambda turn: turn.cpu)), 2),
            "runner_percent": round(statistics.median(found.percents(lambda turn: turn.runner)), 2),
            "postgres_percent": round(statistics.median(found.percents(lambda turn: turn.postgres)), 2),
            "this": [vars(turn) for turn in found.this],
            "other": [vars(turn) for turn in found.other],
        }
        for found in measured
    }
    path = report.RESULTS / f"{arguments.name}.json"
    path.write_text(json.dumps({"machine": described, "loads": loads}, indent=2) + "\n")
    return [
        found.load for found in measured if statistics.median(found.percents(lambda turn: turn.cpu)) > WANTED_PERCENT
    ]


def serve(arguments: argparse.Namespace) -> None:
    """Run the loads that standard input names, with the code of the checkout that this process was started in."""
    from bench.postgres import SCENARIOS, bench

    home = Path(tempfile.gettempdir()) / f"vitrina-compare-{os.environ['VITRINA_BENCH_SIDE']}"
    wanted = argparse.Namespace(
        rows=arguments.rows, repeat=1, only=list(SCENARIOS), peers=[], bindir=None, home=home, growth=[]
    )
    with bench(wanted) as running:
        loads = Loads(running)
        for line in sys.stdin:
            print(json.dumps(vars(loads.turn(line.strip()))), flush=True)


class Loads:
    """Hold the loads of the benchmark, each ready to be repeated."""

    def __init__(self, running: "object") -> None:
        from bench.scenarios import Bench

        assert isinstance(running, Bench)
        self._bench = running
        self._servers = [_postmaster(running.cinema.admin_url), _postmaster(running.remote.admin_url)]

    def turn(self, load: str) -> Turn:
        prepare, work, rows = self._load(load)
        prepare()
        assert self._bench.platform.process
        before = _cpu(self._bench.platform.process.pid), sum(map(_cpu, self._servers))
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        time.sleep(_SETTLE_SECONDS)
        after = _cpu(self._bench.platform.process.pid), sum(map(_cpu, self._servers))
        self._check(load, rows)
        return Turn(seconds, after[0] - before[0], after[1] - before[1])

    def _load(self, load: str) -> tuple[Callable[[], object], Callable[[], object], int]:
        """Return the preparation, what is measured, and how many rows the mart has afterwards."""
        from bench.cinema import FILMS

        bench, rows = self._bench, self._bench.cinema.rows
        small = f"{FILMS} WHERE title LIKE '%77'"
        nothing: Callable[[], object] = lambda: None  # noqa: E731
        loads: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "full": (lambda: bench.cinema.drop("analytics.films"), bench.load_films),
            "reload": (nothing, lambda: bench.platform.run("films")),
            "first_pass": (nothing, bench.load_incremental),
            "upsert": (self._spoil, lambda: bench.platform.run("films_incremental")),
            "remote": (nothing, bench._load_remote),
            "arrow_step": (nothing, lambda: bench._load_through(["bench_upper"], "films_upper")),
            "row_step": (nothing, lambda: bench._load_through(["bench_upper_rows"], "films_upper_rows")),
            "aggregate": (nothing, getattr(bench, "load_ratings", None) or bench._load_ratings),  # its earlier name
            "full_existing": (self._empty_existing, lambda: bench.platform.run("films_existing")),
            "small_reload": (
                lambda: bench.platform.define("films_small", small, target_key=["id"]),
                lambda: [bench.platform.run("films_small") for _ in range(10)],
            ),
            "small_incremental": (nothing, lambda: [bench.platform.run("films_incremental") for _ in range(10)]),
            "search_full": (lambda: self._define_index(mode="full"), lambda: bench.platform.run("films_index")),
            "search_upsert": (
                lambda: self._define_index(mode="incremental", incremental_key="modified", incremental_id_key="id"),
                lambda: bench.platform.run("films_index"),
            ),
        }
        return *loads[load], rows

    def _define_index(self, **fields: str) -> None:
        from bench.cinema import FILMS

        target = f"es:films_{os.environ['VITRINA_BENCH_SIDE']}"
        self._bench.platform.define("films_index", FILMS, target_table=target, target_key=["id"], **fields)

    def _spoil(self) -> None:
        """Change every row. Without VACUUM FULL: a mart whose file was changed is checked once, row by row."""
        with self._bench.cinema.connect() as connection:
            connection.execute("UPDATE analytics.films_incremental SET title = 'spoiled'")
            connection.execute("VACUUM ANALYZE analytics.films_incremental")
        self._bench.platform.rewind("films_incremental", "2000-01-01 00:00:00+00")

    def _empty_existing(self) -> None:
        """Create a mart by hand, with its key and another index, and without rows."""
        from bench.cinema import FILMS

        self._bench.platform.define("films_existing", FILMS, target_key=["id"])
        with self._bench.cinema.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS analytics.films_existing")
            connection.execute("CREATE TABLE analytics.films_existing (LIKE content.films INCLUDING ALL)")
            owner = connection.execute(
                "SELECT tableowner FROM pg_tables WHERE tablename = 'films_incremental'"
            ).fetchone()
            assert owner is not None
            connection.execute(f"ALTER TABLE analytics.films_existing OWNER TO {owner[0]}")

    def _check(self, load: str, rows: int) -> None:
        from bench.cinema import FILMS

        if load == "upsert":
            self._bench.check(FILMS, "TABLE analytics.films_incremental")
        with self._bench.platform.connect() as connection:
            run = connection.execute("SELECT rows_read FROM etl.etl_runs ORDER BY started_at DESC LIMIT 1").fetchone()
        assert run is not None
        if not load.startswith("small") and run["rows_read"] != rows:
            raise RuntimeError(f"{load} read {run['rows_read']} of {rows} rows")


def _postmaster(url: str) -> int:
    import psycopg

    with psycopg.connect(url) as connection:
        return int(_stat(connection.info.backend_pid)[1])


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones."""
    parents = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    tree, ticks = {pid}, 0
    while more := {child for child, found in parents.items() if found and int(found[1]) in tree} - tree:
        tree |= more
    for member in tree:
        if found := parents.get(member):
            ticks += sum(map(int, found[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, or none for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


if __name__ == "__main__":
    main()
