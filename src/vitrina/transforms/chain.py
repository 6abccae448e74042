"""Run the steps of one pipeline in order, enforce their contract, and report what failed."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.errors import BadKey, FieldError, Invalid, RunError, StepFailed, TransientError
from vitrina.ports.batch import DeadLetter
from vitrina.step_rules import RESERVED_PARAMS, StepRule
from vitrina.transforms import call, masking, progress, python_values, same_schema
from vitrina.transforms.context import StepContext
from vitrina.transforms.isolation import Isolation, Rejection
from vitrina.transforms.registry import Registered, Registry

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")


class Asked(Protocol):
    """Describe a step of a task plan, as far as this module needs it."""

    @property
    def order_index(self) -> int: ...

    @property
    def body(self) -> str: ...

    @property
    def params(self) -> dict[str, Any]: ...


@dataclass
class PlannedStep:
    """Hold a registered step, its position and its validated params."""

    order_index: int
    registered: Registered
    params: "BaseModel | None"
    rule: StepRule = dataclasses.field(default_factory=StepRule)
    # Schema of its batches, once one has been seen; later batches must match it.
    expected: pa.Schema | None = None
    letters: int = 0

    def __str__(self) -> str:
        return f"step {self.order_index} ({self.registered.name})"

    @property
    def name(self) -> str:
        return self.registered.name

    @property
    def digest(self) -> str:
        return self.registered.digest

    @property
    def max_dead_letters(self) -> int:
        return self.rule.max_dead_letters

    def bind(self, context: StepContext) -> call.Bound:
        filled: dict[str, Any] = {}
        if self.registered.params is not None:
            filled["params"] = self.params
        if "context" in self.registered.accepts:
            filled["context"] = context
        return partial(self.registered.function, **filled) if filled else self.registered.function


def plan_steps(tasks: Sequence[Asked], registry: Registry) -> list[PlannedStep]:
    """Plan the steps. Raise `Invalid` with each unknown step and each wrong param."""
    planned: list[PlannedStep] = []
    problems: list[FieldError] = []
    for task in tasks:
        try:
            planned.append(_plan_step(task, registry))
        except Invalid as exc:
            problems += exc.fields
    if problems:
        raise Invalid("; ".join(problem.message for problem in problems), tuple(problems))
    return planned


def _plan_step(task: Asked, registry: Registry) -> PlannedStep:
    registered = find_registered(task.body, "transform", registry)
    own = {name: value for name, value in task.params.items() if name not in RESERVED_PARAMS}
    ruling = {name: value for name, value in task.params.items() if name in RESERVED_PARAMS}
    where = f"step {task.order_index} ({task.body})"
    rule = _read_rule(ruling, where)
    return PlannedStep(task.order_index, registered, read_params(registered, own, where), rule)


def _read_rule(ruling: dict[str, Any], where: str) -> StepRule:
    if not ruling:
        return StepRule()
    # Imported here, because few steps set it and the other workers do not need the definition's model.
    from vitrina.definition import ErrorRule

    return StepRule(**_read(ErrorRule, ruling, where).model_dump())


def find_registered(name: str, kind: str, registry: Registry) -> Registered:
    found = registry.find(name)
    if found is None or found.kind != kind:
        known = ", ".join(entry.name for entry in registry if entry.kind == kind) or "none"
        what = "source" if kind == "source" else "step"
        missing = "; ".join(f"{module.name} could not be imported" for module in registry.broken)
        message = f"there is no Python {what} {name!r} here; there are: {known}" + (f" ({missing})" if missing else "")
        raise Invalid(message, (FieldError("tasks", message, "unknown_step"),))
    return found


def read_params(registered: Registered, given: dict[str, Any], where: str) -> "BaseModel | None":
    if registered.params is not None:
        return _read(registered.params, given, where)
    if given:
        message = f"{where} takes no params, but is given {', '.join(sorted(given))}"
        raise Invalid(message, (FieldError("params", message, "unknown_field"),))
    return None


def _read(model: type[Model], given: dict[str, Any], where: str) -> Model:
    from pydantic import ValidationError

    try:
        return model.model_validate(given)
    except ValidationError as exc:
        found = tuple(
            FieldError(
                f"params.{'.'.join(map(str, error['loc']))}",
                f"{where}: params.{'.'.join(map(str, error['loc']))}: {error['msg']}",
            )
            for error in exc.errors(include_url=False, include_input=False)
        )
        raise Invalid("; ".join(error.message for error in found), found) from None


@dataclass(frozen=True)
class Passed:
    """Hold a batch after the last step, and the rows that were rejected."""

    batch: pa.RecordBatch
    letters: tuple[DeadLetter, ...] = ()
    # Watched rows that passed the steps in this batch.
    delivered: frozenset[str] = frozenset()
    # Positions in the input of rows that the steps dropped without rejecting them.
    filtered: tuple[int, ...] = ()


class Chain:
    """Run the steps of one run. The columns of `key` must exist, without NULL, after the last step."""

    def __init__(self, steps: Sequence[PlannedStep], context: StepContext, *, key: Sequence[str] = ()) -> None:
        self.steps = list(steps)
        self.key = tuple(key)
        # Keys of rows that were rejected; None if it does not matter whether they pass later.
        self.watched: set[str] | None = None
        # Whether to record which rows the steps drop, and to check that they change no key.
        self.notes_filtered = False
        self._context = context

    def apply(self, table: pa.Table, number: int) -> Passed:
        """Pass one batch through every step."""
        self._context.batch_no = number
        batch = came = call.one_batch(table)
        letters: list[DeadLetter] = []
        for step in self.steps:
            batch = self._run(step, batch, number, letters)
        self._check_key(batch, number)
        filtered = self._filtered(came, batch, letters, number) if self.notes_filtered else ()
        return Passed(batch, tuple(letters), self._delivered(came, batch, letters), filtered)

    def _filtered(
        self, came: pa.RecordBatch, made: pa.RecordBatch, letters: Sequence[DeadLetter], number: int
    ) -> tuple[int, ...]:
        """Find rows that the steps dropped. Return none if a rejected row could be any of them."""
        before, after = self._keys_of(came), set(self._keys_of(made))
        if strange := after.difference(before):
            raise StepFailed(
                f"the steps gave a row with the key {'|'.join(min(strange))} in batch {number}, which no row had before"
                " them: a live pipeline could not delete it again; keep the key as the query gives it"
            )
        rejected = {letter.document_id for letter in letters}
        if not rejected <= {"|".join(key) for key in before}:
            return ()
        return tuple(at for at, key in enumerate(before) if key not in after and "|".join(key) not in rejected)

    def _keys_of(self, batch: pa.RecordBatch) -> list[tuple[str, ...]]:
        if not batch.num_rows:
            return []
        return [tuple(str(row[name]) for name in self.key) for row in python_values.rows_of(batch.select(self.key))]

    def _delivered(self, came: pa.RecordBatch, made: pa.RecordBatch, letters: Sequence[DeadLetter]) -> frozenset[str]:
        """Find watched rows that passed now.

        A row is identified by the part of the key that it had when it was rejected, because steps may make the rest.
        """
        if self.watched is None:
            return frozenset()
        found = self.watched & (self._names_of(came) | self._names_of(made)) if self.watched else set()
        self.watched.update(letter.document_id for letter in letters)
        return frozenset(found)

    def _names_of(self, batch: pa.RecordBatch) -> set[str]:
        key = [name for name in self.key if name in batch.schema.names]
        return {self._name_of(row, 0, 0) for row in python_values.rows_of(batch.select(key))} if key else set()

    def trace(self, table: pa.Table, letters: list[DeadLetter] | None = None) -> list[pa.RecordBatch]:
        """Return the input and the output of each step. Rows are rejected only if the caller passes `letters`."""
        stages = [call.one_batch(table)]
        for step in self.steps:
            stages.append(self._run(step, stages[-1], 0, letters))
        return stages

    def discover(self, sample: pa.Table, number: int) -> pa.Schema:
        """Run the steps on a sample to learn the columns after the last step. Rows that fail here are ignored."""
        batch = call.one_batch(sample)
        for step in self.steps:
            rejected: list[Rejection] = []
            made = self._attempt(step, batch, rejected)
            if rejected and not made.num_rows:
                raise _failure(step, number, batch, *rejected[0]) from rejected[0][1]
            batch = _with_expected_schema(step, made, number)
        return batch.schema

    def _run(
        self, step: PlannedStep, batch: pa.RecordBatch, number: int, letters: list[DeadLetter] | None
    ) -> pa.RecordBatch:
        rejected: list[Rejection] = []
        try:
            made = self._attempt(step, batch, rejected)
        except call.NoRowsToTell:
            made = pa.RecordBatch.from_pylist([], schema=step.expected or batch.schema)
        if rejected:
            if step.rule.on_error == "fail" or letters is None:
                raise _failure(step, number, batch, *rejected[0]) from rejected[0][1]
            self._leave_behind(step, number, batch, rejected, letters)
        return _with_expected_schema(step, made, number)

    def _attempt(self, step: PlannedStep, batch: pa.RecordBatch, rejected: list[Rejection]) -> pa.RecordBatch:
        """Pass the batch through the step; collect the rows on which it raises."""
        progress.note(step.order_index, batch.num_rows)
        bound = step.bind(self._context)
        try:
            if step.registered.form == "rows":
                return call.call_rows(step.registered, bound, batch, step.expected, rejected)
            return self._attempt_batch(step, bound, batch, rejected)
        except (RunError, call.WrongResult, python_values.Unfit) as exc:
            raise _in_context(step, self._context.batch_no, exc) from exc
        except (ConnectionError, TimeoutError) as exc:
            raise TransientError(f"{step}: {type(exc).__name__}: {exc}") from exc

    def _attempt_batch(
        self, step: PlannedStep, bound: call.Bound, batch: pa.RecordBatch, rejected: list[Rejection]
    ) -> pa.RecordBatch:
        form = step.registered.form
        isolation = Isolation(partial(call.call_batch, form, bound), first_only=step.rule.on_error == "fail")
        failed_with = isolation.run(batch)
        if failed_with is not None and not isolation.rejected:
            words = masking.scrubbed(str(failed_with), _row(batch, 0) if batch.num_rows else {})
            raise StepFailed(f"it failed, but on no single row: {type(failed_with).__name__}: {words}") from failed_with
        rejected += isolation.rejected
        return _joined(step, isolation.parts, batch)

    def _leave_behind(
        self,
        step: PlannedStep,
        number: int,
        batch: pa.RecordBatch,
        rejected: Sequence[Rejection],
        letters: list[DeadLetter],
    ) -> None:
        step.letters += len(rejected)
        if step.letters > step.rule.max_dead_letters:
            raise StepFailed(
                f"{step} has failed on more than {step.rule.max_dead_letters} rows in this run, the last time in batch"
                f" {number}: correct the step, or raise max_dead_letters in its params"
            ) from rejected[0][1]
        for position, exc in rejected:
            row = _row(batch, position)
            words = masking.scrubbed(f"{type(exc).__name__}: {exc}", row)
            name = self._name_of(row, number, position)
            letters.append(DeadLetter.about(name, f"{step}: {words}", _json(row).encode(errors="replace")))

    def _name_of(self, row: dict[str, Any], number: int, position: int) -> str:
        parts = [str(row[name]) for name in self.key if name in row]
        return "|".join(parts) if parts else f"batch {number}, row {position}"

    def _check_key(self, batch: pa.RecordBatch, number: int) -> None:
        for name in self.key:
            index = batch.schema.get_field_index(name)
            if index < 0:
                raise BadKey(f"the key column {name!r} is missing after the steps: keep it, or change target_key")
            column = batch.column(index)
            if column.null_count:
                position = pc.index(column.is_null(), True).as_py()
                raise BadKey(
                    f"the key column {name!r} is NULL in {column.null_count} row(s) of batch {number} after the steps,"
                    f" for example in {masking.masked(_row(batch, position))}: drop such rows, or fill the column"
                )


def _joined(step: PlannedStep, parts: Sequence[pa.RecordBatch], before: pa.RecordBatch) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=step.expected or before.schema)
    alike = [same_schema.require_same_schema(str(step), part, parts[0].schema, 0) for part in parts]
    return call.one_batch(pa.Table.from_batches(alike))


def _with_expected_schema(step: PlannedStep, made: pa.RecordBatch, number: int) -> pa.RecordBatch:
    batch = same_schema.require_same_schema(str(step), made, step.expected, number)
    step.expected = batch.schema
    return batch


def _failure(step: PlannedStep, number: int, batch: pa.RecordBatch, position: int, exc: Exception) -> StepFailed:
    row = _row(batch, position)
    words = masking.scrubbed(f"{type(exc).__name__}: {exc}", row)
    return StepFailed(f"{step} failed in batch {number}: {words}; the row was {masking.masked(row)}")


def _in_context(step: PlannedStep, number: int, exc: Exception) -> RunError:
    """Add step and batch to the message. An error that a step raised on purpose keeps its class: retry, or stop."""
    if isinstance(exc, RunError):
        return type(exc)(f"{step} in batch {number}: {exc.message}")
    return StepFailed(f"{step} in batch {number}: {exc}")


def _row(batch: pa.RecordBatch, position: int) -> dict[str, Any]:
    return python_values.rows_of(batch.slice(position, 1))[0]


def _json(row: dict[str, Any]) -> str:
    return python_values.json_text_of(row)
