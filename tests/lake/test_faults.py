"""Runners that are lost, servers that fail and replies that never come: nothing lost, nothing double, nothing left."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from tests.lake import readers
from tests.lake.conftest import LOADS, Lake, settings_with
from tests.lake.s3_server import S3Server
from tests.lake.test_contract import open_files
from tests.lake.test_runs import add_films, films, full, incremental, succeed
from tests.support.http_fault_proxy import Answer, DropConnection, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.workbench import Workbench
from vitrina.connectors.files.manifest import Manifest
from vitrina.connectors.files.target import FilesTarget

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text, gone bool DEFAULT false, changed timestamptz)"

# Where a runner of a full load may be lost. `batch.committed:2` is in the middle of a file: five batches are in it.
FULL = [
    "run.seized:crash:1",
    "load.fenced:crash:1",
    "load.begun:crash:1",
    "batch.filled:crash:1",
    "batch.filled:crash:3",
    "batch.fenced:crash:1",
    "batch.committed:crash:2",
    "batch.committed:crash:5",
    "publish.applied:crash:1",
    "publish.fenced:crash:1",
    "publish.committed:crash:1",
]
PASSES = [
    "pass.begun:crash:1",
    "batch.filled:crash:2",
    "merge.applied:crash:1",
    "batch.fenced:crash:1",
    "batch.committed:crash:2",
    "pass.fenced:crash:1",
    "pass.ended:crash:1",
]


@pytest.fixture
def bench(lake_bench: Workbench) -> Workbench:
    lake_bench.source(FILM)
    add_films(lake_bench, 1, 30)
    return lake_bench


def require_nothing_left(lake: Lake) -> None:
    assert lake.stored("films") == lake.named("films")


@pytest.mark.parametrize("at", FULL)
def test_a_full_load_survives_its_runner(bench: Workbench, lake: Lake, at: str) -> None:
    full(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'new ' || id")
    bench.request("films")
    bench.lose_a_runner(at)
    shown = readers.titles(lake.files("films"))
    assert shown in (films(*range(1, 31)), {i: f"new {i}" for i in range(1, 31)})
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert sum(file["rows"] for file in lake.manifest("films")["files"]) == 30
    assert readers.titles(lake.files("films")) == {i: f"new {i}" for i in range(1, 31)}
    succeed(bench)
    require_nothing_left(lake)


@pytest.mark.parametrize("at", PASSES)
def test_a_pass_survives_its_runner(bench: Workbench, lake: Lake, at: str) -> None:
    incremental(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'new', changed = clock_timestamp() WHERE id <= 20")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE id > 25")
    bench.request("films")
    bench.lose_a_runner(at)
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"
    expected = dict.fromkeys(range(1, 21), "new") | films(*range(21, 26))
    assert readers.titles(lake.files("films")) == expected
    assert bench.reconcile("films", level="full")["equal"]
    require_nothing_left(lake)


def test_a_load_that_is_interrupted_after_each_batch_is_whole(bench: Workbench, lake: Lake) -> None:
    """Each try leaves a file of which a part counts; what is left of it is written again."""
    query = "SELECT id, title, id % 3 AS third FROM content.film"
    full(bench, query, options={"files": {"partition_by": ["third"]}, "max_attempts": 20})
    for _ in range(2):
        done = bench.run_interrupted("films")
        assert done["status"] == "SUCCESS", done["error_message"]
        assert done["attempts"] > 3
    assert sum(file["rows"] for file in lake.manifest("films")["files"]) == 30
    assert readers.titles(lake.files("films")) == films(*range(1, 31))
    require_nothing_left(lake)


def test_files_that_are_gone_are_noticed_and_written_again(bench: Workbench, lake: Lake) -> None:
    full(bench)
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:4")
    for path in lake.stored("films"):
        (lake.folder / "films" / path).unlink()
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert readers.titles(lake.files("films")) == films(*range(1, 31))


def test_readers_see_one_load_or_the_next(bench: Workbench, lake: Lake) -> None:
    """Loads of five files, each with another title in every row, under a reader that polls as fast as it can."""
    query = "SELECT id, title, repeat('x', 160000) AS ballast FROM content.film"
    full(bench, query, options={"keep_generations": 2, "files": {"file_mb": 1}})
    succeed(bench)
    assert len(lake.files("films")) == 5
    ended, seen = threading.Event(), set[str]()
    mixed: list[set[str]] = []

    def poll() -> None:
        while not ended.is_set():
            try:
                found = readers.titles(lake.files("films"))
            except Exception as exc:  # a reader that took too long reads the manifest again
                if "No files found" not in str(exc) and "No such file" not in str(exc):
                    raise
                continue
            titles = set(found.values()) if found.get(1) != "Film 1" else {"first"}
            if len(found) != 30 or len(titles) != 1:
                mixed.append(titles)
            seen.update(titles)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        for number in range(LOADS):
            bench.sql(f"UPDATE content.film SET title = 'load {number}'")
            succeed(bench)
    finally:
        ended.set()
        polling.join()
    assert mixed == []
    assert len(seen) > LOADS // 10
    require_nothing_left(lake)


# --- a server that fails ---------------------------------------------------------------------------------------------


class Spoilt(HttpFault):
    """Spoils some requests: those with this method whose path has this in it, each so often."""

    def __init__(self, method: str, part: str, how: str, times: int) -> None:
        super().__init__(times)
        self._method, self._part, self._how = method, part, how

    def handle(self, request: Request, forward: Forward) -> Answer:
        if request.method != self._method or self._part not in request.path or not self._takes():
            return forward(request)
        if self._how == "busy":
            return Answer(503, b"<Error><Code>SlowDown</Code></Error>", {"content-type": "application/xml"})
        if self._how == "broken":
            return Answer(500, b"<Error><Code>InternalError</Code></Error>", {"content-type": "application/xml"})
        if self._how == "cut":
            raise DropConnection
        forward(request)  # it is applied, and the client never hears of it
        raise DropConnection


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[HttpFaultProxy]:
    with S3Proxy(s3.port) as proxy:
        yield proxy


class S3Proxy(HttpFaultProxy):
    """Passes on what S3 needs: the host that was signed for, and the headers of an object."""

    def _forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        with closing(connection):
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name != "connection":
                    connection.putheader(name, value)
            connection.endheaders(request.body or None)
            reply = connection.getresponse()
            headers = {
                name: reply.getheader(name) for name in ("content-type", "content-range", "etag", "last-modified")
            }
            return Answer(reply.status, reply.read(), {name: value for name, value in headers.items() if value})


@pytest.fixture
def s3_lake(s3: S3Server, proxy: HttpFaultProxy) -> Lake:
    prefix = uuid4().hex
    return Lake(s3.url(prefix, proxy.port), s3.folder / prefix, s3)


@pytest.fixture
def s3_bench(workbench: Workbench, s3_lake: Lake) -> Workbench:
    workbench.settings = settings_with(workbench.settings, s3_lake.url)
    workbench.source(FILM)
    add_films(workbench, 1, 30)
    return workbench


REQUESTS = ("PUT manifest", "PUT .parquet", "GET manifest")
HOW = ("busy", "broken", "cut", "lost-reply")


@pytest.mark.parametrize("spoilt", [f"{request} {how}" for request in REQUESTS for how in HOW])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_server_that_fails_for_a_while(
    s3_bench: Workbench, s3_lake: Lake, proxy: HttpFaultProxy, mode: str, spoilt: str
) -> None:
    method, part, how = spoilt.split()
    (full if mode == "full" else incremental)(s3_bench)
    succeed(s3_bench)
    s3_bench.sql("UPDATE content.film SET title = 'new', changed = clock_timestamp()")
    proxy.fault = fault = Spoilt(method, part, how, times=4)
    succeed(s3_bench)
    proxy.heal()
    assert fault.happened == 4
    assert readers.titles(s3_lake.files("films")) == dict.fromkeys(range(1, 31), "new")
    if mode == "full":
        assert sum(file["rows"] for file in s3_lake.manifest("films")["files"]) == 30
    succeed(s3_bench)
    require_nothing_left(s3_lake)


def test_a_put_that_comes_late_changes_nothing(s3: S3Server, s3_lake: Lake, proxy: HttpFaultProxy) -> None:
    """A zombie's switch is stuck on its way; it arrives when another claim has the target."""

    class Late(Spoilt):
        held: "list[tuple[Request, Forward]]"

        def handle(self, request: Request, forward: Forward) -> Answer:
            if request.method == "PUT" and b"of the zombie" in request.body:
                self.held.append((request, forward))
                raise DropConnection
            return forward(request)

    zombie = open_files(s3_lake.url, 1)
    assert isinstance(zombie, FilesTarget)
    zombie.seize()
    late = Late("PUT", "manifest", "cut", 0)
    late.held = []
    proxy.fault = late
    marked = Manifest().writing("of the zombie", epoch=1).writing(zombie.pipeline, epoch=1)
    with pytest.raises(Exception, match=r"manifest|s3"):
        zombie.ledger.change(lambda _: marked)
    assert late.held
    proxy.heal()
    open_files(s3_lake.url, 2).seize()
    for request, forward in late.held:
        assert forward(request).status == 412
    assert "of the zombie" not in s3_lake.manifest("films")["writers"]
