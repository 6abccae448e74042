"""The worker process as the runner sees it: asked, watched for time and memory, and ended from any thread."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from vitrina.errors import Disconnected, FatalError, SourceQueryFailed, TransientError, VitrinaError
from vitrina.transforms import forking, process, wire
from vitrina.transforms.wire import Message

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 5.0
_KILL_SECONDS = 1.0
# The interpreter and DuckDB are loaded with the first question.
_START_SECONDS = 60.0
_LAST_WORDS = 2_000


@dataclass(frozen=True)
class Limits:
    """What the process may use up before it is ended."""

    # For one answer, or for the next batch.
    timeout_seconds: float
    memory_mb: int
    threads: int
    # Of disk, besides memory.
    spill_mb: int


class Private:
    """A folder of one source's own, for downloaded objects and for what does not fit into memory."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="vitrina-files-"))
        self.objects, self.spill = self.path / "objects", self.path / "spill"
        self.objects.mkdir()
        self.spill.mkdir()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Reader:
    """A process that answers one query. It is given names of files below the folder that it works in."""

    def __init__(self, query: str, folder: Path, private: Private, limits: Limits) -> None:
        self._limits = limits
        self._private = private
        self._busy = threading.Lock()
        self._ending = threading.Lock()
        self._closed = threading.Event()
        self._ended_because: VitrinaError | None = None
        self._deadline: float | None = None
        self._asked_before = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        life_end, self._life = os.pipe()
        theirs = (theirs_in, theirs_out, life_end)
        try:
            self._process = self._start(theirs, folder)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        threading.Thread(target=self._watch, name="files-watch", daemon=True).start()
        engine = {"memory_mb": limits.memory_mb, "threads": limits.threads, "spill_mb": limits.spill_mb}
        self._send(Message({"query": query, "limits": engine | {"spill": str(private.spill)}}))

    def _start(self, theirs: Sequence[int], folder: Path) -> "subprocess.Popen[bytes]":
        environment = forking.environment_of(())
        if path := environment.get("PYTHONPATH"):  # it works in another folder
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in path.split(os.pathsep))
        arguments = [*map(str, theirs), str(self._private.path)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "vitrina.connectors.files.reading.worker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=theirs,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )

    # --- asking ----------------------------------------------------------------------------------------------------

    def ask(self, op: str, **fields: Any) -> Message:
        """Return the answer to a question. Raise what was raised there, or why the process ended."""
        with self._busy:
            self._send(Message({"op": op, **fields}))
            return self._receive()

    def read(self, fields: Mapping[str, Any]) -> Iterator[pa.Table]:
        """Ask for rows, and give the batches as they come. A caller that leaves early has to end the process."""
        with self._busy:
            self._send(Message({"op": "read", **fields}))
            while "end" not in (answer := self._receive()).fields:
                yield _table(answer)

    def _send(self, message: Message) -> None:
        with self._in_time():
            wire.send(self._requests, message)

    def _receive(self) -> Message:
        with self._in_time():
            answer = wire.receive(self._replies, max_payload=self._limits.memory_mb << 20)
        self._asked_before = True
        if "error" in answer.fields:
            wire.raise_error(answer.fields["error"])
        return answer

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Have the process ended when it takes too long, which ends the wait for its pipes. Raise why it ended."""
        least = 0.0 if self._asked_before else _START_SECONDS
        self._deadline = time.monotonic() + max(self._limits.timeout_seconds, least)
        try:
            yield
        except (OSError, EOFError, wire.Garbled) as exc:
            raise self._epitaph() from exc
        finally:
            self._deadline = None

    # --- ending ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """End the process, in the middle of a query if necessary. Afterwards it writes nothing more."""
        self._end(Disconnected("the reading of files was ended with its run"))
        with suppress(subprocess.TimeoutExpired):  # the watchdog of all runs may be the caller
            self._process.wait(_KILL_SECONDS)

    def _watch(self) -> None:
        limits = self._limits
        while not self._closed.wait(_LOOK_SECONDS):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self._end(
                    SourceQueryFailed(
                        "the query gave no rows for longer than options.step_timeout_seconds"
                        f" ({limits.timeout_seconds:g} s): read less at once, or raise the option"
                    )
                )
            elif (used := process.memory_mb(self._process.pid)) > limits.memory_mb:
                self._end(
                    FatalError(
                        f"the query used {used} MB, more than options.step_memory_mb ({limits.memory_mb}): read less"
                        " at once, make batch_size smaller, or raise the option"
                    )
                )

    def _end(self, because: VitrinaError) -> None:
        with self._ending:
            if self.is_over:
                return
            self._ended_because = because
            self._closed.set()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        threading.Thread(target=self._bury, name="files-end", daemon=True).start()

    def _bury(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_SECONDS)
        with self._busy:  # a caller that waits for an answer has been told
            for descriptor in (self._requests, self._replies, self._life):
                with suppress(OSError):
                    os.close(descriptor)
            self._output.close()

    def _epitaph(self) -> VitrinaError:
        if not self.is_over:
            self._end(self._death())
        return self._ended_because or Disconnected("the process that reads files is not there any more")

    def _death(self) -> VitrinaError:
        """Find out why the process ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_PATIENCE_SECONDS)
            said = self._last_words()
            if code in (-signal.SIGKILL, -signal.SIGTERM):
                return TransientError("the process that reads files was ended from outside; perhaps memory ran out")
            if "No module named 'duckdb'" in said:
                return FatalError("files as a source need the package duckdb: install vitrina[lake] on the runners")
            structlog.get_logger().error("files.worker_died", code=code, said=said)
            return SourceQueryFailed(
                f"DuckDB crashed on this query (exit code {code}): the log of the runner has its last words"
            )
        return SourceQueryFailed("the process that reads files closed its pipes")

    def _last_words(self) -> str:
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(end - _LAST_WORDS, 0))
        return self._output.read().decode(errors="replace")


def _table(answer: Message) -> pa.Table:
    try:
        [part] = answer.payload
        table = wire.unpacked(part)
        table.validate(full=True)
    except (ValueError, pa.ArrowException, OSError) as exc:
        raise SourceQueryFailed(f"DuckDB gave Arrow data that is damaged ({exc})") from exc
    return table
