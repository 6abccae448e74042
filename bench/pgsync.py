"""Run pgsync as a peer of live mode: from PyPI in a separate environment, with its own Redis, for the same table.

It has two modes: `--daemon` (triggers, NOTIFY, Redis; the one that its documentation describes) and `--wal` (the
replication log alone, without an initial load: its index begins empty). Both are measured.
`scripts/install-system-packages redis` installs the server. The source needs `test_decoding`, which is in Debian's
packages of PostgreSQL and not in the embedded one.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.peers import Peer
from tests.support.ports import kept_port

PACKAGES = ["pgsync==7.3.0"]
COLUMNS = ["id", "title", "rating", "type", "creation_date"]
FOLLOWS = {"daemon": ["--daemon"], "wal": ["--wal", "--bootstrap"]}
START_SECONDS, LEAVE_SECONDS = 120.0, 30.0


@dataclass(frozen=True)
class Pgsync:
    """Follow one database into one index."""

    peer: Peer
    database_url: str
    search_url: str
    redis_port: int

    def index(self, way: str) -> str:
        return f"bench-pgsync-{way}"

    @contextmanager
    def following(self, way: str) -> Iterator[None]:
        """Create triggers and slot in the database, follow, and remove both."""
        folder = self.peer.home / f"pgsync-{way}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._describe(folder, way)
        if way == "daemon":
            self._call(folder, "bootstrap")
        try:
            with self._process(folder, way):
                if way == "wal":
                    self._await_slot()
                yield
        finally:
            self._call(folder, "bootstrap", "--teardown")

    def _await_slot(self) -> None:
        """Wait until it reads the log: it never sees what is committed before."""
        end = time.monotonic() + START_SECONDS
        reads = "SELECT FROM pg_replication_slots WHERE plugin = 'test_decoding' AND active"
        with psycopg.connect(self.database_url, autocommit=True) as session:
            while session.execute(reads).rowcount == 0:
                if time.monotonic() > end:
                    raise SystemExit("pgsync --wal does not read the log")
                time.sleep(0.1)

    def _describe(self, folder: Path, way: str) -> None:
        database = conninfo_to_dict(self.database_url)["dbname"]
        films = {"table": "film_work", "schema": "content", "columns": COLUMNS}
        described = [{"database": database, "index": self.index(way), "nodes": films}]
        (folder / "schema.json").write_text(json.dumps(described))

    def _call(self, folder: Path, program: str, *more: str) -> None:
        done = subprocess.run(
            self._command(program, *more),
            cwd=folder,
            env=self._environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"pgsync: {program} failed: {(done.stdout + done.stderr)[-2000:]}")

    @contextmanager
    def _process(self, folder: Path, way: str) -> Iterator[None]:
        log = folder / "following.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command("pgsync", *FOLLOWS[way]),
                cwd=folder,
                env=self._environment(folder),
                stdout=output,
                stderr=output,
            )
        try:
            yield
            if process.poll() is not None:
                raise SystemExit(f"pgsync ended: {log.read_text()[-2000:]}")
        finally:
            _end(process)

    def _command(self, program: str, *more: str) -> list[str]:
        return [str(self.peer.bin / "python"), str(self.peer.bin / program), "--config", "schema.json", *more]

    def _environment(self, folder: Path) -> dict[str, str]:
        found = conninfo_to_dict(self.database_url)
        return os.environ | {
            "PG_HOST": str(found["host"]),
            "PG_PORT": str(found["port"]),
            "PG_USER": str(found["user"]),
            "PG_PASSWORD": str(found.get("password") or ""),
            "PG_DATABASE": str(found["dbname"]),
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(self.redis_port),
            "ELASTICSEARCH_URL": self.search_url,
            # Its client for Elasticsearch requests GET /, which the tested distribution does not have.
            "OPENSEARCH": "true",
            "CHECKPOINT_PATH": str(folder),
        }


def require_plugin(database_url: str) -> None:
    """Refuse a source that pgsync cannot follow, before anything is measured."""
    with psycopg.connect(database_url, autocommit=True) as session:
        try:
            session.execute("SELECT pg_create_logical_replication_slot('bench_tries', 'test_decoding', true)")
        except psycopg.errors.UndefinedFile as exc:
            raise SystemExit(
                "pgsync needs the output plugin test_decoding, which this server lacks: say --bindir with the programs"
                " of a PostgreSQL that has it, such as Debian's"
            ) from exc


@contextmanager
def redis() -> Iterator[int]:
    """Run a Redis server without persistence, and yield its port."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("pgsync needs redis-server: run scripts/install-system-packages redis")
    with kept_port() as port:
        process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
        )
        try:
            _await_listening(port)
            yield port
        finally:
            _end(process)


def _await_listening(port: int) -> None:
    end = time.monotonic() + LEAVE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
