"""Workers that are forked from a template, as the runner sees them."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog

_MODULE = "vitrina.transforms.template"
STEPS = ("vitrina.transforms.worker",)
# What its imports may take on a machine that is busy.
_READY_SECONDS = 60.0


class NoTemplate(Exception):
    """Nothing can be forked: the process is not there, or cannot be trusted with it."""


class Forked:
    """A worker and processes that a step started: they share its session. Its parent, the template, tells its end."""

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
        if not self._ended.is_set():  # a number that was freed may be another's
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def ended(self, code: int) -> None:
        self._code = code
        self._ended.set()


class Group:
    """A worker, and processes that it started: they share its session."""

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
    """The process that workers are forked from, for one environment."""

    def __init__(self, environment: dict[str, str], modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), ",".join(modules), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._workers: dict[int, Forked] = {}
        threading.Thread(target=self._listen, name="worker-template", daemon=True).start()
        if self._answer()["threads"] != 1:
            self.close()
            raise NoTemplate

    def fork(self, descriptors: Sequence[int]) -> Forked:
        """Start a worker that has these descriptors: its own, then that of its output."""
        with self._asking:
            try:
                socket.send_fds(self._control, [b"f"], list(descriptors))
            except OSError as exc:
                raise NoTemplate from exc
            return self._workers[self._answer()["pid"]]

    def close(self) -> None:
        """End the template, and workers that are still at work: nobody would tell their end any more."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=_READY_SECONDS)
        except queue.Empty:
            answer = None
        if answer is None:
            self._process.kill()
            raise NoTemplate
        return answer

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
        for left in self._workers.values():  # nobody tells their end any more
            left.kill()
            left.ended(-signal.SIGKILL)
        self._control.close()

    def _receive(self) -> bytes:
        try:
            return self._control.recv(4096)
        except OSError:
            return b""


class Templates:
    """The process that workers are forked from, made when the first one is needed. Only runners keep one.

    `modules`: what it imports; the first has the workers' `main`.
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
        """Fork a worker; None where a process of its own is to be started instead.

        `more`: modules for a process that is made now.
        """
        if not self.are_kept:
            return None
        try:
            return self._of(environment, more).fork(theirs)
        except NoTemplate:
            structlog.get_logger().warning("worker.not_forked")
            self.close()
            return None

    def _of(self, environment: dict[str, str], more: Sequence[str]) -> Template:
        with self._making:
            if self._made is None or self._made[0] != environment:
                self._drop()
                self._made = environment, Template(environment, (*self._modules, *more))
            return self._made[1]

    def close(self) -> None:
        with self._making:
            self._drop()

    def _drop(self) -> None:
        made, self._made = self._made, None
        if made:
            made[1].close()


templates = Templates()
