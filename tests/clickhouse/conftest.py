"""A ClickHouse for these tests: chdb in a process of its own, or the server of VITRINA_TEST_CLICKHOUSE_URL."""

import os
from collections.abc import Iterator

import pytest

from tests.clickhouse.places import Place
from tests.support.clickhouse_process import ClickHouseProcess, clickhouse_process


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    given = os.environ.get("VITRINA_TEST_CLICKHOUSE_URL")
    if given:
        yield ClickHouseProcess(given)
        return
    with clickhouse_process(tmp_path_factory.mktemp("clickhouse")) as process:
        yield process


@pytest.fixture
def place(clickhouse: ClickHouseProcess) -> Iterator[Place]:
    """A database of its own, dropped afterwards."""
    with Place.made(clickhouse) as made:
        yield made


@pytest.fixture
def faults(clickhouse: ClickHouseProcess) -> Iterator[ClickHouseProcess]:
    """The same server, for tests that meet statements with faults."""
    if not clickhouse.can_fault:
        pytest.skip("a server of VITRINA_TEST_CLICKHOUSE_URL cannot be asked for faults")
    yield clickhouse
    clickhouse.release()
