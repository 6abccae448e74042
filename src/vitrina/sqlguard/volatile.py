"""Find output columns that only say when the row was computed: now(), random() and similar functions."""

from typing import NamedTuple


class OutputColumn(NamedTuple):
    name: str | None
    is_stamp: bool


class Columns(NamedTuple):
    """Hold the columns of a query, as far as its text shows them."""

    known: tuple[OutputColumn, ...]
    is_complete: bool  # False if only the database knows: SELECT * FROM some.table


MOST_COLUMNS = 1664  # PostgreSQL's limit; a few nested `SELECT *, *` would give billions

UNKNOWN = Columns((), is_complete=False)

# The FROM clause: alias and columns of each table and subquery.
Sources = dict[str, Columns]


class Reference(NamedTuple):
    """Name a column as the query does; an empty name stands for another value that depends on rows."""

    qualifier: str | None
    name: str


class Target(NamedTuple):
    """Describe one item of a SELECT list."""

    name: str | None
    has_stamp_call: bool
    references: list[Reference]
    star_of: str | None = None  # the qualifier of `t.*`; "" for a bare `*`


def output_columns(targets: list[Target], sources: Sources) -> Columns:
    columns: list[OutputColumn] = []
    is_complete = True
    stamp_sources = _StampSources(sources)
    for target in targets:
        if target.star_of is None:
            columns.append(OutputColumn(target.name, stamp_sources.explain(target)))
            continue
        for source in _sources_of_star(target.star_of, sources):
            columns.extend(source.known)
            is_complete &= source.is_complete
        if len(columns) > MOST_COLUMNS:
            return UNKNOWN
    return Columns(tuple(columns), is_complete)


def renamed(columns: Columns, names: list[str]) -> Columns:
    """Rename the first columns as `AS t (a, b)` does, if it is known which ones these are."""
    if not names:
        return columns
    if not columns.is_complete:
        return UNKNOWN
    changed = [
        OutputColumn(names[place], column.is_stamp) if place < len(names) else column
        for place, column in enumerate(columns.known)
    ]
    return Columns(tuple(changed), is_complete=True)


def merged(left: Columns, right: Columns) -> Columns:
    """Merge the columns of set operations: names come from the left, and a stamp must be one on both sides."""
    if not (left.is_complete and right.is_complete and len(left.known) == len(right.known)):
        return UNKNOWN
    pairs = zip(left.known, right.known, strict=True)
    return Columns(tuple(OutputColumn(one.name, one.is_stamp and two.is_stamp) for one, two in pairs), is_complete=True)


def stamp_names(columns: Columns) -> frozenset[str]:
    return frozenset(column.name for column in columns.known if column.is_stamp and column.name)


class _StampSources:
    """Map the columns of FROM by name to whether they are stamps wherever they have this name."""

    def __init__(self, sources: Sources) -> None:
        self._is_stamp: dict[Reference, bool] = {}
        for alias, source in sources.items():
            for column in source.known:
                if column.name is not None:
                    self._add(Reference(alias, column.name), column.is_stamp)
                    self._add(Reference(None, column.name), column.is_stamp)

    def _add(self, reference: Reference, is_stamp: bool) -> None:
        self._is_stamp[reference] = self._is_stamp.get(reference, True) and is_stamp

    def explain(self, target: Target) -> bool:
        """Return whether the column has only stamps and constants: `now()::date` has, `expires_at > now()` has not."""
        if not all(self._is_stamp.get(reference, False) for reference in target.references):
            return False
        return target.has_stamp_call or bool(target.references)


def _sources_of_star(qualifier: str, sources: Sources) -> list[Columns]:
    return [sources.get(qualifier, UNKNOWN)] if qualifier else list(sources.values())
