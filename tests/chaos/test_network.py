"""Lines to metastore, source and target break, hang and slow down in the middle of a run: it ends right anyway."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.chaos.arena import Arena
from tests.chaos.conftest import LONG
from tests.conftest import admin, settings_for
from tests.support.fault_proxy import BlackHole, CutReply, Fault, Refuse, ResetAfter, Slow, TcpFaultProxy
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings

FAULTS: dict[str, Callable[[], Fault]] = {
    "cut": Refuse,
    "black hole": BlackHole,
    "reset after bytes": lambda: ResetAfter(2000),
    "slow": lambda: Slow(0.02),
    "lost commit reply": lambda: CutReply(lambda data: b"COMMIT" in data),
}
LINES = ("metastore", "source", "target")
SHORT = [("metastore", "black hole"), ("source", "cut"), ("target", "lost commit reply")]
CASES = [(line, fault) for line in LINES for fault in FAULTS] if LONG else SHORT


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("line", "fault"), CASES)
def test_a_bad_line_delays_a_run_and_nothing_else(lines: "Lines", tmp_path: Path, line: str, fault: str) -> None:
    elsewhere = line == "target"
    with Arena(
        lines.metastore,
        tmp_path,
        environment=lines.environment,
        lease_seconds=1.5,
        remote=lines.marts if elsewhere else None,
    ) as arena:
        if elsewhere:
            arena.prepare(["inc_arrow"], options={"cursor_clock": "database", "target_connection": "marts"})
        else:
            arena.prepare(["full_pages", "inc_pages"] if LONG else ["inc_pages"])
        arena.start_runners(2)
        arena.request(*arena.ids)
        arena.await_quiet()
        for kind in arena.ids:
            arena.change_source()
            arena.hold(kind, "batch.committed")
            _misbehave(lines.proxies[line], FAULTS[fault](), cut=fault == "cut")
            arena.let_go()
            time.sleep(3.0)
            lines.proxies[line].heal()
            arena.await_quiet(60)
            assert arena.violations(kind) == []
            arena.disarm()


@dataclass
class Lines:
    """A proxy on each of a runner's lines. The test itself talks to the server directly."""

    metastore: Settings
    marts: Settings
    environment: dict[str, str]
    proxies: dict[str, TcpFaultProxy]


@pytest.fixture
def lines(server: TemporaryServer, template: str, database: Settings) -> Iterator[Lines]:
    name = f"marts_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    marts = settings_for(server, name)
    with ExitStack() as stack:
        proxies = {line: stack.enter_context(TcpFaultProxy(server.port)) for line in LINES}
        environment = {
            "VITRINA_DATABASE_URL": _through(proxies["metastore"], database.database_url),
            "VITRINA_READER_URL": _through(proxies["source"], database.reader_url),
            "VITRINA_CONN_MARTS": _through(proxies["target"], marts.database_url),
            # A server that is there but never answers is given up after twice this and ten seconds.
            "VITRINA_STATEMENT_TIMEOUT_SECONDS": "3",
            # The fault lasts three seconds; giving up before it is over would be within the rules.
            "VITRINA_MAX_ATTEMPTS": "20",
        }
        yield Lines(database, marts, environment, proxies)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _misbehave(proxy: TcpFaultProxy, fault: Fault, *, cut: bool) -> None:
    proxy.fault = fault
    if cut:
        proxy.reset_all()


def _through(proxy: TcpFaultProxy, url: SecretStr | None) -> str:
    assert url is not None
    parts = urlsplit(url.get_secret_value())
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))
