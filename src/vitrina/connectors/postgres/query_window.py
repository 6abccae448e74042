"""A window of a query that a pass made: which rows, and whether in the order of the cursor."""

from dataclasses import dataclass, field

from vitrina.connectors.postgres.source import Bounds
from vitrina.ports.source import Window


@dataclass(frozen=True)
class QueryWindow(Window):
    """Rows within bounds of the cursor."""

    bounds: Bounds = field(default_factory=Bounds)
    by_cursor: bool = False
