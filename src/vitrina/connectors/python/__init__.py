"""Describe the connector for registered Python functions as sources."""

from typing import TYPE_CHECKING

from vitrina.ports.connector import Connector, Opening

if TYPE_CHECKING:
    from vitrina.ports.source import Source


def _open_source(opening: Opening) -> "Source":
    from vitrina.connectors.python.opening import open_source
    from vitrina.inside.opening import inside_of

    inside = inside_of(opening)
    return open_source(inside.definition, inside.settings, inside.claim, inside.sessions, opening.context.attach)


connector = Connector(
    name="python",
    summary="Rows that a registered Python function makes (`@source`); named in `python_task`.",
    open_source=_open_source,
)
