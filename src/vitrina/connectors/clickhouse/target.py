"""A ClickHouse table as the target of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.client import Missing, Session, Unreachable, patiently
from vitrina.connectors.clickhouse.names import Owner
from vitrina.connectors.clickhouse.options import ClickHouseOptions
from vitrina.connectors.clickhouse.tables import Layout, Shown, Tables, comment_prefix
from vitrina.connectors.clickhouse.urls import parse
from vitrina.connectors.clickhouse.writer import GroupingWriter
from vitrina.errors import CannotConnect, ConfigError, ShrinkRefused, TargetMismatch
from vitrina.ports.compare import Comparison, Looked
from vitrina.ports.connector import Opening
from vitrina.ports.target import BaseTarget, Load, Loading, Prepared, Wanted

T = TypeVar("T")

# A load that would show fewer than this part of the rows is refused.
SHRINK_LIMIT = 0.5
# Rows may be refused by what a type holds: none of a full load, some of a long-running flow.
DEFAULT_BUDGET = {"full": 0, "incremental": 100, "live": 100}


def open_target(opening: Opening) -> "ClickHouseTarget":
    if opening.url is None:
        raise ConfigError("a ClickHouse target needs options.target_connection, the name of a VITRINA_CONN_<NAME>")
    database, _, table = opening.name.rpartition(".")
    owner = Owner.drawn(opening.work.pipeline_id.hex, opening.work.epoch)
    database = database or parse(opening.url).database
    session = Session(opening.url, f"{comment_prefix(database, table)} {owner}")
    tables = Tables(session, database, table, owner, shared=opening.definition.options.shared_target)
    return ClickHouseTarget(opening, session, tables)


class ClickHouseTarget(BaseTarget):
    """A view under the plain name, and the generation of a table that it shows."""

    visible: Literal["part", "load"] = "load"
    letter_budget: Mapping[str, int] | None = DEFAULT_BUDGET
    no_shortcut_because = "the target is in ClickHouse"

    def __init__(self, opening: Opening, session: Session, tables: Tables) -> None:
        self.opening = opening
        self.session = None  # of Postgres: the checkpoint is the metastore's
        self.server = session
        self.tables = tables
        self.context = opening.context
        self.definition = opening.definition
        made = opening.options
        self.options = made if isinstance(made, ClickHouseOptions) else ClickHouseOptions()
        self._layout: Layout | None = None
        self._writers: list[GroupingWriter] = []

    def seize(self) -> None:
        self._reaching(self.tables.seize)

    # --- preparing -------------------------------------------------------------------------------------------------

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        """Settle key, types and layout; nothing is created before a load begins."""
        shown = self._reaching(self.tables.shown)
        self._layout = self._laid_out(wanted, shown)
        if self.definition.mode == "incremental" and shown is not None:
            self.missing_fields(shown)
        rows = self._reaching(lambda: self._count_shown(shown)) if shown else 0
        return Prepared(self._layout.key, shown is not None, rows == 0, tuple(self._layout.names))

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """A source without rows and columns empties the target, if it may; its columns stay as they are."""
        shown = self._reaching(self.tables.shown)
        if not replaces or shown is None or self.definition.options.shared_target:
            return None
        return Prepared((), exists=True, is_empty=False)

    def _laid_out(self, wanted: Wanted, shown: Shown | None) -> Layout:
        names = [column.name for column in wanted.columns]
        key = wanted.key or (shown.key if shown else None)
        if not key:
            raise TargetMismatch(f"{self.tables} needs target_key, the columns whose values tell rows apart")
        gone = self.definition.options.delete_when
        for name in (*key, *filter(None, [gone])):
            if name not in names:
                raise TargetMismatch(f"column {name!r} is not in the query's result (it has: {', '.join(names)})")
        lacks = self._lacking(wanted, shown)
        columns = [one for one in wanted.columns if one.name != gone and one.name not in lacks]
        fields = types.fields_of(columns, key, self.options.as_string)
        layout = Layout(fields, tuple(key), self.options)
        self._refuse_layout(layout)
        return layout

    def _lacking(self, wanted: Wanted, shown: Shown | None) -> set[str]:
        """A cursor that is read and not kept."""
        if shown is None or self.definition.mode != "incremental":
            return set()
        return set(wanted.ignorable) - self.tables.columns(shown.generation).keys()

    def _refuse_layout(self, layout: Layout) -> None:
        options, names = layout.options, set(layout.names)
        order, key = options.order_by, set(layout.key)
        used = {
            *(order or ()),
            *filter(None, [options.partition and options.partition[1], options.expiry and options.expiry[0]]),
        }
        if unknown := sorted(used - names):
            raise TargetMismatch(f"options.clickhouse names {', '.join(unknown)}, which the query does not give")
        if reserved := sorted(names & {"_version", "_deleted"}):
            raise TargetMismatch(
                f"{', '.join(reserved)}: the table has columns of that name for itself; rename in the query"
            )
        if not options.is_versioned:
            if self.definition.mode == "incremental" or self.definition.options.shared_target:
                raise TargetMismatch(
                    f"options.clickhouse.engine {options.engine} holds no versions: use ReplacingMergeTree"
                )
            return
        if order is not None and set(order) != key:
            raise TargetMismatch(
                f"options.clickhouse.order_by must have the columns of target_key ({', '.join(layout.key)}), in any"
                " order: rows with versions are told apart by what they are sorted by; engine MergeTree takes any"
            )
        if options.expiry and options.expiry[0] not in key:
            raise TargetMismatch(
                f"options.clickhouse.ttl is by {options.expiry[0]}, which is not in target_key: a newer version"
                " of a row could expire before an older one, which would be seen again; engine"
                " MergeTree takes any column"
            )

    def missing_fields(self, shown: Shown) -> list[types.Field]:
        """Compare with what is shown: columns that it lacks are added on request, the rest is refused by name."""
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

    def fingerprint(self) -> Sequence[object]:
        options = self.definition.options
        return (options.shared_target, options.delete_when, self.options.model_dump(mode="json"))

    # --- comparing -------------------------------------------------------------------------------------------------

    def compare(self, looked: Looked) -> Comparison:
        from vitrina.connectors.clickhouse.comparison import TableComparison

        return TableComparison(self, looked)

    # --- loading ---------------------------------------------------------------------------------------------------

    def open_load(self, loading: Loading) -> Load:
        from vitrina.connectors.clickhouse.load import GenerationLoad, MergeLoad

        return GenerationLoad(self, loading) if loading.kind == "replace" else MergeLoad(self, loading)

    def close(self) -> None:
        """Nothing that was sent is still on its way when another try begins."""
        for writer in self._writers:
            writer.drain()
        self.server.close()

    # --- for the loads ---------------------------------------------------------------------------------------------

    def keep(self, writer: GroupingWriter) -> GroupingWriter:
        self._writers.append(writer)
        return writer

    def patiently(self, move: Callable[[], T]) -> T:
        """By the run's own thread: a move that may be made twice."""

        def tell(reason: str | None) -> None:
            self.context.tell(reason)
            self.context.show()

        return patiently(move, self.context.wait, tell)

    def patiently_aside(self, move: Callable[[], T]) -> T:
        """The same by a thread that inserts."""
        return patiently(move, self.context.wait, self.context.tell)

    def _reaching(self, look: Callable[[], T]) -> T:
        """As long as nothing is written, an outage costs nobody anything: the run waits and tries again."""
        try:
            return look()
        except Unreachable as exc:
            raise CannotConnect(exc.message) from exc

    def _count_shown(self, shown: Shown) -> int:
        try:
            return self.tables.count(shown.generation, final=shown.is_versioned)
        except Missing as exc:
            raise TargetMismatch(
                f"{self.tables} shows {shown.generation}, which somebody dropped: drop the view, and run the pipeline"
            ) from exc

    def refuse_shrinking(self, rows: int, before: int) -> None:
        options = self.definition.options
        if rows == 0 and before and not options.allow_empty:
            raise ShrinkRefused(
                f"the source has no rows, but {self.tables} shows {before:,}; if it shall be emptied, set"
                " options.allow_empty"
            )
        if rows < before * SHRINK_LIMIT and rows and not options.allow_shrink:
            raise ShrinkRefused(
                f"publishing would leave {rows:,} of {before:,} rows in {self.tables}; if the source really shrank that"
                " much, set options.allow_shrink and run again"
            )

    def rows_shown(self) -> int:
        shown = self.tables.shown()
        return self._count_shown(shown) if shown else 0


def _plain(kind: str) -> str:
    return kind.replace(" ", "")
