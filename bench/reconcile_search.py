"""Reconcile a search index: compared with a hand-written md5 of each row and document.

    python -m bench.reconcile_search [--kind elasticsearch-8] [--rows 1000000] [--repeat 1]

Also checked: seven kinds of differences are found and repaired, and the number of documents after a refresh.
"""

import argparse
import hashlib
import os
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import orjson
import psycopg

from bench.cinema import COLUMNS, FILMS
from bench.postgres import Bench, bench
from bench.reconcile import WANTED
from bench.report import timed, write
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.embedded import search_server

INDEX = "bench-films"
KINDS = "changed, missing, extra, moved, NULL, microsecond, order"


def main() -> None:
    arguments = parse()
    arguments.only, arguments.peers, arguments.bindir = ["reconcile"], [], None
    with search_server.running(arguments.kind) as server:
        os.environ |= {"ELASTICSEARCH_URL": server.url, "VITRINA_ALLOWED_TARGETS": f"analytics.*,es:{INDEX}"}
        with bench(arguments) as measured:
            client = SearchClient(ConnectionOptions.from_url(server.url))
            measured.platform.define("films", FILMS, target_table=f"es:{INDEX}", target_key=["id"], batch_size=10_000)
            loaded = timed(lambda: measured.platform.run("films"))
            line = measured.compare(
                "reconcile a search index",
                "reading both sides with md5",
                WANTED,
                lambda: _expect(measured.platform.reconcile("films"), missing=0, extra=0, differing=0),
                lambda: _by_hand(measured, client),
            )
            told = {
                "server": f"{arguments.kind} {server.distribution.version}",
                "rows": arguments.rows,
                "full_load_seconds": round(loaded, 1),
                "found_and_repaired": _find_and_repair(measured, client),
                "runner_peak_memory_mb": round(measured.platform.peak_memory_mb()),
            }
    write("reconcile_search", [line], told)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="elasticsearch-8", choices=list(search_server.KINDS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--home", type=Path, default=Path(gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _by_hand(measured: Bench, client: SearchClient) -> None:
    """Compute the number and a sum of each side; the two sums cannot even be compared."""
    client.refresh(INDEX)
    pages = client.scroll(INDEX, {"size": 2000})
    documents = sum(_md5(orjson.dumps(hit["_source"])) > 0 for hits in pages for hit in hits)
    statement = f"COPY (SELECT {COLUMNS} FROM content.films) TO STDOUT".encode()
    with psycopg.connect(measured.cinema.admin_url) as connection, connection.cursor().copy(statement) as copy:
        rows = sum(_md5(bytes(line)) > 0 for line in copy)
    if documents != rows:
        raise RuntimeError(f"{documents} documents, {rows} rows")


def _md5(text: bytes) -> int:
    return int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest()[:8]) + 1


def _find_and_repair(measured: Bench, client: SearchClient) -> str:
    _spoil(client)
    found = timed(lambda: _expect(measured.platform.reconcile("films"), missing=2, extra=2, differing=4))
    seconds = timed(lambda: _expect(measured.platform.reconcile("films", repair=True), remaining=0))
    _expect(measured.platform.reconcile("films"), differences=0)
    client.refresh(INDEX)
    if client.count(INDEX) != measured.cinema.rows:
        raise RuntimeError(f"{client.count(INDEX)} documents of {measured.cinema.rows} rows")
    told = f"{KINDS}; found in {found:.1f} s, found and repaired in {seconds:.1f} s"
    print(told, flush=True)
    return told


def _spoil(client: SearchClient) -> None:
    ids = [_id(number) for number in range(1, 7)]
    hits = client.search(INDEX, {"query": {"ids": {"values": ids}}})["hits"]["hits"]
    found = {hit["_id"]: hit["_source"] for hit in hits}
    moment = found[ids[4]]["modified"].removesuffix("Z")
    changes: dict[str, dict[str, Any]] = {
        ids[0]: {"title": "Changed"},
        ids[3]: {"title": None},
        ids[4]: {"modified": (f"{moment}.000001" if "." not in moment else f"{moment}1") + "Z"},
        ids[5]: {"genres": found[ids[5]]["genres"][::-1]},
        _id(0): {"title": "Extra"},
        _id(-1): found[ids[2]],
    }
    lines: list[dict[str, Any]] = [{"delete": {"_id": ids[1]}}, {"delete": {"_id": ids[2]}}]
    for one, document in changes.items():
        lines += [{"update": {"_id": one}}, {"doc": document, "doc_as_upsert": True}]
    (concrete,) = client.find_index(INDEX) or {}
    client.update_aliases([{"add": {"index": concrete, "alias": f"{INDEX}.spoil"}}])
    client.bulk(f"{INDEX}.spoil", b"".join(orjson.dumps(line) + b"\n" for line in lines))


def _id(number: int) -> str:
    digits = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _expect(report: dict[str, Any], **wanted: int) -> None:
    found = {name: report[name] for name in wanted}
    if found != wanted:
        raise RuntimeError(f"expected {wanted}, found {found}")


if __name__ == "__main__":
    main()
