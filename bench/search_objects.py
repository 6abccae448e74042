"""Measure what one `json` column costs under `update`, compared with the same text in a text column.

    python -m bench.search_objects [--kind elasticsearch-8] [--documents 50000]

`update` merges objects, so documents that have one are returned with it, and sent again if it has lost a member.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from vitrina.connectors.search.bulk import BulkEngine
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.documents import DocumentEncoder
from vitrina.embedded import search_server

BATCH_ROWS = 10_000
# The column as a stored object, and as stored text: neither is indexed.
SIDES = {
    "object": {"type": "object", "enabled": False},
    "text": {"type": "keyword", "index": False, "doc_values": False},
}
PHASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "new": lambda number: {"country": "NZ", "votes": number, "awards": {"won": 1, "lost": 2}},
    "unchanged": lambda number: {"country": "NZ", "votes": number, "awards": {"won": 1, "lost": 2}},
    "other values": lambda number: {"country": "NZ", "votes": number + 1, "awards": {"won": 2, "lost": 2}},
    "one member fewer": lambda number: {"country": "NZ", "votes": number + 1, "awards": {"won": 2}},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="elasticsearch-8")
    parser.add_argument("--documents", type=int, default=50_000)
    arguments = parser.parse_args()
    with search_server.running(arguments.kind) as server:
        client = SearchClient(ConnectionOptions.from_url(server.url))
        for measured in (False, True):  # the first time warms up the server's compiler
            _prepare(client)
            for phase, payload in PHASES.items():
                seconds = _race(client, arguments.documents, payload)
                if measured:
                    rates = {side: arguments.documents / taken / 1000 for side, taken in seconds.items()}
                    told = ", ".join(f"{side} {rate:.1f}" for side, rate in rates.items())
                    print(f"{phase}: {told} kdocs/s, {rates['object'] / rates['text']:.2f}", flush=True)


def _prepare(client: SearchClient) -> None:
    for side, field in SIDES.items():
        client.delete_index(f"bench-{side}")
        fields = {"id": {"type": "long"}, "title": {"type": "text"}, "payload": field}
        settings = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
        body = {"settings": settings, "mappings": {"properties": fields}, "aliases": {f"bench-{side}.w": {}}}
        client.create_index(f"bench-{side}", body)


def _race(client: SearchClient, documents: int, payload: Callable[[int], dict[str, Any]]) -> dict[str, float]:
    """Measure batch by batch, each side first in turn: other load affects both."""
    engines = {side: BulkEngine(client, f"bench-{side}.w") for side in SIDES}
    seconds = dict.fromkeys(SIDES, 0.0)
    for turn, batch in enumerate(_batches(documents, payload)):
        for side in SIDES if turn % 2 else reversed(SIDES):
            started = time.perf_counter()
            outcome = engines[side].send(_encoder(side).encode(batch).actions)
            seconds[side] += time.perf_counter() - started
            if outcome.acknowledged != batch.num_rows:
                raise SystemExit(f"{len(outcome.rejected)} documents were refused")
    for engine in engines.values():
        engine.close()
    return seconds


def _encoder(side: str) -> DocumentEncoder:
    types = {"id": "bigint", "title": "text", "payload": "json" if side == "object" else "text"}
    return DocumentEncoder(types=types, field_types={}, key=["id"])


def _batches(documents: int, payload: Callable[[int], dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, documents, BATCH_ROWS):
        numbers = range(start, min(start + BATCH_ROWS, documents))
        yield pa.record_batch(
            {
                "id": pa.array(numbers, pa.int64()),
                "title": pa.array([f"Film {number} and what became of it" for number in numbers]),
                "payload": pa.array([json.dumps(payload(number)) for number in numbers]),
            }
        )


if __name__ == "__main__":
    main()
