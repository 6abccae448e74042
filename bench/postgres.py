"""Compare Postgres marts with hand-written SQL and with alternative tools.

    python -m bench.postgres [--rows 1000000] [--repeat 3] [--peers dlt,ingestr] [--only full,rerun,...]
    python -m bench.postgres --setting hard [--bindir /usr/lib/postgresql/15/bin]

Vitrina and the reference alternate in one run, results are compared with the source, and the table shows medians.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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

# Realistic settings of a small server; the data is discarded, so fsync may stay off for both sides alike.
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min", "autovacuum": "off"}


@dataclass(frozen=True)
class Setting:
    """Describe the servers and the data. The goals are the same everywhere."""

    server: Mapping[str, str]
    padding: int = 0


SETTINGS = {
    "friendly": Setting(SERVER),
    # Durable commits, a log that replicas and live pipelines can read, and 300 bytes a row.
    "hard": Setting(
        SERVER | {"fsync": "on", "full_page_writes": "on", "wal_level": "logical"},
        padding=160,
    ),
}


def main() -> None:
    arguments = parse()
    lines: list[Line] = []
    sizes: list[Size] = []
    with bench(arguments, arguments.setting) as running:
        described = describe(running, arguments)

        def show(text: str) -> None:
            print(text, flush=True)
            write(arguments.name or default_name(running, arguments), lines, described, sizes)

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
    parser.add_argument("--setting", choices=SETTINGS, default="friendly", help="of the servers and the data")
    parser.add_argument("--bindir", help="programs of another PostgreSQL")
    parser.add_argument("--name", help="of the files in bench/results: postgres, or postgres_hard with its version")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "vitrina-bench")
    return parser.parse_args()


def default_name(running: Bench, arguments: argparse.Namespace) -> str:
    return "postgres" if arguments.setting == "friendly" else f"postgres_{arguments.setting}_{major(running)}"


def major(running: Bench) -> int:
    with running.cinema.connect() as connection:
        return connection.info.server_version // 10_000


def describe(running: Bench, arguments: argparse.Namespace) -> dict[str, object]:
    with running.cinema.connect() as connection:
        version = connection.execute("SHOW server_version").fetchone()
        size = connection.execute("SELECT round(avg(pg_column_size(f.*))) FROM content.films f").fetchone()
    assert version is not None
    assert size is not None
    server = SETTINGS[arguments.setting].server
    return {
        "server": f"PostgreSQL {version[0]}, {', '.join(f'{name} {value}' for name, value in server.items())}",
        "bytes_of_a_row": int(size[0]),
        "rows": arguments.rows,
        "repeat": arguments.repeat,
        **{name: running.peer(name).version for name in arguments.peers},
    }


@contextmanager
def bench(arguments: argparse.Namespace, setting_name: str = "friendly") -> Iterator[Bench]:
    arguments.home.mkdir(exist_ok=True)
    bindir = Path(arguments.bindir) if arguments.bindir else None
    setting = SETTINGS[setting_name]
    with ExitStack() as stack:
        server, other = (stack.enter_context(TemporaryServer(bindir, settings=setting.server)) for _ in range(2))
        settings = _prepared(server)
        _prepared(other)
        cinema = Cinema(server.urls.admin, arguments.rows, setting.padding)
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
        remote = Cinema(other.urls.admin, arguments.rows)
        yield Bench(cinema, platform, remote, arguments.repeat, arguments.home)


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
