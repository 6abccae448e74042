"""Start the server process of a data directory: find a free port and a socket directory, and wait until it answers."""

import hashlib
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vitrina.embedded import watchdog
from vitrina.embedded.accounts import give_to_owner
from vitrina.embedded.cluster import Cluster
from vitrina.errors import CannotConnect

HOST = "127.0.0.1"
ANY_PORT = 0
PORTS_TRIED = 200
START_TIMEOUT_SECONDS = 120.0  # long enough to replay the log after a crash
LOG_LIMIT_BYTES = 10_000_000
SOCKET_PATH_LIMIT_BYTES = 107


def launch(cluster: Cluster, wanted_port: int, settings: Mapping[str, str], log: Path) -> int:
    """Start the server on the wanted port or the next free one, and return that port once the server answers."""
    _remove_misleading_pid_file(cluster.data)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    for port in _free_ports(wanted_port):
        said = _try_port(cluster, port, settings, log, deadline)
        if said is None:
            return port
        # Another program took the port before PostgreSQL did: try the next one.
        if "could not create any TCP/IP sockets" not in said:
            raise CannotConnect(f"PostgreSQL did not start; the end of {log} says:\n{_last_lines(said)}")
    raise CannotConnect(f"PostgreSQL found no free port from {wanted_port} to {wanted_port + PORTS_TRIED - 1}")


def await_ready(pid: int, data: Path) -> bool:
    """Wait until the server accepts connections; return False if it exits instead."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while watchdog.is_postmaster(pid, data):
        lines = watchdog.postmaster_file(data)
        if len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby"):
            return True
        if time.monotonic() > deadline:
            raise CannotConnect(
                f"PostgreSQL (process {pid}) runs on {data} but accepts no connections after "
                f"{START_TIMEOUT_SECONDS:.0f} s: look at its log, or end the process and try again"
            )
        time.sleep(watchdog.POLL_SECONDS)
    return False


def socket_directory(cluster: Cluster) -> Path:
    """Return a short path, because the path of a socket may have at most 107 bytes.

    It is always the same, so that killed servers leave no litter.
    """
    name = f"vitrina-{hashlib.sha256(os.fsencode(cluster.data)).hexdigest()[:16]}"
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 (made 0700, and its owner is checked)
        if _fits_socket(base / name) and cluster.account.can_enter(base):
            return base / name
    raise CannotConnect(f"PostgreSQL (uid {cluster.account.uid}) cannot enter /tmp, where its sockets would be")


def _fits_socket(directory: Path) -> bool:
    """Return whether the path is short and plain enough; the setting is a list with its own quoting rules."""
    longest = os.fsencode(directory / ".s.PGSQL.65535")
    return len(longest) <= SOCKET_PATH_LIMIT_BYTES and re.fullmatch(rb"[\w./-]+", longest) is not None


def _try_port(cluster: Cluster, port: int, settings: Mapping[str, str], log: Path, deadline: float) -> str | None:
    """Start on this port. Return None if it worked, else the server's output."""
    while True:
        _turn_log(log)
        said_before = log.stat().st_size
        if await_ready(_spawn(cluster, port, settings, log), cluster.data):
            return None
        with log.open("rb") as lines:
            lines.seek(said_before)
            said = lines.read().decode(errors="replace")
        watchdog.remove_socket_directory(socket_directory(cluster))
        # The processes of a killed server need a moment to notice that they are orphans.
        if "pre-existing shared memory block" not in said or time.monotonic() > deadline:
            return said
        time.sleep(0.1)


def _spawn(cluster: Cluster, port: int, settings: Mapping[str, str], log: Path) -> int:
    arguments = {
        **settings,
        "listen_addresses": HOST,
        "port": str(port),
        "unix_socket_directories": str(_make_socket_directory(cluster)),
        "unix_socket_permissions": "0700",
        "logging_collector": "off",
    }
    options = [word for name, value in arguments.items() for word in ("-c", f"{name}={value}")]
    with log.open("ab") as output:
        return cluster.account.run_in_background([cluster.bindir / "postgres", "-D", cluster.data, *options], output)


def _make_socket_directory(cluster: Cluster) -> Path:
    directory = socket_directory(cluster)
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid not in (cluster.account.uid, os.geteuid()):
        raise CannotConnect(f"{directory}, where PostgreSQL's sockets go, belongs to another user: remove it")
    cluster.account.own(directory)
    for leftover in directory.iterdir():
        leftover.unlink()  # left by a killed server, whose pid may belong to another process by now
    return directory


def _free_ports(wanted: int) -> Iterator[int]:
    candidates = [ANY_PORT] * 10 if wanted == ANY_PORT else range(wanted, min(wanted + PORTS_TRIED, 65536))
    for port in candidates:
        with socket.socket() as probe:
            # As PostgreSQL does, so that lingering connections after a restart do not make a port busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
        yield found


def _remove_misleading_pid_file(data: Path) -> None:
    """Remove postmaster.pid if its pid is another program's; PostgreSQL refuses to start while that pid exists.

    That happens after a checkout was copied while its server ran, if the pid was reused, or if the dead server is
    still a zombie. PostgreSQL still detects processes that a dead server left, by their shared memory.
    """
    lines = watchdog.postmaster_file(data)
    if len(lines) < 2 or not lines[0].isdigit():
        return
    came_with_a_copy = lines[1] != str(data)
    command = watchdog.command_line(int(lines[0]))
    if command and (came_with_a_copy or not command[0].endswith(b"postgres")):
        (data / "postmaster.pid").unlink()


def _turn_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.rename(log.with_name(f"{log.name}.1"))
    if not log.exists():
        log.touch(mode=0o600)
        give_to_owner(log)


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-8:])
