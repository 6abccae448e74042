"""Kill or stop a runner in the middle of a bulk request: no document is lost, none returns to an older version."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, say
from tests.support.http_fault_proxy import Hold, HttpFaultProxy
from tests.support.search_servers import Target, kinds
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.settings import Settings

# With the mutant, an earlier claim's alias of the index stays, and late requests that use it are accepted.
CASES = [("kill", None), ("stop", None), *([("kill", "alias_kept")] if LONG else [])]


@pytest.mark.chaos
@pytest.mark.search
@pytest.mark.timeout(600)
@pytest.mark.parametrize("search", kinds()[:1], indirect=True)
@pytest.mark.parametrize(("action", "mutant"), CASES)
def test_a_runner_lost_in_the_middle_of_a_bulk_loses_nothing(scene: "Scene", action: str, mutant: str | None) -> None:
    scene.arena.mutants = [mutant] if mutant else []
    found = scene.late_bulk(action)
    say(f"{action} {mutant or ''}: {found}")
    assert bool(found) == bool(mutant)
    scene.arena.change_source()
    scene.arena.request("documents")
    scene.arena.await_quiet()
    assert scene.wrong() == []
    assert list(scene.arena._loose_ends()) == []


@dataclass
class Scene:
    """Hold one pipeline into an index, its runners' connection to the search server, and the test's own."""

    arena: Arena
    proxy: HttpFaultProxy
    client: SearchClient
    index: str

    def late_bulk(self, action: str) -> list[str]:
        """Deliver what a lost runner sent when its successor is done. Return what is wrong then."""
        self.arena.start_runners(2)
        self.arena.request("documents")
        self.arena.await_quiet()
        late = self.lose_a_runner(action)
        self.arena.await_quiet()
        found = self.wrong()
        refused = sum(answer.body.count(b'"status":404') for answer in late.release())
        say(f"{action} in the middle of a bulk: {refused} late documents refused")
        self.arena.wake_stopped()
        return [*found, *self.wrong(), *([] if refused else ["a late bulk was not refused"])]

    def lose_a_runner(self, action: str) -> Hold:
        """Hold back all bulks of a run but one; lose the runner that waits for them, and let another take over."""
        self.arena.change_source()
        late = Hold(times=1_000_000, passing=1)  # every attempt, until the runner is lost
        self.arena.hold("documents", "run.planned")
        self.proxy.fault = late
        self.arena.let_go()
        self.arena.await_true(lambda: late.happened, PATIENCE_SECONDS, "a bulk is on its way")
        epoch = self.arena.epoch("documents")
        os.kill(self.arena.victim, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        self.proxy.heal()
        self.arena.disarm()
        # What the successor writes is newer than what is held back.
        self.arena.change_source()
        self.arena.await_true(lambda: self.arena.epoch("documents") > epoch, PATIENCE_SECONDS, "a takeover")
        return late

    def wrong(self) -> list[str]:
        """List documents that are missing or differ from their row in version; incremental ones outlive their rows."""
        self.client.refresh(self.index)
        hits = self.client.search(self.index, {"size": 2000, "query": {"match_all": {}}})["hits"]["hits"]
        found = {hit["_source"]["id"]: hit["_source"]["version"] for hit in hits}
        rows = {row["id"]: row["version"] for row in self.arena.sql("SELECT id, version FROM content.item")}
        lost = sum(key not in found for key in rows)
        stale = sum(found[key] != rows[key] for key in rows.keys() & found.keys())
        return [f"{lost} lost, {stale} stale"] if lost or stale else []


@pytest.fixture
def scene(search: Target, database: Settings, tmp_path: Path) -> Iterator[Scene]:
    client = SearchClient(ConnectionOptions.from_url(search.url))
    index = f"vitrina-test-{uuid4().hex[:12]}"
    with HttpFaultProxy(urlsplit(search.url).port or 9200) as proxy:
        environment = {"ELASTICSEARCH_URL": proxy.url, "VITRINA_ALLOWED_TARGETS": "analytics.*,es:vitrina-test-*"}
        # Not shorter, or a busy machine takes away the lease of another runner than the one that is tested.
        with Arena(database, tmp_path, environment=environment, lease_seconds=4.0) as arena:
            arena.prepare_index("documents", f"es:{index}")
            yield Scene(arena, proxy, client, index)
    for concrete in client.list_indexes(f"{index}*"):
        client.delete_index(concrete)
    client.close()
