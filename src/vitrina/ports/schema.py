"""Columns of a result. Apart from the catalog, because workers of steps know columns and load no driver."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    """A column of a query's result; `type` is as `format_type` writes it, precision included."""

    name: str
    type: str
    # Of the source's table and its column, when the query gives a plain column of one.
    origin: tuple[int, int] | None = field(default=None, compare=False, kw_only=True)
