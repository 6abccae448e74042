"""Define the checks of a pipeline: conditions that rows and loads must meet before they are published."""

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
# Share of its rows that a target may lose at once, unless a check or options.allow_shrink sets another.
SHRINK_LIMIT = 0.5
# The guards that every pipeline has, by the names under which they are accepted.
SHRINK, EMPTY = "shrink", "empty"
GUARDS = frozenset({SHRINK, EMPTY})
# Names that stand for rows in SQL: those to be published, and those in the target.
STAGED, TARGET = "staged", "target"

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]
CheckName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}$")]
Severity = Literal["fail", "warn"]
RowSeverity = Literal["fail", "warn", "reject"]

_NAME = Field(None, description="Name under which the check is shown and accepted. Default: its kind and column.")
_MAX_REJECTED = Field(
    1_000, ge=1, le=10_000, description=("With `reject`: number of rejected rows above which the run fails.")
)


class CheckOption(BaseModel):
    """Refuse unknown fields and silent conversions, as in every part of a definition."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Whether the check applies to each row separately; others apply to all rows of a load.
    of_rows: ClassVar[bool] = False
    # Whether it is the author's SQL or names a table, and so runs under the reader's login.
    needs_reader: ClassVar[bool] = False
    # Whether only a target with SQL can evaluate it.
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
        """Name the columns of the result that the check uses, as far as its options show."""
        column = getattr(self, "column", None)
        return [column] if column else []


class RowCheck(CheckOption):
    """Represent a check of each row separately."""

    of_rows: ClassVar[bool] = True

    severity: RowSeverity = Field(
        "fail",
        description=(
            "`fail`: nothing is published. `warn`: the run reports a warning. `reject`: the row becomes a dead letter."
        ),
    )
    max_rejected: int = _MAX_REJECTED


class SetCheck(CheckOption):
    """Represent a check of all rows of a load."""

    severity: Severity = Field("fail", description="`fail`: nothing is published. `warn`: the run reports a warning.")


class NotNull(RowCheck):
    """Require a value in the column in every row."""

    kind: Literal["not_null"]
    column: ColumnName = Field(description="A column of the result.")


class AcceptedValues(RowCheck):
    """Require that the column has one of these values, or is NULL."""

    kind: Literal["accepted_values"]
    column: ColumnName = Field(description="A column of the result.")
    values: list[str | int | float | bool] = Field(min_length=1, max_length=1_000, description="Allowed values.")


class Relationship(RowCheck):
    """Require that the value of the column is in another table, or is NULL."""

    kind: Literal["relationship"]
    needs_reader: ClassVar[bool] = True

    column: ColumnName = Field(description="A column of the result.")
    to: str = Field(max_length=200, description="The other table, `schema.table`; queries must be allowed to read it.")
    to_column: ColumnName | None = Field(None, description="Column of the other table. Default: the same name.")

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
    """Require that the expression is not false for any row."""

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
    """Require that no two rows have the same values in these columns; rows with a NULL among them are ignored."""

    kind: Literal["unique"]
    needs_sql: ClassVar[bool] = True

    columns: list[ColumnName] = Field(min_length=1, max_length=32, description="Columns of the result.")

    @property
    def columns_read(self) -> Sequence[str]:
        return self.columns


class RowCount(SetCheck):
    """Require a number of rows: between limits, or about as many as in earlier runs."""

    kind: Literal["row_count"]

    min: int | None = Field(None, ge=0, description="At least.")
    max: int | None = Field(None, ge=0, description="At most.")
    last_runs: int | None = Field(
        None, ge=1, le=100, description="Compare with the median of this many successful earlier runs."
    )
    within: float = Field(
        0.5,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description=("With `last_runs`: share by which the number of rows may differ from the median."),
    )

    @model_validator(mode="after")
    def _says_what_is_expected(self) -> Self:
        if self.min is None and self.max is None and self.last_runs is None:
            raise ValueError(say("definition.check_row_count"))
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(say("definition.check_limits", least=self.min, most=self.max))
        return self


class ChangedShare(SetCheck):
    """Limit the share of the target's rows that a publish inserts, updates and deletes together."""

    kind: Literal["changed_share"]
    needs_sql: ClassVar[bool] = True

    max: float = Field(
        gt=0, le=1_000, allow_inf_nan=False, description="Share of the rows before the publish: 0.2 is a fifth."
    )


class Freshness(SetCheck):
    """Limit the age of the latest value of a time column."""

    kind: Literal["freshness"]

    column: ColumnName = Field(description="A timestamp or date column of the result.")
    max_age: str = Field(
        max_length=100, description="Maximum age of the latest value: 30m, 6h, 2d, PT6H.", examples=["6h"]
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
    """Require that the query returns no rows."""

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
    """Limit the share of the target's rows that a publish deletes. Every pipeline has this check."""

    kind: Literal["shrink"]

    name: Literal["shrink"] | None = Field(None, description="Always `shrink`.")
    max: float = Field(SHRINK_LIMIT, gt=0, le=1, allow_inf_nan=False, description="0.5 is half of the rows.")

    @property
    def called(self) -> str:
        return SHRINK


# Checks that run as a query of the author, which returns the rows that violate them.
Asked = Relationship | Expression | Select


def names_given(check: Asked) -> tuple[str, ...]:
    """List the names that stand for rows in the SQL of a check. A check of single rows sees only rows to publish."""
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
    """List the checks that can be accepted: those of a definition, and the guards of every pipeline."""
    return sorted({check.called for check in checks} | GUARDS)
