"""Runners are killed and stopped in loads and passes into ClickHouse, while somebody reads all the time."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import vitrina
from tests.chaos.arena import CURSOR, ROOT, ROWS, Arena
from tests.chaos.conftest import LONG, findings, say
from tests.clickhouse.places import Place
from vitrina.connectors.clickhouse.client import Session
from vitrina.errors import VitrinaError
from vitrina.settings import Settings

# Each version makes other rows say that they are gone, and brings back those of the version before.
QUERY = "SELECT id, version, updated_at, (id + version) % 7 = 0 AS gone FROM content.item"
OPTIONS = {"target_connection": "olap", "delete_when": "gone", "allow_shrink": True}
PIPELINES: dict[str, dict[str, Any]] = {
    # One that is read in the order of the key and continued, and one that is read at once.
    "full": {"mode": "full", "options": OPTIONS | {"checkpoint_rows": 100}},
    "plain": {"mode": "full", "options": OPTIONS | {"clickhouse": {"engine": "MergeTree"}}},
    "passes": {**CURSOR, "options": OPTIONS | {"cursor_clock": "database"}},
}
SHORT = [
    ("full", "clickhouse.inserted", "kill", 2),
    ("full", "clickhouse.viewed", "stop", 1),
    ("plain", "publish.applied", "kill", 1),
    ("passes", "clickhouse.checked", "stop", 2),
    ("passes", "merge.applied", "kill", 2),
]
POINTS = {
    "full": (
        *("run.seized", "run.planned", "load.fenced", "load.begun", "clickhouse.inserted", "batch.filled"),
        *("batch.fenced", "batch.committed", "clickhouse.checked", "clickhouse.viewed", "publish.applied"),
        *("publish.fenced", "publish.committed", "run.concluding"),
    ),
    "passes": (
        *("run.seized", "run.planned", "clickhouse.inserted", "batch.filled", "clickhouse.checked", "merge.applied"),
        *("batch.fenced", "batch.committed", "pass.fenced", "pass.ended", "run.concluding"),
    ),
}
# Which time the point is reached.
COUNTS = {
    "clickhouse.inserted": (1, 2),
    "merge.applied": (1, 2),
    "batch.filled": (1, 3),
    "batch.fenced": (1, 3),
    "batch.committed": (1, 3),
}
EVERY = [
    (name, point, action, count)
    for name in PIPELINES
    for point in POINTS["passes" if name == "passes" else "full"]
    for action in ("kill", "stop")
    for count in COUNTS.get(point, (1,))
]
LONG_STRIKES = (EVERY * 3)[: max(200, 2 * len(EVERY))]


class ItemsThatGoAndComeBack(Arena):
    """Every row always has the version that all others have: a load that mixes two shows it."""

    def change_source(self) -> None:
        self.versions += 1
        first = ROWS + self.versions * 10
        self.sql(
            f"""
            UPDATE content.item SET version = {self.versions}, updated_at = clock_timestamp();
            INSERT INTO content.item SELECT i, {self.versions} FROM generate_series({first}, {first + 2}) AS i
            """
        )

    def has_fired(self, kind: str) -> bool:
        """Ask for another run where one was over before: batches that arrive together travel in one insert."""
        if not self.fired and self.status(kind) == "IDLE":
            self.request(kind)
        return self.fired

    def _runner_environment(self) -> dict[str, str]:
        packages = Path(os.environ["PYTHONPATH"]).resolve()
        return super()._runner_environment() | {
            "PYTHONPATH": f"{packages}:{ROOT}:{Path(vitrina.__file__).parents[1]}",
        }


@dataclass
class Reader:
    """Reads full loads all the time; what it should never have seen."""

    place: Place
    complaints: list[str] = field(default_factory=list)
    reads: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Reader":
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        session = Session(self.place.url)
        while not self._over.wait(0.05):
            for name in ("full", "plain"):
                try:
                    [(rows, versions, keys)] = session.rows(
                        f"SELECT count(), uniqExact(version), uniqExact(id) FROM {self.place.database}.{name}"
                    )
                except VitrinaError as exc:
                    self.complaints.append(f"{name}: {exc.message}")
                    continue
                self.reads += 1
                if not rows or versions != 1 or rows != keys:
                    self.complaints.append(f"{name} showed {rows} rows, {keys} keys, {versions} versions")
        session.close()


@dataclass
class House:
    """One pipeline of each kind over one source, each with a table of its own."""

    arena: Arena
    place: Place

    def run_all(self) -> None:
        self.arena.request(*PIPELINES)
        self.arena.await_quiet()

    def wrong(self) -> list[str]:
        return [problem for name in PIPELINES for problem in self._wrong_in(name)]

    def _wrong_in(self, name: str) -> Iterator[str]:
        rows = self.arena.sql(f"SELECT q.id, q.version FROM ({QUERY}) AS q WHERE NOT q.gone")
        wanted = sorted((row["id"], row["version"]) for row in rows)
        found = self.place.rows("id, version", name)
        if sorted(found) != wanted:
            lost, extra = set(wanted) - set(found), set(found) - set(wanted)
            yield f"{name}: {len(lost)} lost, {len(extra)} wrong, {len(found) - len(set(found))} doubled"
        left = [table for table in self.place.tables() if table.startswith(f"{name}__")]
        if len(left) != 1:
            yield f"{name}: left {left}"
        if self.arena.status(name) != "IDLE":
            yield f"{name}: {self.arena.status(name)}"


@pytest.fixture
def house(place: Place, database: Settings, tmp_path: Path) -> Iterator[House]:
    environment = {"VITRINA_CONN_OLAP": place.url, "VITRINA_ALLOWED_TARGETS": "clickhouse:*"}
    with ItemsThatGoAndComeBack(database, tmp_path, environment=environment, lease_seconds=4.0) as arena:
        for name, fields in PIPELINES.items():
            target = {
                "target_table": f"clickhouse:{place.database}.{name}",
                "target_key": ["id"],
                "source_query": QUERY,
            }
            arena.prepare_pipeline(name, {"batch_size": 100, **target, **fields})
        yield House(arena, place)


@pytest.mark.chaos
@pytest.mark.timeout(7200 if LONG else 900)
def test_nothing_is_lost_or_doubled_whatever_dies(house: House) -> None:
    strikes = LONG_STRIKES if LONG else SHORT
    house.arena.start_runners(2)
    house.run_all()
    with Reader(house.place) as reader:
        for name, point, action, count in strikes:
            house.arena.strike(name, point, action, count=count)
            assert house.arena.status(name) == "IDLE", (name, point, action)
            problems = [one for one in house._wrong_in(name) if "left" not in one]
            assert problems == [], (name, point, action)
        house.arena.change_source()
        house.run_all()
    say(f"{len(strikes)} faults, {reader.reads} reads meanwhile")
    assert reader.complaints == []
    assert reader.reads
    assert house.wrong() == []


# --- mutants --------------------------------------------------------------------------------------------------------

MUTANTS = {
    "clickhouse_unseized": ("full", "clickhouse.viewed", "stop", 1),
    "clickhouse_uncounted": ("plain", "clickhouse.inserted", "kill", 2),
}


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_runner_that_lacks_a_protection_is_noticed(house: House, mutant: str) -> None:
    house.arena.mutants = ("blind", mutant)
    house.arena.start_runners(2)
    house.run_all()
    strike = MUTANTS[mutant]

    def scenario() -> list[str]:
        with Reader(house.place) as reader:
            house.arena.strike(*strike)
            wrong = list(house._wrong_in(strike[0]))
        return reader.complaints + wrong

    assert findings(scenario)
