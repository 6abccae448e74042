"""Whole runs into a search server that misbehaves: no document lost, none stale, none unaccounted for."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_bulk import CarelessClient, careless_about_items
from tests.support.fault_proxy import Refuse, TcpFaultProxy
from tests.support.http_fault_proxy import (
    Answer,
    AnswerInstead,
    CutReplyShort,
    FailItems,
    Forward,
    HttpFault,
    HttpFaultProxy,
    LoseReply,
    Request,
    Stall,
    TooLarge,
)
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.search import target
from vitrina.connectors.search.bulk import BulkEngine, Limits
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations, WriteAlias
from vitrina.errors import RunError
from vitrina.ports.batch import Counts, PartId, Written
from vitrina.runner import dispatcher
from vitrina.store import recovery

ROWS = 300
FILMS = f"""
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text NOT NULL, version int NOT NULL, modified timestamptz NOT NULL);
INSERT INTO content.film_work
SELECT i, repeat('Film ' || i, 20), 1, timestamptz '2024-01-01' + make_interval(secs => i)
FROM generate_series(1, {ROWS}) AS i;
"""
QUERY = "SELECT id, title, version, modified FROM content.film_work"
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "incremental": {"mode": "incremental", "incremental_key": "modified", "incremental_id_key": "id"},
}
# Impatient, so that the tests are quick; small requests, so that there are many of them.
LIMITS = Limits(
    request_bytes=8 * 1024,
    small_request_bytes=1024,
    first_delay_seconds=0.02,
    longest_delay_seconds=0.3,
    fence_grace_seconds=0.1,
    worth_halving=2,
)


@pytest.fixture
def bench(workbench: Workbench, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={
            "elasticsearch_url": SecretStr(proxy.url),
            "allowed_targets": "es:vitrina-test-*",
            "backoff_seconds": (0.01,),
        }
    )
    use_engine(monkeypatch, partial(BulkEngine, limits=LIMITS))
    monkeypatch.setattr(target.ElasticsearchWriter, "fence_grace_seconds", LIMITS.fence_grace_seconds)
    return workbench


def use_engine(monkeypatch: pytest.MonkeyPatch, engine: Callable[..., BulkEngine]) -> None:
    monkeypatch.setattr(target, "BulkEngine", engine)


def make(bench: Workbench, index: str, mode: str, **fields: Any) -> None:
    wanted = {"target_table": f"es:{index}", "target_key": ["id"], "batch_size": 60} | MODES[mode] | fields
    bench.pipeline("films", QUERY, **wanted)


def change_source(bench: Workbench, version: int) -> None:
    """Every row gets a newer version."""
    bench.sql(f"UPDATE content.film_work SET version = {version}, modified = clock_timestamp()")


def violations(bench: Workbench, client: SearchClient, index: str) -> list[str]:
    """Rows that are neither in the index as they are now nor among the dead letters, and documents without a row."""
    wanted = {str(row["id"]): row["version"] for row in bench.sql("SELECT id, version FROM content.film_work")}
    letters = {row["document_id"] for row in bench.sql("SELECT document_id FROM etl.etl_dead_letters")}
    client.refresh(index)
    hits = client.search(index, {"size": 10_000, "_source": ["version"]})["hits"]["hits"]
    found = {hit["_id"]: hit["_source"]["version"] for hit in hits}
    lost = [f"lost {key}" for key in wanted.keys() - found.keys() - letters]
    stale = [f"stale {key}" for key in wanted.keys() & found.keys() - letters if found[key] != wanted[key]]
    return lost + stale + [f"nobody's {key}" for key in found.keys() - wanted.keys()]


def faults() -> dict[str, HttpFault]:
    """Fresh ones: they count how often they happened."""
    return {
        "429 storm": AnswerInstead(429, times=8),
        "reply lost after the server applied": LoseReply(times=4),
        "reply cut short": CutReplyShort(times=3),
        "some items refused inside a 200": FailItems(0.3, 429, "es_rejected_execution_exception", times=20),
        "some items refused for good": FailItems(0.02, 400, "mapper_parsing_exception", times=20),
        "request too large": TooLarge(limit_bytes=3_000),
        "reply stalled for 5 s": Stall(5, times=1),
    }


@pytest.mark.one_server
@pytest.mark.parametrize("name", list(faults()))
def test_nothing_is_lost_or_stale(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, name: str
) -> None:
    make(bench, index, "incremental")
    assert bench.run("films")["status"] == "SUCCESS"
    change_source(bench, 2)
    fault = proxy.fault = faults()[name]

    run = bench.run("films")

    assert (run["status"], run["rows_read"]) == ("SUCCESS", ROWS)
    assert fault.happened, "the fault never struck, so this proves nothing"
    assert violations(bench, client, index) == []


@pytest.mark.one_server
@pytest.mark.parametrize("name", ["reply lost after the server applied", "some items refused inside a 200"])
def test_a_rebuild_holds_everything(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, name: str
) -> None:
    make(bench, index, "full")
    proxy.fault = faults()[name]

    assert bench.run("films")["status"] == "SUCCESS"

    assert violations(bench, client, index) == []


@pytest.mark.one_server
def test_a_second_try_takes_the_alias_from_the_first(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy
) -> None:
    """Also when the first one had to move it itself, after a reply was lost."""
    make(bench, index, "incremental")
    proxy.fault = LoseReply(times=1)
    failpoints.configure("batch.committed:error:2")
    try:
        run = bench.run("films")
    finally:
        failpoints.configure("")

    assert (run["status"], run["attempts"]) == ("SUCCESS", 2)
    assert violations(bench, client, index) == []
    [(alias, _)] = Generations(client, index)._write_aliases()
    assert alias.renewal == 2


@pytest.mark.one_server
def test_a_server_that_is_down_at_the_start_is_waited_for(
    bench: Workbench, client: SearchClient, index: str, search: Target
) -> None:
    make(bench, index, "incremental")
    with TcpFaultProxy(search.port) as tcp:
        bench.settings = bench.settings.model_copy(
            update={"elasticsearch_url": SecretStr(f"http://127.0.0.1:{tcp.port}"), "backoff_seconds": (0.2,)}
        )
        tcp.fault = Refuse()
        healing = threading.Thread(target=heal_after_one_try, args=(bench, tcp))
        healing.start()

        run = bench.run("films")

        healing.join()
    assert run["status"] == "SUCCESS"
    assert run["attempts"] > 1
    assert violations(bench, client, index) == []


def heal_after_one_try(bench: Workbench, tcp: TcpFaultProxy) -> None:
    until(lambda: bool(bench.sql("SELECT 1 FROM etl.etl_runs WHERE attempts > 1")))
    tcp.heal()


LOADS: dict[str, dict[str, Any]] = {
    "full": MODES["full"],
    "shared": {**MODES["full"], "options": {"shared_target": True}},
    "incremental": MODES["incremental"],
}


class HoldInMidLoad(HttpFault):
    """Each index takes some bulks; those that follow are on their way until `go_on` is set."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self._taken = taken
        self._seen: Counter[str] = Counter()
        self.held: set[str] = set()
        self.go_on = threading.Event()

    def spoil(self, request: Request, forward: Forward) -> Answer:
        index = unquote(request.path).removeprefix("/").partition(".w.")[0]
        with self._lock:
            self._seen[index] += 1
            is_late = self._seen[index] > self._taken
            if is_late:
                self.held.add(index)
        if is_late:
            self.go_on.wait(240)
        return forward(request)


def watch(client: SearchClient, name: str, index: str, done: threading.Event, complaints: list[str]) -> None:
    """Search all the time; a server that is down answers nothing, and what it answers is whole."""
    while not done.wait(0.02):
        with suppress(RunError):
            hits = client.search(index, {"size": 10_000, "_source": ["version"]})["hits"]["hits"]
            versions = {hit["_source"]["version"] for hit in hits}
            if len(hits) != ROWS or (name == "full" and len(versions) != 1):
                complaints.append(f"{name} showed {len(hits)} documents of versions {versions}")


@pytest.mark.chaos
@pytest.mark.two_servers
def test_server_killed_and_restarted_in_mid_load(
    *,
    bench: Workbench,
    client: SearchClient,
    index: str,
    search: Target,
    proxy: HttpFaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a load of each kind, and while somebody searches."""
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_SECONDS", 240.0)  # a server needs its time where many things run
    if search.process is None:
        pytest.fail(f"this test kills the server: run it without ELASTICSEARCH_URL ({search.url})")
    indexes = {name: f"{index}-{name}" for name in LOADS}
    for name, fields in LOADS.items():
        bench.pipeline(
            name, QUERY, **{"target_table": f"es:{indexes[name]}", "target_key": ["id"], "batch_size": 20, **fields}
        )
        assert bench.run(name)["status"] == "SUCCESS"
    change_source(bench, 2)
    fault = proxy.fault = HoldInMidLoad(taken=15)
    for name in LOADS:
        bench.request(name)
    running = [threading.Thread(target=bench.perform, args=[bench.claim()]) for _ in LOADS]
    done, complaints = threading.Event(), list[str]()
    watching = [threading.Thread(target=watch, args=(client, *one, done, complaints)) for one in indexes.items()]
    for thread in (*watching, *running):
        thread.start()
    until(lambda: fault.held == set(indexes.values()))
    search.process.kill()
    fault.go_on.set()
    search.process.start()
    for thread in running:
        thread.join(timeout=240)
    done.set()
    for thread in watching:
        thread.join()

    assert {name: bench.last_run(name)["status"] for name in LOADS} == dict.fromkeys(LOADS, "SUCCESS")
    assert {name: violations(bench, client, of) for name, of in indexes.items()} == {name: [] for name in LOADS}
    assert complaints == []
    # A full load keeps the generation that it replaced.
    left = {name: len(client.list_indexes(f"{of}*")) for name, of in indexes.items()}
    assert left == {"full": 2, "shared": 1, "incremental": 1}


# --- a runner that is stopped, and another one in its place ---------------------------------------------------------


class StopSender(HttpFault):
    """The sender is stopped with a request on its way; the server gets it when `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(times=1)
        self.pid = 0
        self.reached, self.go_on, self.answered = threading.Event(), threading.Event(), threading.Event()

    def spoil(self, request: Request, forward: Forward) -> Answer:
        os.kill(self.pid, signal.SIGSTOP)
        self.reached.set()
        self.go_on.wait(240)
        answer = forward(request)
        self.answered.set()
        return answer


@pytest.fixture
def runner(bench: Workbench) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Starts a real runner, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        settings = bench.settings
        assert settings.database_url
        assert settings.reader_url
        assert settings.elasticsearch_url
        environment = os.environ | {
            "VITRINA_DATABASE_URL": settings.database_url.get_secret_value(),
            "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
            "ELASTICSEARCH_URL": settings.elasticsearch_url.get_secret_value(),
            "VITRINA_ALLOWED_TARGETS": settings.allowed_targets,
            "VITRINA_LEASE_TTL_SECONDS": "2",
            "VITRINA_POLL_SECONDS": "0.2",
        }
        command = [sys.executable, "-m", "vitrina.cli", "runner"]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(60)


@pytest.mark.one_server
@pytest.mark.chaos
@pytest.mark.parametrize("fenced", [True, False], ids=["alias moved", "mutant: alias not moved"])
def test_a_stopped_runner_that_wakes_after_the_takeover_changes_nothing(
    *,
    bench: Workbench,
    client: SearchClient,
    index: str,
    proxy: HttpFaultProxy,
    runner: Callable[[], "subprocess.Popen[bytes]"],
    monkeypatch: pytest.MonkeyPatch,
    fenced: bool,
) -> None:
    make(bench, index, "incremental", batch_size=1000)
    bench.run("films")
    change_source(bench, 2)
    bench.request("films")
    stopped = StopSender()
    proxy.fault = stopped
    process = runner()
    stopped.pid = process.pid
    assert stopped.reached.wait(120)
    change_source(bench, 3)
    if not fenced:
        monkeypatch.setattr(Generations, "claim_writes", _leave_older_aliases)
    # The takeover: the lease runs out, another runner recovers the pipeline and does its work.
    until(lambda: bool(recovery.recover_expired(bench.metastore, max_attempts=5)))
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"

    stopped.go_on.set()
    assert stopped.answered.wait(60)
    os.kill(process.pid, signal.SIGCONT)
    lost = "SELECT count(*) AS runs FROM etl.etl_runs WHERE status = 'RUNNING'"
    until(lambda: bench.sql(lost)[0]["runs"] == 0)

    found = violations(bench, client, index)
    assert (found == []) == fenced, "a late bulk under an alias that nobody took away must be noticed"


def _leave_older_aliases(generations: Generations, concrete: str, alias: WriteAlias, *, shared: bool) -> None:
    generations._client.update_aliases([{"add": {"index": concrete, "alias": str(alias)}}])


# --- mutants: the tests above must notice each ----------------------------------------------------------------------


@pytest.mark.one_server
def test_mutant_that_does_not_look_at_items_is_caught(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_engine(monkeypatch, partial(BulkEngine, limits=LIMITS, judge_item=careless_about_items))
    make(bench, index, "incremental")
    proxy.fault = faults()["some items refused inside a 200"]

    assert bench.run("films")["status"] == "SUCCESS", "the mutant believes that all is well"

    assert violations(bench, client, index)


@pytest.mark.one_server
def test_mutant_that_takes_a_refused_request_for_done_is_caught(
    bench: Workbench, client: SearchClient, index: str, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(transport: SearchClient, target: str, **options: Any) -> BulkEngine:
        return BulkEngine(CarelessClient(transport), target, limits=LIMITS, **options)

    use_engine(monkeypatch, careless)
    make(bench, index, "incremental")
    proxy.fault = faults()["429 storm"]

    assert bench.run("films")["status"] == "SUCCESS"

    assert violations(bench, client, index)


@pytest.mark.one_server
@pytest.mark.parametrize("mutant", [False, True], ids=["as it is", "mutant: checkpoint before acknowledge"])
def test_a_crash_behind_a_checkpoint_loses_nothing(
    bench: Workbench, client: SearchClient, index: str, monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        monkeypatch.setattr(target.DocumentSender, "write", _send_late(target.DocumentSender.write))
    make(bench, index, "incremental")
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:2")
    bench.recover()
    bench.perform(bench.claim())

    assert bench.last_run("films")["status"] == "SUCCESS"
    assert bool(violations(bench, client, index)) == mutant


_Write = Callable[[target.DocumentSender, pa.Table, PartId], Callable[[], Written]]


def _send_late(write: _Write) -> _Write:
    """Each batch counts as acknowledged at once, and is sent when the second one behind it counts."""
    owed: deque[tuple[pa.Table, PartId]] = deque()

    def write_nothing(sender: target.DocumentSender, table: pa.Table, part: PartId) -> Callable[[], Written]:
        def arrive() -> Written:
            owed.append((table, part))
            if len(owed) > 2:
                write(sender, *owed.popleft())()
            return Written(table.num_rows, counts=Counts(inserted=table.num_rows))

        return arrive

    return write_nothing
