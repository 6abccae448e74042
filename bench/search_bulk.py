"""Documents per second: Arrow batches through our documents and bulk engine, against `_bulk` of ready-made NDJSON.

    python bench/search_bulk.py [--kind elasticsearch-8] [--documents 200000] [--rounds 2]

Both sides use the same client, connections, compression, request sizes and server, one after the other in each round.
"""

import argparse
import os
import queue
import statistics
import threading
import time
import uuid
from collections.abc import Iterator

import pyarrow as pa

from vitrina.adapters.writers.search import mapping
from vitrina.adapters.writers.search.bulk import Actions, BulkEngine, Limits
from vitrina.adapters.writers.search.client import ConnectionOptions, SearchClient
from vitrina.adapters.writers.search.documents import Action, DocumentEncoder
from vitrina.adapters.writers.search.generations import write_version
from vitrina.embedded import search_server

BATCH_ROWS = 10_000
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
        _compare(os.environ["ELASTICSEARCH_URL"], batches, arguments.rounds)
        return
    with search_server.running(arguments.kind) as server:
        print(f"{arguments.kind} {server.distribution.version}, {arguments.documents:,} documents")
        _compare(server.url, batches, arguments.rounds)


def _compare(url: str, batches: list[pa.RecordBatch], rounds: int) -> None:
    client = SearchClient(ConnectionOptions.from_url(url))
    _load_ours(client, batches[:2], "update", fresh=True)  # warm up the server's compiler
    results: dict[str, list[float]] = {}
    for _ in range(rounds):
        for action in ("update", "index"):
            for state in ("new", "existing"):
                for side, load in (("ready-made", _load_ready_made), ("ours", _load_ours)):
                    if state == "existing":
                        load = _after_a_first_load(load)  # noqa: PLW2901
                    results.setdefault(f"{action} {state} {side}", []).append(load(client, batches, action, fresh=True))
    documents = sum(batch.num_rows for batch in batches)
    for action in ("update", "index"):
        for state in ("new", "existing"):
            raw, ours = (statistics.median(results[f"{action} {state} {side}"]) for side in ("ready-made", "ours"))
            print(
                f"{action:6} {state:8}  ready-made {documents / raw:8,.0f} docs/s   "
                f"ours {documents / ours:8,.0f} docs/s   ratio {raw / ours:.2f}"
            )


def _after_a_first_load(load):  # type: ignore[no-untyped-def]
    def second(client: SearchClient, batches: list[pa.RecordBatch], action: Action, *, fresh: bool) -> float:
        _load_ours(client, batches, action, fresh=fresh)
        return float(load(client, batches, action, fresh=False))

    return second


def _load_ours(client: SearchClient, batches: list[pa.RecordBatch], action: Action, *, fresh: bool) -> float:
    _prepare(client, batches[0], fresh=fresh)
    encoder = _encoder(batches[0], action)
    engine = BulkEngine(client, "bench.w")
    started = time.perf_counter()
    delivery = None
    for number, batch in enumerate(batches):
        prepared = encoder.encode(batch, version=_version(action, number))
        if delivery is not None:
            delivery.finish()
        delivery = engine.start(prepared.actions)
    if delivery is not None:
        delivery.finish()
    seconds = time.perf_counter() - started
    engine.close()
    return seconds


def _load_ready_made(client: SearchClient, batches: list[pa.RecordBatch], action: Action, *, fresh: bool) -> float:
    """The best that a hand-written loader could do: bodies made beforehand, sent by as many threads."""
    _prepare(client, batches[0], fresh=fresh)
    encoder = _encoder(batches[0], action)
    bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for number, batch in enumerate(batches):
        for body in _bodies(encoder.encode(batch, version=_version(action, number)).actions):
            bodies.put(body)
    threads = [threading.Thread(target=_send_all, args=(client, bodies)) for _ in range(Limits().in_flight)]
    for _ in threads:
        bodies.put(None)
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _send_all(client: SearchClient, bodies: "queue.SimpleQueue[bytes | None]") -> None:
    while (body := bodies.get()) is not None:
        if client.bulk("bench.w", body).status != 200:
            raise SystemExit("the server did not take a bulk request")


def _bodies(actions: Actions) -> Iterator[bytes]:
    """Cut as the engine cuts them, so that both sides send requests of the same size."""
    pieces = Limits().in_flight
    step = -(-len(actions.lines) // pieces)
    for start in range(0, len(actions.lines), step):
        yield b"".join(actions.lines[start : start + step])


def _encoder(batch: pa.RecordBatch, action: Action) -> DocumentEncoder:
    field_types = mapping.field_types(mapping.derive(batch.schema, TYPES))
    return DocumentEncoder(types=TYPES, field_types=field_types, key=["id"], action=action)


def _version(action: Action, batch: int) -> int | None:
    return write_version(1_790_000_000_000, batch) if action == "index" else None


def _prepare(client: SearchClient, batch: pa.RecordBatch, *, fresh: bool) -> None:
    if not fresh:
        return
    client.delete_index("bench")
    settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
    mappings = mapping.derive(batch.schema, TYPES)
    client.create_index("bench", {"settings": settings, "mappings": mappings, "aliases": {"bench.w": {}}})


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
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
