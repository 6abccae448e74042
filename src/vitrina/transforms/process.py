"""Run a worker process for steps: start it clean, watch it from outside, and end it when it has to be ended."""

import contextvars
import fcntl
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog

from vitrina.errors import StepFailed, TransientError, VitrinaError
from vitrina.transforms import forking, progress, wire
from vitrina.transforms.progress import Place
from vitrina.transforms.watched_process import EXIT_SECONDS, Process, WatchedProcess
from vitrina.transforms.wire import Message

_NAME = "worker"
# The name of the thread that waits for a worker's exit.
ENDING = f"{_NAME}-end"
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_LINE_CHARACTERS = 1_000
# How long the last lines of output of an ended process may take to arrive.
_OUTPUT_SECONDS = 1.0
# How long importing the modules of steps may take.
IMPORT_SECONDS = 120.0
# Requests that begin with an import.
_IMPORTING = ("describe", "plan", "source")


@dataclass(frozen=True)
class Limits:
    """Limit what a worker may use before it is ended."""

    timeout_seconds: float
    memory_mb: int
    # Names of additional environment variables for steps; `*` matches any characters.
    environment: tuple[str, ...] = ()
    output_lines: int = 500


@dataclass
class Started:
    """Hold a process and our ends of its pipes."""

    process: Process
    requests: int
    replies: int
    output: int
    # Kept open as long as the process is to run.
    life: int
    place: mmap.mmap

    def close(self) -> None:
        """Close all descriptors but `output`, which its reader closes."""
        for descriptor in (self.requests, self.replies, self.life):
            with suppress(OSError):
                os.close(descriptor)


def start(environment: dict[str, str]) -> Started:
    """Start a worker: a new interpreter in its own session, with four descriptors besides its output."""
    with tempfile.TemporaryFile() as file:
        file.truncate(progress.SIZE)
        place = mmap.mmap(file.fileno(), progress.SIZE)
        theirs_in, requests = os.pipe()
        replies, theirs_out = os.pipe()
        life_end, life = os.pipe()
        output, theirs_output = os.pipe()
        for descriptor in (requests, replies):
            with suppress(OSError, AttributeError):  # the default is smaller but sufficient
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        theirs = (theirs_in, theirs_out, life_end, file.fileno(), theirs_output)
        try:
            process = forking.templates.fork(theirs, environment) or _spawn(theirs, environment)
        finally:
            for descriptor in (theirs_in, theirs_out, life_end, theirs_output):
                os.close(descriptor)
    return Started(process, requests, replies, output, life, place)


def _spawn(theirs: Sequence[int], environment: dict[str, str]) -> forking.Group:
    *descriptors, output = theirs
    return forking.Group(
        subprocess.Popen(
            [sys.executable, "-P", "-m", "vitrina.transforms.worker", *map(str, descriptors), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            env=environment,
            start_new_session=True,
        )
    )


class WorkerEnded(TransientError):
    """Signal that the worker was ended because no caller needs its answer any more."""

    code = "worker_ended"


class Worker:
    """Send requests to one worker, one at a time, and end it from any thread."""

    def __init__(
        self, limits: Limits, *, describe: Callable[[Place], str], answer: Callable[[Message], Message]
    ) -> None:
        self._limits = limits
        # Names the step at a place, for errors about the worker's end.
        self._describe = describe
        # Answers the worker's own requests while it handles one.
        self._answer = answer
        self._asked = 0
        self._started = start(forking.environment_of(limits.environment))
        # The copied context puts the run's names into log lines.
        self._output = threading.Thread(
            target=contextvars.copy_context().run,
            args=[_keep_output, self._started.output, limits.output_lines],
            daemon=True,
        )
        self._output.start()
        self._watched = WatchedProcess(
            self._started.process,
            name=_NAME,
            memory_mb=limits.memory_mb,
            timed_out=self._timed_out,
            over_memory=self._over_memory,
            release=self._release,
        )

    @property
    def is_over(self) -> bool:
        return self._watched.is_over

    def ask(self, op: str, payload: tuple[Any, ...] = (), **fields: Any) -> Message:
        """Return the worker's answer. Raise what the worker raised, or the reason why it ended."""
        watched = self._watched
        with watched.busy:
            if self.is_over:
                raise watched.error or WorkerEnded("the worker is not there any more")
            least = IMPORT_SECONDS if op in _IMPORTING else 0.0
            watched.deadline = time.monotonic() + max(self._limits.timeout_seconds, least)
            try:
                answer = self._conversation(Message({"op": op, **fields}, payload))
            except (OSError, EOFError, wire.Garbled) as exc:
                raise self._error_after(exc) from exc
            finally:
                watched.deadline = None
        if "exit" in answer.fields:
            error = StepFailed(f"{self._where()} called sys.exit({answer.fields['exit']}): return, or raise an error")
            watched.end(error)
            raise error
        if "error" in answer.fields:
            wire.raise_error(answer.fields["error"])
        return answer

    @contextmanager
    def taking_apart(self) -> Iterator[None]:
        """Guard the reading of an answer. An answer that lacks what was requested ends the worker."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as exc:
            raise self._error_after(wire.Garbled("an answer that makes no sense")) from exc

    def close(self) -> None:
        """End the worker, in the middle of a step if necessary."""
        self._watched.end(WorkerEnded("the worker was ended with its run"))

    def _conversation(self, message: Message) -> Message:
        self._asked += 1
        watched = self._watched
        wire.send(self._started.requests, message.numbered(self._asked))
        # An answer cannot be larger than the worker's memory.
        limit = self._limits.memory_mb << 20
        while "ask" in (said := wire.receive(self._started.replies, max_payload=limit)).fields:
            deadline, watched.deadline = watched.deadline, None  # now the step waits for the runner
            asked_at = time.monotonic()
            try:
                answer = self._answer(said)
            except BaseException:
                self.close()  # it would wait forever
                raise
            wire.send(self._started.requests, answer)
            watched.deadline = deadline and deadline + time.monotonic() - asked_at
        if said.number != self._asked:
            raise wire.Garbled("an answer to another question")
        return said

    def _timed_out(self) -> VitrinaError:
        return StepFailed(
            f"{self._where()} took longer than options.step_timeout_seconds ({self._limits.timeout_seconds:g} s):"
            " look for a loop or a wait without an end, make batch_size smaller, or raise the option"
        )

    def _over_memory(self, used: int) -> VitrinaError:
        return StepFailed(
            f"{self._where()} used {used} MB, more than options.step_memory_mb ({self._limits.memory_mb}): keep"
            " less in memory, make batch_size smaller, or raise the option"
        )

    def _release(self) -> None:
        self._output.join(_OUTPUT_SECONDS)
        self._started.close()

    def _error_after(self, exc: BaseException) -> VitrinaError:
        """Return why the worker ended, once its output has been logged."""
        error = self._watched.error_after(lambda: self._diagnose(exc))
        assert error is not None
        self._output.join(_OUTPUT_SECONDS)
        return error

    def _damaged_pipes(self, exc: BaseException) -> VitrinaError:
        return StepFailed(
            f"{self._where()} wrote into the pipes of its process ({exc}): leave descriptors alone that it did not open"
        )

    def _diagnose(self, exc: BaseException) -> VitrinaError:
        if isinstance(exc, wire.Garbled):
            return self._damaged_pipes(exc)
        try:
            code = self._started.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return self._damaged_pipes(exc)
        if code == wire.PIPES_LOST:
            return StepFailed(
                f"{self._where()} closed the pipes of its process: leave descriptors alone that it did not open"
            )
        if code >= 0:
            return StepFailed(
                f"{self._where()} ended its process with exit code {code} (os._exit): raise an error instead"
            )
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if -code in (signal.SIGKILL, signal.SIGTERM):
            return TransientError(
                f"{self._where()} was ended from outside with {name}; perhaps the system ran out of memory"
            )
        return StepFailed(f"{self._where()} crashed its process with {name}: the run's log has the end of its output")

    def _where(self) -> str:
        return self._describe(progress.read(memoryview(self._started.place)))


def _keep_output(descriptor: int, max_lines: int) -> None:
    """Copy output into the run's log up to `max_lines`; drop the rest, so that no print blocks a step."""
    log, rest, lines, dropped = structlog.get_logger(), b"", 0, 0
    with suppress(OSError), open(descriptor, "rb", buffering=0) as stream:
        while piece := stream.read(_READ_BYTES):
            if lines >= max_lines:
                dropped += len(piece)
                continue
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_CHARACTERS:
                whole, rest = [*whole, rest], b""
            for line in whole[: max_lines - lines]:
                _log_line(log, line)
            lines += len(whole)
    if rest and lines < max_lines:
        _log_line(log, rest)
    if lines >= max_lines:
        log.warning("step.output_dropped", kept_lines=max_lines, dropped_bytes=dropped)


def _log_line(log: Any, line: bytes) -> None:
    text = line.decode(errors="replace").rstrip()
    if text:
        log.info("step.output", text=text[:_LINE_CHARACTERS])
