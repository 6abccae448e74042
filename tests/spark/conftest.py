"""One Spark Connect server for all tests of a session, and a bench whose pipelines it can bring rows for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.spark import server
from tests.spark.server import SparkServer
from tests.support.workbench import Workbench
from vitrina.store import database


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    by_hand = os.environ.get("VITRINA_TEST_SPARK_DIRECTORY")
    running = server.found_in(Path(by_hand)) if by_hand else server.running(tmp_path_factory.mktemp("spark"))
    with running as started:
        yield started


@pytest.fixture
def bench(workbench: Workbench, spark: SparkServer) -> Workbench:
    settings = workbench.settings
    assert settings.reader_url is not None or settings.reader_password is not None
    connect(workbench, spark)
    return workbench


def connect(workbench: Workbench, spark: SparkServer) -> None:
    """Give the bench the connection `cluster`, and the executors the bench's database."""
    settings = workbench.settings
    workbench.settings = settings.model_copy(
        update={"connections": {"cluster": SecretStr(spark.url)}, "backoff_seconds": (0.1,)}
    )
    spark.tell(
        VITRINA_DATABASE_URL=settings.require_database_url(), VITRINA_READER_URL=database.reader_url(settings, None)
    )
