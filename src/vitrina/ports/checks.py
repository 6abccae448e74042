"""The checks of one run: what is compared with what, what came of it, and who judges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from vitrina import data_checks
from vitrina.data_checks import CheckOption, Freshness, RowCheck, RowCount, SetCheck
from vitrina.errors import CheckFailed
from vitrina.ports.batch import Counts, DeadLetter
from vitrina.sentences import say

# Rows that break a check, of which a run keeps the first to show them.
MAX_EXAMPLES = 5

Result = Literal["passed", "warned", "accepted", "rejected", "failed"]
# The gravest last.
_RESULTS: tuple[Result, ...] = ("passed", "warned", "accepted", "rejected", "failed")
_BY_SEVERITY: Mapping[str, Result] = {"fail": "failed", "warn": "warned", "reject": "rejected"}


@dataclass(frozen=True)
class Found:
    """What a look at the rows gave, before anybody decides what becomes of them."""

    # In words, without values of rows: everybody may read it.
    message: str
    broken: bool
    # How many rows break the check, where rows can be counted.
    rows: int | None = None
    # What was measured, for later runs to compare with.
    value: float | None = None
    examples: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_rows(cls, rows: int, examples: Sequence[Mapping[str, Any]] = ()) -> "Found":
        return cls(say("check.rows", rows=rows), rows > 0, rows, examples=examples)


@dataclass(frozen=True)
class CheckOutcome:
    """What became of one check, as the history of runs keeps it."""

    name: str
    kind: str
    result: Result
    found: Found

    def __add__(self, other: "CheckOutcome") -> "CheckOutcome":
        """Add what another batch of the same run gave."""
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
    """What came of judging some rows, or a load."""

    outcomes: tuple[CheckOutcome, ...] = ()
    # Rows that are left out.
    letters: tuple[DeadLetter, ...] = ()
    # Rows that were left out before and came through now, by the names of their letters.
    delivered: frozenset[str] = frozenset()
    # The latest times among the rows, by the names of the checks that ask for them.
    latest: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: "Judgement") -> "Judgement":
        """Add what another piece of the same batch gave."""
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
    """Keep the later of two times for each name."""
    return {name: max(filter(None, (one.get(name), other.get(name)))) for name in {*one, *other}}


@dataclass(frozen=True)
class Checks:
    """The checks of a run, with what they are compared to."""

    pipeline: str
    target: str
    listed: Sequence[CheckOption]
    # Those that may fail in this run.
    accepted: frozenset[str] = frozenset()
    # By the names of checks: what they measured in runs before, the latest first.
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Rows that earlier runs left out, by the names of their letters.
    watched: frozenset[str] = frozenset()

    @property
    def of_rows(self) -> list[RowCheck]:
        return [check for check in self.listed if isinstance(check, RowCheck)]

    @property
    def of_sets(self) -> list[SetCheck]:
        return [check for check in self.listed if isinstance(check, SetCheck)]

    def rejects(self, check: RowCheck) -> bool:
        """Tell whether rows that break it are left out; of an accepted one they are published."""
        return check.severity == "reject" and check.called not in self.accepted

    def outcome(self, check: RowCheck | SetCheck, found: Found, *, rejected_before: int = 0) -> CheckOutcome:
        """Decide what becomes of what was found."""
        result: Result = "passed"
        if found.broken:
            result = "accepted" if check.called in self.accepted else _BY_SEVERITY[check.severity]
        if result == "rejected" and isinstance(check, RowCheck) and _too_many(check, found, rejected_before):
            result = "failed"
        return CheckOutcome(check.called, str(getattr(check, "kind", "")), result, found)

    def count(self, check: RowCount, rows: int) -> Found:
        """Hold a number of rows against limits and against the runs before."""
        low, high = _limits(check, self.history.get(check.called, ()))
        broken = (low is not None and rows < low) or (high is not None and rows > high)
        return Found(say("check.row_count", rows=rows, expected=_expected(low, high)), broken, value=rows)


def _expected(low: int | None, high: int | None) -> str:
    """Say which numbers are right; without limits, there are no runs yet to compare with."""
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
    """Hold the age of the latest value against the limit; None: there is no value."""
    if seconds is None:
        return Found(say("check.no_value", column=check.column), broken=True)
    limit = check.age_limit.total_seconds()
    message = say("check.freshness", column=check.column, age=round(seconds), most=check.max_age)
    return Found(message, seconds > limit, value=round(seconds))


# What is said of rows that a failed check kept from the target, or could not keep from it.
When = Literal["run.check_failed", "run.check_failed_batch", "run.check_failed_after"]


def refuse_failed(checks: Checks, outcomes: Iterable[CheckOutcome], when: When) -> None:
    """Raise `CheckFailed` with everything that was found, if one of them failed."""
    known = tuple(outcomes)
    failed = [outcome for outcome in known if outcome.result == "failed"]
    if failed:
        first, others = failed[0], ", ".join(outcome.name for outcome in failed[1:])
        more = say("check.others", names=others) if others else ""
        names = {"check": first.name, "pipeline": checks.pipeline, "target": checks.target}
        raise CheckFailed(say(when, found=first.found.message, more=more, **names), known)


def guard_outcome(name: str, message: str, result: Result = "failed") -> CheckOutcome:
    """Tell of a guard that every pipeline has, when it refused a load."""
    return CheckOutcome(name, data_checks.SHRINK, result, Found(message, broken=True))


@runtime_checkable
class Judges(Protocol):
    """A target that judges checks itself. Rows of all others are judged on their way there, by the loop.

    Its loads judge rows in `commit` and `publish`, where `Loading.checks` says so, and tell the fence what came of it.
    """

    def judge(self, checks: Checks, written: Counts) -> Judgement:
        """Judge what is shown after a pass by the checks that are about all rows; the caller decides what follows."""
        ...
