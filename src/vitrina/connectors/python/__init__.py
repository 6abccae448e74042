"""Registered Python functions as sources: the connector's description."""

from typing import Any

from vitrina.ports.connector import Connector


def _open_source(*arguments: Any) -> Any:
    from vitrina.connectors.python.opening import open_source

    return open_source(*arguments)


connector = Connector(
    name="python",
    summary="Rows that a registered Python function makes (`@source`); named in `python_task`.",
    open_source=_open_source,
)
