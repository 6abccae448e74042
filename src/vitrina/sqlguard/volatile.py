"""Which output columns only say when the row was made: now(), random() and the like."""

from typing import NamedTuple


class OutputColumn(NamedTuple):
    name: str | None
    is_stamp: bool


class Columns(NamedTuple):
    """The columns of a query, as far as its text tells them."""

    known: tuple[OutputColumn, ...]
    is_complete: bool  # False where only the database can tell: SELECT * FROM some.table


MOST_COLUMNS = 1664  # PostgreSQL's limit; `SELECT *, *` nested a few times would give billions

UNKNOWN = Columns((), is_complete=False)

# What stands behind FROM: alias and columns of each table and subquery.
Sources = dict[str, Columns]


class Reference(NamedTuple):
    """A column as the query names it; an empty name stands for a value that rows decide in another way."""

    qualifier: str | None
    name: str


class Target(NamedTuple):
    """One item of a SELECT list."""

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
    """Rename the first columns as `AS t (a, b)` does; which ones these are must be known."""
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
    """Merge the columns of UNION and the like: names come from the left, and a stamp must be one on both sides."""
    if not (left.is_complete and right.is_complete and len(left.known) == len(right.known)):
        return UNKNOWN
    pairs = zip(left.known, right.known, strict=True)
    return Columns(tuple(OutputColumn(one.name, one.is_stamp and two.is_stamp) for one, two in pairs), is_complete=True)


def stamp_names(columns: Columns) -> frozenset[str]:
    return frozenset(column.name for column in columns.known if column.is_stamp and column.name)


class _StampSources:
    """The columns of FROM by name: True for those that are stamps wherever they have this name."""

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
        """Tell whether it is made of stamps and constants only: `now()::date` is, `expires_at > now()` is not."""
        if not all(self._is_stamp.get(reference, False) for reference in target.references):
            return False
        return target.has_stamp_call or bool(target.references)


def _sources_of_star(qualifier: str, sources: Sources) -> list[Columns]:
    return [sources.get(qualifier, UNKNOWN)] if qualifier else list(sources.values())
