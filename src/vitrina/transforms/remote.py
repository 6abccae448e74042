"""Run the steps and sources of one run in worker processes, for the rest of the runner."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from vitrina.definition import Definition, Task
from vitrina.errors import FatalError, RequestError, RunError, StepFailed
from vitrina.ports.batch import DeadLetter
from vitrina.transforms import call, registry, wire
from vitrina.transforms.pipeline import Learned, Taken
from vitrina.transforms.process import Limits, Worker, WorkerEnded
from vitrina.transforms.progress import Place
from vitrina.transforms.sources import OpenSource, Yielded
from vitrina.transforms.to_target import Landing
from vitrina.transforms.wire import Message

Reference = Callable[[str], pa.Table]


@dataclass(frozen=True)
class RemoteStep:
    """Describe a step that only workers import."""

    order_index: int
    name: str
    digest: str
    max_dead_letters: int

    def __str__(self) -> str:
        return f"step {self.order_index} ({self.name})"


@dataclass(frozen=True)
class About:
    """Hold what workers are told about the run."""

    pipeline: str
    run_id: UUID
    modules: str
    started_at: datetime
    # For shipped steps that hash. Other steps receive it only if the operator allows it.
    hash_key: str | None = None


def _where_from(about: About, names: Sequence[str]) -> dict[str, Any]:
    """Tell a worker where to find these steps, because it has no settings and does not search packages."""
    return {
        "modules": about.modules,
        "announced": registry.announced(),
        "names_shipped": registry.names_shipped(names),
    }


class WorkerSteps:
    """Run the steps of one run in workers, which are started when needed.

    New ones receive what earlier ones learned.
    """

    def __init__(self, tasks: Sequence[Task], about: About, limits: Limits, *, workers: int) -> None:
        self.parallel = workers
        self.has_steps = True
        self.key: tuple[str, ...] = ()
        self.watched: set[str] | None = None
        self.notes_filtered = False
        self.steps: list[RemoteStep] = []
        self._tasks = [task.model_dump(include={"order_index", "body", "params"}) for task in tasks]
        self._about = about
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._forms: dict[str, bool] = {}
        self._reference: Reference | None = None
        self._expected: tuple[pa.Buffer, ...] = ()
        self._landings: dict[str, Landing] = {}
        self._left: dict[int, int] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._all: list[_StepWorker] = []
        self._free: queue.LifoQueue[_StepWorker] = queue.LifoQueue()

    def plan(self) -> list[RemoteStep]:
        """Plan the steps. Raise `Invalid` with each unknown step and each wrong param."""
        with self._worker("planning the steps"):
            return self.steps

    def open(self, schema: pa.Schema, reference: Reference, *, comes_natural: bool, stays_natural: bool) -> None:
        """Describe the incoming rows, and set the function that answers reference queries."""
        self._schema = schema
        self._forms = {"comes_natural": comes_natural, "stays_natural": stays_natural}
        self._reference = reference

    @property
    def landings(self) -> dict[str, Landing]:
        return self._landings

    @landings.setter
    def landings(self, landings: dict[str, Landing]) -> None:
        self._landings = landings

    def discover(self, sample: pa.Table) -> pa.Schema:
        with self._worker(f"the first {sample.num_rows} row(s)") as worker:
            answer = worker.ask("discover", (wire.packed(sample),))
        with worker.taking_apart():
            schema, *expected = answer.payload
        self._expected = tuple(expected)
        return wire.unpacked_schema(schema)

    def trace(self, sample: pa.Table, letters: list[DeadLetter] | None) -> list[pa.RecordBatch]:
        with self._worker(f"the first {sample.num_rows} row(s)") as worker:
            answer = worker.ask("trace", (wire.packed(sample),), keeps_letters=letters is not None)
        with worker.taking_apart():
            left, *stages = answer.payload
        if letters is not None:
            letters += wire.checked_letters(left)
        return [call.one_batch(wire.checked(stage)) for stage in stages]

    def take(self, table: pa.Table, number: int) -> Taken:
        """Pass one batch through the steps of a worker. Several threads may call this, each with its batch."""
        with self._worker(f"batch {number}") as worker:
            fresh = worker.unheard_of(self.watched)
            packed = wire.packed(table)
            del table  # do not keep it in memory next to the result
            asked = {"key": list(self.key), "watched": fresh, "notes_filtered": self.notes_filtered}
            answer = worker.ask("take", (packed,), number=number, **asked)
        with worker.taking_apart():
            rows, left, delivered = answer.payload
            filtered = tuple(int(position) for position in answer.fields["filtered"])
            counts = [int(count) for _, count in zip(self.steps, answer.fields["left"], strict=True)]
        letters = wire.checked_letters(left)
        self._count_left(counts, number)
        if self.watched is not None:
            self.watched.update(letter.document_id for letter in letters)
        return Taken(wire.checked(rows), letters, wire.checked_names(delivered), filtered)

    def learned(self) -> Learned:
        return Learned(tuple(map(wire.unpacked_schema, self._expected)), self._landings, self.key)

    def adopt(self, learned: Learned) -> None:
        self._expected = tuple(map(wire.packed_schema, learned.expected))
        self._landings, self.key = learned.landings, learned.key

    def rejected(self) -> dict[int, int]:
        with self._lock:
            return dict(self._left)

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        with self._lock:
            self._is_closed = True
            workers = list(self._all)
        for worker in workers:
            worker.close()

    def _count_left(self, left: Sequence[int], number: int) -> None:
        """Count rejected rows of all workers together, as each worker checks the limit of a step only for itself."""
        with self._lock:
            for step, count in zip(self.steps, left, strict=True):
                self._left[step.order_index] = self._left.get(step.order_index, 0) + count
                if self._left[step.order_index] > step.max_dead_letters:
                    raise StepFailed(
                        f"{step} has failed on more than {step.max_dead_letters} rows in this run, the last time in"
                        f" batch {number}: correct the step, or raise max_dead_letters in its params"
                    )

    @contextmanager
    def _worker(self, what: str) -> "Iterator[_StepWorker]":
        """Borrow a worker for one question: a free one, or a new one."""
        try:
            worker = self._free.get_nowait()
        except queue.Empty:
            worker = self._start()
        worker.at_work_on = what
        try:
            self._bring_up_to_date(worker)
            yield worker
        finally:
            if not worker.is_over:
                self._free.put(worker)

    def _start(self) -> "_StepWorker":
        with self._lock:
            if self._is_closed:
                raise WorkerEnded("the run's workers were ended")
            worker = _StepWorker(self._limits, self._name_place, self._answer)
            self._all.append(worker)
        return worker

    def _bring_up_to_date(self, worker: "_StepWorker") -> None:
        """Send a worker what it lacks: steps, the query's columns, those after the steps, and their targets."""
        lessons: tuple[tuple[str, object, Callable[[], object]], ...] = (
            ("plan", self._tasks, lambda: self._plan(worker)),
            ("open", self._forms, lambda: self._open(worker)),
            ("adopt", self._expected, lambda: worker.ask("adopt", self._expected)),
            ("land", self._landings, lambda: worker.ask("land", landings=self._packed_landings())),
        )
        for name, lesson, teach in lessons:
            if lesson and worker.told.get(name) is not lesson:
                teach()
                worker.told[name] = lesson

    def _plan(self, worker: "_StepWorker") -> None:
        answer = worker.ask(
            "plan", tasks=self._tasks, **_where_from(self._about, [task["body"] for task in self._tasks])
        )
        with worker.taking_apart():
            self.steps = [
                RemoteStep(int(place), str(name), str(digest), int(most))
                for place, name, digest, most in answer.fields["steps"]
            ]

    def _open(self, worker: "_StepWorker") -> None:
        about = self._about
        worker.ask(
            "open",
            (wire.packed_schema(self._schema),) if self._schema is not None else (),
            **self._forms,
            pipeline=about.pipeline,
            run_id=str(about.run_id),
            started_at=about.started_at.isoformat(),
            hash_key=about.hash_key,
        )

    def _packed_landings(self) -> list[list[str]]:
        return [[place.name, place.staged, place.target] for place in self._landings.values()]

    def _answer(self, asked: Message) -> Message:
        try:
            assert self._reference is not None
            return Message({}, (wire.packed(self._reference(str(asked.fields.get("query")))),))
        except (RunError, RequestError) as exc:
            return Message({"error": wire.packed_error(exc)})

    def _name_place(self, place: Place) -> str:
        step = next((step for step in self.steps if step.order_index == place.order_index), None)
        return str(step) if step else "a module of steps"


class _StepWorker(Worker):
    """Hold a worker and what it has been sent so far."""

    def __init__(self, limits: Limits, name: Callable[[Place], str], answer: Callable[[Message], Message]) -> None:
        self.at_work_on = ""
        self.told: dict[str, object] = {}
        self._heard: set[str] = set()
        super().__init__(limits, describe=lambda place: self._name(name, place), answer=answer)

    def _name(self, name: Callable[[Place], str], place: Place) -> str:
        rows = f", rows {place.first_row} to {place.last_row} of what the step was given" if place.last_row else ""
        return f"{name(place)}, in {self.at_work_on}{rows},"

    def unheard_of(self, watched: set[str] | None) -> list[str] | None:
        if watched is None:
            return None
        fresh = watched - self._heard
        self._heard |= fresh
        return sorted(fresh)


class SourceWorker(Worker):
    """Run one source in a worker."""

    def __init__(self, name: str, limits: Limits) -> None:
        self._name = name
        self._number = 0
        super().__init__(limits, describe=lambda _: f"source {name}, in batch {self._number},", answer=_refuse)

    def open(self, definition: Definition, about: About, asked: Mapping[str, Any]) -> OpenSource:
        """Find the source and read its params, without running it yet."""
        opened = self.ask(
            "source",
            **_where_from(about, [self._name]),
            name=self._name,
            params=definition.options.params,
            pipeline=about.pipeline,
            run_id=str(about.run_id),
            started_at=about.started_at.isoformat(),
            mode=definition.mode,
            batch_size=definition.batch_size,
            since=asked.get("since"),
            until=asked.get("until"),
        )
        with self.taking_apart():
            return OpenSource(self._name, str(opened.fields["digest"]), self._batches, self.close)

    def _batches(self, checkpoint: Any) -> Iterator[Yielded]:
        self._number = 1
        self.ask("begin", checkpoint=checkpoint)
        while "ended" not in (answer := self.ask("next")).fields:
            with self.taking_apart():
                [batch], checkpoint = answer.payload, answer.fields["checkpoint"]
            yield call.one_batch(wire.checked(batch)), checkpoint
            self._number += 1


def _refuse(_: Message) -> Message:
    return Message({"error": wire.packed_error(FatalError("a source asks no reference queries"))})


def describe(modules: str, limits: Limits) -> list[dict[str, Any]]:
    """Describe all steps and sources that workers find, as `GET /transforms` shows them."""
    worker = Worker(limits, describe=lambda _: "importing the modules of steps", answer=_refuse)
    try:
        answer = worker.ask("describe", modules=modules)
        with worker.taking_apart():
            found: list[dict[str, Any]] = answer.fields["found"]
        return found
    finally:
        worker.close()
