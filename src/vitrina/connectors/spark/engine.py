"""Run attempts at ranges as tasks of a Spark job, which Spark schedules and retries.

The driver reports one attempt for each range, and only that one counts. Rows of other attempts have other part numbers:
they are ignored and are removed with the stage.
"""

import pickle
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
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
        self._is_over = False

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def results(self, check: Callable[[], bool]) -> Iterator[Result]:
        while self._waiting:
            tasks, self._waiting = self._waiting, []
            job = _Job(self._opening, tasks, self._opening.reserve(executor.NUMBERS))
            self._job = job
            job.start()
            if self._is_over:
                job.cancel()
            yield from job.results(check)
            job.close()

    def cancel(self) -> None:
        self._is_over = True
        if self._job is not None:
            self._job.cancel()


class _Packed(NamedTuple):
    """Hold what a job sends: the archive of steps, the tasks by their place, and the handle."""

    steps: Path | None
    rows: list[tuple[int, bytes]]
    handle: bytes


class _Job:
    """Represent one Spark job, whose results a separate thread collects."""

    def __init__(self, opening: EngineOpening, tasks: list[Task], first_number: int) -> None:
        self._opening = opening
        self._left = dict(enumerate(tasks))
        self._first_number = first_number
        self._tag = f"vitrina-{uuid4().hex}"
        self._found: queue.SimpleQueue[tuple[int, bytes] | VitrinaError | None] = queue.SimpleQueue()
        self._session: Any = None
        self._is_over = threading.Event()
        self._is_recalled = False

    def start(self) -> None:
        threading.Thread(target=self._collect, name="spark", daemon=True).start()

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
            with tempfile.TemporaryDirectory() as directory:
                # Outside of the translation: an error in this process is not one of the cluster.
                packed = self._pack(Path(directory))
                with cluster.translated():
                    self._session = cluster.connect(self._opening.url)
                    # Tags belong to the thread: this one makes the thread's jobs interruptible.
                    self._session.addTag(self._tag)
                    for row in self._sent(packed).toLocalIterator():
                        self._found.put((row["place"], bytes(row["answer"])))
        except VitrinaError as exc:
            self._found.put(exc)
        except Exception as exc:  # noqa: BLE001 - raised by the thread that collects results
            self._found.put(FatalError(say("run.spark_not_sent", error=f"{type(exc).__name__}: {exc}")))
        finally:
            self._found.put(None)
            if self._is_over.is_set():
                self._stop()  # the cancelling thread may not have seen the session yet

    def _pack(self, directory: Path) -> "_Packed":
        return _Packed(
            steps=shipping.archive(self._opening.settings.transforms, directory),
            rows=[(place, pickle.dumps(task)) for place, task in self._left.items()],
            handle=pickle.dumps(self._opening.handle),
        )

    def _sent(self, packed: "_Packed") -> Any:
        """Send the job. The frame that is returned runs it."""
        if packed.steps is not None:
            self._session.addArtifacts(str(packed.steps), pyfile=True)
        answer = cluster.ask(self._session)
        cluster.require_fitting(answer.versions)
        self._refuse_cancelled()
        numbers = Numbers(self._first_number, answer.attempt)
        proof = executor.proof_of(self._opening.settings)
        fill = FillRanges(packed.handle, self._plain(), numbers, proof, self._opening.redactor_of)
        sent = self._session.createDataFrame(packed.rows, executor.TASKS)
        # Partition by position. Adaptive execution would merge small partitions, and ranges would wait for each other.
        return sent.repartitionById(len(packed.rows), "place").mapInArrow(fill, executor.ANSWERS)

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
            with suppress(Exception):
                self._session.stop()
