"""Write a ClickHouse table as the target of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.client import Session, Unreachable
from vitrina.connectors.clickhouse.load import IDENTITY, GenerationLoad, MergeLoad
from vitrina.connectors.clickhouse.names import Owner
from vitrina.connectors.clickhouse.opened_table import OpenedTable
from vitrina.connectors.clickhouse.tables import Layout, Shown, Tables, comment_prefix
from vitrina.connectors.clickhouse.urls import parse
from vitrina.errors import CannotConnect, ConfigError, TargetMismatch
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Comparison, Looked
from vitrina.ports.connector import Opening
from vitrina.ports.target import BaseTarget, Load, Loading, Prepared, Wanted

if TYPE_CHECKING:
    from vitrina.ports.profile import TargetProfile

T = TypeVar("T")

# How many rows may be rejected because a type cannot hold them: none in a full load, some in a long-running flow.
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


class ClickHouseTarget(OpenedTable, BaseTarget):
    """Make a table the target of a run."""

    visible: Literal["part", "load"] = "load"
    takes_any_order = True
    corrects = True
    # Each batch is a part that the server has to merge; ClickHouse's documentation advises about one a second.
    correction_seconds = 1.0
    letter_budget: Mapping[str, int] | None = DEFAULT_BUDGET
    no_shortcut_because = "the target is in ClickHouse"

    def seize(self) -> None:
        self._reaching(self.tables.seize)

    def prepare(self, wanted: Wanted, *, create: bool) -> Prepared:
        """Determine key, types and layout; create nothing before a load begins."""
        shown = self._reaching(self.tables.shown)
        self._layout = self._laid_out(wanted, shown)
        if self.definition.mode == "incremental" and shown is not None:
            self.missing_fields(shown)
        is_empty = shown is None or self._reaching(lambda: self.shows_nothing(shown))
        return Prepared(self._layout.key, shown is not None, is_empty, tuple(self._layout.names))

    def prepare_nothing(self, *, replaces: bool) -> Prepared | None:
        """Prepare to empty the target for a source without rows and columns, if allowed. Its columns stay."""
        shown = self._reaching(self.tables.shown)
        if not replaces or shown is None or self.definition.options.shared_target:
            return None
        return Prepared((), exists=True, is_empty=False)

    def _laid_out(self, wanted: Wanted, shown: Shown | None) -> Layout:
        names = [column.name for column in wanted.columns]
        key = wanted.key or (shown.key if shown else None)
        if not key:
            raise TargetMismatch(f"{self.tables} needs target_key, the columns whose values tell rows apart")
        deleted = self.definition.options.delete_when
        for name in (*key, *filter(None, [deleted])):
            if name not in names:
                raise TargetMismatch(f"column {name!r} is not in the query's result (it has: {', '.join(names)})")
        lacks = self._lacking(wanted, shown)
        columns = [one for one in wanted.columns if one.name != deleted and one.name not in lacks]
        fields = types.fields_of(columns, key, self.options.as_string)
        layout = Layout(fields, tuple(key), self.options)
        self._refuse_layout(layout)
        if self.definition.mode == "live":
            self._refuse_texts(layout)
        return layout

    def _lacking(self, wanted: Wanted, shown: Shown | None) -> set[str]:
        """Return the cursor columns that are read but that the table does not keep."""
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
            if self.definition.mode in ("incremental", "live") or self.definition.options.only_adds:
                raise TargetMismatch(
                    f"options.clickhouse.engine {options.engine} holds no versions: use ReplacingMergeTree"
                )
            return
        if order is not None and set(order) != key:
            raise TargetMismatch(
                f"options.clickhouse.order_by must have the columns of target_key ({', '.join(layout.key)}), in any"
                " order: row versions are distinguished by the sort columns; engine MergeTree accepts any"
            )
        if options.expiry and options.expiry[0] not in key:
            raise TargetMismatch(
                f"options.clickhouse.ttl is by {options.expiry[0]}, which is not in target_key: a newer version"
                " of a row could expire before an older one, which would be seen again; engine"
                " MergeTree takes any column"
            )

    def _refuse_texts(self, layout: Layout) -> None:
        """Refuse a key that is written as other text than that by which changed rows name it."""
        if named := sorted(set(layout.key) & set(self.options.as_string)):
            raise TargetMismatch(
                f"options.clickhouse.as_string names {', '.join(named)} of target_key, whose rows a live pipeline could"
                " not find again: cast the column to text in the query"
            )

    def lost(self, found: Checkpoint) -> str | None:
        known = found.identity.get(IDENTITY)
        if self.definition.mode != "live" or known is None:
            return None
        shown = self._reaching(self.tables.shown)
        return None if shown and shown.load == known else f"{self.tables} was deleted or replaced by hand"

    def fingerprint(self) -> Sequence[object]:
        options = self.definition.options
        return (options.only_adds, options.delete_when, self.options.model_dump(mode="json"))

    def compare(self, looked: Looked) -> Comparison:
        from vitrina.connectors.clickhouse.comparison import TableComparison

        return TableComparison(self, looked)

    def profile(self) -> "TargetProfile | None":
        from vitrina.connectors.clickhouse import table_profile

        shown = self._reaching(self.tables.shown)
        return self._reaching(lambda: table_profile.profile(self.server, self.tables, shown)) if shown else None

    def open_load(self, loading: Loading) -> Load:
        return GenerationLoad(self, loading) if loading.kind == "replace" else MergeLoad(self, loading)

    def close(self) -> None:
        """Wait until no sent insert is still in flight, so that another attempt can begin."""
        for writer in self._writers:
            writer.drain()
        self.server.close()

    def _reaching(self, look: Callable[[], T]) -> T:
        """Turn an outage into `CannotConnect`: nothing is written yet, so the run can wait and try again."""
        try:
            return look()
        except Unreachable as exc:
            raise CannotConnect(exc.message) from exc
