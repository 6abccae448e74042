"""Define the checks of one run, their outcomes, and the protocol of targets that evaluate checks themselves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from vitrina import data_checks
from vitrina.data_checks import CheckOption, Freshness, RowCheck, RowCount, SetCheck
from vitrina.errors import CheckFailed
from vitrina.ports.batch import Counts, DeadLetter
from vitrina.sentences import say

# A run keeps this many of the rows that break a check, to show them.
MAX_EXAMPLES = 5

Result = Literal["passed", "warned", "accepted", "rejected", "failed"]
# In order of severity.
_RESULTS: tuple[Result, ...] = ("passed", "warned", "accepted", "rejected", "failed")
_BY_SEVERITY: Mapping[str, Result] = {"fail": "failed", "warn": "warned", "reject": "rejected"}


@dataclass(frozen=True)
class Found:
    """Hold what a check found in the rows, before its severity decides what happens to them."""

    # Contains no values of rows, because every user may read it.
    message: str
    broken: bool
    # How many rows break the check, for checks that count rows.
    rows: int | None = None
    # The measured value, which later runs compare with.
    value: float | None = None
    examples: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_rows(cls, rows: int, examples: Sequence[Mapping[str, Any]] = ()) -> "Found":
        return cls(say("check.rows", rows=rows), rows > 0, rows, examples=examples)


@dataclass(frozen=True)
class CheckOutcome:
    """Hold the outcome of one check, as the run history keeps it."""

    name: str
    kind: str
    result: Result
    found: Found

    def __add__(self, other: "CheckOutcome") -> "CheckOutcome":
        """Add the outcome of another batch of the same run."""
        one, two = self.found, other.found
        result = max(self.result, other.result, key=_RESULTS.index)
        if one.rows is None or two.rows is None:
            return CheckOutcome(self.name, self.kind, result, two)
        examples = (*one.examples, *two.examples)[:MAX_EXAMPLES]
        return CheckOutcome(self.name, self.kind, result, Found.of_rows(one.rows + two.rows, examples))

    def as_dict(self) -> dict[str, Any]:
        found = self.found
        told = {"name": self.name, "kind": self.kind, "result": self.result, "found": found.message}
        more = {"rows": found.rows, "value": found.value, "offending_rows": [dict(row) for row in found.examples]}
        return told | {name: value for name, value in more.items() if value not in (None, [])}


@dataclass(frozen=True)
class Judgement:
    """Hold the results of checking some rows, or a whole load."""

    outcomes: tuple[CheckOutcome, ...] = ()
    # Rows that are rejected.
    letters: tuple[DeadLetter, ...] = ()
    # Document ids of rows that were rejected before and were delivered this time.
    delivered: frozenset[str] = frozenset()
    # The latest timestamps among the rows, by the names of the checks that need them.
    latest: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: "Judgement") -> "Judgement":
        """Add the results of another piece of the same batch."""
        outcomes = {outcome.name: outcome for outcome in self.outcomes}
        for outcome in other.outcomes:
            outcomes[outcome.name] = outcomes[outcome.name] + outcome if outcome.name in outcomes else outcome
        return Judgement(
            tuple(outcomes.values()),
            (*self.letters, *other.letters),
            self.delivered | other.delivered,
            later(self.latest, other.latest),
        )


def later(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the later of two timestamps for each name."""
    return {name: max(filter(None, (one.get(name), other.get(name)))) for name in {*one, *other}}


@dataclass(frozen=True)
class Checks:
    """Hold the checks of a run and the values they are compared to."""

    pipeline: str
    target: str
    listed: Sequence[CheckOption]
    # Checks that may fail in this run.
    accepted: frozenset[str] = frozenset()
    # What each check measured in earlier runs, the latest first.
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Document ids of rows that earlier runs rejected.
    watched: frozenset[str] = frozenset()

    @property
    def of_rows(self) -> list[RowCheck]:
        return [check for check in self.listed if isinstance(check, RowCheck)]

    @property
    def of_sets(self) -> list[SetCheck]:
        return [check for check in self.listed if isinstance(check, SetCheck)]

    def rejects(self, check: RowCheck) -> bool:
        """Return whether rows that break the check are rejected. Rows that break an accepted check are published."""
        return check.severity == "reject" and check.called not in self.accepted

    def outcome(self, check: RowCheck | SetCheck, found: Found, *, rejected_before: int = 0) -> CheckOutcome:
        """Return the outcome of a check, given what it found."""
        result: Result = "passed"
        if found.broken:
            result = "accepted" if check.called in self.accepted else _BY_SEVERITY[check.severity]
        if result == "rejected" and isinstance(check, RowCheck) and _too_many(check, found, rejected_before):
            result = "failed"
        return CheckOutcome(check.called, str(getattr(check, "kind", "")), result, found)

    def count(self, check: RowCount, rows: int) -> Found:
        """Compare a number of rows with the limits and with earlier runs."""
        low, high = _limits(check, self.history.get(check.called, ()))
        broken = (low is not None and rows < low) or (high is not None and rows > high)
        return Found(say("check.row_count", rows=rows, expected=_expected(low, high)), broken, value=rows)


def _expected(low: int | None, high: int | None) -> str:
    """Describe which numbers are expected. Without limits there are no runs yet to compare with."""
    if low is not None and high is not None:
        return say("check.expected", low=f"{low:,}", high=f"{high:,}")
    if low is not None:
        return say("check.expected_least", low=f"{low:,}")
    return say("check.expected_any") if high is None else say("check.expected_most", high=f"{high:,}")


def _too_many(check: RowCheck, found: Found, rejected_before: int) -> bool:
    return (found.rows or 0) + rejected_before > check.max_rejected


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _limits(check: RowCount, before: Sequence[float]) -> tuple[int | None, int | None]:
    low, high = check.min, check.max
    if check.last_runs and before:
        usual = _median(before[: check.last_runs])
        low = max(low or 0, int(usual * (1 - check.within)))
        most = int(usual * (1 + check.within)) + 1
        high = most if high is None else min(high, most)
    return low, high


def of_age(check: Freshness, seconds: float | None) -> Found:
    """Compare the age of the latest value with the limit. `seconds` is None if there is no value."""
    if seconds is None:
        return Found(say("check.no_value", column=check.column), broken=True)
    limit = check.age_limit.total_seconds()
    message = say("check.freshness", column=check.column, age=round(seconds), most=check.max_age)
    return Found(message, seconds > limit, value=round(seconds))


# Whether a failed check kept the rows out of the target: all of them, those of a batch, or none.
When = Literal["run.check_failed", "run.check_failed_batch", "run.check_failed_after"]


def refuse_failed(checks: Checks, outcomes: Iterable[CheckOutcome], when: When) -> None:
    """Raise `CheckFailed` with all outcomes if one of them failed."""
    known = tuple(outcomes)
    failed = [outcome for outcome in known if outcome.result == "failed"]
    if failed:
        first, others = failed[0], ", ".join(outcome.name for outcome in failed[1:])
        more = say("check.others", names=others) if others else ""
        names = {"check": first.name, "pipeline": checks.pipeline, "target": checks.target}
        raise CheckFailed(say(when, found=first.found.message, more=more, **names), known)


def guard_outcome(name: str, message: str, result: Result = "failed") -> CheckOutcome:
    """Return the outcome of a guard, which every pipeline has, after it refused a load."""
    return CheckOutcome(name, data_checks.SHRINK, result, Found(message, broken=True))


@runtime_checkable
class Judges(Protocol):
    """Define a target that evaluates checks itself. For all other targets the loop checks rows before it writes them.

    Its loads check rows in `commit` and `publish` if `Loading.checks` is set, and report the results to the fence.
    """

    def judge(self, checks: Checks, written: Counts) -> Judgement:
        """Evaluate the checks over all rows on what the target shows after a pass. The caller acts on the result."""
        ...
