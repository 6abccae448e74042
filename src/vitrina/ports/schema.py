"""Define the columns of a result. Separate from the catalog, because step workers load no driver."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Column:
    """Describe a column of a query's result; `type` is written as by `format_type`, with its precision."""

    name: str
    type: str
    # The source's table and column numbers, if the query returns a plain column.
    origin: tuple[int, int] | None = field(default=None, compare=False, kw_only=True)


class Known(Protocol):
    """Describe the columns of an existing target."""

    @property
    def columns(self) -> Sequence[Column]: ...

    @property
    def primary_key(self) -> tuple[str, ...]: ...

    def column(self, name: str) -> Column | None: ...
