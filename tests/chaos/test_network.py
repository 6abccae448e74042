"""Break, hang and slow down connections in the middle of a run: it ends right anyway."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from psycopg import sql
from pydantic import SecretStr

from tests.chaos.arena import PATIENCE_SECONDS, Arena
from tests.chaos.conftest import LONG, findings, say
from tests.conftest import admin, settings_for
from tests.support.fault_proxy import BlackHole, CutReply, Fault, Link, Refuse, ResetAfter, Slow, TcpFaultProxy
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings


class LostFence(CutReply):
    """Commit a transaction that moves the checkpoint, and lose the reply to its sender."""

    def __init__(self) -> None:
        super().__init__(lambda data: b"COMMIT" in data)
        self._moving: set[Link] = set()

    def to_server(self, data: bytes, link: Link) -> bytes | None:
        if link.executes(data, b"last_processed_key = "):
            self._moving.add(link)
        return super().to_server(data, link) if link in self._moving else data


FAULTS: dict[str, Callable[[], Fault]] = {
    "cut": Refuse,
    "black hole": BlackHole,
    "reset after bytes": lambda: ResetAfter(2000),
    "slow": lambda: Slow(0.02),
    "lost commit reply": lambda: CutReply(lambda data: b"COMMIT" in data),
    "lost fence": LostFence,
}
LINES = ("metastore", "source", "target")
SHORT = [("metastore", "black hole"), ("source", "cut")]
# Users' queries move no checkpoint.
CASES = [(line, fault) for line in LINES for fault in FAULTS if (line, fault) != ("source", "lost fence")]
LEASE_SECONDS = 1.5


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("line", "fault"), CASES if LONG else SHORT)
def test_a_bad_line_delays_a_run_and_nothing_else(lines: "Lines", tmp_path: Path, line: str, fault: str) -> None:
    kinds = ("full_pages", "inc_pages") if LONG else ("inc_pages",)
    with lines.arena(tmp_path, line, kinds) as arena:
        arena.start_runners(2)
        arena.request(*arena.ids)
        arena.await_quiet()
        for kind in arena.ids:
            assert after_a_batch(arena, kind, lines, line, fault) == []


def after_a_batch(arena: Arena, kind: str, lines: "Lines", line: str, fault: str) -> list[str]:
    arena.change_source()
    arena.hold(kind, "batch.committed", 2)
    happening = lines.misbehave(line, fault)
    arena.let_go()
    time.sleep(3.0)
    if isinstance(happening, LostFence):
        arena.await_true(lambda: happening.happened, PATIENCE_SECONDS, "a checkpoint's reply is lost")
    lines.proxies[line].heal()
    arena.await_quiet()
    arena.disarm()
    return arena.violations(kind)


def in_a_publish_longer_than_the_lease(arena: Arena, kind: str, lines: "Lines", line: str, fault: str) -> list[str]:
    arena.change_source()
    lines.misbehave(line, fault)
    arena.request(kind)
    arena.await_quiet()
    lines.proxies[line].heal()
    return arena.violations(kind)


def comes_back_when_another_runner_is_done(arena: Arena, kind: str, lines: "Lines", line: str, fault: str) -> list[str]:
    """Cut off one runner past its lease, while the other one has a good connection."""
    arena.change_source()
    arena.hold(kind, "run.planned")
    epoch = arena.epoch(kind)
    lines.misbehave(line, fault)
    arena.environment = {**lines.environment, **lines.past_the_proxies}
    other = arena.start_runner()
    arena.environment = lines.environment
    arena.await_true(lambda: arena.epoch(kind) > epoch and arena.status(kind) == "IDLE", PATIENCE_SECONDS, "a takeover")
    lines.proxies[line].heal()
    arena.let_go()
    time.sleep(3.0)
    arena.await_quiet()
    arena.dismiss(other)
    arena.disarm()
    return arena.violations(kind)


@dataclass(frozen=True)
class Broken:
    """Hold what is removed, and the bad connection on which that shows."""

    mutant: str
    kind: str
    line: str
    fault: str
    scenario: Callable[..., list[str]] = after_a_batch
    seconds_per_row: float = 0
    handicap: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Return settings with which a long publish fails for the reason in question, not by a timeout, and soon."""
        return {"VITRINA_STATEMENT_TIMEOUT_SECONDS": "30", "VITRINA_MAX_ATTEMPTS": "3"} if self.seconds_per_row else {}


MUTANTS = [
    Broken("reply_decides", "inc_arrow", "target", "lost fence"),
    Broken("disconnect_fatal", "inc_pages", "source", "cut"),
    Broken("checkpoint_apart", "inc_pages", "metastore", "cut"),
    Broken("lease_ignored", "full_once", "metastore", "slow", in_a_publish_longer_than_the_lease, 0.015),
    Broken("heartbeat_never", "full_once", "metastore", "slow", in_a_publish_longer_than_the_lease, 0.015),
    Broken(
        "fence_off", "inc_pages", "metastore", "black hole", comes_back_when_another_runner_is_done, handicap=("blind",)
    ),
]


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broken", MUTANTS if LONG else MUTANTS[:1], ids=lambda broken: broken.mutant)
def test_a_missing_protection_is_found(lines: "Lines", tmp_path: Path, broken: Broken) -> None:
    with lines.arena(tmp_path, broken.line, [broken.kind], broken.seconds_per_row) as arena:
        arena.mutants = broken.handicap
        arena.environment = lines.environment | broken.environment
        arena.start_runners(2 if broken.seconds_per_row else 1)
        arena.request(broken.kind)
        arena.await_quiet()
        strain = partial(broken.scenario, arena, broken.kind, lines, broken.line, broken.fault)
        assert strain() == []
        arena.mutate(*broken.handicap, broken.mutant)
        found = findings(strain)
    say(f"{broken.mutant}: {found}")
    assert found


@dataclass
class Lines:
    """Hold a proxy on each of a runner's connections. The test itself connects to the server directly."""

    metastore: Settings
    marts: Settings
    environment: dict[str, str]
    past_the_proxies: dict[str, str]
    proxies: dict[str, TcpFaultProxy]

    @contextmanager
    def arena(self, directory: Path, line: str, kinds: Sequence[str], seconds_per_row: float = 0) -> Iterator[Arena]:
        """Create pipelines whose runs need the connection: with a separate target, rows pass through Arrow."""
        elsewhere = line == "target"
        arena = Arena(
            self.metastore,
            directory,
            environment=self.environment,
            lease_seconds=LEASE_SECONDS,
            remote=self.marts if elsewhere else None,
        )
        with arena:
            if elsewhere:
                arena.prepare(["inc_arrow"], options={"cursor_clock": "database", "target_connection": "marts"})
            else:
                arena.prepare(kinds, seconds_per_row=seconds_per_row)
            yield arena

    def misbehave(self, line: str, fault: str) -> Fault:
        happening = self.proxies[line].fault = FAULTS[fault]()
        if fault == "cut":
            self.proxies[line].reset_all()
        return happening


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
            # The fault lasts three seconds; giving up before it is over would be allowed.
            "VITRINA_MAX_ATTEMPTS": "20",
        }
        assert database.database_url is not None
        assert database.reader_url is not None
        direct = {
            "VITRINA_DATABASE_URL": database.database_url.get_secret_value(),
            "VITRINA_READER_URL": database.reader_url.get_secret_value(),
        }
        yield Lines(database, marts, environment, direct, proxies)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _through(proxy: TcpFaultProxy, url: SecretStr | None) -> str:
    assert url is not None
    parts = urlsplit(url.get_secret_value())
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))
