"""Measure what observability costs: `python -m bench.observability` runs the same loads with all of it and without.

With it, log lines are stored and written as JSON, metrics are scraped every second, traces and lineage are sent to a
receiver. Runs alternate, and the ratio of a pair is what counts, so that changes of the machine's speed affect both. A
runner is started once and works for months, so a run begins after the first scrape. The receiver, which also scrapes,
is a separate process, like a collector; its CPU is in the JSON file and is not counted. CPU is that of this process and
of all of Postgres, from the beginning of the run until its last line, span and event is sent, for which the runner is
stopped. "Spent on watching" is the sum of the threads that do nothing else, the server process of their session, and
what this process used in addition, including the stop. The verdict is based on it, as long as the clock does not
contradict it.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from pydantic import SecretStr

from bench import report
from vitrina.definition import Definition
from vitrina.embedded.temporary import TemporaryServer
from vitrina.loads.control import RunControl
from vitrina.observe import logs, tracing
from vitrina.observe.telemetry import Telemetry
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, runs
from vitrina.store.migrate import migrate

PAIRS = int(os.environ.get("PAIRS", "10"))
WANTED_PERCENT = 2.0
SCRAPE_SECONDS = 1.0

# As in the other benchmarks.
ROWS = 1_000_000

SOURCE = f"""
CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc;
CREATE TABLE content.rating (id bigint PRIMARY KEY, film uuid NOT NULL, score int NOT NULL, note text NOT NULL,
                             modified timestamptz NOT NULL);
INSERT INTO content.rating
SELECT n, gen_random_uuid(), n % 10, 'note ' || n, now() FROM generate_series(1, {ROWS}) AS n;
"""
QUERY = "SELECT id, film, score, note, modified FROM content.rating"

# Accepts any request; scrapes the port that it reads from standard input, until it reads 0.
WATCHER = """
import http.server, sys, threading, time, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *ignored): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
asked = [0]
def scrape():
    while True:
        if asked[0]:
            try:
                direct.open(f"http://127.0.0.1:{asked[0]}/metrics").read()
                print("scraped", flush=True)
            except OSError:
                pass
        time.sleep(float(sys.argv[1]))
threading.Thread(target=scrape, daemon=True).start()
for line in sys.stdin:
    asked[0] = int(line)
"""

# Threads of the runner that do nothing but watch; those of the probe server have other names.
WATCHING_THREADS = ("log-lines", "notifications", "lineage", "probes", "OtelBatch", "Thread-")
LOOKOUT_SESSION = "vitrina:lookout"


@dataclass
class Turn:
    """Hold one run: wall-clock seconds, and CPU seconds of the processes that took part."""

    seconds: float
    ours: float
    postgres: float
    watcher: float
    watching: float  # the part of `ours` and `postgres` that was used only for watching

    @property
    def cpu(self) -> float:
        return self.ours + self.postgres


@dataclass
class Load:
    """Hold one kind of load, and its turns."""

    name: str
    what: str
    batch_size: int
    options: dict[str, str]
    on: list[Turn] = field(default_factory=list)
    off: list[Turn] = field(default_factory=list)
    batches: int = 0

    @property
    def overhead_percent(self) -> float:
        return _percent([(on.seconds, off.seconds) for on, off in self._pairs])

    @property
    def overhead_range(self) -> tuple[float, float]:
        """Return the interquartile range of the median by bootstrapping from the same pairs."""
        draw = random.Random(1)
        pairs = [(on.seconds, off.seconds) for on, off in self._pairs]
        drawn = [_percent(draw.choices(pairs, k=len(pairs))) for _ in range(1000)]
        low, _, high = statistics.quantiles(drawn, n=4)
        return low, high

    @property
    def cpu_percent(self) -> float:
        return _percent([(on.cpu, off.cpu) for on, off in self._pairs])

    @property
    def watching_seconds(self) -> float:
        """Return the seconds of the threads that watch, and what the run's own threads used in addition."""
        own = statistics.median((on.ours - on.watching) - off.ours for on, off in self._pairs)
        return max(own, 0) + statistics.median(turn.watching for turn in self.on)

    @property
    def watching_percent(self) -> float:
        return 100 * self.watching_seconds / statistics.median(turn.cpu for turn in self.off)

    @property
    def _pairs(self) -> list[tuple[Turn, Turn]]:
        return list(zip(self.on, self.off, strict=True))


def _percent(pairs: list[tuple[float, float]]) -> float:
    return 100 * (statistics.median(on / off for on, off in pairs) - 1)


LOADS = [
    Load("pushdown", f"{ROWS:,} rows inside the database, one statement", 5000, {}),
    Load("batches", f"{ROWS:,} rows through Arrow, a checkpoint every 5,000", 5000, {"route": "arrow"}),
]


def main() -> None:
    with TemporaryServer(settings={"autovacuum": "off"}) as server, Watcher() as watcher:
        plain = _settings(server)
        receiver = f"http://127.0.0.1:{watcher.port}"
        watched = plain.model_copy(
            update={
                "metrics_port": 0,
                "log_format": "json",
                "lineage_url": SecretStr(f"{receiver}/api/v1/lineage"),
            }
        )
        _prepare(server, plain)
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, "NO_PROXY": "127.0.0.1"}
        with (
            database.connect(server.urls.admin, "bench") as admin,
            database.connect(server.urls.app, "bench") as metastore,
        ):
            _define(metastore)
            bench = Bench(admin, metastore, watcher)
            for number in range(-1, PAIRS):  # the first pair warms up
                for load in LOADS:
                    bench.pair(load, number, plain, watched)
    _write()


class Watcher:
    """Run the process that receives and scrapes."""

    def __enter__(self) -> "Watcher":
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(SCRAPE_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.port = int(self._line())
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def scrape(self, port: int | None) -> None:
        """Start scraping, and return when the first metrics have arrived."""
        self._tell(port or 0)
        assert self._line() == "scraped"

    def rest(self) -> None:
        self._tell(0)

    def _tell(self, port: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{port}\n")

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


class Bench:
    """Run loads, and measure them."""

    def __init__(self, admin: database.Connection, metastore: database.Connection, watcher: Watcher) -> None:
        self._admin, self._metastore, self._watcher = admin, metastore, watcher
        row = admin.execute("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int AS pid").fetchone()
        assert row
        self._postmaster: int = row["pid"]

    def pair(self, load: Load, number: int, plain: Settings, watched: Settings) -> None:
        turns = [(load.off, plain, _unobserved), (load.on, watched, self._observed)]
        for results, settings, watching in turns if number % 2 else reversed(turns):
            turn = self._turn(load, watching(settings))
            if number >= 0:
                results.append(turn)

    def _turn(self, load: Load, watching: AbstractContextManager[PipelineDispatcher]) -> Turn:
        """Load into an empty mart each time."""
        self._admin.execute(f"DROP TABLE IF EXISTS analytics.{load.name}".encode())
        self._admin.execute("CHECKPOINT")
        with watching as dispatcher:
            row = pipelines.find(self._metastore, load.name)
            assert row is not None
            pipelines.request_run(self._metastore, row["id"], trigger=Trigger.API)
            claim = leases.claim_next(self._metastore, uuid4(), 3600)
            assert claim is not None
            control = RunControl(3600, threading.Event())
            before, watchers = self._clocks(), Watchers(self._admin)
            started = time.perf_counter()
            dispatcher.work(claim, control)
            took = time.perf_counter() - started
            self._watcher.rest()
            alone = watchers.used()
        after = self._clocks()
        run = runs.find(self._metastore, claim.run_id)
        assert run is not None
        assert (run["status"], run["rows_written"]) == ("SUCCESS", ROWS), run["error_message"]
        load.batches = run["batches"]
        ours, postgres, watcher = (b - a for a, b in zip(before, after, strict=True))
        return Turn(took, ours, postgres, watcher, alone)

    @contextmanager
    def _observed(self, settings: Settings) -> Iterator[PipelineDispatcher]:
        with Path(os.devnull).open("w") as nowhere:
            logs.configure(settings, stream=nowhere)
            telemetry = Telemetry(settings, uuid4())
            telemetry.start()
            self._watcher.scrape(telemetry.port)
            try:
                yield PipelineDispatcher(settings, telemetry.instruments, telemetry.observers)
            finally:
                telemetry.stop()

    def _clocks(self) -> tuple[float, float, float]:
        """Return the CPU of this process, of Postgres with all its children, and of the process that receives."""
        postgres = sum(_cpu(pid) for pid in _children(self._postmaster)) + _cpu(self._postmaster, with_children=True)
        return time.process_time(), postgres, _cpu(self._watcher.pid)


class Watchers:
    """Measure what the threads that watch, and their session, use from now on."""

    def __init__(self, admin: database.Connection) -> None:
        row = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", [LOOKOUT_SESSION]
        ).fetchone()
        self._server = row["pid"] if row else None
        self._before = self._clocks()

    def used(self) -> float:
        before = self._before
        return sum(now - before.get(name, 0) for name, now in self._clocks().items())

    def _clocks(self) -> dict[str, float]:
        tasks = {f"/proc/self/task/{thread.native_id}": thread.name for thread in threading.enumerate()}
        watching = [path for path, name in tasks.items() if name.startswith(WATCHING_THREADS)]
        if self._server:
            watching.append(f"/proc/{self._server}")
        return {path: _nanoseconds(path) / 1e9 for path in watching}


def _nanoseconds(task: str) -> int:
    try:
        return int(Path(task, "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def _cpu(pid: int, *, with_children: bool = False) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended, and its parent has its time
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _unobserved(settings: Settings) -> Iterator[PipelineDispatcher]:
    with Path(os.devnull).open("w") as nowhere:
        logs.configure(settings.model_copy(update={"log_level": "error"}), stream=nowhere)
        yield PipelineDispatcher(settings)


def _settings(server: TemporaryServer) -> Settings:
    return Settings(
        database_url=SecretStr(server.urls.app),
        admin_url=SecretStr(server.urls.admin),
        reader_url=SecretStr(server.urls.reader),
        app_password=SecretStr(server.urls.app_password),
        reader_password=SecretStr(server.urls.reader_password),
    )


def _prepare(server: TemporaryServer, settings: Settings) -> None:
    with database.connect(server.urls.admin, "bench") as admin:
        admin.execute(SOURCE.encode())
        migrate(settings)
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader")
        admin.execute("VACUUM ANALYZE content.rating")


def _define(metastore: database.Connection) -> None:
    for load in LOADS:
        fields = {"name": load.name, "source_query": QUERY, "target_table": f"analytics.{load.name}"}
        definition = Definition.model_validate(
            {**fields, "target_key": ["id"], "batch_size": load.batch_size, "options": load.options}
        )
        pipelines.insert(metastore, definition, pipeline_id=None, managed_by=None)


def _write() -> None:
    assert tracing.is_wanted(os.environ)
    described = report.machine() | {"pairs": PAIRS, "command": "python -m bench.observability"}
    report.RESULTS.mkdir(exist_ok=True)
    figures = [
        asdict(load)
        | {
            "overhead_percent": load.overhead_percent,
            "overhead_range": load.overhead_range,
            "cpu_percent": load.cpu_percent,
            "watching_seconds": load.watching_seconds,
            "watching_percent": load.watching_percent,
        }
        for load in LOADS
    ]
    (report.RESULTS / "observability.json").write_text(
        json.dumps({"machine": described, "loads": figures}, indent=2) + "\n"
    )
    text = _markdown(described)
    (report.RESULTS / "observability.md").write_text(text)
    print(text)


def _markdown(described: dict[str, object]) -> str:
    lines = [
        "# What being watched costs",
        "",
        *_heading(
            "load, batches, off (s), on (s), longer by, middle half, CPU off (s), CPU on (s), more by, "
            "spent on watching, of CPU, wanted, met"
        ),
    ]
    for load in LOADS:
        low, high = load.overhead_range
        met = "yes" if max(low, load.watching_percent) < WANTED_PERCENT else "**no**"
        clock = [statistics.median(turn.seconds for turn in turns) for turns in (load.off, load.on)]
        cpu = [statistics.median(turn.cpu for turn in turns) for turns in (load.off, load.on)]
        lines.append(
            f"| {load.what} | {load.batches} | {clock[0]:.2f} | {clock[1]:.2f}"
            f" | {load.overhead_percent:+.1f} % | {low:+.1f} to {high:+.1f} %"
            f" | {cpu[0]:.2f} | {cpu[1]:.2f} | {load.cpu_percent:+.1f} %"
            f" | {1000 * load.watching_seconds:.0f} ms | {load.watching_percent:.1f} %"
            f" | < {WANTED_PERCENT:g} % | {met} |"
        )
    notes = [f"- {name.replace('_', ' ')}: {value}" for name, value in described.items()]
    explained = "\n".join((__doc__ or "").splitlines()[2:]).strip()
    return "\n".join([*lines, "", explained, "", *notes, ""])


def _heading(columns: str) -> list[str]:
    names = columns.split(", ")
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


if __name__ == "__main__":
    main()
