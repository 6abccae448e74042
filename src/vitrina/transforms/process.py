"""A worker process as the runner sees it: started clean, watched from outside, ended when it has to be."""

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
from typing import Any, Protocol

import structlog

from vitrina.errors import StepFailed, TransientError, VitrinaError
from vitrina.transforms import forking, progress, wire
from vitrina.transforms.progress import Place
from vitrina.transforms.wire import Message

# The name of the thread that waits for a worker's end.
ENDING = "worker-end"
_LOOK_SECONDS = 0.05
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_LINE_CHARACTERS = 1_000
# How long a process that was ended may take to be gone, and its last lines to arrive.
_PATIENCE_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0
# What importing the modules of steps may take.
IMPORT_SECONDS = 120.0
# These begin with an import.
_IMPORTING = ("describe", "plan", "source")


@dataclass(frozen=True)
class Limits:
    """What a worker may use up before it is ended."""

    timeout_seconds: float
    memory_mb: int
    # Names of variables of the environment, `*` for any characters, that steps are given besides the plain ones.
    environment: tuple[str, ...] = ()
    output_lines: int = 500


# --- starting ------------------------------------------------------------------------------------------------------


class Process(Protocol):
    """Something that serves messages, and can be ended."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait as subprocess does: return the exit code, or minus the signal."""
        ...

    def kill(self) -> None: ...


@dataclass
class Started:
    """A process and our ends of its pipes."""

    process: Process
    requests: int
    replies: int
    output: int
    # Kept open as long as the process shall live.
    life: int
    place: mmap.mmap

    def close(self) -> None:
        """Close all descriptors but `output`, which its reader closes."""
        for descriptor in (self.requests, self.replies, self.life):
            with suppress(OSError):
                os.close(descriptor)


def start(environment: dict[str, str]) -> Started:
    """Spawn a worker: a new interpreter in a session of its own, with four descriptors besides its output."""
    with tempfile.TemporaryFile() as file:
        file.truncate(progress.SIZE)
        place = mmap.mmap(file.fileno(), progress.SIZE)
        theirs_in, requests = os.pipe()
        replies, theirs_out = os.pipe()
        life_end, life = os.pipe()
        output, theirs_output = os.pipe()
        for descriptor in (requests, replies):
            with suppress(OSError, AttributeError):  # the default is smaller, and enough
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


# --- at work -------------------------------------------------------------------------------------------------------


class WorkerEnded(TransientError):
    """The worker was ended because no caller needs its answer any more."""

    code = "worker_ended"


class Worker:
    """One worker: asked one question at a time, ended from any thread."""

    def __init__(
        self, limits: Limits, *, describe: Callable[[Place], str], answer: Callable[[Message], Message]
    ) -> None:
        self._limits = limits
        # Names the step at a place, for what is said about the worker's end.
        self._describe = describe
        # Answers what the worker asks while it is asked.
        self._answer = answer
        self._busy = threading.Lock()
        self._asked = 0
        self._ending = threading.Lock()
        self._ended_because: VitrinaError | None = None
        self._deadline: float | None = None
        self._closed = threading.Event()
        self._started = start(forking.environment_of(limits.environment))
        # With the run's names in its log lines.
        context = contextvars.copy_context()
        self._output = threading.Thread(
            target=context.copy().run, args=[_keep_output, self._started.output, limits.output_lines], daemon=True
        )
        self._output.start()
        threading.Thread(target=context.copy().run, args=[self._watch], name="worker-watch", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._closed.is_set()

    def ask(self, op: str, payload: tuple[Any, ...] = (), **fields: Any) -> Message:
        """Return the worker's answer. Raise what was raised there, or the reason why the worker ended."""
        with self._busy:
            if self.is_over:
                raise self._ended_because or WorkerEnded("the worker is not there any more")
            least = IMPORT_SECONDS if op in _IMPORTING else 0.0
            self._deadline = time.monotonic() + max(self._limits.timeout_seconds, least)
            try:
                answer = self._conversation(Message({"op": op, **fields}, payload))
            except (OSError, EOFError, wire.Garbled) as exc:
                raise self._epitaph(exc) from exc
            finally:
                self._deadline = None
        if "exit" in answer.fields:
            error = StepFailed(f"{self._where()} called sys.exit({answer.fields['exit']}): return, or raise an error")
            self._end(error)
            raise error
        if "error" in answer.fields:
            wire.raise_error(answer.fields["error"])
        return answer

    @contextmanager
    def taking_apart(self) -> Iterator[None]:
        """Guard the reading of an answer, which may lack what was asked for. A wrong one ends the worker."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as exc:
            raise self._epitaph(wire.Garbled("an answer that makes no sense")) from exc

    def close(self) -> None:
        """End the worker, in the middle of a step if necessary."""
        self._end(WorkerEnded("the worker was ended with its run"))

    def _conversation(self, message: Message) -> Message:
        self._asked += 1
        wire.send(self._started.requests, message.numbered(self._asked))
        # What it sends has been in its own memory.
        limit = self._limits.memory_mb << 20
        while "ask" in (said := wire.receive(self._started.replies, max_payload=limit)).fields:
            deadline, self._deadline = self._deadline, None  # the step waits for us now
            asked_at = time.monotonic()
            try:
                answer = self._answer(said)
            except BaseException:
                self.close()  # it would wait for ever
                raise
            wire.send(self._started.requests, answer)
            self._deadline = deadline and deadline + time.monotonic() - asked_at
        if said.number != self._asked:
            raise wire.Garbled("an answer to another question")
        return said

    # --- ending ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch time and memory from outside: a step that loops in C answers no message."""
        limits = self._limits
        while not self._closed.wait(_LOOK_SECONDS):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self._end(
                    StepFailed(
                        f"{self._where()} took longer than options.step_timeout_seconds ({limits.timeout_seconds:g} s):"
                        " look for a loop or a wait without an end, make batch_size smaller, or raise the option"
                    )
                )
            elif (used := memory_mb(self._started.process.pid)) > limits.memory_mb:
                self._end(
                    StepFailed(
                        f"{self._where()} used {used} MB, more than options.step_memory_mb ({limits.memory_mb}): keep"
                        " less in memory, make batch_size smaller, or raise the option"
                    )
                )

    def _end(self, because: VitrinaError) -> None:
        with self._ending:
            if self.is_over:
                return
            self._ended_because = because
            self._closed.set()
        self._started.process.kill()
        threading.Thread(target=self._bury, name=ENDING, daemon=True).start()

    def _bury(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._started.process.wait(_PATIENCE_SECONDS)
        self._output.join(_LAST_WORDS_SECONDS)
        with self._busy:  # who waits for an answer has been told
            self._started.close()

    def _epitaph(self, exc: BaseException) -> VitrinaError:
        """Find out why the worker died."""
        if not self.is_over:
            self._end(self._meddling(exc) if isinstance(exc, wire.Garbled) else self._death(exc))
        assert self._ended_because is not None
        self._output.join(_LAST_WORDS_SECONDS)
        return self._ended_because

    def _meddling(self, exc: BaseException) -> VitrinaError:
        return StepFailed(
            f"{self._where()} wrote into the pipes of its process ({exc}): leave descriptors alone that it did not open"
        )

    def _death(self, exc: BaseException) -> VitrinaError:
        try:
            code = self._started.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return self._meddling(exc)
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
        return StepFailed(f"{self._where()} crashed its process with {name}: the run's log has its last words")

    def _where(self) -> str:
        return self._describe(progress.read(memoryview(self._started.place)))


def memory_mb(pid: int) -> int:
    """Read the resident memory, in MiB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - read twenty times a second
            return int(file.read().split()[1]) * mmap.PAGESIZE >> 20
    except (OSError, IndexError):
        return 0


# --- what steps print ----------------------------------------------------------------------------------------------


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
