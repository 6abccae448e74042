"""Documents per second: Arrow batches through our documents and bulk engine, against `_bulk` of ready-made NDJSON.

    python bench/search_bulk.py [--kind elasticsearch-8] [--documents 200000]

Both sides use the same client, connections, compression, request sizes and server, in turns of 50,000 documents.
"""

import argparse
import functools
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from vitrina.adapters.writers.search import mapping
from vitrina.adapters.writers.search.bulk import BulkEngine, Delivery, Limits
from vitrina.adapters.writers.search.client import ConnectionOptions, SearchClient
from vitrina.adapters.writers.search.documents import Action, DocumentEncoder
from vitrina.adapters.writers.search.generations import write_version
from vitrina.embedded import search_server

BATCH_ROWS = 10_000
SLICE_BATCHES = 5
ACTIONS: tuple[Action, ...] = ("update", "index")
READY_MADE, OURS = "bench-ready-made.w", "bench-ours.w"
TYPES = {
    "id": "uuid",
    "title": "text",
    "description": "text",
    "rating": "numeric(3,1)",
    "genres": "text[]",
    "created_at": "timestamp with time zone",
}


def main() -> None:
    arguments = _arguments()
    batches = list(_batches(arguments.documents))
    if os.environ.get("ELASTICSEARCH_URL"):
        _compare(os.environ["ELASTICSEARCH_URL"], batches)
        return
    with search_server.running(arguments.kind) as server:
        print(f"{arguments.kind} {server.distribution.version}, {arguments.documents:,} documents")
        _compare(server.url, batches)


def _compare(url: str, batches: list[pa.RecordBatch]) -> None:
    client = SearchClient(ConnectionOptions.from_url(url))
    _prepare(client, batches[0])
    for action in ACTIONS:  # warm up the server's compiler
        _send_ours(client, list(enumerate(batches[:SLICE_BATCHES])), action)
    for action in ACTIONS:
        _prepare(client, batches[0])
        for state in ("new", "existing"):
            ready_made, ours = _race(client, batches, action)
            documents = sum(batch.num_rows for batch in batches)
            print(
                f"{action:6} {state:8}  ready-made {documents / ready_made.seconds:8,.0f} docs/s"
                f" ({ready_made.cpu_seconds / documents * 1e6:.1f} us of client CPU each)"
                f"   ours {documents / ours.seconds:8,.0f} docs/s ({ours.cpu_seconds / documents * 1e6:.1f} us)"
                f"   ratio {ready_made.seconds / ours.seconds:.2f}"
            )


@dataclass
class Time:
    """What one side took so far."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, work: Callable[[], None]) -> None:
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        work()
        self.seconds += time.perf_counter() - seconds
        self.cpu_seconds += time.process_time() - cpu_seconds


def _race(client: SearchClient, batches: list[pa.RecordBatch], action: Action) -> tuple[Time, Time]:
    """Slice by slice, each side into its own index and each first in turn: whatever else the machine does hits both."""
    ready_made, ours = Time(), Time()
    numbered = list(enumerate(batches))
    for turn, start in enumerate(range(0, len(numbered), SLICE_BATCHES)):
        part = numbered[start : start + SLICE_BATCHES]
        bodies = _bodies(part, action)
        sides = [
            (ready_made, functools.partial(_send_ready_made, client, bodies)),
            (ours, functools.partial(_send_ours, client, part, action)),
        ]
        for side, work in sides if turn % 2 else reversed(sides):
            side.add(work)
    return ready_made, ours


def _send_ours(client: SearchClient, part: list[tuple[int, pa.RecordBatch]], action: Action) -> None:
    encoder = _encoder(part[0][1], action)
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
    """The best that a hand-written loader could do: bodies made beforehand, sent by as many threads."""
    with ThreadPoolExecutor(Limits().in_flight) as threads:
        statuses = list(threads.map(lambda body: client.bulk(READY_MADE, body).status, bodies))
    if set(statuses) != {200}:  # a request that failed costs no time, and would make this side look fast
        raise SystemExit("the server did not take a bulk request")


def _bodies(part: list[tuple[int, pa.RecordBatch]], action: Action) -> list[bytes]:
    """As many requests as the engine makes of a batch, so that both sides send the same."""
    encoder = _encoder(part[0][1], action)
    bodies = []
    for number, batch in part:
        lines = encoder.encode(batch, version=_version(action, number)).actions.lines
        step = -(-len(lines) // Limits().in_flight)
        bodies += [b"".join(lines[start : start + step]) for start in range(0, len(lines), step)]
    return bodies


def _encoder(batch: pa.RecordBatch, action: Action) -> DocumentEncoder:
    field_types = mapping.field_types(mapping.derive(batch.schema, TYPES))
    return DocumentEncoder(types=TYPES, field_types=field_types, key=["id"], action=action)


def _version(action: Action, batch: int) -> int | None:
    return write_version(1_790_000_000_000, batch) if action == "index" else None


def _prepare(client: SearchClient, batch: pa.RecordBatch) -> None:
    settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
    mappings = mapping.derive(batch.schema, TYPES)
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=search_server.KINDS, default="elasticsearch-8")
    parser.add_argument("--documents", type=int, default=200_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
