"""Evaluate many checks in one scan: one statement counts the rows that violate each check and measures all rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.stage import PLACE
from vitrina.data_checks import (
    STAGED,
    AcceptedValues,
    Asked,
    Expression,
    Freshness,
    NotNull,
    Relationship,
    RowCheck,
    RowCount,
    Select,
    SetCheck,
)
from vitrina.ports.checks import Checks, Found, of_age
from vitrina.store.database import Connection
from vitrina.table_names import quoted_column, quoted_table

# A name that no check can have.
_TOGETHER = "(all checks of rows)"


@dataclass(frozen=True)
class Rows:
    """Represent the rows to check: a FROM item without the rows of `left_out`."""

    item: Composable
    names: tuple[str, ...]
    # The column that marks a row as deleted in the source; such rows are not checked.
    gone: str | None = None
    has_place: bool = True
    left_out: tuple[str, ...] = ()

    def but(self, places: Sequence[str]) -> "Rows":
        return Rows(self.item, self.names, self.gone, self.has_place, (*self.left_out, *places))

    def select(self, *, with_place: bool) -> Composed:
        names = [*self.names, *([PLACE] if with_place and self.has_place else [])]
        conditions: list[Composable] = []
        if self.gone:
            conditions.append(SQL("r.{} IS NOT TRUE").format(Identifier(self.gone)))
        if self.left_out:
            conditions.append(
                SQL("NOT (r.{} = ANY ({}::tid[]))").format(Identifier(PLACE), Literal(list(self.left_out)))
            )
        return SQL("SELECT {} FROM {} AS r{}").format(
            SQL(", ").join(SQL("r.{}").format(Identifier(name)) for name in names),
            self.item,
            SQL(" WHERE {}").format(SQL(" AND ").join(conditions)) if conditions else SQL(""),
        )


@dataclass(frozen=True)
class CheckCounts:
    """Hold the result of one scan by name of check: the number of violating rows, and measurements."""

    broken: Mapping[str, int] = field(default_factory=dict)
    measured: dict[str, Found] = field(default_factory=dict)
    # The number of rows, if they were counted.
    rows: int | None = None

    def holds(self, check: RowCheck) -> bool:
        """Return whether no row violates the check.

        A check that was not part of this scan must be evaluated separately.
        """
        return self.broken.get(check.called) == 0


@dataclass(frozen=True)
class Question:
    """Describe one scan: checks whose violating rows are counted, and measurements."""

    counted: Sequence[RowCheck]
    measured: Sequence[SetCheck]

    def __len__(self) -> int:
        return len(self.counted) + len(self.measured)

    @property
    def is_of_author(self) -> bool:
        """Return whether it contains SQL of the author or names a table."""
        return any(isinstance(check, Asked) for check in self.counted)

    def parts(self) -> "list[Question]":
        """Split it into one question for each check, for when all of them together cannot be answered."""
        return [*(Question([check], []) for check in self.counted), *(Question([], [one]) for one in self.measured)]

    def query(self) -> Select:
        """Build the query over the rows, which the guard checks as a whole.

        Expressions are placed in FILTER, which accepts what WHERE accepts, and outside of the joins. No name in them
        can therefore refer to a column of another table.
        """
        related = [self._joined(check) for check in self.counted if isinstance(check, Relationship)]
        flags, joins = "".join(flag for flag, _ in related), "".join(join for _, join in related)
        rows = f"(SELECT r.*{flags} FROM {STAGED} AS r{joins})" if related else STAGED  # noqa: S608 - the guard checks it
        text = f"SELECT {', '.join(self._outputs())} FROM {rows} AS r"  # noqa: S608 - the guard checks it
        names = [check.called for check in (*self.counted, *self.measured)]
        return Select.model_construct(kind="select", name=names[0] if len(names) == 1 else _TOGETHER, query=text)

    def _joined(self, check: Relationship) -> tuple[str, str]:
        """Return the output that says whether the other table lacks the value, and the join that finds it."""
        own, other, alias = quoted_column(check.column), quoted_column(check.other_column), f"o{self._place(check)}"
        lacks = f", r.{own} IS NOT NULL AND {alias}.{other} IS NULL AS {quoted_column(self._flag(check))}"
        return lacks, f" LEFT JOIN {quoted_table(check.to)} AS {alias} ON {alias}.{other} = r.{own}"

    def _outputs(self) -> Iterator[str]:
        for place, check in enumerate(self.counted):
            yield f"count(*) FILTER (WHERE {self._condition(check)}) AS c{place}"
        yield "count(*) AS rows"
        for place, one in enumerate(self.measured):
            if isinstance(one, Freshness):
                column = f"r.{quoted_column(one.column)}"
                latest = f"(max({column}) FILTER (WHERE isfinite({column}::timestamptz)))::timestamptz"
                yield f"extract(epoch FROM clock_timestamp() - {latest})::float8 AS a{place}"

    def _condition(self, check: RowCheck) -> str:
        if isinstance(check, Expression):
            return f"(\n{check.expression}\n) IS FALSE"
        return f"r.{quoted_column(self._flag(check))}"

    def given(self, rows: Rows) -> Composed:
        """Select the rows, each with flags for violated checks that need only the row itself."""
        own = [check for check in self.counted if isinstance(check, NotNull | AcceptedValues)]
        flags = [SQL(", {} AS {}").format(is_broken(check), Identifier(self._flag(check))) for check in own]
        return SQL("SELECT q.*{} FROM ({}) AS q").format(SQL("").join(flags), rows.select(with_place=False))

    def _flag(self, check: RowCheck) -> str:
        return f"{PLACE}_breaks_{self._place(check)}"

    def _place(self, check: RowCheck) -> int:
        return [one.called for one in self.counted].index(check.called)

    def read(self, row: Mapping[str, Any], checks: Checks) -> CheckCounts:
        """Read the counts and measurements from the result row."""
        broken = {check.called: row[f"c{place}"] for place, check in enumerate(self.counted)}
        measured = {
            check.called: checks.count(check, row["rows"])
            if isinstance(check, RowCount)
            else of_age(check, row[f"a{place}"])
            for place, check in enumerate(self.measured)
            if isinstance(check, RowCount | Freshness)
        }
        return CheckCounts(broken, measured, row["rows"])


def is_broken(check: RowCheck) -> Composed:
    """Build the condition for rows `q` that violate the check."""
    if isinstance(check, NotNull):
        return SQL("q.{} IS NOT DISTINCT FROM NULL").format(Identifier(check.column))
    if isinstance(check, AcceptedValues):
        # Untyped literals take the type of the column.
        values = SQL(", ").join(Literal(_text(value)) for value in check.values)
        return SQL("q.{} NOT IN ({})").format(Identifier(check.column), values)
    raise TypeError(f"rows are not judged here by {check}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def leads_to_one_row(connection: Connection, check: Relationship, own_type: str) -> bool:
    """Return whether a value matches at most one row of the other table; otherwise a join would multiply rows.

    The types must be equal: two different numbers may both equal a third one of a type with fewer digits.
    """
    schema, name = quoted_table(check.to)[1:-1].split('"."')
    found = connection.execute(
        """
        SELECT 1 FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s
        JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indnkeyatts = 1
        WHERE n.nspname = %(schema)s AND c.relname = %(table)s
          AND (c.relkind = 'p' OR c.relkind = 'r' AND NOT c.relhassubclass)
          AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
          AND i.indcollation[0] = a.attcollation
          AND pg_catalog.format_type(a.atttypid, NULL) = %(type)s
        """,
        {"schema": schema, "table": name, "column": check.other_column, "type": own_type},
    ).fetchone()
    return found is not None
