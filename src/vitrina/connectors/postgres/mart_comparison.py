"""Compare a mart with its source: query both in SQL, in the types of the mart."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from psycopg.sql import SQL, Composable, Identifier

from vitrina.connectors.postgres import mart_rows, rescan
from vitrina.connectors.postgres.compare import Field, TableSide, refuse_other_encoding, refuse_strange_keys
from vitrina.connectors.postgres.cut_sides import Cutting, cut_side, of_query
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.errors import FatalError
from vitrina.ports import types
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import ComparableSide, Correction, Difference, Looked, SideCut
from vitrina.store.database import Connection


class MartComparison:
    """Compare a pipeline whose target is a table."""

    full_guarantee = "every row by a 64-bit hash of its key and columns, taken inside each database"

    def __init__(
        self,
        writer: PostgresWriter,
        url: str,
        looked: Looked,
        lend: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        self._writer = writer
        self._url = url
        # Lends another session on the target.
        self._lend = lend
        # How source and target are asked by several sessions; None: by one.
        self._cuttings: tuple[Cutting, Cutting] | None = None
        self._looked = looked
        self._found = looked.checkpoint
        self._cursor = looked.source.cursor if isinstance(looked.source, QuerySource) else None
        self._refuse_what_a_run_would_change()

    def _refuse_what_a_run_would_change(self) -> None:
        """Refuse a mart that the next run would have to change, and report how; change nothing."""
        writer, name = self._writer, self._looked.definition.final_target
        if not writer.exists:
            raise FatalError(f"{name} does not exist yet: run the pipeline first")
        definition = self._looked.definition
        ignorable = {definition.incremental_key, definition.incremental_id_key} if self._cursor else set()
        ignorable |= {writer.gone}
        given = (column.name for column in self._looked.output)
        missing = [one for one in given if writer.table.column(one) is None and one not in ignorable]
        if missing:
            raise FatalError(f"{name} lacks the column {missing[0]!r}: run the pipeline, which adds it")
        found = writer.connection.execute(
            "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
        ).fetchall()
        refuse_strange_keys(self._fields(self._looked.key), frozenset(row["name"] for row in found))

    @property
    def compared(self) -> list[str]:
        return [name for name in self._writer.columns if name not in self.not_compared]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in self._other_columns if name in self._writer.not_compared]

    def cut(self, sessions: int) -> tuple[SideCut, SideCut]:
        target = Cutting(sessions, self._lend, table=self._writer.table.identifier)
        source = self._queried
        # Recomputed rows are beside the mart, in a table of each look.
        own = of_query(source, self._looked.key, sessions) if source else Cutting(sessions, self._lend)
        self._cuttings = own, target
        return own.report, target.report

    @contextmanager
    def sides(self, found: Checkpoint) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        with self._both(found, self._compared_columns) as both:
            yield both

    @contextmanager
    def key_sides(self, found: Checkpoint) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        with self._both(found, ()) as both:
            yield both

    @contextmanager
    def _both(self, found: Checkpoint, names: Sequence[str]) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        self._found = found
        target = self._maybe_cut(self._target_side(names), 1)
        with target.snapshot(), self._source_side(names) as source, source.snapshot():
            refuse_other_encoding(source, target)
            yield source, target

    def _target_side(self, names: Sequence[str]) -> TableSide:
        return TableSide(
            connection=self._writer.connection,
            head=SQL(""),
            source=self._writer.placed_rows,
            key=self._fields(self._looked.key),
            columns=self._fields(names),
            translate=mart_rows.translate,
            cursor=self._cursor_field,
        )

    @contextmanager
    def _source_side(self, names: Sequence[str]) -> Iterator[TableSide]:
        source = self._queried
        if source is not None:
            yield self._maybe_cut(self._asked(source, names), 0)
            return
        # Imported here: it needs pyarrow, whose import takes half a second.
        from vitrina.connectors.postgres import mart_recomputed

        with mart_recomputed.staged(self._writer, self._url, self._looked, self._found) as (connection, stage):
            side = TableSide(
                connection=connection,
                head=SQL(""),
                source=stage.in_batches(),
                key=self._fields(self._looked.key),
                columns=self._fields(names),
                translate=mart_rows.translate,
                in_flight=mart_recomputed.IS_IN_FLIGHT if self._cursor else SQL("false"),
                latest=mart_recomputed.LATEST if self._cursor else (),
                cursor=self._cursor_field,
                gone=self._is_gone,
            )
            yield self._maybe_cut(side, 0, stage.identifier)

    @property
    def _queried(self) -> QuerySource | None:
        """Return the query if its rows are compared where they are, without steps."""
        source = self._looked.source
        return source if isinstance(source, QuerySource) and not self._looked.has_steps else None

    def _maybe_cut(self, side: TableSide, place: int, table: Composable | None = None) -> TableSide:
        if self._cuttings is None:
            return side
        cutting = self._cuttings[place]
        cutting.table = table or cutting.table
        return cut_side(side, cutting)

    def _asked(self, source: QuerySource, names: Sequence[str]) -> TableSide:
        head, rows = source.query.wrapped(Bounds())
        return TableSide(
            connection=source.reader.connection,
            head=head,
            source=rows,
            key=self._fields(self._looked.key, given=source.types),
            columns=self._fields(names, given=source.types),
            translate=translate_read,
            condition=rescan.is_read(source),
            in_flight=rescan.in_flight(source, self._found),
            latest=rescan.latest(source),
            cursor=self._cursor_field,
            gone=self._is_gone,
        )

    @property
    def _is_gone(self) -> Composable | None:
        """Return the condition on rows that the source marks as deleted: the mart must not contain them."""
        gone = self._writer.gone
        return SQL("coalesce(q.{}, false)").format(Identifier(gone)) if gone else None

    # --- columns -----------------------------------------------------------------------------------------------------

    @property
    def _other_columns(self) -> list[str]:
        return [name for name in self._writer.columns if name not in self._looked.key]

    @property
    def _compared_columns(self) -> list[str]:
        return [name for name in self._other_columns if name not in self._writer.not_compared]

    def _fields(self, names: Sequence[str], *, given: dict[str, str] | None = None) -> tuple[Field, ...]:
        return tuple(Field(name, self._spelled(name, given), self._kind(name)) for name in names)

    def _kind(self, name: str) -> str:
        return mart_rows.kind_of(self._writer, name)

    def _spelled(self, name: str, types_given: dict[str, str] | None) -> Composable:
        """Cast a column to the mart's type: 0.1 as real has another text than as double precision."""
        reference = SQL("q.{}").format(Identifier(name))
        kind = self._kind(name)
        given = types_given[name] if types_given else kind
        if given != kind and types.merge_type(given) != kind:
            return SQL("({}::{})").format(reference, SQL(kind))
        return reference

    @property
    def _cursor_field(self) -> Field | None:
        cursor = self._cursor
        if cursor is None or cursor.key not in self._writer.columns or cursor.key in self._looked.key:
            return None
        return Field(cursor.key, SQL("q.{}").format(Identifier(cursor.key)), cursor.key_type)

    # --- repairing ---------------------------------------------------------------------------------------------------

    @property
    def arrives_as(self) -> dict[str, str]:
        """Return the types of corrections: text, which is exact for every type."""
        return dict.fromkeys(self._writer.staged_columns, "text")

    def refuse_shrinking(self, deletes: int) -> None:
        self._writer.refuse_shrinking(deletes)

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        # Imported here: comparisons within PostgreSQL do not need pyarrow, whose import takes half a second.
        import pyarrow as pa

        self._writer.connection.execute("SET lc_monetary = 'C'")
        if isinstance(self._looked.source, QuerySource):
            self._looked.source.reader.connection.execute("SET lc_monetary = 'C'")
        keys = [difference.key for difference in wanted]
        with self._source_side(self._other_columns) as source:
            for start in range(0, len(keys), batch_rows):
                batch = keys[start : start + batch_rows]
                with source.snapshot():
                    found = source.texts(batch)
                columns = {
                    name: pa.array([row.get(name) for row in found.values()], pa.string())
                    for name in self._writer.staged_columns
                }
                yield Correction(list(found), pa.table(columns), [key for key in batch if key not in found])
