"""Checks of a definition: what rows and loads have to be like before anybody sees them."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from vitrina import schedule
from vitrina.sentences import say
from vitrina.table_names import quoted_column, quoted_table

MAX_CHECKS = 100
MAX_SQL_LENGTH = 20_000
# Of its rows, a target loses no larger part at once, unless a check or options.allow_shrink says otherwise.
SHRINK_LIMIT = 0.5
# The guards that every pipeline has, by the names under which they are accepted.
SHRINK, EMPTY = "shrink", "empty"
GUARDS = frozenset({SHRINK, EMPTY})
# What stands for rows in SQL: those to be published, and those that are there.
STAGED, TARGET = "staged", "target"

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
CheckName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}$")]
Severity = Literal["fail", "warn"]
RowSeverity = Literal["fail", "warn", "reject"]

_NAME = Field(None, description="By which people know and accept it; by default its kind and column.")
_MAX_REJECTED = Field(1_000, ge=1, le=10_000, description="With `reject`: more such rows in a run fail it.")


class CheckOption(BaseModel):
    """Unknown fields and silent conversions are refused, as in every part of a definition."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Whether each row is judged by itself; others judge all rows of a load.
    of_rows: ClassVar[bool] = False
    # Whether it is SQL of the author, or names a table: it runs under the reader's login.
    needs_reader: ClassVar[bool] = False
    # Whether only a target that is asked in SQL can judge it.
    needs_sql: ClassVar[bool] = False

    name: CheckName | None = _NAME

    @property
    def called(self) -> str:
        return self.name or re.sub(r"[^A-Za-z0-9_.\-]", "_", "_".join([self._kind, *self.columns_read]))[:100]

    @property
    def _kind(self) -> str:
        return str(getattr(self, "kind", ""))

    @property
    def columns_read(self) -> Sequence[str]:
        """Name the columns of the result that it looks at, as far as its options say."""
        column = getattr(self, "column", None)
        return [column] if column else []


class RowCheck(CheckOption):
    """A check that judges each row by itself."""

    of_rows: ClassVar[bool] = True

    severity: RowSeverity = Field(
        "fail",
        description="`fail`: nothing is published. `warn`: the run says so. `reject`: the row becomes a dead letter.",
    )
    max_rejected: int = _MAX_REJECTED


class SetCheck(CheckOption):
    """A check that judges all rows of a load."""

    severity: Severity = Field("fail", description="`fail`: nothing is published. `warn`: the run says so.")


class NotNull(RowCheck):
    """The column has a value in every row."""

    kind: Literal["not_null"]
    column: ColumnName = Field(description="A column of the result.")


class AcceptedValues(RowCheck):
    """The column has one of these values, or none."""

    kind: Literal["accepted_values"]
    column: ColumnName = Field(description="A column of the result.")
    values: list[str | int | float | bool] = Field(
        min_length=1, max_length=1_000, description="Those that it may have."
    )


class Relationship(RowCheck):
    """The value of the column is in another table, or there is none."""

    kind: Literal["relationship"]
    needs_reader: ClassVar[bool] = True

    column: ColumnName = Field(description="A column of the result.")
    to: str = Field(max_length=200, description="The other table, `schema.table`; queries must be allowed to read it.")
    to_column: ColumnName | None = Field(None, description="Its column; by default one of the same name.")

    @property
    def other_column(self) -> str:
        return self.to_column or self.column

    @property
    def select(self) -> str:
        own, other = quoted_column(self.column), quoted_column(self.other_column)
        return (
            f"SELECT r.* FROM {STAGED} AS r WHERE r.{own} IS NOT NULL"  # noqa: S608 - quoted, and it is judged
            f" AND NOT EXISTS (SELECT 1 FROM {quoted_table(self.to)} AS o WHERE o.{other} = r.{own})"
        )


class Expression(RowCheck):
    """The expression is not false for any row."""

    kind: Literal["expression"]
    needs_reader: ClassVar[bool] = True
    needs_sql: ClassVar[bool] = True

    expression: str = Field(
        min_length=1,
        max_length=MAX_SQL_LENGTH,
        description="A condition in SQL on the columns of the result. As in CHECK, NULL is not false.",
        examples=["rating BETWEEN 0 AND 10"],
    )

    @property
    def select(self) -> str:
        return f"SELECT r.* FROM {STAGED} AS r WHERE (\n{self.expression}\n) IS FALSE"  # noqa: S608 - it is judged


class Unique(SetCheck):
    """No two rows share the values of these columns; rows with a NULL among them are left out."""

    kind: Literal["unique"]
    needs_sql: ClassVar[bool] = True

    columns: list[ColumnName] = Field(min_length=1, max_length=32, description="Columns of the result.")

    @property
    def columns_read(self) -> Sequence[str]:
        return self.columns


class RowCount(SetCheck):
    """The load has so many rows: between limits, or about as many as the runs before."""

    kind: Literal["row_count"]

    min: int | None = Field(None, ge=0, description="At least.")
    max: int | None = Field(None, ge=0, description="At most.")
    last_runs: int | None = Field(
        None, ge=1, le=100, description="Compare with the median of this many successful runs before."
    )
    within: float = Field(
        0.5, gt=0, le=100, allow_inf_nan=False, description="With `last_runs`: by which share it may differ from that."
    )

    @model_validator(mode="after")
    def _says_what_is_expected(self) -> Self:
        if self.min is None and self.max is None and self.last_runs is None:
            raise ValueError(say("definition.check_row_count"))
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(say("definition.check_limits", least=self.min, most=self.max))
        return self


class ChangedShare(SetCheck):
    """Publishing changes no larger share of the target's rows: inserted, updated and deleted ones together."""

    kind: Literal["changed_share"]
    needs_sql: ClassVar[bool] = True

    max: float = Field(
        gt=0, le=1_000, allow_inf_nan=False, description="As a share of the rows before: 0.2 is a fifth."
    )


class Freshness(SetCheck):
    """The latest value of a time column is not older than this."""

    kind: Literal["freshness"]

    column: ColumnName = Field(description="A column of the result, a timestamp or a date.")
    max_age: str = Field(
        max_length=100, description="How old the latest value may be: 30m, 6h, 2d, PT6H.", examples=["6h"]
    )

    @field_validator("max_age")
    @classmethod
    def _is_a_span(cls, value: str) -> str:
        if schedule.interval_of(value) is None:
            raise ValueError(say("definition.check_max_age", max_age=value))
        return value

    @property
    def age_limit(self) -> timedelta:
        found = schedule.interval_of(self.max_age)
        if found is None:
            raise ValueError(self.max_age)
        return found


class Select(SetCheck):
    """The query returns no rows."""

    kind: Literal["select"]
    needs_reader: ClassVar[bool] = True
    needs_sql: ClassVar[bool] = True

    query: str = Field(
        min_length=1,
        max_length=MAX_SQL_LENGTH,
        description="One SELECT over `staged`, the rows to be published, `target`, those that are there, and allowed"
        " schemas.",
        examples=["SELECT id FROM staged WHERE ends_at < begins_at"],
    )

    @property
    def select(self) -> str:
        return self.query


class Shrink(CheckOption):
    """Publishing deletes no larger share of the target's rows. Every pipeline has this check; here is its limit."""

    kind: Literal["shrink"]

    name: Literal["shrink"] | None = Field(None, description="It has no other.")
    max: float = Field(SHRINK_LIMIT, gt=0, le=1, allow_inf_nan=False, description="0.5 is half of the rows.")

    @property
    def called(self) -> str:
        return SHRINK


# Those that run as a query of the author, which gives the rows that break them.
Asked = Relationship | Expression | Select


def names_given(check: Asked) -> tuple[str, ...]:
    """List the names that stand for rows in the SQL of a check. What is said of a row is said of this row alone."""
    return (STAGED, TARGET) if isinstance(check, Select) else (STAGED,)


KINDS: tuple[type[CheckOption], ...] = (
    NotNull,
    AcceptedValues,
    Relationship,
    Expression,
    Unique,
    RowCount,
    ChangedShare,
    Freshness,
    Select,
    Shrink,
)
Check = Annotated[
    NotNull
    | AcceptedValues
    | Relationship
    | Expression
    | Unique
    | RowCount
    | ChangedShare
    | Freshness
    | Select
    | Shrink,
    Field(discriminator="kind"),
]


def shrink_limit(checks: Sequence[CheckOption]) -> float:
    """Return the share of its rows that a target may lose at once."""
    return next((check.max for check in checks if isinstance(check, Shrink)), SHRINK_LIMIT)


def names(checks: Sequence[CheckOption]) -> list[str]:
    """List what can be accepted: the checks of a definition, and the guards that every pipeline has."""
    return sorted({check.called for check in checks} | GUARDS)
