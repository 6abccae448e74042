"""Define what is measured, and against what: each scenario yields lines of the table."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import peers, references
from bench.cinema import FILMS, RATINGS, Cinema
from bench.ours import Platform
from bench.peers import Peer
from bench.report import Line, timed
from bench.servers import own_cpu_seconds, parent, tree_cpu_seconds

INCREMENTAL = {
    "target_key": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "batch_size": 10_000,
}
FULL, RELOAD, UPSERT = "full load into an empty mart", "full reload, nothing changed", "incremental upsert, 10k batches"
AGGREGATE, REMOTE = "2 M ratings into 1 M groups", "Postgres to another Postgres"
FIRST_PASS, ROW_STEP = "first pass of an incremental one", "one row-dict step in the way"
FRESH_TABLE, ANTI_JOIN = "fresh table, primary key afterwards", "hand-written anti-join"
TABLE_AS, COPIED = "CREATE TABLE AS, primary key afterwards", "COPY to COPY, primary key afterwards"
ON_CONFLICT, PYTHON_LOOP = "batched INSERT .. ON CONFLICT", "COPY, a bare Python loop, COPY"
CAPITALS = "SELECT id, upper(title) AS title, rating, genres, modified FROM content.films"

# By then, ended sessions are counted with their server, and other threads have finished what a run left to them.
SETTLE_SECONDS = 0.3
SCENARIOS = ("full", "first_pass", "rerun", "upsert", "aggregate", "remote_load", "arrow_step", "row_step")
PEERS = tuple(peers.PACKAGES)


@dataclass
class Bench:
    """Hold the platform, the cinema and the second server, and run the scenarios."""

    cinema: Cinema
    platform: Platform
    remote: Cinema
    repeat: int
    home: Path
    # Our own turns by work: peers are compared with what the same run has measured already.
    measured: dict[str, Line] = field(default_factory=dict)

    def warm_up(self) -> None:
        """Touch the server's memory: the first access costs more than the work that is measured."""
        references.fresh_table(self.cinema)
        self.load_films()
        references.copy_across(self.cinema, self.remote.admin_url)

    def full(self) -> Iterator[Line]:
        fresh = lambda: references.fresh_table(self.cinema)  # noqa: E731
        yield self.compare(FULL, FRESH_TABLE, 0.8, self.load_films, fresh, before=self._dropping("films", "reference"))
        self.check(FILMS, "TABLE analytics.films")

    def first_pass(self) -> Iterator[Line]:
        fresh = lambda: references.fresh_table(self.cinema)  # noqa: E731
        dropping = self._dropping("films_incremental", "reference")
        yield self.compare(FIRST_PASS, FRESH_TABLE, 0.8, self.load_incremental, fresh, before=dropping)
        self.check(FILMS, "TABLE analytics.films_incremental")

    def rerun(self) -> Iterator[Line]:
        references.fresh_table(self.cinema)
        self._ensure_films()
        reload, anti_join = (lambda: self.platform.run("films")), (lambda: references.anti_join(self.cinema))
        yield self.compare(RELOAD, ANTI_JOIN, 1.0, reload, anti_join)
        yield self.compare(
            "full reload, 1 % changed", ANTI_JOIN, 0.8, reload, anti_join, before=self.cinema.touch_one_percent
        )
        self.check(FILMS, "TABLE analytics.films")

    def upsert(self) -> Iterator[Line]:
        references.fresh_table(self.cinema)
        self.platform.define("films_incremental", FILMS, **INCREMENTAL)
        self.platform.run("films_incremental")

        yield self.compare(
            UPSERT,
            ON_CONFLICT,
            0.9,
            lambda: self.platform.run("films_incremental"),
            lambda: references.batched_upsert(self.cinema),
            before=self.spoil_incremental,
        )
        self.check(FILMS, "TABLE analytics.films_incremental")

    def aggregate(self) -> Iterator[Line]:
        by_hand = lambda: references.aggregate(self.cinema)  # noqa: E731
        dropping = self._dropping("ratings", "reference_ratings")
        yield self.compare(AGGREGATE, TABLE_AS, 0.85, self.load_ratings, by_hand, before=dropping)
        self.check(RATINGS, "TABLE analytics.ratings")

    def remote_load(self) -> Iterator[Line]:
        copy = lambda: references.copy_across(self.cinema, self.remote.admin_url)  # noqa: E731
        dropping = self._dropping("films_remote", "reference", where=self.remote)
        yield self.compare(REMOTE, COPIED, 0.8, self._load_remote, copy, before=dropping)
        self.check(FILMS, "TABLE analytics.films_remote", where=self.remote)

    def arrow_step(self) -> Iterator[Line]:
        """Measure within one database, so that the only difference is the step."""
        without = lambda: self._load_through([], "films_carried")  # noqa: E731
        step = lambda: self._load_through(["bench_upper"], "films_upper")  # noqa: E731
        dropping = self._dropping("films_upper", "films_carried")
        yield self.compare("one Arrow step in the way", "the same without it", 0.8, step, without, before=dropping)
        self.check(CAPITALS, "TABLE analytics.films_upper")

    def row_step(self) -> Iterator[Line]:
        step = lambda: self._load_through(["bench_upper_rows"], "films_upper_rows")  # noqa: E731
        loop = lambda: references.python_loop(self.cinema)  # noqa: E731
        dropping = self._dropping("films_upper_rows", "reference_loop")
        yield self.compare(ROW_STEP, PYTHON_LOOP, 0.6, step, loop, before=dropping)
        self.check(CAPITALS, "TABLE analytics.films_upper_rows")

    def dlt(self) -> Iterator[Line]:
        peer = self.peer("dlt")
        loaded = f"SELECT {peers.PLAIN_COLUMNS} FROM analytics_dlt.films"
        replace = lambda: peers.dlt_load(peer, self.cinema, "replace")  # noqa: E731
        line = self._measure(FULL, "dlt replace", 8, self.load_films, replace)
        yield line
        self.check(FILMS, loaded)
        if ROW_STEP in self.measured:
            yield self._beside(line, ROW_STEP, "dlt replace, no step", 2)
        merge = lambda: peers.dlt_load(peer, self.cinema, "merge")  # noqa: E731
        yield self._measure(RELOAD, "dlt merge (upsert)", None, self._reload_films, merge)
        self.check(FILMS, loaded)

    def ingestr(self) -> Iterator[Line]:
        peer = self.peer("ingestr")
        loaded = f"SELECT {peers.PLAIN_COLUMNS} FROM analytics.ingestr_films"

        def load(table: str, target: Cinema, strategy: str = "replace", key: str = "id", source: str = "") -> None:
            if strategy == "replace":
                target.drop(table)
            peers.ingestr_load(
                peer,
                self.cinema,
                target,
                source_table=source or "content.films",
                target_table=table,
                strategy=strategy,
                key=key,
            )

        films = "analytics.ingestr_films"
        yield self._measure(FULL, "ingestr replace", 2, self.load_films, lambda: load(films, self.cinema))
        self.check(FILMS, loaded)
        yield self._measure(RELOAD, "ingestr merge", 2, self._reload_films, lambda: load(films, self.cinema, "merge"))
        self.check(FILMS, loaded)
        yield self._measure(REMOTE, "ingestr replace", 1.5, self._load_remote, lambda: load(films, self.remote))
        self.check(FILMS, loaded, where=self.remote)
        ratings, query = "analytics.ingestr_ratings", "query:" + " ".join(RATINGS.split())
        yield self._measure(
            AGGREGATE,
            "ingestr replace",
            1.1,
            self.load_ratings,
            lambda: load(ratings, self.cinema, key="film_id", source=query),
        )
        self.check(
            RATINGS,
            f"SELECT film_id::uuid, avg_rating::numeric(4,2), rating_count::bigint FROM {ratings}",
        )

    def peer(self, name: str) -> Peer:
        found = Peer(name, peers.PACKAGES[name], self.home)
        found.install()
        return found

    def load_films(self) -> None:
        self.cinema.drop("analytics.films")
        self.platform.define("films", FILMS, target_key=["id"])
        self.platform.run("films")

    def load_incremental(self) -> None:
        self.cinema.drop("analytics.films_incremental")
        self.platform.define("films_incremental", FILMS, **INCREMENTAL)
        self.platform.run("films_incremental")

    def spoil_incremental(self) -> None:
        """Make every row differ from the source, here and in the reference's table, so that it is read again."""
        self.cinema.spoil("analytics.reference")
        self.cinema.spoil("analytics.films_incremental")
        self.platform.rewind("films_incremental", "2000-01-01 00:00:00+00")

    def _ensure_films(self) -> None:
        self.platform.define("films", FILMS, target_key=["id"])
        self.platform.run("films")

    def _reload_films(self) -> None:
        self.platform.run("films")

    def load_ratings(self) -> None:
        self.cinema.drop("analytics.ratings")
        self.platform.define("ratings", RATINGS, target_key=["film_id"])
        self.platform.run("ratings")

    def _load_remote(self) -> None:
        self.load_elsewhere("films_remote", FILMS)

    def load_elsewhere(self, name: str, query: str) -> None:
        self.remote.drop(f"analytics.{name}")
        self.platform.define(
            name, query, target_key=["id"], batch_size=50_000, options={"target_connection": "warehouse"}
        )
        self.platform.run(name)

    def _load_through(self, steps: list[str], name: str) -> None:
        """Load through the runner, with or without a step."""
        self.cinema.drop(f"analytics.{name}")
        tasks: list[dict[str, Any]] = [{"order_index": 0, "task_type": "SQL", "body": FILMS}]
        tasks += [
            {"order_index": i, "task_type": "PYTHON", "body": step, "target_table": f"analytics.{name}"}
            for i, step in enumerate(steps, 1)
        ]
        fields: dict[str, Any] = {"target_key": ["id"], "batch_size": 50_000, "options": {"route": "arrow"}}
        if steps:
            fields["tasks"] = tasks
        self.platform.define(name, None if steps else FILMS, **fields)
        self.platform.run(name)

    def _dropping(self, *tables: str, where: Cinema | None = None) -> Callable[[], None]:
        """Drop what earlier turns loaded before a clock starts: it takes 20 to 170 ms, and is no part of a load."""
        return lambda: (where or self.cinema).drop(*(f"analytics.{table}" for table in tables))

    def compare(
        self,
        work: str,
        reference: str,
        wanted: float | None,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        *,
        before: Callable[[], object] = lambda: None,
    ) -> Line:
        """Run both alternately, so that a change of the machine's speed affects both.

        The second of a pair pays for what the first has left to write, so they change places with each turn.
        """
        line = Line(work, reference, self.cinema.rows, wanted)
        sides = [(self._their_turn, theirs), (self._our_turn, ours)]
        for _ in range(self.repeat):
            before()
            for turn, work_of_side in sides:
                turn(line, work_of_side)
            sides.reverse()
        self.measured[work] = line
        return line

    def _measure(
        self, work: str, peer: str, wanted: float | None, ours: Callable[[], object], theirs: Callable[[], object]
    ) -> Line:
        """Run only the peer if ours has been measured in this run."""
        line = Line(work, peer, self.cinema.rows, wanted)
        if work not in self.measured:
            for _ in range(self.repeat):
                self._our_turn(line, ours)
            self.measured[work] = line
        else:
            line.ours, line.our_cpu = self.measured[work].ours, self.measured[work].our_cpu
        for _ in range(self.repeat):
            self._their_turn(line, theirs)
        return line

    def _beside(self, line: Line, work: str, peer: str, wanted: float | None) -> Line:
        """Compare other work of ours with what a peer took in this line."""
        found = self.measured[work]
        return Line(work, peer, found.rows, wanted, found.ours, line.theirs, found.our_cpu, line.their_cpu)

    def _our_turn(self, line: Line, work: Callable[[], object]) -> None:
        seconds, cpu = self._timed(work, self._cpu_seconds)
        line.ours.append(seconds)
        line.our_cpu.append(cpu)

    def _their_turn(self, line: Line, work: Callable[[], object]) -> None:
        """Count this process and its commands too: hand-written code and peers work there. Ours only waits there."""
        seconds, cpu = self._timed(work, lambda: self._cpu_seconds() + own_cpu_seconds())
        line.theirs.append(seconds)
        line.their_cpu.append(cpu)

    def _timed(self, work: Callable[[], object], cpu_seconds: Callable[[], float]) -> tuple[float, float]:
        before = cpu_seconds()
        seconds = timed(work)
        time.sleep(SETTLE_SECONDS)
        return seconds, cpu_seconds() - before

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of both servers with all their processes, and of the runner with its workers."""
        runner = self.platform.process
        assert runner is not None
        return sum(map(tree_cpu_seconds, [*self._postmasters, runner.pid]))

    @cached_property
    def _postmasters(self) -> list[int]:
        found = []
        for cinema in (self.cinema, self.remote):
            with cinema.connect() as connection:
                found.append(parent(connection.info.backend_pid))
        return found

    def check(self, wanted: str, found: str, *, where: Cinema | None = None) -> None:
        source, loaded = self.cinema.fingerprint(wanted), (where or self.cinema).fingerprint(found)
        if source != loaded:
            raise RuntimeError(f"{found} differs from its source: {loaded[0]} rows of {source[0]}, or other values")
