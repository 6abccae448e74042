"""`vitrina profile`: show the contents of a pipeline's target."""

from typing import Any

from vitrina.cli import remote
from vitrina.cli.checks import RECONCILE_SECONDS, Timeout, result_of
from vitrina.cli.output import Format, Output, show_data, show_table
from vitrina.cli.remote import PipelineName


def profile(pipeline: PipelineName, timeout: Timeout = RECONCILE_SECONDS, output: Output = Format.TABLE) -> None:
    """Profile the target: rows, size, columns."""
    with remote.api() as client:
        found = result_of(client, client.profile(pipeline), timeout)
    if output is not Format.TABLE:
        show_data(found, output)
        return
    columns = [[one[name] for name in _SHOWN] + [_top(one["top_values"])] for one in found["columns"]]
    show_table(columns, [*_TITLES, "most frequent"])
    sampled = f", columns of a sample of {found['profiled_rows']:,}" if found["profiled_rows"] < found["rows"] else ""
    size = f", {found['size_bytes'] / (1 << 20):,.1f} MB" if found["size_bytes"] is not None else ""
    print(f"\n{found['target']}: {found['rows']:,} rows{sampled}{size}")


_SHOWN = ("name", "type", "nulls", "distinct", "min_value", "max_value")
_TITLES = ("column", "type", "nulls", "distinct", "least", "greatest")


def _top(values: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['value']} ({one['rows']:,})" for one in values[:3]) or "-"
