"""Run the worker process of files as a source: send requests, limit time and memory, and end it from any thread."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from vitrina.errors import Disconnected, FatalError, SourceQueryFailed, TransientError, VitrinaError
from vitrina.transforms import forking, wire
from vitrina.transforms.watched_process import EXIT_SECONDS, WatchedProcess
from vitrina.transforms.wire import Message

_KILL_SECONDS = 1.0
# The first answer includes loading the interpreter and DuckDB.
_START_SECONDS = 60.0
# How much of the end of its output is logged when the process crashes.
_LOGGED_BYTES = 2_000


@dataclass(frozen=True)
class Limits:
    """Limit what the process may use before it is ended."""

    # For one answer, or for the next batch.
    timeout_seconds: float
    memory_mb: int
    threads: int
    # Disk for data that does not fit into memory.
    spill_mb: int


class Private:
    """Create a private folder of one source, for downloaded objects and for data that does not fit into memory."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="vitrina-files-"))
        self.objects, self.spill = self.path / "objects", self.path / "spill"
        self.objects.mkdir()
        self.spill.mkdir()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Reader:
    """Run a process that answers one query. File names are relative to its working folder."""

    def __init__(self, query: str, folder: Path, private: Private, limits: Limits) -> None:
        self._limits = limits
        self._private = private
        self._has_answered = False
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
        self._watched = WatchedProcess(
            self._process,
            name="files",
            memory_mb=limits.memory_mb,
            timed_out=self._timed_out,
            over_memory=self._over_memory,
            release=self._release,
        )
        engine = {"memory_mb": limits.memory_mb, "threads": limits.threads, "spill_mb": limits.spill_mb}
        self._send(Message({"query": query, "limits": engine | {"spill": str(private.spill)}}))

    def _start(self, theirs: Sequence[int], folder: Path) -> forking.Group:
        environment = forking.environment_of(())
        if path := environment.get("PYTHONPATH"):  # its working folder is another one
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in path.split(os.pathsep))
        arguments = [*map(str, theirs), str(self._private.path)]
        return forking.Group(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "vitrina.connectors.files.reading.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=theirs,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        )

    def ask(self, op: str, **fields: Any) -> Message:
        """Return the answer to a request. Raise what the worker raised, or why the process ended."""
        with self._watched.busy:
            self._send(Message({"op": op, **fields}))
            return self._receive()

    def read(self, fields: Mapping[str, Any]) -> Iterator[pa.Table]:
        """Request rows and yield the batches as they arrive. A caller that stops early must end the process."""
        with self._watched.busy:
            self._send(Message({"op": "read", **fields}))
            while "end" not in (answer := self._receive()).fields:
                yield _table(answer)

    def _send(self, message: Message) -> None:
        with self._in_time():
            wire.send(self._requests, message)

    def _receive(self) -> Message:
        with self._in_time():
            answer = wire.receive(self._replies, max_payload=self._limits.memory_mb << 20)
        self._has_answered = True
        if "error" in answer.fields:
            wire.raise_error(answer.fields["error"])
        return answer

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """End the process if the block takes too long, which also ends a wait for its pipes. Raise why it ended."""
        least = 0.0 if self._has_answered else _START_SECONDS
        self._watched.deadline = time.monotonic() + max(self._limits.timeout_seconds, least)
        try:
            yield
        except (OSError, EOFError, wire.Garbled) as exc:
            error = self._watched.error_after(self._diagnose)
            raise error or Disconnected("the process that reads files is not there any more") from exc
        finally:
            self._watched.deadline = None

    @property
    def is_over(self) -> bool:
        return self._watched.is_over

    def close(self) -> None:
        """End the process, in the middle of a query if necessary. It writes nothing afterwards."""
        self._watched.end(Disconnected("the reading of files was ended with its run"))
        with suppress(subprocess.TimeoutExpired):  # the caller may be the watchdog of all runs
            self._process.wait(_KILL_SECONDS)

    def _timed_out(self) -> VitrinaError:
        return SourceQueryFailed(
            "the query gave no rows for longer than options.step_timeout_seconds"
            f" ({self._limits.timeout_seconds:g} s): read less at once, or raise the option"
        )

    def _over_memory(self, used: int) -> VitrinaError:
        return FatalError(
            f"the query used {used} MB, more than options.step_memory_mb ({self._limits.memory_mb}): read less"
            " at once, make batch_size smaller, or raise the option"
        )

    def _release(self) -> None:
        for descriptor in (self._requests, self._replies, self._life):
            with suppress(OSError):
                os.close(descriptor)
        self._output.close()

    def _diagnose(self) -> VitrinaError:
        """Determine why the process ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(EXIT_SECONDS)
            output = self._end_of_output()
            if code in (-signal.SIGKILL, -signal.SIGTERM):
                return TransientError("the process that reads files was ended from outside; perhaps memory ran out")
            if "No module named 'duckdb'" in output:
                return FatalError("files as a source need the package duckdb: install vitrina[lake] on the runners")
            structlog.get_logger().error("files.worker_died", code=code, said=output)
            return SourceQueryFailed(
                f"DuckDB crashed on this query (exit code {code}): the log of the runner has the end of its output"
            )
        return SourceQueryFailed("the process that reads files closed its pipes")

    def _end_of_output(self) -> str:
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(end - _LOGGED_BYTES, 0))
        return self._output.read().decode(errors="replace")


def _table(answer: Message) -> pa.Table:
    try:
        [part] = answer.payload
        table = wire.unpacked(part)
        table.validate(full=True)
    except (ValueError, pa.ArrowException, OSError) as exc:
        raise SourceQueryFailed(f"DuckDB gave Arrow data that is damaged ({exc})") from exc
    return table
