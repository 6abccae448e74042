"""Serve `/metrics`, `/livez` and `/readyz?verbose` of a runner, on a separate port."""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from vitrina.errors import ConfigError

# Returns what is wrong, or None.
Check = Callable[[], str | None]


class ProbeServer:
    """Serve until stopped. Answer in threads, so that an unreachable database delays one probe, not all."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        *,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry, "live": dict(live), "ready": dict(ready)})
        try:
            self._server = ThreadingHTTPServer(address, handler)
        except OSError as exc:
            host, port = address
            raise ConfigError(
                f"cannot listen on {host}:{port} for /metrics: {exc.strerror}; choose another VITRINA_METRICS_PORT"
            ) from exc
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()
        structlog.get_logger().info("runner.serves_metrics", port=self.port)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    live: dict[str, Check]
    ready: dict[str, Check]
    # A client that sends nothing must not keep its thread.
    timeout = 10

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif url.path in ("/livez", "/readyz"):
            verbose = "verbose" in parse_qs(url.query, keep_blank_values=True)
            self._probe(self.live if url.path == "/livez" else self.ready, verbose=verbose)
        else:
            self._answer(404, "text/plain; charset=utf-8", b"there is /metrics, /livez and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _probe(self, checks: dict[str, Check], *, verbose: bool) -> None:
        found = {name: check() or "ok" for name, check in checks.items()}
        well = all(result == "ok" for result in found.values())
        answer: dict[str, Any] = {"status": "ok" if well else "unavailable"}
        if verbose or not well:
            answer["checks"] = found
        self._answer(200 if well else 503, "application/json", json.dumps(answer).encode() + b"\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "vitrina"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because scrapes are too frequent."""
