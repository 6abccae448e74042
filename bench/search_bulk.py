"""Measure documents per second into a search server, against `_bulk` of prepared NDJSON and the client's helper.

    python -m bench.search_bulk [--kind elasticsearch-8] [--documents 100000] [--rows 200000] [--repeat 3]

First the writer alone: Arrow batches through our documents and bulk engine, new and existing documents, `update` and
`index`. Then whole runs from Postgres, with the runner's peak memory for a quarter of the rows and for all of them.
Both sides of each line use the same server, number of connections and request sizes, alternately. The first turn of
each does not count: the server compiles its code in it, and takes up to three times as long.
"""

import argparse
import functools
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pydantic import SecretStr

from bench import peers
from bench.cinema import FILMS, Cinema
from bench.ours import Platform
from bench.peers import Peer
from bench.report import Line, timed, write
from vitrina.connectors.search import mapping
from vitrina.connectors.search.bulk import BulkEngine, Delivery, Limits
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.documents import Action, DocumentEncoder
from vitrina.connectors.search.versions import write_version
from vitrina.embedded import search_server
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store.migrate import migrate

BATCH_ROWS = 10_000
SLICE_BATCHES = 5
ACTIONS: tuple[Action, ...] = ("update", "index")
STATES = ("new", "existing")
READY_MADE, OURS = "bench-ready-made.w", "bench-ours.w"
TYPES = {
    "id": "uuid",
    "title": "text",
    "description": "text",
    "rating": "numeric(3,1)",
    "genres": "text[]",
    "created_at": "timestamp with time zone",
}
FILM_TYPES = {
    "id": "uuid",
    "title": "text",
    "rating": "numeric(3,1)",
    "genres": "text[]",
    "modified": "timestamp with time zone",
}


def main() -> None:
    arguments = _arguments()
    with search_server.running(arguments.kind) as server:
        client = SearchClient(ConnectionOptions.from_url(server.url))
        lines = _writer_lines(client, list(_batches(arguments.documents)), arguments.repeat)
        with _platform(arguments, server.url) as (platform, cinema):
            memory, whole = _whole_runs(arguments, platform, cinema, client, server.url)
        told = {"server": f"{arguments.kind} {server.distribution.version}", "rows": arguments.rows} | memory
        path = write(arguments.name, [*lines, *whole], told)
    print(path.read_text())


def _writer_lines(client: SearchClient, batches: list[pa.RecordBatch], repeat: int) -> list[Line]:
    documents = sum(batch.num_rows for batch in batches)
    lines = {
        (action, state): Line(f"`{action}` of {state} documents", "`_bulk` of ready-made NDJSON", documents, 0.8)
        for action in ACTIONS
        for state in STATES
    }
    for turn in range(1 + repeat):
        for action in ACTIONS:
            _prepare(client, TYPES)
            for state in STATES:
                ready_made, ours = _race(client, batches, action)
                if turn:
                    lines[action, state].ours.append(ours.seconds)
                    lines[action, state].theirs.append(ready_made.seconds)
                    cpu = f"{ours.cpu_seconds / documents * 1e6:.1f} us of our CPU each"
                    print(lines[action, state].markdown(), cpu, flush=True)
    return list(lines.values())


@dataclass
class Time:
    """Hold what one side took so far."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, work: Callable[[], None]) -> None:
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        work()
        self.seconds += time.perf_counter() - seconds
        self.cpu_seconds += time.process_time() - cpu_seconds


def _race(client: SearchClient, batches: list[pa.RecordBatch], action: Action) -> tuple[Time, Time]:
    """Measure slice by slice, each side into its own index and each first in turn: other load affects both."""
    ready_made, ours = Time(), Time()
    numbered = list(enumerate(batches))
    for turn, start in enumerate(range(0, len(numbered), SLICE_BATCHES)):
        part = numbered[start : start + SLICE_BATCHES]
        bodies = _bodies(part, action, TYPES)
        sides = [
            (ready_made, functools.partial(_send_ready_made, client, bodies)),
            (ours, functools.partial(_send_ours, client, part, action)),
        ]
        for side, work in sides if turn % 2 else reversed(sides):
            side.add(work)
    return ready_made, ours


def _send_ours(client: SearchClient, part: list[tuple[int, pa.RecordBatch]], action: Action) -> None:
    encoder = _encoder(TYPES, action)
    engine = BulkEngine(client, OURS)
    deliveries: deque[Delivery] = deque()
    for number, batch in part:
        prepared = encoder.encode(batch, version=_version(action, number))
        if len(deliveries) == 2:
            deliveries.popleft().finish()
        deliveries.append(engine.start(prepared.actions))
    for delivery in deliveries:
        delivery.finish()
    engine.close()


def _send_ready_made(client: SearchClient, bodies: list[bytes]) -> None:
    """Send prepared bodies with as many threads, the best that a hand-written loader could do."""
    with ThreadPoolExecutor(Limits().in_flight) as threads:
        statuses = list(threads.map(lambda body: client.bulk(READY_MADE, body).status, bodies))
    if set(statuses) != {200}:  # a failed request takes no time, and would make this side look fast
        raise SystemExit("the server did not take a bulk request")


def _bodies(part: list[tuple[int, pa.RecordBatch]], action: Action, types: dict[str, str]) -> list[bytes]:
    """Build as many requests as the engine makes of a batch, so that both sides send the same."""
    encoder = _encoder(types, action)
    bodies = []
    for number, batch in part:
        lines = encoder.encode(batch, version=_version(action, number)).actions.lines
        step = -(-len(lines) // Limits().in_flight)
        bodies += [b"".join(lines[start : start + step]) for start in range(0, len(lines), step)]
    return bodies


def _encoder(types: dict[str, str], action: Action) -> DocumentEncoder:
    return DocumentEncoder(types=types, field_types=mapping.field_types(_mappings(types)), key=["id"], action=action)


def _mappings(types: dict[str, str]) -> dict[str, object]:
    return mapping.derive(pa.schema([(name, pa.string()) for name in types]), types)


def _version(action: Action, batch: int) -> int | None:
    return write_version(1_790_000_000_000, batch) if action == "index" else None


def _prepare(client: SearchClient, types: dict[str, str]) -> None:
    settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
    mappings = _mappings(types)
    for alias in (READY_MADE, OURS):
        index = alias.removesuffix(".w")
        client.delete_index(index)
        client.create_index(index, {"settings": settings, "mappings": mappings, "aliases": {alias: {}}})


def _batches(documents: int) -> Iterator[pa.RecordBatch]:
    genres = ["drama", "comedy", "sci-fi", "action", "thriller", "film noir"]
    for start in range(0, documents, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, documents))
        yield pa.record_batch(
            {
                "id": pa.array([uuid.uuid5(uuid.NAMESPACE_OID, str(i)).bytes for i in numbers], pa.binary(16)),
                "title": pa.array(
                    [f'Film {i}: the "{i % 977}" story' if i % 20 == 0 else f"Film {i}" for i in numbers]
                ),
                "description": pa.array(
                    [f"In film {i} somebody meets number {i * 7919 % 10007}, and it ends well." for i in numbers]
                ),
                "rating": pa.array([f"{i % 100 / 10}" for i in numbers]),
                "genres": pa.array([genres[: i % 4] for i in numbers]),
                "created_at": pa.array(
                    [1_600_000_000_000_000 + i * 1_234_567 for i in numbers], pa.timestamp("us", "UTC")
                ),
            }
        )


def _whole_runs(
    arguments: argparse.Namespace, platform: Platform, cinema: Cinema, client: SearchClient, url: str
) -> tuple[dict[str, object], list[Line]]:
    memory: dict[str, object] = {}
    for rows in (arguments.rows // 4, arguments.rows):
        platform.start(arguments.home / "runner.log")
        some = f"modified <= timestamptz '2024-01-01' + interval '{rows} seconds'"
        platform.define("films", f"{FILMS} WHERE {some}", **_into("bench-memory"))
        platform.run("films")
        memory[f"runner_peak_memory_mb_of_{rows}_rows"] = round(platform.peak_memory_mb())
        platform.stop()
    platform.start(arguments.home / "runner.log")
    platform.define("films", FILMS, **_into("bench-films"))
    bodies = _ready_made_films(cinema)
    reference = functools.partial(_load_ready_made, client, bodies)
    compare = functools.partial(_compare, arguments, platform)
    lines = [compare(reference, "`_bulk` of ready-made NDJSON", 0.85)]
    if arguments.peer:
        peer = Peer("elasticsearch", peers.ELASTICSEARCH, arguments.home)
        peer.install()
        helper = functools.partial(peers.streaming_bulk, peer, cinema, url, FILMS)
        lines.append(compare(helper, "`helpers.streaming_bulk` of the same query", 1.4))
    shown = client.count("bench-films")
    if shown != arguments.rows:
        raise SystemExit(f"the index shows {shown} of {arguments.rows} documents")
    return memory, lines


def _compare(
    arguments: argparse.Namespace, platform: Platform, theirs: Callable[[], object], reference: str, wanted: float
) -> Line:
    line = Line("whole run from Postgres into a new generation", reference, arguments.rows, wanted)
    for turn in range(1 + arguments.repeat):
        seconds, our_seconds = timed(theirs), timed(lambda: platform.run("films"))
        if turn:
            line.theirs.append(seconds)
            line.ours.append(our_seconds)
    print(line.markdown(), flush=True)
    return line


def _into(index: str) -> dict[str, object]:
    options = {"keep_generations": 0, "allow_shrink": True}
    return {"target_table": f"es:{index}", "target_key": ["id"], "batch_size": BATCH_ROWS, "options": options}


def _ready_made_films(cinema: Cinema) -> list[bytes]:
    """Build the same rows in the form in which the runner reads them, with the cheapest action for a new index."""
    import adbc_driver_postgresql.dbapi as adbc

    query = (
        "SELECT id, title, rating::text AS rating, genres::text AS genres, modified::text AS modified"
        " FROM content.films ORDER BY id"
    )
    with adbc.connect(cinema.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        table = cursor.fetch_arrow_table().combine_chunks()
    batches = table.to_batches(max_chunksize=BATCH_ROWS)
    return _bodies(list(enumerate(batches)), "index", FILM_TYPES)


def _load_ready_made(client: SearchClient, bodies: list[bytes]) -> None:
    _prepare(client, FILM_TYPES)
    _send_ready_made(client, bodies)
    client.refresh(READY_MADE)


@contextmanager
def _platform(arguments: argparse.Namespace, search_url: str) -> Iterator[tuple[Platform, Cinema]]:
    arguments.home.mkdir(exist_ok=True)
    with TemporaryServer() as server:
        cinema = Cinema(server.urls.admin, arguments.rows)
        settings = Settings(
            database_url=SecretStr(server.urls.app),
            admin_url=SecretStr(server.urls.admin),
            app_password=SecretStr(server.urls.app_password),
            reader_password=SecretStr(server.urls.reader_password),
        )
        migrate(settings)
        cinema.make(ratings=False)
        environment = {
            "VITRINA_DATABASE_URL": server.urls.app,
            "VITRINA_READER_PASSWORD": server.urls.reader_password,
            "ELASTICSEARCH_URL": search_url,
            "VITRINA_ALLOWED_TARGETS": "es:bench-*",
            "VITRINA_LOG_FORMAT": "json",
        }
        platform = Platform(settings, environment)
        try:
            yield platform, cinema
        finally:
            platform.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=search_server.KINDS, default="elasticsearch-8")
    parser.add_argument("--documents", type=int, default=100_000, help="for the writer alone")
    parser.add_argument("--rows", type=int, default=200_000, help="for whole runs")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without the official client, from PyPI")
    parser.add_argument("--name", default="search", help="of the files in bench/results")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vitrina-bench")
    return parser.parse_args()


if __name__ == "__main__":
    main()
