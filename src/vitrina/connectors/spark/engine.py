"""Run attempts at ranges as tasks of a Spark job, which Spark schedules and retries.

The driver reports one attempt for each range, and only that one counts. Rows of other attempts have other part numbers:
they are ignored and are removed with the stage.
"""

import pickle
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from vitrina.connectors.spark import cluster, executor, shipping, unpickling
from vitrina.connectors.spark.executor import FillRanges, Numbers
from vitrina.errors import FatalError, TransientError, VitrinaError
from vitrina.ports.ranges import EngineOpening, Result, Task
from vitrina.ports.worker_errors import unpacked
from vitrina.sentences import say

_LOOK_SECONDS = 0.2
_LOGGED = ("debug", "info", "warning", "error", "exception")
# How long ending a job may take. The engine does not wait longer for a server that does not answer.
_PATIENCE_SECONDS = 5.0
# Settings that are sent to executors. None is secret; the rest comes from the executor's environment.
_PLAIN = ("transforms", "step_env", "max_value_mb", "merge_memory_mb", "connect_timeout_seconds")


class SparkEngine:
    """Run the submitted tasks as one job. Tasks submitted while it runs form the next job."""

    def __init__(self, opening: EngineOpening) -> None:
        self._opening = opening
        self._waiting: list[Task] = []
        self._job: _Job | None = None
        # A job whose session is open, and that has no tasks yet.
        self._ready: _Job | None = None
        self._is_over = False

    def await_accepted(self, check: Callable[[], object]) -> None:
        """Open the first job, and wait until an executor has answered."""
        self._ready = self._opened()
        self._ready.await_accepted(check)

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        while self._waiting:
            tasks, self._waiting = self._waiting, []
            job, self._ready = self._ready or self._opened(), None
            self._opening.progress.sent()
            job.send(tasks, self._opening.reserve(executor.NUMBERS))
            yield from job.results(check)
            job.close()
        if self._ready is not None:
            self._ready.cancel()

    def _opened(self) -> "_Job":
        job = self._job = _Job(self._opening)
        job.start()
        if self._is_over:
            job.cancel()
        return job

    def cancel(self) -> None:
        self._is_over = True
        if self._job is not None:
            self._job.cancel()


class _Job:
    """Represent one Spark job, whose results a separate thread collects."""

    def __init__(self, opening: EngineOpening) -> None:
        self._opening = opening
        self._left: dict[int, Task] = {}
        self._tag = f"vitrina-{uuid4().hex}"
        # Its tasks, with the part number before those reserved for it. None: it was cancelled before it had any.
        self._sent: queue.SimpleQueue[tuple[list[Task], int] | None] = queue.SimpleQueue()
        self._accepted = threading.Event()
        self._found: queue.SimpleQueue[tuple[int, bytes] | VitrinaError | None] = queue.SimpleQueue()
        self._session: Any = None
        self._is_over = threading.Event()
        self._is_recalled = False

    def start(self) -> None:
        threading.Thread(target=self._collect, name="spark", daemon=True).start()

    def await_accepted(self, check: Callable[[], object]) -> None:
        """Wait until an executor has answered. While all are busy, this takes as long as their jobs."""
        while not self._accepted.wait(_LOOK_SECONDS):
            check()
            with suppress(queue.Empty):
                raise self._found.get_nowait() or TransientError(say("run.spark_no_answer"))  # type: ignore[misc]

    def send(self, tasks: list[Task], first_number: int) -> None:
        self._left = dict(enumerate(tasks))
        self._sent.put((tasks, first_number))

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        """Yield each range once, as its answer arrives, and then the ranges without an answer."""
        while not self._is_recalled and (found := self._next(check)) is not None:
            if isinstance(found, VitrinaError):
                yield from self._given_up(found)
                return
            yield self._result(*found)
        yield from self._given_up(TransientError(say("run.spark_no_answer")))

    def _next(self, check: Callable[[], bool]) -> tuple[int, bytes] | VitrinaError | None:
        while not self._is_recalled:
            with suppress(queue.Empty):
                return self._found.get(timeout=_LOOK_SECONDS)
            if check():
                self._recall()
        return None

    def _recall(self) -> None:
        """End the job and return the ranges that have no answer yet."""
        self._is_recalled = True
        self.cancel()

    def _result(self, place: int, answer: bytes) -> Result:
        task = self._left.pop(place, None)
        if task is None:
            raise FatalError("the cluster has answered twice for one range of the key")
        lines, filled, error = unpickling.read(answer)
        for method, fields in lines:
            if method in _LOGGED:
                getattr(structlog.get_logger(), method)(fields.pop("event", ""), **fields)
        return Result(task, filled, unpacked(error) if error else None)

    def _given_up(self, error: VitrinaError) -> Iterator[Result]:
        while self._left:
            _, task = self._left.popitem()
            yield Result(task, error=error, is_recalled=self._is_recalled)

    # --- with the server, in the job's own thread ---------------------------------------------------------------------

    def _collect(self) -> None:
        try:
            # Packed outside of the translation: an error in this process is not one of the cluster.
            handle = pickle.dumps(self._opening.handle)
            with self._packed_steps() as steps, cluster.translated():
                answer = self._open(steps)
            self._accepted.set()
            if (sent := self._sent.get()) is not None:
                self._bring(answer, handle, *sent)
        except VitrinaError as exc:
            self._found.put(exc)
        except Exception as exc:  # noqa: BLE001 - raised by the thread that collects results
            self._found.put(FatalError(say("run.spark_not_sent", error=f"{type(exc).__name__}: {exc}")))
        finally:
            self._found.put(None)
            if self._is_over.is_set():
                self._stop()  # the cancelling thread may not have seen the session yet

    @contextmanager
    def _packed_steps(self) -> Iterator[Path | None]:
        with tempfile.TemporaryDirectory() as directory:
            yield shipping.archive(self._opening.settings.transforms, Path(directory))

    def _open(self, steps: Path | None) -> cluster.Answer:
        """Open the session, send the steps, and wait for an executor."""
        self._session = cluster.connect(self._opening.url)
        # Tags belong to the thread: this one makes the thread's jobs interruptible.
        self._session.addTag(self._tag)
        self._session.registerProgressHandler(self._progressed)
        if steps is not None:
            self._session.addArtifacts(str(steps), pyfile=True)
        self._refuse_cancelled()
        answer = cluster.ask(self._session)
        cluster.require_fitting(answer.versions)
        return answer

    def _bring(self, answer: cluster.Answer, handle: bytes, tasks: list[Task], first_number: int) -> None:
        """Send the job, and pass on its answers as they arrive."""
        self._refuse_cancelled()
        proof = executor.proof_of(self._opening.settings)
        numbers = Numbers(first_number, answer.attempt)
        rows = [(place, pickle.dumps(task)) for place, task in enumerate(tasks)]
        fill = FillRanges(handle, self._plain(), numbers, proof, self._opening.redactor_of)
        with cluster.translated():
            sent = self._session.createDataFrame(rows, executor.TASKS)
            # Partition by position. Adaptive execution would merge small partitions, and ranges would wait for each
            # other.
            frame = sent.repartitionById(len(rows), "place").mapInArrow(fill, executor.ANSWERS)
            for row in frame.toLocalIterator():
                self._found.put((row["place"], bytes(row["answer"])))

    def _progressed(self, *, inflight_tasks: int, done: bool, **_: Any) -> None:
        """Pass on how many tasks run. The client calls it while it waits; the job of one row counts too."""
        if self._left and not done:
            self._opening.progress.running(inflight_tasks)

    def _plain(self) -> dict[str, Any]:
        return {name: getattr(self._opening.settings, name) for name in _PLAIN}

    def _refuse_cancelled(self) -> None:
        if self._is_over.is_set():
            raise TransientError("the job was cancelled before it began")

    # --- ends --------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the job, its tasks and their sessions. May be called from any thread and more than once."""
        if not self._is_over.is_set():
            self._is_over.set()
            self._sent.put(None)
            ending = threading.Thread(target=self._interrupt, name="spark-end", daemon=True)
            ending.start()
            ending.join(_PATIENCE_SECONDS)

    def _interrupt(self) -> None:
        if self._session is not None:
            with suppress(Exception):
                self._session.interruptTag(self._tag)
        self._stop()

    def close(self) -> None:
        """Stop the session, which also discards the steps that were sent to it."""
        if self._session is not None:
            threading.Thread(target=self._stop, name="spark-end", daemon=True).start()

    def _stop(self) -> None:
        if self._session is not None:
            cluster.stop(self._session)
