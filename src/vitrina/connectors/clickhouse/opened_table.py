"""Open a ClickHouse table for writing: its server, its layout, and what loads and comparisons need of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.client import Missing, Session, retry_while_blocked
from vitrina.connectors.clickhouse.options import ClickHouseOptions
from vitrina.connectors.clickhouse.tables import Layout, Shown, Tables
from vitrina.connectors.clickhouse.writer import GroupingWriter
from vitrina.data_checks import EMPTY
from vitrina.errors import ShrinkRefused, TargetMismatch
from vitrina.ports.connector import Opening
from vitrina.ports.source import Form

T = TypeVar("T")


class OpenedTable:
    """Hold a view under the plain name and the generation that it shows; `ClickHouseTarget` makes a target of it."""

    form: Form = "natural"

    def __init__(self, opening: Opening, session: Session, tables: Tables) -> None:
        self.opening = opening
        self.server = session
        self.tables = tables
        self.context = opening.context
        self.definition = opening.definition
        made = opening.options
        self.options = made if isinstance(made, ClickHouseOptions) else ClickHouseOptions()
        self._layout: Layout | None = None
        self._writers: list[GroupingWriter] = []

    def missing_fields(self, shown: Shown) -> list[types.Field]:
        """Return the columns that the shown table lacks and that may be added. Refuse other differences by name."""
        layout = self.layout
        if shown.key != layout.key:
            raise TargetMismatch(
                f"{self.tables} has the key {', '.join(shown.key)}, target_key says {', '.join(layout.key)}: run in"
                " mode full, which builds it again"
            )
        if not shown.is_versioned:
            raise TargetMismatch(f"{self.tables} was built without versions (engine MergeTree): run in mode full")
        found = self.tables.columns(shown.generation)
        missing = [one for one in layout.fields if one.name not in found]
        differing = [
            f"{one.name} is {found[one.name]} there and {one.full_kind} here"
            for one in layout.fields
            if one.name in found and _plain(found[one.name]) != _plain(one.full_kind)
        ]
        told = differing + [f"{one.name} ({one.full_kind}) is missing" for one in missing]
        if differing or (missing and self.definition.options.on_schema_change != "add_columns"):
            raise TargetMismatch(
                f"{self.tables} does not fit the query: {'; '.join(told)}. Change the query, let a full load build it"
                " again, or set options.on_schema_change to 'add_columns' for columns that are only missing"
            )
        return missing

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise RuntimeError("prepare() comes first")
        return self._layout

    @property
    def has_layout(self) -> bool:
        return self._layout is not None

    def keep(self, writer: GroupingWriter) -> GroupingWriter:
        self._writers.append(writer)
        return writer

    def release(self, writer: GroupingWriter) -> None:
        self._writers.remove(writer)

    def retry_while_blocked(self, move: Callable[[], T]) -> T:
        """Repeat a move on the run's own thread while the server is busy or unreachable. It must be safe to repeat."""

        def tell(reason: str | None) -> None:
            self.context.tell(reason)
            self.context.show()

        return retry_while_blocked(move, self.context.wait, tell)

    def retry_insert(self, move: Callable[[], T]) -> T:
        """Repeat a move in the same way, on the inserting thread."""
        return retry_while_blocked(move, self.context.wait, self.context.tell)

    def count_shown(self, shown: Shown) -> int:
        with self._refusing_dropped(shown):
            return self.tables.count(shown.generation, final=shown.is_versioned)

    def shows_nothing(self, shown: Shown) -> bool:
        with self._refusing_dropped(shown):
            return self.tables.is_empty(shown.generation, final=shown.is_versioned)

    @contextmanager
    def _refusing_dropped(self, shown: Shown) -> Iterator[None]:
        try:
            yield
        except Missing as exc:
            raise TargetMismatch(
                f"{self.tables} shows {shown.generation}, which was dropped: drop the view, and run the pipeline"
            ) from exc

    def refuse_shrinking_to(self, rows: int) -> None:
        """Refuse to replace what is shown by so few rows.

        The server knows at once how many row versions there are, which is never less than the number of rows. The rows
        themselves are counted only if that many would be refused.
        """
        shown = self.retry_while_blocked(self.tables.shown)
        if shown is None:
            return
        with self._refusing_dropped(shown):
            at_most = self.retry_while_blocked(lambda: self.tables.count(shown.generation, final=False))
        if self._shrinks_too_much(rows, at_most):
            self.refuse_shrinking(rows, self.retry_while_blocked(lambda: self.count_shown(shown)))

    def _shrinks_too_much(self, rows: int, before: int) -> bool:
        return rows == 0 or rows < before * (1 - self.definition.options.shrink_limit)

    def refuse_shrinking(self, rows: int, before: int) -> None:
        options = self.definition.options
        if rows == 0 and before and not options.allow_empty:
            raise ShrinkRefused(
                f"the source has no rows, but {self.tables} shows {before:,}; if it should be emptied, set"
                " options.allow_empty",
                EMPTY,
            )
        if rows and self._shrinks_too_much(rows, before):
            raise ShrinkRefused(
                f"publishing would leave {rows:,} of {before:,} rows in {self.tables}; if the source really shrank that"
                " much, set options.allow_shrink and run again"
            )

    def rows_shown(self) -> int:
        shown = self.tables.shown()
        return self.count_shown(shown) if shown else 0


def _plain(kind: str) -> str:
    return kind.replace(" ", "")
