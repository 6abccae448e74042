"""Describe a window of a query: which rows, and whether in the order of the cursor."""

from dataclasses import dataclass, field

from vitrina.connectors.postgres.source import Bounds
from vitrina.ports.source import Window


@dataclass(frozen=True)
class QueryWindow(Window):
    """Select rows within bounds of the cursor."""

    bounds: Bounds = field(default_factory=Bounds)
    by_cursor: bool = False
