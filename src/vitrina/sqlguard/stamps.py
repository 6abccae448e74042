"""Which output columns only say when the row was made: now(), random() and the like."""

from typing import NamedTuple


class OutputColumn(NamedTuple):
    name: str | None
    is_stamp: bool


class Columns(NamedTuple):
    """The columns of a query, as far as its text tells them."""

    known: tuple[OutputColumn, ...]
    is_complete: bool  # False where only the database can tell: SELECT * FROM some.table


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
    for target in targets:
        if target.star_of is None:
            columns.append(OutputColumn(target.name, _is_stamp(target, sources)))
            continue
        for source in _sources_of_star(target.star_of, sources):
            columns.extend(source.known)
            is_complete &= source.is_complete
    return Columns(tuple(columns), is_complete)


def renamed(columns: Columns, names: list[str]) -> Columns:
    """`AS t (a, b)` renames the first two columns; which ones these are must be known."""
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
    """UNION and the like: names come from the left, and a stamp must be one on both sides."""
    if not (left.is_complete and right.is_complete and len(left.known) == len(right.known)):
        return UNKNOWN
    pairs = zip(left.known, right.known, strict=True)
    return Columns(tuple(OutputColumn(one.name, one.is_stamp and two.is_stamp) for one, two in pairs), is_complete=True)


def stamp_names(columns: Columns) -> frozenset[str]:
    return frozenset(column.name for column in columns.known if column.is_stamp and column.name)


def _is_stamp(target: Target, sources: Sources) -> bool:
    """Stamps and constants only: `now()::date` is one; `expires_at > now()` tells about the row, so it is none."""
    if not all(_refers_to_stamp(reference, sources) for reference in target.references):
        return False
    return target.has_stamp_call or bool(target.references)


def _refers_to_stamp(reference: Reference, sources: Sources) -> bool:
    candidates = [
        column.is_stamp
        for alias, source in sources.items()
        if reference.qualifier in (None, alias)
        for column in source.known
        if column.name == reference.name
    ]
    return bool(candidates) and all(candidates)


def _sources_of_star(qualifier: str, sources: Sources) -> list[Columns]:
    return [sources.get(qualifier, UNKNOWN)] if qualifier else list(sources.values())
