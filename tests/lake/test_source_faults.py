"""An S3 server that fails while files are read: no row is lost or double, or the error says what happened."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.lake.conftest import Lake, settings_with
from tests.lake.s3_server import S3Server
from tests.lake.test_faults import S3Proxy, Spoilt
from tests.lake.test_source_runs import films, follow_films, mart, read_films, succeed, write
from tests.support.http_fault_proxy import Answer, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.connectors.files import bucket, urls
from vitrina.connectors.files.reading.process import Limits
from vitrina.connectors.files.reading.source import Asked, FilesSource
from vitrina.errors import Disconnected, VitrinaError
from vitrina.ports.source import Window


class Cut(Spoilt):
    """Ends the connection in the middle of an object, after headers that promise all of it."""

    def handle(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        if request.method != "GET" or self._part not in request.path or not self._takes():
            return answer
        headers = answer.headers | {"content-length": str(len(answer.body))}
        return Answer(answer.status, b"", headers, stream=_half(answer.body))


def _half(body: bytes) -> Generator[bytes]:
    yield body[: len(body) // 2]


class Slow(Spoilt):
    """Gives objects byte by byte."""

    def handle(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        if request.method != "GET" or self._part not in request.path or not self._takes():
            return answer
        headers = answer.headers | {"content-length": str(len(answer.body))}
        return Answer(answer.status, b"", headers, stream=_slowly(answer.body))


def _slowly(body: bytes) -> Generator[bytes]:
    for place in range(len(body)):
        time.sleep(0.005)
        yield body[place : place + 1]


class Stuck(HttpFault):
    """Holds requests for objects back until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.released = threading.Event(), threading.Event()

    def handle(self, request: Request, forward: Forward) -> Answer:
        if ".csv" in request.path:
            self.held.set()
            self.released.wait(60)
        return forward(request)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[HttpFaultProxy]:
    with S3Proxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def lake(s3: S3Server) -> Lake:
    """The server itself: files are written there without faults."""
    prefix = uuid4().hex
    lake = Lake(s3.url(prefix), s3.folder / prefix, s3)
    write(lake, "a.csv", *range(1, 11))
    write(lake, "b.csv", *range(11, 16))
    return lake


@pytest.fixture
def through_proxy(s3: S3Server, lake: Lake, proxy: HttpFaultProxy) -> str:
    return s3.url(lake.folder.name, proxy.port)


@pytest.fixture
def bench(workbench: Workbench, through_proxy: str) -> Workbench:
    workbench.settings = settings_with(workbench.settings, through_proxy)
    return workbench


FAULTS: dict[str, Callable[[], Spoilt]] = {
    "listing busy": lambda: Spoilt("GET", "list-type=2", "busy", 4),
    "listing lost": lambda: Spoilt("GET", "list-type=2", "lost-reply", 4),
    "object busy": lambda: Spoilt("GET", "b.csv", "busy", 4),
    "object broken": lambda: Spoilt("GET", "b.csv", "broken", 4),
    "object lost": lambda: Spoilt("GET", "b.csv", "lost-reply", 4),
    "object cut": lambda: Cut("GET", "b.csv", "cut", 4),
    "object slow": lambda: Slow("GET", "b.csv", "slow", 1),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_server_that_fails_for_a_while(
    bench: Workbench, lake: Lake, proxy: HttpFaultProxy, mode: str, what: str
) -> None:
    (read_films if mode == "full" else follow_films)(bench)
    proxy.fault = fault = FAULTS[what]()
    done = succeed(bench)
    proxy.heal()
    assert fault.happened > 0
    assert mart(bench) == films(*range(1, 16))
    assert done["rows_written"] == 15
    write(lake, "c.csv", 16)
    assert succeed(bench)["rows_read"] == (16 if mode == "full" else 1)
    assert mart(bench) == films(*range(1, 17))


def test_a_server_that_stays_broken_is_named(
    bench: Workbench, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bucket._RETRIES, "max_retries", 1)
    read_films(bench, options={"max_attempts": 1})
    proxy.fault = Cut("GET", "b.csv", "cut", 1_000_000)
    done = bench.run("films")
    assert done["status"] == "FAILED"
    assert "s3://lake/" in done["error_message"]
    # The mart may have been made for the rows of the first file, which nobody sees.
    if bench.sql("SELECT 1 WHERE to_regclass('analytics.films') IS NOT NULL"):
        assert mart(bench) == {}


def open_source(url: str, **fields: Any) -> FilesSource:
    limits = Limits(timeout_seconds=60, memory_mb=1024, threads=1, spill_mb=100)
    return FilesSource(urls.parse(url), Asked("SELECT id, title FROM 'in/*.csv'", limits, **fields))


def test_a_source_that_is_closed_during_a_download_leaves_nothing(
    through_proxy: str, proxy: HttpFaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    proxy.fault = stuck = Stuck()
    source = open_source(through_proxy)
    raised: list[Exception] = []

    def describe() -> None:
        try:
            source.describe(Window())
        except VitrinaError as exc:
            raised.append(exc)

    reading = threading.Thread(target=describe)
    reading.start()
    assert stuck.held.wait(60)
    source.close()
    stuck.released.set()
    reading.join(60)
    assert not reading.is_alive()
    assert isinstance(raised[0], Disconnected)
    until(lambda: not list(tmp_path.iterdir()), seconds=10)


def test_large_objects_come_in_pieces(
    through_proxy: str, lake: Lake, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is tried again by itself, and an object that is replaced between two of them is refused."""
    monkeypatch.setattr(bucket, "_RANGE_BYTES", 1000)
    write(lake, "a.csv", *range(1000, 1200))
    source = open_source(through_proxy)
    proxy.fault = cut = Cut("GET", "a.csv", "cut", 3)
    rows = [row["id"] for batch in source.read(Window(), "natural") for row in batch.take().to_pylist()]
    source.close()
    assert cut.happened == 3
    assert rows == [*range(1000, 1200), *range(11, 16)]

    class Replaced(HttpFault):
        def handle(self, request: Request, forward: Forward) -> Answer:
            if "a.csv" in request.path and request.headers.get("range", "").startswith("bytes=1000-"):
                write(lake, "a.csv", *range(2000, 2200))
            return forward(request)

    proxy.fault = Replaced()
    source = open_source(through_proxy)
    with pytest.raises(VitrinaError, match=r"in/a\.csv was changed or removed"):
        source.describe(Window())
    source.close()
