"""Profile a ClickHouse table: rows, size, and for each column NULLs, distinct, least, greatest and frequent values."""

from collections.abc import Sequence
from typing import Any

from vitrina.connectors.clickhouse.client import Session, quoted
from vitrina.connectors.clickhouse.tables import Shown, Tables
from vitrina.ports.profile import LONGEST_SHOWN, TOP_VALUES, ColumnProfile, TargetProfile

# In a larger table, columns are profiled on a sample of about so many rows.
MOST_ROWS = 1_000_000
_WITHOUT_ORDER = ("Array", "Map", "Tuple", "JSON", "Object", "Variant", "Dynamic")


def profile(session: Session, tables: Tables, shown: Shown) -> TargetProfile:
    """Query the view, as readers do."""
    rows = int(session.value(f"SELECT count() FROM {tables.path(tables.table)}"))
    kinds = tables.columns(shown.generation)
    looked_at = _looked_at(tables, shown, rows)
    [found] = session.rows(f"SELECT {', '.join(['count()', *map(_outputs, kinds, kinds.values())])} FROM {looked_at}")
    columns = [
        _column(session, looked_at, name, kind, found[1 + 4 * place : 5 + 4 * place])
        for place, (name, kind) in enumerate(kinds.items())
    ]
    return TargetProfile(rows, _size(session, tables, shown), int(found[0]), columns)


def _looked_at(tables: Tables, shown: Shown, rows: int) -> str:
    """Return the FROM item: the view, or a sample chosen by the hash of the key, the same for every column."""
    view = tables.path(tables.table)
    if rows <= MOST_ROWS:
        return view
    key = ", ".join(map(quoted, shown.key))
    return f"(SELECT * FROM {view} WHERE sipHash64({key}) % {-(-rows // MOST_ROWS)} = 0)"


def _outputs(name: str, kind: str) -> str:
    value = quoted(name)
    ordered = not any(word in kind for word in _WITHOUT_ORDER)
    # An aggregate over no rows returns a default unless NULL is requested.
    ends = [f"substringUTF8(toString({function}OrNull({value})), 1, {LONGEST_SHOWN})" for function in ("min", "max")]
    return ", ".join([f"countIf(isNull({value}))", f"uniqExact({value})", *(ends if ordered else ["NULL", "NULL"])])


def _column(session: Session, looked_at: str, name: str, kind: str, found: Sequence[Any]) -> ColumnProfile:
    value = quoted(name)
    top = session.rows(
        f"SELECT substringUTF8(toString(v), 1, {LONGEST_SHOWN}), c FROM (SELECT {value} AS v, count() AS c FROM"
        # Values that occur once are never the most frequent.
        f" {looked_at} WHERE isNotNull({value}) GROUP BY v HAVING c > 1)"
        f" ORDER BY c DESC, toString(v) LIMIT {TOP_VALUES}"
    )
    nulls, distinct, least, greatest = found
    return ColumnProfile(
        name=name,
        type=kind,
        nulls=int(nulls),
        distinct=int(distinct),
        least=least,
        greatest=greatest,
        top=[(str(shown), int(count)) for shown, count in top],
    )


def _size(session: Session, tables: Tables, shown: Shown) -> int:
    found = session.value(
        "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = {db:String} AND table = {name:String} AND active",
        {"db": tables.database, "name": shown.generation},
    )
    return int(found or 0)
