"""A REST catalog for tests: pyiceberg's own SQL catalog, asked over HTTP as Iceberg's specification has it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

TOKEN = "to+ken/of=tests"


@contextmanager
def running(catalog: SqlCatalog) -> Iterator[int]:
    """Serve a catalog on a port of its own, and end with the block."""

    class Handler(RestHandler):
        served = catalog

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class RestHandler(BaseHTTPRequestHandler):
    """Answers what a client needs that makes, loads and commits tables."""

    served: SqlCatalog

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self._answer(200, {"defaults": {}, "overrides": {}})
        elif self._words[-1] == "namespaces":
            self._answer(200, {"namespaces": [list(one) for one in self.served.list_namespaces()]})
        elif len(self._words) == 3:
            self._namespace()
        else:
            self._asked(lambda: _told(self.served.load_table(self._table)))

    def do_HEAD(self) -> None:
        self._namespace()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"error": {"message": "who is it?", "type": "NotAuthorizedException", "code": 401}})
        elif self._words[-1] == "namespaces":
            self.served.create_namespace(tuple(asked["namespace"]))
            self._answer(200, {"namespace": asked["namespace"], "properties": {}})
        elif self._words[-1] == "tables":
            name = (self._words[2], asked["name"])
            schema = Schema.model_validate(asked["schema"])
            made = {"location": asked["location"], "properties": asked["properties"]}
            self._asked(lambda: _told(self.served.create_table(name, schema, **made)))
        else:
            self._asked(lambda: self._committed(asked))

    @property
    def _words(self) -> list[str]:
        return self.path.partition("?")[0].strip("/").split("/")

    @property
    def _table(self) -> tuple[str, str]:
        return self._words[2], self._words[4]

    def _namespace(self) -> None:
        found = self.served.namespace_exists(self._words[2])
        self._answer(200 if found else 404, {"namespace": [self._words[2]], "properties": {}} if found else None)

    def _committed(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = CommitTableRequest.model_validate(asked)
        table = self.served.load_table(self._table)
        done = self.served.commit_table(table, wanted.requirements, wanted.updates)
        return {
            "metadata-location": done.metadata_location,
            "metadata": json.loads(done.metadata.model_dump_json()),
        }

    def _asked(self, work: Any) -> None:
        try:
            self._answer(200, work())
        except NoSuchTableError as exc:
            self._answer(404, {"error": {"message": str(exc), "type": "NoSuchTableException", "code": 404}})
        except CommitFailedException as exc:
            self._answer(409, {"error": {"message": str(exc), "type": "CommitFailedException", "code": 409}})

    def _answer(self, status: int, body: Any) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _told(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }
