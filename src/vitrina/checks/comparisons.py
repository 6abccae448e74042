"""Which comparison fits a target: the connector that wrote it has the fastest way, scanning does for all others."""

from vitrina import targets
from vitrina.checks.comparison import Comparison
from vitrina.loads.job import Opened
from vitrina.ports import registry
from vitrina.ports.target import Comparable


def inspect(opened: Opened) -> Comparison:
    """Find out what there is to compare, or say why it cannot be compared."""
    connector = targets.connector_of(opened.definition.final_target)
    if connector == registry.POSTGRES:
        from vitrina.checks.mart_comparison import MartComparison

        return MartComparison(opened)
    # Imported here: these need pyarrow, and half a second for it.
    if connector == registry.SEARCH:
        from vitrina.checks.index_comparison import IndexComparison

        return IndexComparison(opened)
    if isinstance(opened.target, Comparable):
        from vitrina.checks.side_comparison import SideComparison

        return SideComparison(opened, opened.target)
    from vitrina.checks.scan_comparison import ScanComparison

    return ScanComparison(opened)
