"""Measure how soon a live target shows a commit: `python -m bench.live` writes `results/live.md`.

    python -m bench.live [--search] [--peers pgsync --bindir /usr/lib/postgresql/15/bin] [--kind opensearch-2]

A cinema in one embedded server, which is source, metastore and mart; one runner process. Two hundred transactions a
second each rename another film, and a reader polls the target: the time from the end of a COMMIT to the first poll that
shows it. Then one transaction renames many films: how long until all of them are visible. `--search` follows the same
table into a real search server, `--peers` has pgsync follow it into the same server afterwards.

    python -m bench.live --idle

measures what a followed source costs while nothing changes, and writes `results/live_idle.md`. `SECONDS`, `RATE`,
`FILMS`, `KEYS` and `IDLE_SECONDS` in the environment change the sizes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import live_changes, pgsync, report, servers
from bench.live_changes import IndexView, MartView, View, await_true
from bench.peers import Peer
from vitrina.definition import Definition
from vitrina.embedded import cinema, search_server
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines, runs

SECONDS = float(os.environ.get("SECONDS", "20"))
RATE = int(os.environ.get("RATE", "200"))
FILMS = int(os.environ.get("FILMS", "70000"))
KEYS = int(os.environ.get("KEYS", "20000"))
IDLE_SECONDS = float(os.environ.get("IDLE_SECONDS", "60"))
LEAVE_SECONDS = 120.0
# Time for the background work that a start or a load leaves.
SETTLE_SECONDS = 10.0

ONE_TABLE = "SELECT id AS film_id, title, rating, type, creation_date FROM content.film_work"
Figures = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    with Bench(arguments.bindir) as bench:
        if arguments.idle:
            bench.measure_idle()
        else:
            bench.measure(arguments)


class Bench:
    """Hold one server with a cinema, and measure on it."""

    def __init__(self, bindir: Path | None) -> None:
        self._bindir = bindir
        self._opened = ExitStack()

    def __enter__(self) -> "Bench":
        self.settings, _ = self._opened.enter_context(servers.prepared(bindir=self._bindir))
        if self.settings.admin_url is None:
            raise SystemExit("the benchmark's own server has an administrator")
        self.url = self.settings.admin_url.get_secret_value()
        self.metastore = self._opened.enter_context(
            database.connect(self.settings.require_database_url(), "vitrina:bench")
        )
        with database.connect(self.url, "vitrina:bench") as admin:
            cinema.generate(admin, FILMS, 1000, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measure(self, arguments: argparse.Namespace) -> None:
        """Write the report after each subject: an interrupted run leaves what it has measured."""
        if "pgsync" in arguments.peers:
            pgsync.require_plugin(self.url)
        server = self.metastore.info.parameter_status("server_version")
        notes: dict[str, object] = {"films": FILMS, "postgres": server}
        rows: dict[str, Figures] = {}
        for subject, found in self._subjects(arguments, notes):
            rows[subject] = found
            report.write_table("live", "Commit to visible", _intro(), rows, notes)

    def _subjects(self, arguments: argparse.Namespace, notes: dict[str, object]) -> Iterator[tuple[str, Figures]]:
        for name, title, query in self._marts():
            yield title, self.ours(name, query, f"analytics.{name}", MartView(self.url, f"analytics.{name}"))
        if arguments.search or arguments.peers:
            with search_server.running(arguments.kind) as server:
                notes["search_server"] = f"{arguments.kind} {server.distribution.version}"
                yield "one table into an index", self._into_index(server.url)
                if "pgsync" in arguments.peers:
                    yield from self._pgsync(arguments.home, server.url, notes)

    def _into_index(self, search_url: str) -> Figures:
        self._warm_up(search_url)
        view, environment = IndexView(search_url, "bench-films"), {"ELASTICSEARCH_URL": search_url}
        return self.ours("film_found_live", ONE_TABLE, "es:bench-films", view, environment)

    def _marts(self) -> Iterator[tuple[str, str, str]]:
        found = pipelines.find(self.metastore, "film_dim_full")
        if found is None:
            raise SystemExit("the cinema has lost its pipeline film_dim_full")
        yield "film_dim_live", "film_dim into a mart", found["source_query"]
        yield "film_copy_live", "one table into a mart", ONE_TABLE

    def ours(
        self, name: str, query: str, target: str, view: View, environment: Mapping[str, str] | None = None
    ) -> Figures:
        started = time.monotonic()
        self._define(name, query, target)
        with self._runner(environment or {}):
            self._await_following(name)
            first = {"first_load_documents_per_s": round(view.total() / (time.monotonic() - started))}
            found = self._measured(view, name.replace("_", "")) | first
            if found["never_shown"]:
                raise SystemExit(f"{name}: {found['never_shown']} films were never shown")
            batch_ms = float(self._run(name)["metrics"]["batch_ms"]["max"] or 0)
            if batch_ms:
                found["keys_per_s_of_the_batch"] = round(KEYS / batch_ms * 1000)
            self._disable(name)
        return found

    def _measured(self, view: View, word: str) -> Figures:
        looked = live_changes.latencies(self.url, view, f"one{word}", transactions=int(SECONDS * RATE), per_second=RATE)
        taken = looked.seconds
        many = live_changes.many(self.url, view, f"many{word}", films=KEYS)
        return {
            "transactions": len(taken) + looked.lost,
            "never_shown": looked.lost + many.lost,
            "p50_ms": _ms(taken, 0.5),
            "p99_ms": _ms(taken, 0.99),
            "max_ms": _ms(taken, 1.0),
            "update_s": round(many.update_seconds, 2),
            "commit_to_visible_s": round(many.visible_seconds, 2),
            "rows_per_s_until_visible": round(KEYS / many.visible_seconds),
        }

    def _warm_up(self, search_url: str) -> None:
        """Fill an index once that is not measured: a server that has just started compiles its code first."""
        environment = {"ELASTICSEARCH_URL": search_url}
        self._define("film_warm_live", ONE_TABLE, "es:bench-warm")
        with self._runner(environment):
            self._await_following("film_warm_live")
            live_changes.many(self.url, IndexView(search_url, "bench-warm"), "warmingup", films=KEYS)
            self._disable("film_warm_live")

    def _pgsync(self, home: Path, search_url: str, notes: dict[str, object]) -> Iterator[tuple[str, Figures]]:
        peer = Peer("pgsync", pgsync.PACKAGES, home)
        home.mkdir(parents=True, exist_ok=True)
        peer.install()
        notes["pgsync"] = peer.version
        with pgsync.redis() as port:
            follower = pgsync.Pgsync(peer, self.url, search_url, port)
            for way in pgsync.FOLLOWS:
                yield f"pgsync --{way}, one table", self._theirs(follower, search_url, way)

    def _theirs(self, follower: pgsync.Pgsync, search_url: str, way: str) -> Figures:
        view = IndexView(search_url, follower.index(way))
        first: Figures = {}
        started = time.monotonic()
        with follower.following(way):
            if way == "daemon":
                await_true("pgsync has loaded everything", lambda: view.total() == FILMS)
                first = {"first_load_documents_per_s": round(FILMS / (time.monotonic() - started))}
            live_changes.many(self.url, view, f"ready{way}", films=10)  # it reads everything twice before it follows
            return self._measured(view, f"pgsync{way}") | first

    def measure_idle(self) -> None:
        """Measure a runner that has nothing to do, and one that follows: the difference is the cost of the source."""
        rows: dict[str, Figures] = {}
        with self._runner({}) as runner:
            time.sleep(SETTLE_SECONDS)
            rows["a runner alone"] = self._idle_cost(runner)
            self._define("film_copy_live", ONE_TABLE, "analytics.film_copy_live")
            self._await_following("film_copy_live")
            time.sleep(SETTLE_SECONDS)
            rows["with a feed and one live pipeline"] = self._idle_cost(runner)
        intro = (
            f"{IDLE_SECONDS:.0f} s in which nothing changes; source, metastore and mart are one server. In percent of a"
            " core, every process of the server included."
        )
        report.write_table("live_idle", "A followed source that is idle", intro, rows, {"films": FILMS})

    def _idle_cost(self, runner: int) -> Figures:
        server = servers.parent(self.metastore.info.backend_pid)
        before = servers.tree_cpu_seconds(runner), servers.tree_cpu_seconds(server)
        time.sleep(IDLE_SECONDS)
        after = servers.tree_cpu_seconds(runner), servers.tree_cpu_seconds(server)
        ours, theirs = (100 * (now - then) / IDLE_SECONDS for then, now in zip(before, after, strict=True))
        return {
            "runner_percent": round(ours, 2),
            "whole_server_percent": round(theirs, 2),
            "together_percent": round(ours + theirs, 2),
        }

    def _define(self, name: str, query: str, target: str) -> None:
        described = {"name": name, "source_query": query, "target_table": target, "target_key": ["film_id"]}
        definition = Definition.model_validate(described | {"mode": "live"})
        made = pipelines.insert(self.metastore, definition, pipeline_id=None, managed_by=None)
        pipelines.request_run(self.metastore, made, trigger=Trigger.API)

    def _disable(self, name: str) -> None:
        """Disable a pipeline while the next one is measured."""
        found = pipelines.find(self.metastore, name)
        if found:
            pipelines.set_enabled(self.metastore, found["id"], False)

    @contextmanager
    def _runner(self, more: Mapping[str, str]) -> Iterator[int]:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("vitrina"), "runner"],
            env={**os.environ, **_environment(self.settings), **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(timeout=LEAVE_SECONDS)

    def _run(self, name: str) -> dict[str, Any]:
        found = pipelines.find(self.metastore, name)
        if found is None or found["status"] == "FAILED":
            raise SystemExit(f"{name}: {found and found['last_error']}")
        return runs.find_current(self.metastore, found["id"]) or {"metrics": {}}

    def _await_following(self, name: str) -> None:
        await_true(f"{name} follows", lambda: bool(self._run(name)["metrics"].get("following")))


def _intro() -> str:
    return (
        f"{RATE} transactions a second for {SECONDS:.0f} s, then one of {KEYS:,} rows; one runner, one server."
        " `update s` is what the application waited for its own UPDATE of these rows, `commit to visible s` the time"
        " from then on until the last of them was shown."
    )


def _environment(settings: Settings) -> dict[str, str]:
    urls = {
        "VITRINA_DATABASE_URL": settings.database_url,
        "VITRINA_READER_URL": settings.reader_url,
        "VITRINA_FEED_URL": settings.admin_url,
    }
    found = {name: url.get_secret_value() for name, url in urls.items() if url}
    return found | {"VITRINA_ALLOWED_TARGETS": "analytics.*,es:bench-*"}


def _ms(ordered: list[float], quantile: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] * 1000, 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true", help="into a search server, too (needs Java)")
    parser.add_argument("--peers", type=_peers, default=(), help="pgsync (needs redis-server and PyPI)")
    parser.add_argument("--bindir", type=Path, help="programs of another PostgreSQL than the embedded one")
    parser.add_argument("--kind", choices=search_server.KINDS, default="opensearch-2")
    parser.add_argument("--idle", action="store_true", help="measure only what a source costs that does not change")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    unknown = set(names) - {"pgsync"}
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: pgsync)")
    return names


if __name__ == "__main__":
    main()
