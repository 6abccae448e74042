"""Describe the connector for ClickHouse targets. Functions import the client when they need it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vitrina.connectors.clickhouse import urls
from vitrina.connectors.clickhouse.options import ClickHouseOptions
from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.target import Target
    from vitrina.settings import Settings

_WORD = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
# `table` or `database.table`; excludes the names of Vitrina's own objects and the server's system databases.
TARGET_NAME = rf"(?!.*__[gsvr]\d+x)(?!(?i:system|information_schema)\.)(?:{_WORD}\.)?{_WORD}"


def _open_target(opening: Opening) -> "Target":
    from vitrina.connectors.clickhouse.target import open_target

    return open_target(opening)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    from vitrina.connectors.clickhouse.health import check

    yield from check(url)


def _place(settings: "Settings", connection: str | None) -> str | None:
    from vitrina.connectors.clickhouse.health import server_of

    return server_of(settings.connection_url(connection)) if connection else None


def _dataset(url: str | None, name: str) -> tuple[str, str]:
    server = urls.parse(url or "clickhouse://localhost")
    return f"clickhouse://{server.host}:{server.port}", name if "." in name else f"{server.database}.{name}"


connector = Connector(
    name="clickhouse",
    summary="ClickHouse: tables as targets (`clickhouse:database.table`).",
    schemes=urls.SCHEMES,
    prefix="clickhouse",
    target_name=TARGET_NAME,
    options=ClickHouseOptions,
    open_target=_open_target,
    takes_delete_when=True,
    removes_rows=True,
    target_sessions=1,
    url_problem=urls.problem,
    kept_url_problem=urls.kept_problem,
    check=_check,
    place=_place,
    dataset=_dataset,
)
