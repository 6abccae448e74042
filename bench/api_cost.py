"""Measure what a request costs the API: `python -m bench.api_cost [OTHER_CHECKOUT] [--rounds 9]`.

Only the CPU of the API's process is counted, per request. The client is a loop over a few open sockets in another
process, which sends bytes that were prepared before, so it neither adds to the figure nor slows the API down. Each kind
of request alternates with the same request to the other checkout, which has its own environment and metastore of its
revision, and with a plain ASGI application under the same server, which is the upper bound for any application.
"""

import argparse
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import NamedTuple

from bench.report import RESULTS, machine
from tests.integration.api import wait_until_healthy
from tests.support.ports import kept_port
from vitrina.embedded.temporary import TemporaryServer
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.store import database

HERE = Path(__file__).resolve().parent.parent
PIPELINES, RUNS = 50, 1000
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Work:
    """Represent one kind of request. `{n}` in its body differs from request to request."""

    name: str
    method: str
    path: str
    body: str | None = None
    wanted: float | None = None

    def requests(self, secret: str) -> Iterator[bytes]:
        for number in count(1):
            body = (self.body or "").replace("{n}", str(1000 + number % 1000)).encode()
            sent = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if self.body else ""
            path = self.path.replace("{n}", str(number % PIPELINES))
            head = f"{self.method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n{sent}\r\n"
            yield head.encode() + body


WORK = (
    Work("GET a pipeline", "GET", "/api/v1/pipelines/p{n}", wanted=2.5),
    Work("GET its status", "GET", "/api/v1/pipelines/p{n}/status", wanted=2.5),
    Work("GET its checkpoint", "GET", "/api/v1/pipelines/p{n}/state", wanted=2.5),
    Work("GET 20 pipelines", "GET", "/api/v1/pipelines?limit=20", wanted=2.5),
    Work("GET 20 runs", "GET", "/api/v1/runs?limit=20", wanted=2.5),
    Work("GET me", "GET", "/api/v1/me", wanted=2.5),
    Work("POST run", "POST", "/api/v1/pipelines/p{n}/run", "{}", wanted=1.5),
    Work("PATCH a pipeline", "PATCH", "/api/v1/pipelines/p{n}", '{"batch_size": {n}}', wanted=1.5),
)
PLAIN = Work("plain ASGI", "GET", "/")


def main() -> None:
    wish = parse()
    if wish.plain is not None:
        serve_plain(wish.plain)
        return
    chosen = [work for work in WORK if not wish.only or any(part in work.name for part in wish.only)]
    with tempfile.TemporaryDirectory() as found, ExitStack() as started:
        directory = Path(found)
        sides = {"this": started.enter_context(api(directory / "this", HERE))}
        if wish.other:
            sides["other"] = started.enter_context(api(directory / "other", wish.other.resolve()))
        sides["plain"] = started.enter_context(plain(directory / "plain"))
        measured = measure(sides, chosen, wish)
    write(measured, wish)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="a checkout of the revision to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=400, help="of each kind in a round")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="parts of names")
    parser.add_argument("--name", default="api_cost", help="of the files in bench/results")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


class Side(NamedTuple):
    """Hold a server to send requests to, and a token for it."""

    pid: int
    port: int
    secret: str


def fill(url: str) -> str:
    """Insert pipelines and runs to read. Return the secret of an operator's token."""
    with database.connect(url, "bench") as metastore:
        _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="load", role=Role.OPERATOR)
        metastore.execute(
            """
            INSERT INTO etl.etl_pipelines (name, source_query, target_table, target_key)
            SELECT 'p' || n, 'SELECT id, title FROM content.film_work', 'analytics.p' || n, '{id}'
            FROM generate_series(0, %s) n
            """,
            [PIPELINES - 1],
        )
        metastore.execute(
            """
            INSERT INTO etl.etl_runs
                (pipeline_id, pipeline_version, trigger, status, started_at, finished_at,
                 rows_read, rows_written, batches)
            SELECT id, 1, 'schedule', 'SUCCESS', now() - n * interval '1 minute',
                   now() - n * interval '1 minute' + interval '3 seconds', 300, 300, 1
            FROM generate_series(1, %s) n JOIN etl.etl_pipelines ON name = 'p' || n %% %s
            """,
            [RUNS, PIPELINES],
        )
        metastore.execute("ANALYZE")
    return secret


@contextmanager
def api(directory: Path, checkout: Path) -> Iterator[Side]:
    """Start `vitrina api` of a checkout, on a metastore that the same checkout migrated."""
    program = str(checkout / ".venv" / "bin" / "vitrina")
    with TemporaryServer() as server:
        environment = {"PATH": os.environ["PATH"], "VITRINA_DATABASE_URL": server.urls.app}
        login = {"VITRINA_ADMIN_URL": server.urls.admin, "VITRINA_APP_PASSWORD": server.urls.app_password}
        subprocess.run([program, "migrate"], env=environment | login, check=True, stdout=subprocess.DEVNULL)
        secret = fill(server.urls.app)
        with process([program, "api", "--port"], environment, directory) as (pid, port):
            yield Side(pid, port, secret)


@contextmanager
def plain(directory: Path) -> Iterator[Side]:
    command = [sys.executable, "-m", "bench.api_cost", "--plain"]
    with process(command, dict(os.environ) | {"PYTHONPATH": str(HERE)}, directory) as (pid, port):
        yield Side(pid, port, "")


@contextmanager
def process(command: list[str], environment: dict[str, str], directory: Path) -> Iterator[tuple[int, int]]:
    directory.mkdir()
    log = directory / "log"
    with kept_port() as port, log.open("w") as output:
        started = subprocess.Popen(
            [*command, str(port)], env=environment, cwd=directory, stdout=output, stderr=output, text=True
        )
        try:
            wait_until_healthy(started, f"http://127.0.0.1:{port}", log)
            yield started.pid, port
        finally:
            started.kill()
            started.wait()


def serve_plain(port: int) -> None:
    """Run the same server with an application that only returns an answer of the usual size."""
    from vitrina.api.server import make_server

    body = json.dumps({"status": "ok", "version": "0", "database": "ok", "padding": "x" * 900}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def application(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["type"] != "http":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    with socket.create_server(("127.0.0.1", port)) as listener:
        make_server(application, listener).run(sockets=[listener])


@dataclass
class Measured:
    """Hold milliseconds of the API's CPU per request, round by round."""

    work: Work
    this: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    @property
    def times_less(self) -> float | None:
        if not self.other:
            return None
        return statistics.median(other / this for this, other in zip(self.this, self.other, strict=True))

    @property
    def share_of_ceiling(self) -> float:
        return statistics.median(plain / this for this, plain in zip(self.this, self.plain, strict=True))


def measure(sides: dict[str, Side], chosen: list[Work], wish: argparse.Namespace) -> list[Measured]:
    measured = [Measured(work) for work in chosen]
    for name, side in sides.items():  # warm up prepared statements, caches, threads
        for line in measured:
            cost(side, line.work if name != "plain" else PLAIN, wish.requests // 4, wish.connections)
    for number in range(wish.rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for line in measured:
            for name in order:
                work = line.work if name != "plain" else PLAIN
                spent = cost(sides[name], work, wish.requests, wish.connections)
                getattr(line, name).append(spent)
        print(f"round {number + 1} of {wish.rounds}", file=sys.stderr, flush=True)
    return measured


def cost(side: Side, work: Work, requests: int, connections: int) -> float:
    """Return milliseconds of CPU per request; every answer must be successful."""
    made = work.requests(side.secret)
    prepared_requests = [next(made) for _ in range(requests)]
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection(("127.0.0.1", side.port))) for _ in range(connections)]
        ask_all(sockets, prepared_requests[:connections])
        before = cpu_ms(side.pid)
        ask_all(sockets, prepared_requests)
        spent = cpu_ms(side.pid) - before
    return spent / requests


def cpu_ms(pid: int) -> float:
    """Return the CPU time of a process's threads; clock ticks are too coarse for requests."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


def ask_all(sockets: list[socket.socket], requests: list[bytes]) -> None:
    """Keep one request in flight on each socket."""
    waiting: dict[int, tuple[socket.socket, bytearray]] = {}
    poll = select.poll()
    left = iter(requests)
    for each, request in zip(cycle(sockets), left, strict=False):
        each.sendall(request)
        waiting[each.fileno()] = (each, bytearray())
        poll.register(each, select.POLLIN)
        if len(waiting) == len(sockets):
            break
    while waiting:
        for number, _ in poll.poll():
            each, received = waiting[number]
            received += each.recv(1 << 20)
            if not is_whole(received):
                continue
            received.clear()
            following = next(left, None)
            if following is None:
                poll.unregister(number)
                del waiting[number]
            else:
                each.sendall(following)


def is_whole(received: bytearray) -> bool:
    head = received.find(b"\r\n\r\n")
    if head < 0:
        assert received, "the API closed the connection"
        return False
    assert received.startswith(b"HTTP/1.1 20"), bytes(received[:500])
    length = _LENGTH.search(received, 0, head + 2)
    assert length is not None, bytes(received[:head])
    return len(received) >= head + 4 + int(length[1])


def write(measured: list[Measured], wish: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    described = machine() | {"rounds": wish.rounds, "requests": wish.requests, "connections": wish.connections}
    lines = [
        {
            "work": line.work.name,
            "cpu_ms": round(statistics.median(line.this), 3),
            "other_cpu_ms": round(statistics.median(line.other), 3) if line.other else None,
            "times_less": round(line.times_less, 2) if line.times_less else None,
            "wanted": line.work.wanted,
            "plain_cpu_ms": round(statistics.median(line.plain), 3),
            "share_of_ceiling": round(line.share_of_ceiling, 2),
        }
        for line in measured
    ]
    text = json.dumps({"machine": described, "lines": lines}, indent=2)
    (RESULTS / f"{wish.name}.json").write_text(text + "\n")
    rows = "\n".join(
        f"| {line['work']} | {line['cpu_ms']} | {line['other_cpu_ms'] or ''} | {line['times_less'] or ''} |"
        f" {line['wanted']} | {line['share_of_ceiling']} |"
        for line in lines
    )
    notes = "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in described.items())
    page = (
        "# What a request costs the API\n\nMilliseconds of CPU of the API's process per request, with a client that is"
        " another process; medians of the rounds. The ceiling is a plain ASGI application under the same server:"
        f" {statistics.median([spent for line in measured for spent in line.plain]):.3f} ms.\n\n"
        "| request | CPU ms | before, CPU ms | times less | wanted | share of the ceiling |\n"
        f"|---|---|---|---|---|---|\n{rows}\n\n{notes}\n"
    )
    (RESULTS / f"{wish.name}.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
