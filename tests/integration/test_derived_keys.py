"""Stale keys, derived from changed rows: marts that are kept by them alone equal their queries."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import followed
from tests.support.followed import QUERIES, Mart
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

BATCHES = 40


@pytest.fixture
def source(database: Settings) -> Iterator[Connection]:
    assert database.admin_url is not None
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-followed") as session:
        session.execute("SET search_path = ''")
        followed.set_up(session)
        chance = random.Random(7)
        for _ in range(25):
            followed.change_at_random(session, chance)
        yield session


@pytest.mark.parametrize("seed", [1, 2])
def test_marts_follow_random_changes(source: Connection, seed: int) -> None:
    marts = [Mart.loaded(source, query) for query in QUERIES]
    assert list(followed.differences(source, marts, BATCHES, random.Random(seed))) == []
    assert [mart.followed.name for mart in marts if not mart.asked] == []


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_what_is_derived(source: Connection, query: Any) -> None:
    mart = Mart.loaded(source, query)
    assert {table.relation for table in mart.derivation.tables if table.every_key} == query.every_key
