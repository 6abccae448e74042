"""Kill and stop runners in loads of every kind into indexes, while threads search them all the time."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.chaos.arena import CURSOR, ROWS, Arena
from tests.chaos.conftest import LONG, say
from tests.support.search_servers import Target, kinds
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.generations import Generations
from vitrina.errors import RunError
from vitrina.settings import Settings

# Each version marks other rows as deleted, and restores those of the version before.
QUERY = "SELECT id, version, updated_at, (id + version) % 7 = 0 AS gone FROM content.item"
PASS: dict[str, Any] = {**CURSOR, "options": {"cursor_clock": "database", "delete_when": "gone"}}
PIPELINES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full", "options": {"delete_when": "gone"}},
    "incremental": PASS,
    "shared": {**PASS, "options": {**PASS["options"], "shared_target": True}},
    "action": {**PASS, "options": {**PASS["options"], "action": "index"}},
}
SHORT = [
    ("full", "publish.applied", "stop"),
    ("full", "batch.fenced", "kill"),
    ("shared", "batch.committed", "stop"),
    ("action", "batch.fenced", "kill"),
]
PLACES = {
    "full": ("load.begun", "batch.fenced", "batch.committed", "publish.applied", "publish.committed", "run.concluding"),
    "other": ("run.planned", "batch.fenced", "batch.committed", "pass.fenced", "pass.ended", "run.concluding"),
}
EVERY = [
    (name, point, action)
    for name in PIPELINES
    for point in PLACES.get(name, PLACES["other"])
    for action in ("kill", "stop")
]


@pytest.mark.chaos
@pytest.mark.search
@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("search", kinds() if LONG else kinds()[:1], indirect=True)
def test_searches_see_whole_loads_and_in_the_end_nothing_is_wrong(house: "House") -> None:
    house.arena.start_runners(2)
    house.run_all()
    house.refresh()  # the first documents of a pass are visible within a second, not immediately
    with house.searchers() as searchers:
        for strike in EVERY if LONG else SHORT:
            house.arena.strike(*strike, count=1)
            assert house.arena.status(strike[0]) == "IDLE", strike
        house.arena.change_source()
        house.run_all()
    say(f"{len(EVERY if LONG else SHORT)} faults, {searchers.searches} searches meanwhile")
    assert searchers.searches
    assert searchers.complaints == []
    assert house.wrong() == []
    assert list(house.arena._loose_ends()) == []


class ItemsThatGoAndComeBack(Arena):
    """Keep all rows at the same version: a load that mixes two versions shows it."""

    def change_source(self) -> None:
        self.versions += 1
        first = ROWS + self.versions * 10
        self.sql(
            f"""
            UPDATE content.item SET version = {self.versions}, updated_at = clock_timestamp();
            INSERT INTO content.item SELECT i, {self.versions} FROM generate_series({first}, {first + 2}) AS i
            """
        )


@dataclass
class Searchers:
    """Search one index in each thread; record what they should never have seen."""

    complaints: list[str] = field(default_factory=list)
    searches: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, client: SearchClient, name: str, index: str) -> None:
        thread = threading.Thread(target=self._search, args=(client, name, index))
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _search(self, client: SearchClient, name: str, index: str) -> None:
        while not self._done.wait(0.02):
            try:
                hits = client.search(index, {"size": 2000, "_source": ["version"]})["hits"]["hits"]
            except RunError as exc:
                self.complaints.append(f"{index}: {exc.message}")
                continue
            self.searches += 1
            versions = {hit["_source"]["version"] for hit in hits}
            # Documents of a pass appear one by one; those of a full load appear at once.
            if not hits or (name == "full" and len(versions) != 1):
                self.complaints.append(f"{index} showed {len(hits)} documents of versions {versions}")


@dataclass
class House:
    """Hold one pipeline of each kind over one source, each with its own index."""

    arena: Arena
    client: SearchClient
    indexes: dict[str, str]

    def run_all(self) -> None:
        self.arena.request(*self.indexes)
        self.arena.await_quiet()

    def refresh(self) -> None:
        for index in self.indexes.values():
            self.client.refresh(index)

    def searchers(self) -> "_Searching":
        return _Searching(self)

    def wrong(self) -> list[str]:
        return [problem for name, index in self.indexes.items() for problem in self._wrong_in(name, index)]

    def _wrong_in(self, name: str, index: str) -> Iterator[str]:
        rows = self.arena.sql(f"SELECT q.id, q.version FROM ({QUERY}) AS q WHERE NOT q.gone")
        wanted = {row["id"]: row["version"] for row in rows}
        self.client.refresh(index)
        hits = self.client.search(index, {"size": 2000})["hits"]["hits"]
        found = {hit["_source"]["id"]: hit["_source"]["version"] for hit in hits}
        missing, extra = len(wanted.keys() - found.keys()), len(found.keys() - wanted.keys())
        different = sum(found[key] != wanted[key] for key in wanted.keys() & found.keys())
        if missing or extra or different:
            yield f"{name}: {different} different, {missing} missing, {extra} extra"
        left = sorted(self.client.list_indexes(f"{index}*"))
        # A full load keeps the generation that it replaced, because a search of it may be running.
        if len(left) != (2 if name == "full" else 1) or left[-1] != Generations(self.client, index).standing().concrete:
            yield f"{name}: left {left}"
        if self.arena.status(name) != "IDLE":
            yield f"{name}: {self.arena.status(name)}"
        if name == "full" and self.client.list_aliases(f"{index}.w.*"):
            yield "full: what is shown can still be written"


@dataclass
class _Searching:
    house: House
    searchers: Searchers = field(default_factory=Searchers)

    def __enter__(self) -> Searchers:
        for name, index in self.house.indexes.items():
            self.searchers.start(self.house.client, name, index)
        return self.searchers

    def __exit__(self, *_: object) -> None:
        self.searchers.stop()


@pytest.fixture
def house(search: Target, database: Settings, tmp_path: Path) -> Iterator[House]:
    client = SearchClient(ConnectionOptions.from_url(search.url))
    prefix = f"vitrina-test-{uuid4().hex[:12]}"
    indexes = {name: f"{prefix}-{name}" for name in PIPELINES}
    environment = {"ELASTICSEARCH_URL": search.url, "VITRINA_ALLOWED_TARGETS": "es:vitrina-test-*"}
    with ItemsThatGoAndComeBack(database, tmp_path, environment=environment, lease_seconds=4.0) as arena:
        for name, fields in PIPELINES.items():
            target = {"target_table": f"es:{indexes[name]}", "target_key": ["id"], "source_query": QUERY}
            arena.prepare_pipeline(name, {"batch_size": 100, **target, **fields})
        yield House(arena, client, indexes)
    _remove(client, [*client.list_indexes(f"{prefix}*")])
    client.close()


def _remove(client: SearchClient, names: Sequence[str]) -> None:
    for concrete in names:
        client.delete_index(concrete)
