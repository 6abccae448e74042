"""A real S3 server for tests: versitygw over a folder, built by `make test-lake` where Go is at hand."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.ports import kept_port

PROGRAM = Path(__file__).resolve().parents[2] / ".lake" / "bin" / "versitygw"
KEY, SECRET, BUCKET = "tester", "se+cret/of=tests", "lake"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    port: int
    # Objects are files there: for a look from outside.
    folder: Path

    def url(self, prefix: str, port: int | None = None) -> str:
        """Return the URL of a connection; `port`: by way of a proxy."""
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint}&access_key_id={KEY}&secret_access_key={SECRET}"


@contextmanager
def running(place: Path) -> Iterator[S3Server]:
    """Start a server whose buckets are the folders of `place`, and end it with the block."""
    (place / BUCKET).mkdir(parents=True)
    said = place.parent / "versitygw.log"
    with kept_port() as port:
        command = [str(PROGRAM), "--quiet", "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}"]
        with said.open("w") as log:
            server = subprocess.Popen([*command, "posix", str(place)], stdout=log, stderr=log)
        try:
            _until_it_answers(server, port, said)
            yield S3Server(port, place / BUCKET)
        finally:
            server.kill()
            server.wait()


def _until_it_answers(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            httpx.get(f"http://127.0.0.1:{port}/", timeout=5)
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(f"versitygw does not answer: {log.read_text()}")
