"""Columns of a result. Apart from the catalog, because workers of steps know columns and load no driver."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Column:
    """A column of a query's result; `type` is as `format_type` writes it, precision included."""

    name: str
    type: str
    # Of the source's table and its column, when the query gives a plain column of one.
    origin: tuple[int, int] | None = field(default=None, compare=False, kw_only=True)


class Known(Protocol):
    """What a target that exists says of its columns."""

    @property
    def columns(self) -> Sequence[Column]: ...

    @property
    def primary_key(self) -> tuple[str, ...]: ...

    def column(self, name: str) -> Column | None: ...
