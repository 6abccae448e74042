"""Fill ranges on a Spark executor: open the handle with the executor's own settings and load the range."""

import hmac
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from vitrina import settings
from vitrina.errors import FatalError, TransientError
from vitrina.ports.ranges import FilledRange, FillHandle, Task
from vitrina.ports.worker_errors import packed
from vitrina.sentences import say
from vitrina.store import database

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = "place int, task binary"
ANSWERS = "place int, answer binary"
# Part numbers reserved for the attempts of one job. Attempts of other jobs in the same period use some of them.
NUMBERS = 1 << 20
# Log lines kept for one range.
_MOST_LINES = 200

# The answer of one attempt: its log lines, and either the filled range or the kind and message of an error.
Answer = tuple[list[tuple[str, dict[str, str]]], FilledRange | None, tuple[str, str] | None]


@dataclass(frozen=True)
class Numbers:
    """Assign part numbers to the attempts of one job.

    The cluster numbers attempts uniquely, so the part number is derived from the attempt number.
    """

    first: int
    # An attempt number that the cluster assigned before any attempt of this job.
    attempt: int

    def of(self, attempt: int) -> int:
        place = attempt - self.attempt
        if not 0 < place < NUMBERS:
            raise TransientError(f"the cluster has begun {place:,} tasks since this job was sent")
        return self.first + place


@dataclass(frozen=True)
class FillRanges:
    """Load the range of each row. Spark calls it on an executor, once for each attempt at a range."""

    # A `FillHandle`, pickled.
    handle: bytes
    # Settings of the runner that are not secret. Connections are resolved on the executor.
    plain: Mapping[str, Any]
    numbers: Numbers
    # Derived from the runner's VITRINA_HASH_KEY; None if it has none.
    proof: bytes | None
    # Returns the function that masks this executor's secrets in its answers.
    redactor_of: Callable[[settings.Settings], Callable[[str], str]]

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                answer = pickle.dumps(self._answer(row["task"]))
                yield pa.RecordBatch.from_pydict(
                    {"place": pa.array([row["place"]], pa.int32()), "answer": pa.array([answer], pa.binary())}
                )

    def _answer(self, task: bytes) -> Answer:
        """Fill the range and return the outcome.

        An error is returned as an answer, not raised: Spark must retry only lost tasks.
        """
        lines = _Lines()
        structlog.configure(processors=[lines])
        try:
            own = settings.load(dotenv=None, **self.plain)
            lines.redact = self.redactor_of(own)
            with database.translated("loading a range of the key"):
                return lines.kept, self._filled(pickle.loads(task), own), None  # noqa: S301 - sent by the runner
        except Exception as exc:  # noqa: BLE001 - the runner decides what follows
            kind, message = packed(exc)
            return lines.kept, None, (kind, lines.redact(message))

    def _filled(self, task: Task, own: settings.Settings) -> FilledRange:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise FatalError("this is no executor")
        if proof_of(own) != self.proof:
            raise FatalError(say("run.spark_hash_key"))
        handle: FillHandle = pickle.loads(self.handle)  # noqa: S301 - as above
        filler = handle.open(own)
        try:
            return filler.fill(replace(task, number=self.numbers.of(context.taskAttemptId())), _nobody)
        finally:
            filler.close()


def proof_of(own: settings.Settings) -> bytes | None:
    """Compute a digest that shows whether two processes have the same key without revealing the key."""
    if own.hash_key is None:
        return None
    return hmac.digest(own.hash_key.get_secret_value().encode(), b"vitrina.connectors.spark", "sha256")


def _nobody(rows: int) -> None:
    """Ignore progress: Spark monitors its executors itself."""


class _Lines:
    """Collect log lines for the runner. Mask the secrets of this executor, which the runner may not know."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, str]]] = []
        self.redact: Callable[[str], str] = str

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> NoReturn:
        if len(self.kept) < _MOST_LINES:
            self.kept.append((method, {name: self.redact(str(value))[:2000] for name, value in fields.items()}))
        raise structlog.DropEvent
