"""What being watched costs: `python -m bench.observability` runs the same loads with everything on and with it off.

On: lines kept and written as JSON, metrics scraped every second, traces and lineage sent to a receiver in a process of
its own. Off: none of it. Runs take turns, and a pair's ratio is what counts: the machine's moods strike both.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
from pydantic import SecretStr

from bench import report
from vitrina import logs, tracing
from vitrina.definition import Definition
from vitrina.embedded.temporary import TemporaryServer
from vitrina.runner.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.runner.lookout import Lookout
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, runs
from vitrina.store.migrate import migrate

PAIRS = int(os.environ.get("PAIRS", "10"))
WANTED_PERCENT = 2.0
SCRAPE_SECONDS = 1.0

SOURCE = """
CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc;
CREATE TABLE content.rating (id bigint PRIMARY KEY, film uuid NOT NULL, score int NOT NULL, note text NOT NULL,
                             modified timestamptz NOT NULL);
INSERT INTO content.rating
SELECT n, gen_random_uuid(), n % 10, 'note ' || n, now() FROM generate_series(1, 500000) AS n;
"""
QUERY = "SELECT id, film, score, note, modified FROM content.rating"

# A receiver that takes whatever comes; in a process of its own, as a collector is.
RECEIVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *ignored): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@dataclass
class Load:
    """One kind of load, and the seconds that it took each time."""

    name: str
    what: str
    batch_size: int
    options: dict[str, str]
    on: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    cpu_on: list[float] = field(default_factory=list)
    cpu_off: list[float] = field(default_factory=list)
    batches: int = 0

    @property
    def overhead_percent(self) -> float:
        return _percent(self.on, self.off)

    @property
    def overhead_range(self) -> tuple[float, float]:
        """The middle half of what the median might have been: it is drawn again from the same pairs."""
        pairs = list(zip(self.on, self.off, strict=True))
        draw = random.Random(1)
        drawn = [_percent(*zip(*draw.choices(pairs, k=len(pairs)), strict=True)) for _ in range(1000)]
        low, _, high = statistics.quantiles(drawn, n=4)
        return low, high

    @property
    def cpu_percent(self) -> float:
        return _percent(self.cpu_on, self.cpu_off)


def _percent(on: "list[float] | tuple[float, ...]", off: "list[float] | tuple[float, ...]") -> float:
    return 100 * (statistics.median(a / b for a, b in zip(on, off, strict=True)) - 1)


LOADS = [
    Load("pushdown", "500,000 rows inside the database, one statement", 5000, {}),
    Load("batches", "500,000 rows through Arrow, a checkpoint every 5,000", 5000, {"route": "arrow"}),
]


def main() -> None:
    with TemporaryServer(settings={"autovacuum": "off"}) as server, _receiver() as port:
        plain = _settings(server)
        watched = plain.model_copy(
            update={
                "metrics_port": 0,
                "log_format": "json",
                "lineage_url": SecretStr(f"http://127.0.0.1:{port}/api/v1/lineage"),
            }
        )
        _prepare(server, plain)
        with (
            database.connect(server.urls.admin, "bench") as admin,
            database.connect(server.urls.app, "bench") as metastore,
        ):
            _define(metastore)
            os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "NO_PROXY": "127.0.0.1"}
            for number in range(-1, PAIRS):  # the first pair warms up
                for load in LOADS:
                    _pair(load, number, admin=admin, metastore=metastore, plain=plain, watched=watched)
    _write()


def _pair(
    load: Load,
    number: int,
    *,
    admin: database.Connection,
    metastore: database.Connection,
    plain: Settings,
    watched: Settings,
) -> None:
    def off() -> tuple[float, float]:
        with _unobserved(plain) as dispatcher:
            return _timed(load, admin, metastore, dispatcher)

    def on() -> tuple[float, float]:
        with _observed(watched) as dispatcher:
            return _timed(load, admin, metastore, dispatcher)

    turns: list[tuple[Callable[[], tuple[float, float]], list[float], list[float]]] = [
        (off, load.off, load.cpu_off),
        (on, load.on, load.cpu_on),
    ]
    for work, seconds, cpu in turns if number % 2 else reversed(turns):
        took, used = work()
        if number >= 0:
            seconds.append(took)
            cpu.append(used)


def _timed(
    load: Load, admin: database.Connection, metastore: database.Connection, dispatcher: PipelineDispatcher
) -> tuple[float, float]:
    """Into an empty mart each time; seconds of the run, and what this process computed meanwhile."""
    admin.execute(f"DROP TABLE IF EXISTS analytics.{load.name}".encode())
    admin.execute("CHECKPOINT")
    row = pipelines.find(metastore, load.name)
    assert row is not None
    pipelines.request_run(metastore, row["id"], trigger=Trigger.API)
    claim = leases.claim_next(metastore, uuid4(), 3600)
    assert claim is not None
    control = RunControl(3600, threading.Event())
    started, used = time.perf_counter(), time.process_time()
    dispatcher.work(claim, control)
    took = time.perf_counter() - started, time.process_time() - used
    run = runs.find(metastore, claim.run_id)
    assert run is not None
    assert (run["status"], run["rows_written"]) == ("SUCCESS", 500_000), run["error_message"]
    load.batches = run["batches"]
    return took


@contextmanager
def _unobserved(settings: Settings) -> Iterator[PipelineDispatcher]:
    with Path(os.devnull).open("w") as nowhere:
        logs.configure(settings.model_copy(update={"log_level": "error"}), stream=nowhere)
        yield PipelineDispatcher(settings)


@contextmanager
def _observed(settings: Settings) -> Iterator[PipelineDispatcher]:
    with Path(os.devnull).open("w") as nowhere:
        logs.configure(settings, stream=nowhere)
        lookout = Lookout(settings, uuid4())
        lookout.start()
        done = threading.Event()
        scraper = threading.Thread(target=_scrape, args=[lookout.port, done], daemon=True)
        scraper.start()
        try:
            yield PipelineDispatcher(settings, lookout.instruments, lookout.onlookers)
        finally:
            done.set()
            scraper.join()
            lookout.stop()


def _scrape(port: int, done: threading.Event) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
        while not done.wait(SCRAPE_SECONDS):
            http.get("/metrics").raise_for_status()


@contextmanager
def _receiver() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


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
        "| load | batches | off, s | on, s | longer by | middle half | our CPU | wanted | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for load in LOADS:
        low, high = load.overhead_range
        met = "yes" if load.overhead_percent < WANTED_PERCENT else "**no**"
        lines.append(
            f"| {load.what} | {load.batches} | {statistics.median(load.off):.2f} | {statistics.median(load.on):.2f}"
            f" | {load.overhead_percent:+.1f} % | {low:+.1f} to {high:+.1f} % | {load.cpu_percent:+.1f} %"
            f" | < {WANTED_PERCENT:g} % | {met} |"
        )
    notes = [f"- {name.replace('_', ' ')}: {value}" for name, value in described.items()]
    explained = "\n".join((__doc__ or "").splitlines()[2:]).strip()
    return "\n".join([*lines, "", explained, "", *notes, ""])


if __name__ == "__main__":
    main()
