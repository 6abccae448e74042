"""Postgres marts against hand-written SQL and the tools that people would use instead.

    python -m bench.postgres [--rows 1000000] [--repeat 3] [--peers dlt,ingestr] [--only full,rerun,...]

Ours and the reference take turns in one run, results are compared with the source, and the table shows medians.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from bench import peers, references
from bench.cinema import FILMS, RATINGS, Cinema
from bench.ours import Platform
from bench.peers import Peer
from bench.report import Line, timed, write
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store.migrate import migrate

INCREMENTAL = {
    "target_key": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "batch_size": 10_000,
}
# Real settings of a small server; the data is thrown away, so fsync may stay off for both sides alike.
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min", "autovacuum": "off"}


class Bench:
    """The platform, the cinema and the second server, and the scenarios that measure them."""

    def __init__(self, cinema: Cinema, platform: Platform, remote_url: str, repeat: int, home: Path) -> None:
        self.cinema = cinema
        self.platform = platform
        self.remote_url = remote_url
        self.repeat = repeat
        self.home = home

    def compare(
        self, work: str, reference: str, wanted: float | None, ours: Callable[[], object], theirs: Callable[[], object]
    ) -> Line:
        line = Line(work, reference, self.cinema.rows, wanted)
        for _ in range(self.repeat):
            line.theirs.append(timed(theirs))
            line.ours.append(timed(ours))
        print(line.markdown(), flush=True)
        return line

    def check(self, query: str, table: str, columns: str = "*") -> None:
        different = self.cinema.differences(query, table, columns)
        if different:
            raise RuntimeError(f"{table} differs from its source in {different} rows")

    # --- scenarios -------------------------------------------------------------------------------------------

    def full(self) -> Iterator[Line]:
        def load() -> None:
            self.cinema.drop("analytics.films")
            self.platform.define("films", FILMS, target_key=["id"])
            self.platform.run("films")

        reference = "fresh table, primary key afterwards"
        yield self.compare(
            "full load into an empty mart", reference, 0.6, load, lambda: references.fresh_table(self.cinema)
        )
        self.check(FILMS, "analytics.films")

    def first_pass(self) -> Iterator[Line]:
        def load() -> None:
            self.cinema.drop("analytics.films_incremental")
            self.platform.define("films_incremental", FILMS, **INCREMENTAL)
            self.platform.run("films_incremental")

        reference = "fresh table, primary key afterwards"
        yield self.compare(
            "first pass of an incremental one", reference, 0.6, load, lambda: references.fresh_table(self.cinema)
        )
        self.check(FILMS, "analytics.films_incremental")

    def rerun(self) -> Iterator[Line]:
        references.fresh_table(self.cinema)
        self._ensure("films", target_key=["id"])
        reference = "hand-written anti-join"
        ours, theirs = (lambda: self.platform.run("films")), (lambda: references.anti_join(self.cinema))
        yield self.compare("full reload, nothing changed", reference, 0.8, ours, theirs)
        line = Line("full reload, 1 % changed", reference, self.cinema.rows, 0.8)
        for _ in range(self.repeat):
            self.cinema.touch_one_percent()
            line.theirs.append(timed(theirs))
            line.ours.append(timed(ours))
        print(line.markdown(), flush=True)
        yield line
        self.check(FILMS, "analytics.films")

    def upsert(self) -> Iterator[Line]:
        references.fresh_table(self.cinema)
        self._ensure("films_incremental", **INCREMENTAL)
        line = Line("incremental upsert, 10k batches", "batched INSERT .. ON CONFLICT", self.cinema.rows, 0.8)
        for _ in range(self.repeat):
            self.cinema.spoil("analytics.reference")
            self.cinema.spoil("analytics.films_incremental")
            self.platform.rewind("films_incremental", "2000-01-01 00:00:00+00")
            line.theirs.append(timed(lambda: references.batched_upsert(self.cinema)))
            line.ours.append(timed(lambda: self.platform.run("films_incremental")))
        print(line.markdown(), flush=True)
        yield line
        self.check(FILMS, "analytics.films_incremental")

    def aggregate(self) -> Iterator[Line]:
        def load() -> None:
            self.cinema.drop("analytics.ratings")
            self.platform.define("ratings", RATINGS, target_key=["film_id"])
            self.platform.run("ratings")

        reference = "CREATE TABLE AS, primary key afterwards"
        yield self.compare(
            "2 M ratings into 1 M groups", reference, None, load, lambda: references.aggregate(self.cinema)
        )
        self.check(RATINGS, "analytics.ratings")

    def remote(self) -> Iterator[Line]:
        def load() -> None:
            Cinema(self.remote_url, 0).drop("analytics.films_remote")
            self.platform.define(
                "films_remote", FILMS, target_key=["id"], batch_size=50_000, options={"target_connection": "warehouse"}
            )
            self.platform.run("films_remote")

        reference = "COPY to COPY, primary key afterwards"
        theirs = lambda: references.copy_across(self.cinema, self.remote_url)  # noqa: E731
        yield self.compare("Postgres to another Postgres", reference, 0.6, load, theirs)

    def dlt(self) -> Iterator[Line]:
        peer = Peer("dlt", peers.DLT, self.home)
        peer.install()
        self._ensure("films", target_key=["id"])

        def fresh() -> None:
            self.cinema.drop("analytics.films")
            self.platform.define("films", FILMS, target_key=["id"])
            self.platform.run("films")

        yield self.compare(
            "full load into an empty mart",
            "dlt replace",
            8,
            fresh,
            lambda: peers.dlt_load(peer, self.cinema, "replace"),
        )

    def ingestr(self) -> Iterator[Line]:
        peer = Peer("ingestr", peers.INGESTR, self.home)
        peer.install()

        def fresh() -> None:
            self.cinema.drop("analytics.films")
            self.platform.define("films", FILMS, target_key=["id"])
            self.platform.run("films")

        def replace() -> None:
            self.cinema.drop("analytics.ingestr_films")
            peers.ingestr_load(peer, self.cinema, "replace")

        yield self.compare("full load into an empty mart", "ingestr replace", 2, fresh, replace)
        reload = lambda: self.platform.run("films")  # noqa: E731
        merge = lambda: peers.ingestr_load(peer, self.cinema, "merge")  # noqa: E731
        yield self.compare("full reload, nothing changed", "ingestr merge", 2, reload, merge)

    def memory(self) -> Iterator[Line]:
        """Not a ratio: what the runner held at most after everything before, among it the rows that travelled."""
        print(f"peak memory of the runner: {self.platform.peak_memory_mb():.0f} MB", flush=True)
        yield from ()

    def _ensure(self, name: str, **fields: object) -> None:
        self.platform.define(name, FILMS, **fields)
        self.platform.run(name)


SCENARIOS = ("full", "first_pass", "rerun", "upsert", "aggregate", "remote")


def main() -> None:
    arguments = parse()
    with bench(arguments) as running:
        names = [*(arguments.only or SCENARIOS), *arguments.peers]
        lines = [line for name in names for line in getattr(running, name)()]
        peak = running.platform.peak_memory_mb()
        server = "PostgreSQL from " + (arguments.bindir or "the embedded wheel")
        path = write(
            arguments.name, lines, {"server": server, "rows": arguments.rows, "runner_peak_memory_mb": round(peak)}
        )
        print(path.read_text())


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", type=names, default=[], help="dlt,ingestr: installed from PyPI on first use")
    parser.add_argument("--only", type=names, default=[], help=", ".join(SCENARIOS))
    parser.add_argument("--bindir", help="programs of another PostgreSQL")
    parser.add_argument("--name", default="postgres", help="of the files in bench/results")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vitrina-bench")
    return parser.parse_args()


@contextmanager
def bench(arguments: argparse.Namespace) -> Iterator[Bench]:
    arguments.home.mkdir(exist_ok=True)
    bindir = Path(arguments.bindir) if arguments.bindir else None
    with TemporaryServer(bindir, settings=SERVER) as server, TemporaryServer(bindir, settings=SERVER) as other:
        cinema = Cinema(server.urls.admin, arguments.rows)
        settings = Settings(
            database_url=SecretStr(server.urls.app),
            admin_url=SecretStr(server.urls.admin),
            app_password=SecretStr(server.urls.app_password),
            reader_password=SecretStr(server.urls.reader_password),
        )
        migrate(settings)
        migrate(
            settings.model_copy(
                update={
                    "database_url": SecretStr(other.urls.app),
                    "admin_url": SecretStr(other.urls.admin),
                    "app_password": SecretStr(other.urls.app_password),
                    "reader_password": SecretStr(other.urls.reader_password),
                }
            )
        )
        cinema.make(ratings=not arguments.only or "aggregate" in arguments.only)
        environment = {
            "VITRINA_DATABASE_URL": server.urls.app,
            "VITRINA_READER_PASSWORD": server.urls.reader_password,
            "VITRINA_CONN_WAREHOUSE": other.urls.app,
            "VITRINA_LOG_FORMAT": "json",
        }
        platform = Platform(settings, environment)
        platform.start(arguments.home / "runner.log")
        try:
            yield Bench(cinema, platform, other.urls.admin, arguments.repeat, arguments.home)
        finally:
            platform.stop()


if __name__ == "__main__":
    main()
