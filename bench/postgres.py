"""Postgres marts against hand-written SQL and the tools that people would use instead.

    python -m bench.postgres [--rows 1000000] [--repeat 3] [--peers dlt,ingestr] [--only full,rerun,...]

Ours and the reference take turns in one run, results are compared with the source, and the table shows medians.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr

from bench import growth
from bench.cinema import Cinema
from bench.ours import Platform
from bench.report import Line, Size, write
from bench.scenarios import PEERS, SCENARIOS, Bench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.store.migrate import migrate

# Real settings of a small server; the data is thrown away, so fsync may stay off for both sides alike.
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min", "autovacuum": "off"}


def main() -> None:
    arguments = parse()
    lines: list[Line] = []
    sizes: list[Size] = []
    with bench(arguments) as running:
        described = describe(running, arguments)

        def show(text: str) -> None:
            print(text, flush=True)
            write(arguments.name, lines, described, sizes)

        running.warm_up()
        for name in (*arguments.only, *arguments.peers):
            for line in getattr(running, name)():
                lines.append(line)
                show(line.markdown())
        for size in growth.measure(running, arguments.growth):
            sizes.append(size)
            show(f"{size.route}, {size.rows} rows: {size.seconds:.1f} s, {size.peak_memory_mb:.0f} MB")


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    def numbers(text: str) -> list[int]:
        return [int(part) for part in names(text)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", type=names, default=[], help=f"{','.join(PEERS)}: installed on first use")
    parser.add_argument("--only", type=names, default=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--growth", type=numbers, default=[], help="sizes, for example 10000,100000,1000000,10000000")
    parser.add_argument("--bindir", help="programs of another PostgreSQL")
    parser.add_argument("--name", default="postgres", help="of the files in bench/results")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def describe(running: Bench, arguments: argparse.Namespace) -> dict[str, object]:
    with running.cinema.connect() as connection:
        version = connection.execute("SHOW server_version").fetchone()
    assert version is not None
    return {
        "server": f"PostgreSQL {version[0]}, {', '.join(f'{name} {value}' for name, value in SERVER.items())}",
        "rows": arguments.rows,
        "repeat": arguments.repeat,
        **{name: running.peer(name).version for name in arguments.peers},
    }


@contextmanager
def bench(arguments: argparse.Namespace) -> Iterator[Bench]:
    arguments.home.mkdir(exist_ok=True)
    bindir = Path(arguments.bindir) if arguments.bindir else None
    with ExitStack() as stack:
        server, other = (stack.enter_context(TemporaryServer(bindir, settings=SERVER)) for _ in range(2))
        settings = _prepared(server)
        _prepared(other)
        cinema = Cinema(server.urls.admin, arguments.rows)
        cinema.make(ratings="aggregate" in arguments.only or "ingestr" in arguments.peers)
        environment = {
            "VITRINA_DATABASE_URL": server.urls.app,
            "VITRINA_READER_PASSWORD": server.urls.reader_password,
            "VITRINA_CONN_WAREHOUSE": other.urls.app,
            "VITRINA_TRANSFORMS": "bench.steps",
            "VITRINA_LOG_FORMAT": "json",
        }
        platform = Platform(settings, environment)
        stack.callback(platform.stop)
        platform.start(arguments.home / "runner.log")
        yield Bench(cinema, platform, Cinema(other.urls.admin, arguments.rows), arguments.repeat, arguments.home)


def _prepared(server: TemporaryServer) -> Settings:
    settings = Settings(
        database_url=SecretStr(server.urls.app),
        admin_url=SecretStr(server.urls.admin),
        app_password=SecretStr(server.urls.app_password),
        reader_password=SecretStr(server.urls.reader_password),
    )
    migrate(settings)
    return settings


if __name__ == "__main__":
    main()
