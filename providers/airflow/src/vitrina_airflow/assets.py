"""Represent targets as Airflow assets. A DAG that is scheduled on an asset runs when a task has updated the target."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from vitrina_airflow.compat import Asset, AssetAlias

# Under this name every task announces the targets that it wrote, which are known only after it has run.
TARGETS = AssetAlias(name="vitrina")


def target_asset(target: str) -> Asset:
    """Return the asset of a target, such as `analytics.films`, for `schedule` and `inlets`."""
    return Asset(f"vitrina://target/{quote(target, safe='')}")


def announce(context: Mapping[str, Any], outlets: list[Any], target: str, told: Mapping[str, Any]) -> None:
    """Add the run's counters to the events of the outlets; an alias gets the target's own asset."""
    events = context["outlet_events"]
    extra = {"target": target, **{name: told[name] for name in _TOLD}}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            events[outlet].add(target_asset(target), extra=extra)
        elif isinstance(outlet, Asset):
            events[outlet].extra.update(extra)


_TOLD = ("pipeline", "run_id", "rows_read", "rows_written", "rows_deleted", "rows_rejected")
