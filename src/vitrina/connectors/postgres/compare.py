"""Compare rows in PostgreSQL: run the same queries on source and mart and return their results in one text form."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.errors import BadKey, FatalError
from vitrina.ports.batch import Key
from vitrina.ports.compare import Extent, RowImage
from vitrina.store.database import Connection

# A comparing session idles in its transaction while the other side works.
SESSION = {
    "idle_in_transaction_session_timeout": "0",
    "cursor_tuple_fraction": "1",
}
_FETCH_ROWS = 5_000

# A number of rows, the sum of their images, and the number of rows without a key.
Sums = tuple[int, str, int]

# Key types in which equal values have the same text. Other types are normalised or refused.
_ONE_TEXT = (
    "smallint", "integer", "bigint", "uuid", "text", "character varying", "date", "timestamp", "time", "boolean",
    "bytea", "oid", "name", "inet", "cidr", "macaddr", "money",
)  # fmt: skip
_ONE_FORM = {
    "numeric": "trim_scale({})",
    "real": "({} + 0)",
    "double precision": "({} + 0)",
    "interval": "justify_interval({})",
    "character": "({}::text)",
}
# Types that a collation orders.
_COLLATED = ("text", "character varying", "name")
# Types whose minimum and maximum are compared natively. All others are compared as text, bytewise.
_ORDERED = ("smallint", "integer", "bigint", "numeric", "real", "double precision", "date", "timestamp")


@dataclass(frozen=True)
class Field:
    """Describe a compared column: its expression on this side, cast to the type of the mart, and that type."""

    name: str
    expression: Composable
    type: str


@dataclass(frozen=True)
class TableSide:
    """Represent a FROM item on a connection. `in_flight` is true for rows that the mart may not have yet."""

    connection: Connection
    head: Composable
    source: Composable
    key: tuple[Field, ...]
    columns: tuple[Field, ...]  # compared columns; the key is not among them
    translate: Callable[[psycopg.Error], Exception]
    condition: Composable = field(default_factory=lambda: SQL("true"))
    in_flight: Composable = field(default_factory=lambda: SQL("false"))
    # If a key has several rows, the mart has the first in this order. Empty: each key must have one row.
    latest: tuple[Composable, ...] = ()
    cursor: Field | None = None
    # True for rows that the source returns although they are deleted.
    gone: Composable | None = None

    listed_at_once = None  # rows are streamed in order, never listed all at once

    @property
    def key_names(self) -> list[str]:
        return [field.name for field in self.key]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Open a block in which all queries see the state at its beginning; their changes are rolled back."""
        with self._translating(), self.connection.transaction(force_rollback=True):
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for name, value in SESSION.items():
                self.connection.execute(SQL("SET LOCAL {} = {}").format(Identifier(name), Literal(value)))
            # The first query takes the snapshot. Callers that open two sides depend on the order.
            self.connection.execute("SELECT 1")
            yield

    def encoding(self) -> str:
        return str(self._one(SQL("SELECT current_setting('server_encoding')"))[0])

    # --- questions -----------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        """Count the rows and find their least and greatest values, in one scan."""
        fields = [*self.key, *([self.cursor] if self.cursor else [])]
        # If several rows may share a key, count keys: the mart has one row for each.
        count = SQL("count(DISTINCT {})").format(self._place()) if self.latest else SQL("count(*)")
        there = SQL("NOT {}").format(self.gone) if self.gone else SQL("true")
        outputs: list[Composable] = [
            SQL("{} FILTER (WHERE {})").format(count, there),
            SQL("{} FILTER (WHERE {} AND {})").format(count, self.in_flight, there),
        ]
        outputs += [
            SQL("{}({})::text").format(SQL(function), _ordered(field))
            for function in ("min", "max")
            for field in fields
        ]
        rows, in_flight, *ends = self._one(self._select(outputs))
        names = [field.name for field in fields]
        return Extent(
            rows,
            in_flight,
            dict(zip(names, ends[: len(names)], strict=True)),
            dict(zip(names, ends[len(names) :], strict=True)),
        )

    def total(self) -> tuple[int, str]:
        return self.total_of([self.sums()])

    def total_of(self, found: Sequence[Sums]) -> tuple[int, str]:
        """Add up what the parts of this side returned; refuse rows without a key."""
        keyless = sum(without for _, _, without in found)
        if keyless:
            raise BadKey(
                f"{keyless} row(s) have no key ({', '.join(field.name for field in self.key)} is NULL): filter such"
                " rows out in the query, or change target_key"
            )
        return sum(rows for rows, _, _ in found), str(sum(int(total) for _, total, _ in found))

    def sums(self) -> Sums:
        """Return the number of rows, the sum of their images, and the number of rows without a key."""
        rows, total, keyless = self._one(self.statement_of_sums())
        return rows, total or "0", keyless

    def statement_of_sums(self) -> Composed:
        """Build the statement without groups, so that PostgreSQL can use parallel workers."""
        no_key = SQL(" OR ").join(SQL("{} IS NULL").format(field.expression) for field in self.key)
        return self._select(
            [
                SQL("count({})").format(self._image()),
                SQL("sum({})::text").format(self._image()),
                SQL("count(*) FILTER (WHERE {})").format(no_key),
            ]
        )

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        """Group rows by a part of their key's hash; return the count and an order-independent sum of their images."""
        inner = self._select(
            [SQL("{} AS place").format(self._place()), SQL("{} AS image").format(self._image())], bare=True
        )
        statement = SQL(
            "{head} SELECT place & {mask}, count(image), sum(image)::text FROM ({rows}) AS r"
            " WHERE image IS NOT NULL GROUP BY 1"
        ).format(head=self.head, mask=Literal(mask), rows=inner)
        # The planner expects a separate group for every row and would sort all rows.
        self.connection.execute("SET LOCAL enable_sort = off")
        found = {bucket: (rows, total) for bucket, rows, total in self._all(statement)}
        self.connection.execute("SET LOCAL enable_sort = on")
        return found

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        return self._images(
            SQL("{} & {} = ANY({}::bigint[])").format(self._place(), Literal(mask), Literal(list(buckets)))
        )

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        return self._images(self.has_key(keys))

    def _images(self, where: Composable) -> Iterator[RowImage]:
        """Yield the rows that match `where` by place and key; of several rows with one key, only the latest."""
        key_text = SQL('({}) COLLATE "C"').format(self._key_text())
        outputs = [
            SQL("{} AS place").format(self._place()),
            SQL("{} AS key_text").format(key_text),
            SQL("ARRAY[{}]").format(SQL(", ").join(SQL("{}::text").format(one_form(field)) for field in self.key)),
            self._image(),
            SQL("coalesce({}, false)").format(self.in_flight),
        ]
        order = SQL(", ").join([SQL("1, 2"), *(SQL("{} DESC").format(column) for column in self.latest)])
        statement = SQL("{} ORDER BY {}").format(self._select(outputs, where), order)
        previous: RowImage | None = None
        with self._translating(), self.connection.cursor(name="vitrina_images", row_factory=tuple_row) as cursor:
            cursor.itersize = _FETCH_ROWS
            cursor.execute(statement)
            for place, text, key, image, in_flight in cursor:
                row = RowImage(place, text, tuple(key), image, in_flight)
                if previous is None or row.position != previous.position:
                    yield row
                elif not self.latest:
                    raise BadKey(f"the key {text} comes more than once; a mart needs one row per key")
                previous = row

    def random_keys(self, count: int) -> list[Key]:
        outputs = [SQL("{}::text").format(one_form(field)) for field in self.key]
        statement = SQL("{} ORDER BY random() LIMIT {}").format(self._select(outputs), Literal(count))
        return [tuple(row) for row in self._all(statement)]

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        """Return whole rows as text, column by column."""
        fields = (*self.key, *self.columns)
        outputs: list[Composable] = [SQL("{}::text").format(one_form(field)) for field in self.key]
        outputs += [SQL("({})::text").format(field.expression) for field in fields]
        outputs.append(self.gone or SQL("false"))
        statement = self._select(outputs, self.has_key(keys))
        if self.latest:
            statement = SQL("{} ORDER BY {}").format(
                statement, SQL(", ").join(SQL("{} DESC").format(column) for column in self.latest)
            )
        found: dict[Key, dict[str, str | None] | None] = {}
        for *row, gone in self._all(statement):
            key, values = tuple(row[: len(self.key)]), row[len(self.key) :]
            named = dict(zip((field.name for field in fields), values, strict=True))
            found.setdefault(key, None if gone else named)
        return {key: values for key, values in found.items() if values is not None}

    def has_key(self, keys: Sequence[Key]) -> Composed:
        """Build the condition on the bare key columns, so that an index can be used, and on the bytes of text.

        Under a nondeterministic collation 'a' finds the row of 'A', which is a different key in a comparison.
        """
        columns = [SQL("({})").format(field.expression) for field in self.key]
        values = [Literal([key[position] for key in keys]) for position in range(len(self.key))]
        written = [
            (place, SQL('({}::text COLLATE "C")').format(columns[place]))
            for place, field in enumerate(self.key)
            if _base(field.type).startswith(_COLLATED)
        ]
        if len(columns) == 1:
            equal = SQL("{} = ANY({}::{}[])").format(columns[0], values[0], SQL(self.key[0].type))
            exact = (SQL("{} = ANY({}::text[])").format(text, values[0]) for _, text in written)
            return SQL("({})").format(SQL(" AND ").join([equal, *exact]))
        names = [Identifier(f"k{position}") for position in range(len(columns))]
        given = [SQL("u.{}::{}").format(name, SQL(field.type)) for name, field in zip(names, self.key, strict=True)]
        return SQL("({}) IN (SELECT {} FROM unnest({}) AS u({}))").format(
            SQL(", ").join([*columns, *(text for _, text in written)]),
            SQL(", ").join([*given, *(SQL("u.{}").format(names[place]) for place, _ in written)]),
            SQL(", ").join(SQL("{}::text[]").format(value) for value in values),
            SQL(", ").join(names),
        )

    # --- SQL -----------------------------------------------------------------------------------------------------

    def _select(
        self, outputs: Sequence[Composable], where: Composable | None = None, *, bare: bool = False
    ) -> Composed:
        return SQL("{head} SELECT {outputs} FROM {source} AS q WHERE {condition} AND {where}").format(
            head=SQL("") if bare else self.head,
            outputs=SQL(", ").join(outputs),
            source=self.source,
            condition=self.condition,
            where=where or SQL("true"),
        )

    def _key_text(self) -> Composed:
        if len(self.key) == 1:
            return SQL("{}::text").format(one_form(self.key[0]))
        # A key of several columns becomes one text with unambiguous separators; NULL in any column makes it NULL.
        parts = [one_form(field) for field in self.key]
        return SQL("CASE WHEN ({}) IS NOT NULL THEN ROW({})::text END").format(
            SQL("ROW({})").format(SQL(", ").join(parts)), SQL(", ").join(parts)
        )

    def _place(self) -> Composed:
        return SQL('hashtextextended(({}) COLLATE "C", 0)').format(self._key_text())

    def _image(self) -> Composed:
        """Hash the text of the whole row, which distinguishes NULL from '', 1.0 from 1.00, and every microsecond."""
        parts = [*(one_form(field) for field in self.key), *(field.expression for field in self.columns)]
        image = SQL('hashtextextended((ROW({})::text) COLLATE "C", 0)').format(SQL(", ").join(parts))
        return SQL("CASE WHEN NOT {} THEN {} END").format(self.gone, image) if self.gone else image

    def _one(self, statement: Composed | SQL) -> tuple[Any, ...]:
        [row] = self._all(statement)
        return row

    def _all(self, statement: Composed | SQL) -> list[tuple[Any, ...]]:
        with self._translating(), self.connection.cursor(row_factory=tuple_row) as cursor:
            # Prepare the statement: users' SQL goes over the extended protocol, which accepts a single statement only.
            return cursor.execute(statement, prepare=True).fetchall()

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as exc:
            raise self.translate(exc) from exc


def refuse_other_encoding(source: TableSide, target: TableSide) -> None:
    encodings = source.encoding(), target.encoding()
    if encodings[0] != encodings[1]:
        raise FatalError(
            f"the source's server encoding is {encodings[0]}, the target's {encodings[1]}: their texts have other"
            " bytes, so hashes of them cannot be compared; move one of the two databases to the other's encoding"
        )


def one_form(field: Field) -> Composable:
    """Build an expression that gives equal values the same text, because keys are matched by `=`."""
    return SQL(_ONE_FORM.get(_base(field.type), "{}")).format(field.expression)


def refuse_strange_keys(key: Sequence[Field], enums: frozenset[str]) -> None:
    """Refuse types in which equal values have several texts; a row would look both missing and extra."""
    for column in key:
        base = _base(column.type)
        known = base in _ONE_FORM or base in enums or base.startswith(_ONE_TEXT)
        if not known or column.type.endswith("[]"):
            raise FatalError(
                f"cannot reconcile by key column {column.name!r} of type {column.type}: equal values of it may be"
                " written differently; use a key of plain columns"
            )


def _ordered(field: Field) -> Composable:
    if _base(field.type).startswith(_ORDERED):
        return one_form(field)
    return SQL('(({})::text COLLATE "C")').format(one_form(field))


def _base(kind: str) -> str:
    return kind.partition("(")[0].strip()
