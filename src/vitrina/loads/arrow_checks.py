"""Check rows, as batches of Arrow, before they are written to a target that cannot check them itself."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.data_checks import AcceptedValues, Freshness, NotNull, Relationship, RowCheck
from vitrina.errors import BadCheck
from vitrina.ports.batch import DeadLetter
from vitrina.ports.checks import MAX_EXAMPLES, CheckOutcome, Checks, Found, Judgement, refuse_failed
from vitrina.sentences import say
from vitrina.transforms import python_values

# Maximum length of a value in a message, in characters.
_LONGEST_SHOWN = 200


def broken(check: RowCheck, rows: pa.Table, allowed: frozenset[str] | None, *, is_number: bool) -> pa.ChunkedArray:
    """Return for each row whether it breaks the check. `allowed` are the texts that the column may have."""
    column = rows.column(_column(check))
    if isinstance(check, NotNull):
        return pc.is_null(column)
    strange = [
        value for value in pc.unique(column).to_pylist() if value is not None and not _is_in(value, allowed, is_number)
    ]
    wrong = pc.is_in(column, value_set=pa.array(strange, type=column.type))
    return pc.and_(wrong, pc.is_valid(column))


def _column(check: RowCheck) -> str:
    if isinstance(check, NotNull | AcceptedValues | Relationship):
        return check.column
    raise TypeError(f"{check} cannot be checked before rows are written")


def _is_in(value: Any, allowed: frozenset[str] | None, is_number: bool) -> bool:
    return allowed is None or as_text(value, is_number=is_number) in allowed


def as_text(value: Any, *, is_number: bool) -> str:
    """Convert equal values to one text: 1, 1.0 and 1.00 are the same number."""
    if isinstance(value, bool):
        return str(value).lower()
    if is_number or isinstance(value, int | float | Decimal):
        try:
            return format(Decimal(str(value)).normalize(), "f")
        except InvalidOperation:
            return str(value)
    return str(value)


class RowGate:
    """Check the batches of one run, in their order."""

    def __init__(
        self,
        checks: Checks,
        *,
        key: tuple[str, ...],
        numbers: frozenset[str],
        gone: str | None,
        values_of: Callable[[Relationship], pa.ChunkedArray],
    ) -> None:
        self._checks = checks
        self._key = key
        self._numbers = numbers
        self._gone = gone
        self._values_of = values_of
        self._allowed: dict[str, frozenset[str]] = {}
        self._rejected: dict[str, int] = {}

    def pass_on(self, rows: pa.Table) -> tuple[pa.Table, Judgement]:
        """Return the rows that pass, and what happened to the others."""
        if not rows.num_rows:
            return rows, Judgement()
        outcomes, letters = list[CheckOutcome](), list[DeadLetter]()
        # Checks that reject rows come first, so that the others do not see these rows.
        for check in sorted(self._checks.of_rows, key=lambda one: not self._checks.rejects(one)):
            wrong = self._broken(check, rows)
            outcome = self._outcome(check, rows.filter(wrong))
            outcomes.append(outcome)
            if outcome.result == "rejected":
                letters += self._letters(check, rows.filter(wrong))
                rows = rows.filter(pc.invert(wrong))
        refuse_failed(self._checks, outcomes, "run.check_failed_batch")
        return rows, Judgement(tuple(outcomes), tuple(letters), latest=self._latest(rows))

    def _latest(self, rows: pa.Table) -> Mapping[str, str]:
        """Find the latest value of each column that must be fresh, by the name of the check."""
        dated = [check for check in self._checks.of_sets if isinstance(check, Freshness)]
        found = {check.called: _latest(check, rows) for check in dated if rows.num_rows}
        return {name: at for name, at in found.items() if at is not None}

    def _broken(self, check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
        wrong = broken(check, rows, self._allowed_by(check), is_number=_column(check) in self._numbers)
        if self._gone is None:
            return wrong
        # These rows are not written; they mark rows as deleted.
        gone = pc.fill_null(pc.equal(rows.column(self._gone).cast(pa.string()), "true"), False)
        return pc.and_not(wrong, gone)

    def _allowed_by(self, check: RowCheck) -> frozenset[str] | None:
        if isinstance(check, NotNull):
            return None
        if check.called not in self._allowed:
            is_number = _column(check) in self._numbers
            values = check.values if isinstance(check, AcceptedValues) else self._others(check)
            self._allowed[check.called] = frozenset(as_text(value, is_number=is_number) for value in values)
        return self._allowed[check.called]

    def _others(self, check: RowCheck) -> list[Any]:
        if not isinstance(check, Relationship):
            raise TypeError(f"{check} names no other table")
        found: list[Any] = self._values_of(check).to_pylist()
        return found

    def _outcome(self, check: RowCheck, wrong: pa.Table) -> CheckOutcome:
        before = self._rejected.get(check.called, 0)
        examples = [_shown(row) for row in _rows(wrong.slice(0, MAX_EXAMPLES))]
        found = self._checks.outcome(check, Found.of_rows(wrong.num_rows, examples), rejected_before=before)
        if found.result == "rejected":
            self._rejected[check.called] = before + wrong.num_rows
        return found

    def _letters(self, check: RowCheck, wrong: pa.Table) -> list[DeadLetter]:
        said = say("check.rejected", check=check.called)
        return [
            DeadLetter.about(
                "|".join(str(row.get(name)) for name in self._key),
                said,
                python_values.json_text_of(row).encode(errors="replace"),
                by_check=True,
            )
            for row in _rows(wrong)
        ]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows without the columns that only record their position in the order of reading."""
    names = [name for name in table.schema.names if not name.startswith("_position")]
    found: list[dict[str, Any]] = []
    for batch in table.select(names).to_batches():
        found += python_values.rows_of(batch)
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value if _is_of_json(value) else str(value)[:_LONGEST_SHOWN] for name, value in row.items()}


def _is_of_json(value: object) -> bool:
    """Return whether JSON can hold the value as it is; JSON has neither NaN nor infinity."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int | None)


def _latest(check: Freshness, rows: pa.Table) -> str | None:
    """Return the latest value as a time in UTC, in a text form that sorts correctly."""
    column = rows.column(check.column)
    try:
        value = pc.max(column).as_py()
        if value is None:
            return None
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(at, datetime):
            at = datetime.combine(at, datetime.min.time()) if isinstance(at, date) else None
    except (ValueError, OverflowError):  # not a time, or one after the year 9999
        at = None
    if at is None:
        raise BadCheck(say("run.check_type", check=check.called, column=check.column, type=str(column.type)))
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="microseconds")
