"""Fork workers from a template process, as seen from the runner."""

import fnmatch
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog

_MODULE = "vitrina.transforms.template"
STEPS = ("vitrina.transforms.worker",)
# How long the template's imports may take on a busy machine.
_READY_SECONDS = 60.0

# Variables that any program needs to find its files, its language and its time zone. Nothing else is inherited.
_PLAIN_NAMES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "TZDIR", "LANG", "LANGUAGE", "LC_*"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS"),
    *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("OMP_NUM_THREADS", "ARROW_*", "POLARS_MAX_THREADS"),
)


def environment_of(names: Iterable[str], inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Choose the environment variables of a worker."""
    patterns = (*_PLAIN_NAMES, *names)
    return {
        name: value
        for name, value in inherited.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


class NoTemplate(Exception):
    """Report that no worker can be forked: the template has ended or cannot be trusted."""


class Forked:
    """Represent a worker and the processes that a step started in its session. The template reports its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = threading.Event()
        self._code = 0

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended.is_set():  # a freed process ID may belong to another process
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def ended(self, code: int) -> None:
        self._code = code
        self._ended.set()


class Group:
    """Represent a worker and the processes that it started in its session."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()


class Template:
    """Represent the process that workers of one environment are forked from, at the other end of a socket."""

    def __init__(self, control: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._control = control
        # None if it was forked for this process; then it ends with the socket.
        self._process = process
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._workers: dict[int, Forked] = {}
        threading.Thread(target=self._listen, name="worker-template", daemon=True).start()
        if self._answer()["threads"] != 1:
            self.close()
            raise NoTemplate

    @classmethod
    def start(cls, environment: dict[str, str], modules: Sequence[str]) -> "Template":
        """Start an interpreter that imports these modules; the first has the workers' `main`."""
        ours, theirs = _pair()
        with theirs, _closed_on_error(ours):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), ",".join(modules), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        return cls(ours, process)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def fork(self, descriptors: Sequence[int]) -> Forked:
        """Start a worker with these descriptors: its own, then the one of its output."""
        return self._forked(b"f", descriptors)

    def branch(self) -> socket.socket:
        """Fork the template itself, for a process that will fork workers from it. The fork ends with the socket."""
        ours, theirs = _pair()
        with theirs, _closed_on_error(ours):
            self._forked(b"t", [theirs.fileno()])
        return ours

    def _forked(self, what: bytes, descriptors: Sequence[int]) -> Forked:
        with self._asking:
            try:
                socket.send_fds(self._control, [what], list(descriptors))
            except OSError as exc:
                raise NoTemplate from exc
            return self._workers[self._answer()["pid"]]

    def close(self) -> None:
        """End the template and its running workers, whose end would no longer be reported."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._process:
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=_READY_SECONDS)
        except queue.Empty:
            answer = None
        if answer is None:
            self._give_up()
            raise NoTemplate
        return answer

    def _give_up(self) -> None:
        if self._process:
            self._process.kill()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while message := self._receive():
            said = json.loads(message)
            if said["what"] == "ended":
                self._workers.pop(said["pid"]).ended(said["code"])
                continue
            if said["what"] == "started":
                self._workers[said["pid"]] = Forked(said["pid"])
            self._answers.put(said)
        self._answers.put(None)
        for left in self._workers.values():  # their end is no longer reported
            left.kill()
            left.ended(-signal.SIGKILL)
        self._control.close()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(4096)
        except OSError:
            return b""


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextmanager
def _closed_on_error(end: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end.close()
        raise


class Templates:
    """Keep the process that workers are forked from, starting it when the first is needed. Only runners keep one.

    It imports `modules`; the first has the workers' `main`.
    """

    def __init__(self, modules: Sequence[str] = STEPS) -> None:
        self._modules = modules
        self.are_kept = False
        self._making = threading.Lock()
        self._made: tuple[dict[str, str], Template] | None = None

    @property
    def pid(self) -> int | None:
        return self._made[1].pid if self._made else None

    def keep(self) -> None:
        self.are_kept = True

    def fork(self, theirs: Sequence[int], environment: dict[str, str], more: Sequence[str] = ()) -> Forked | None:
        """Fork a worker, or return None if the caller has to start a process instead.

        If the template is started now, it imports the modules in `more` too.
        """
        if not self.are_kept:
            return None
        try:
            return self._of(environment, more).fork(theirs)
        except NoTemplate:
            structlog.get_logger().warning("worker.not_forked")
            self.close()
            return None

    def branch(self, environment: dict[str, str]) -> socket.socket:
        """Fork the template for another process; see `adopt`.

        Without a template, return a socket whose peer is closed.
        """
        with self._making:
            made = self._made
        if made is not None and made[0] == environment:
            with suppress(NoTemplate):
                return made[1].branch()
        ours, theirs = _pair()
        theirs.close()
        return ours

    def adopt(self, environment: dict[str, str], control: socket.socket) -> None:
        """Fork workers from a template that another process has branched off for this one."""
        with self._making, suppress(NoTemplate):
            self._made = environment, Template(control)
            self.are_kept = True

    def _of(self, environment: dict[str, str], more: Sequence[str]) -> Template:
        with self._making:
            if self._made is None or self._made[0] != environment:
                self._drop()
                self._made = environment, Template.start(environment, (*self._modules, *more))
            return self._made[1]

    def close(self) -> None:
        with self._making:
            self._drop()

    def _drop(self) -> None:
        made, self._made = self._made, None
        if made:
            made[1].close()


templates = Templates()
