"""Load a query's rows into an index with the helper of elasticsearch-py, inside its environment."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
from elasticsearch import Elasticsearch, helpers  # type: ignore[import-not-found]
from psycopg.rows import dict_row

INDEX = "bench-helper"


def actions(query: str) -> Iterator[dict[str, Any]]:
    with (
        psycopg.connect(os.environ["SOURCE_URL"]) as connection,
        connection.cursor("films", row_factory=dict_row) as rows,
    ):
        rows.itersize = 10_000
        rows.execute(query)  # type: ignore[arg-type]
        for row in rows:
            row["rating"] = float(row["rating"])  # its serialiser would do the same
            yield {"_op_type": "update", "_id": str(row["id"]), "doc": row, "doc_as_upsert": True}


client = Elasticsearch(os.environ["SEARCH_URL"], http_compress=True, request_timeout=120)
client.options(ignore_status=404).indices.delete(index=INDEX)
client.indices.create(index=INDEX, settings={"refresh_interval": "-1", "number_of_replicas": 0})
for _ in helpers.streaming_bulk(client, actions(sys.argv[1]), index=INDEX, chunk_size=3_000):
    pass
client.indices.refresh(index=INDEX)
