"""Run attempts at ranges in processes on the runner's machine, each with its own sessions."""

import contextvars
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any

import structlog

from vitrina.errors import TransientError, VitrinaError
from vitrina.ports.ranges import UNWATCHED, FilledRange, FillHandle, Progress, Result, Task
from vitrina.ports.worker_errors import unpacked
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.transforms import forking

_MODULE = "vitrina.loads.range_worker"
# Workers of runners are forked, because their imports take more than a second of CPU.
templates = forking.Templates((_MODULE,))

_LOOK_SECONDS = 0.2
# How long a killed process may take to end.
_PATIENCE_SECONDS = 5.0
# How long a process that ends by itself may take after it has closed its pipe.
_LAST_WORDS_SECONDS = 1.0


class LocalPool:
    """Run attempts in up to `workers` processes, which are started when they are needed."""

    def __init__(
        self,
        handle: FillHandle,
        settings: Settings,
        workers: int,
        *,
        silence_limit_seconds: float = float("inf"),
        progress: Progress = UNWATCHED,
    ) -> None:
        self._progress = progress
        self._handle = handle
        self._settings = settings
        self._most = workers
        self._silence_limit = silence_limit_seconds
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._outstanding = 0
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._processes: dict[threading.Thread, _Process] = {}

    @property
    def pids(self) -> list[int]:
        """List the IDs of the running processes."""
        return [process.pid for process in list(self._processes.values())]

    def submit(self, task: Task) -> None:
        with self._lock:
            self._outstanding += 1
            if len(self._threads) < min(self._most, self._outstanding):
                # Keep the run's names in log lines of the thread.
                context = contextvars.copy_context()
                thread = threading.Thread(target=context.run, args=[self._work], name="ranges", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._tasks.put(task)

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        while self._outstanding:
            try:
                found = self._results.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                # Nothing has to be recalled, because no more attempts are submitted than there are workers.
                check()
                continue
            with self._lock:
                self._outstanding -= 1
            yield found
        self._dismiss()

    def cancel(self) -> None:
        with self._lock:
            self._is_over = True
            processes = list(self._processes.values())
        for process in processes:
            process.kill()
        self._dismiss()

    def _dismiss(self) -> None:
        """Let idle workers end by themselves when nothing is left to do, without waiting for them."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)

    def _work(self) -> None:
        process: _Process | None = None
        while (task := self._tasks.get()) is not None and not self._is_over:
            try:
                process = process or self._started()
                result = Result(task, filled=self._filled(process, task))
            except _Lost as exc:
                self._let_go(process)
                process = None
                result = Result(task, error=TransientError(str(exc)), is_lost=True)
            except VitrinaError as exc:
                result = Result(task, error=exc)
            except BaseException as exc:  # noqa: BLE001 - raised by the thread that collects results
                result = Result(task, error=exc)
            self._results.put(result)
        self._let_go(process, politely=not self._is_over)

    def _started(self) -> "_Process":
        environment = forking.environment_of(self._settings.step_environment)
        process = _Process(self._silence_limit, self._handle.modules, environment)
        with self._lock:
            self._processes[threading.current_thread()] = process
            is_over = self._is_over
        try:
            if is_over:
                process.kill()
            process.send((self._settings, self._handle))
            process.answer("ready")
        except BaseException:
            self._let_go(process)
            raise
        return process

    def _let_go(self, process: "_Process | None", *, politely: bool = False) -> None:
        if process is not None and politely:
            process.finish()
        with self._lock:
            self._processes.pop(threading.current_thread(), None)
        if process is not None:
            process.close()

    def _filled(self, process: "_Process", task: Task) -> FilledRange:
        process.send(task)
        found: FilledRange = process.answer("filled", lambda rows: self._progress.read(task.number, rows))
        return found


class _Lost(Exception):
    """Report that the process ended, or had to be killed, without an answer."""


def _spawn(descriptors: Sequence[int]) -> forking.Group:
    return forking.Group(
        subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, *map(str, descriptors), *sys.path],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
    )


class _Process:
    """Hold one worker: its process, and this end of its pipe."""

    def __init__(self, silence_limit_seconds: float, modules: Sequence[str], step_environment: dict[str, str]) -> None:
        self._silence_limit = silence_limit_seconds
        try:
            self._start(modules, step_environment)
        except OSError as exc:
            raise TransientError(say("run.worker_not_started", error=exc)) from exc
        self.pid = self._process.pid
        self._ending = threading.Lock()
        self._is_ended = False

    def _start(self, modules: Sequence[str], step_environment: dict[str, str]) -> None:
        """Start the process, and leave nothing open if that fails."""
        with ExitStack() as ours, ExitStack() as theirs:
            line, their_line = socketpair()
            theirs.enter_context(their_line)
            self._line: Connection[Any, Any] = ours.enter_context(Connection(line.detach()))
            life_end, life = os.pipe()
            theirs.callback(os.close, life_end)
            ours.callback(os.close, life)
            # Kept open for as long as the process shall live.
            self._life: int | None = life
            # Steps run in its child processes, which are forked in the same way.
            control = theirs.enter_context(forking.templates.branch(step_environment))
            descriptors = (their_line.fileno(), life_end, control.fileno())
            given = (*descriptors, sys.__stderr__.fileno() if sys.__stderr__ else 2)
            self._process = templates.fork(given, dict(os.environ), modules) or _spawn(descriptors)
            ours.pop_all()

    def send(self, message: Any) -> None:
        try:
            self._line.send(message)
        except OSError as exc:
            raise self._epitaph() from exc

    def answer(self, wanted: str, progressed: Callable[[int], None] = lambda rows: None) -> Any:
        """Wait for the answer. Log lines and progress arrive before it; an error is raised here."""
        while True:
            kind, said = self._receive()
            if kind == "log":
                method, fields = said
                getattr(structlog.get_logger(), method)(fields.pop("event", ""), **fields)
            elif kind == "progress":
                progressed(said)
            elif kind == "error":
                raise unpacked(said)
            elif kind == wanted:
                return said

    def _receive(self) -> Any:
        silent_until = time.monotonic() + self._silence_limit
        try:
            while not self._line.poll(min(self._silence_limit, 60.0)):
                if time.monotonic() > silent_until:
                    self.kill()
                    raise _Lost(say("run.worker_silent", seconds=self._silence_limit))
            return self._line.recv()
        except (EOFError, OSError) as exc:
            raise self._epitaph() from exc

    def _epitaph(self) -> _Lost:
        with suppress(subprocess.TimeoutExpired), self._ending:
            code = self._process.wait(_LAST_WORDS_SECONDS)
            self._is_ended = True
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return _Lost(say("run.worker_lost", how=how))
        self.kill()
        return _Lost(say("run.worker_lost", how="no answer"))

    def finish(self) -> None:
        """Let the process close its sessions and end its children."""
        with suppress(OSError):
            self._line.send(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_SECONDS)

    def close(self) -> None:
        self.kill()
        with suppress(subprocess.TimeoutExpired), self._ending:
            self._process.wait(_PATIENCE_SECONDS)
            # From now on its process ID may belong to another process.
            self._is_ended = True
        self._line.close()

    def kill(self) -> None:
        """Kill the process. Steps below it end when the pipe that it holds is closed."""
        with self._ending:
            if not self._is_ended:
                self._process.kill()
            if self._life is not None:
                os.close(self._life)
            self._life = None
