"""Describe Spark as an engine for loads by key range. Importing this module does not load the Spark client."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrina.connectors.spark import urls
from vitrina.connectors.spark.options import SparkOptions
from vitrina.ports.connector import Connector

if TYPE_CHECKING:
    from vitrina.ports.ranges import Engine, EngineOpening


def _open_engine(opening: "EngineOpening") -> "Engine":
    from vitrina.connectors.spark.engine import SparkEngine

    return SparkEngine(opening)


def _check_engine(url: str, limit_seconds: float) -> Sequence[str]:
    from vitrina.connectors.spark.cluster import differences

    return differences(url, limit_seconds)


connector = Connector(
    name="spark",
    summary="Executors of a Spark 4 cluster bring ranges of the key (`options.engine: spark`); needs `vitrina[spark]`.",
    schemes=urls.SCHEMES,
    options=SparkOptions,
    secrets=urls.SECRETS,
    url_problem=urls.problem,
    kept_url_problem=urls.kept_problem,
    open_engine=_open_engine,
    check_engine=_check_engine,
)
