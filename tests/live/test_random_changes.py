"""Random changes of several tables, with several live pipelines and a runner that is killed: at rest all are equal."""

import random

import psycopg
import pytest

from tests.live import application
from tests.live.application import QUERIES
from tests.live.marts import Marts

TRANSACTIONS = 120


@pytest.mark.parametrize("seed", [1, 2])
def test_marts_are_equal_at_rest(marts: Marts, seed: int) -> None:
    chance = random.Random(seed)
    for name, query in QUERIES.items():
        marts.live(name, query)
    marts.start_runner()
    marts.await_following(*QUERIES)
    assert marts.settings.admin_url
    with psycopg.connect(marts.settings.admin_url.get_secret_value()) as session:
        for number in range(TRANSACTIONS):
            application.change(session, chance)
            if number == TRANSACTIONS // 2:
                marts.kill(marts.runners[0])
                marts.start_runner()
    for name, query in QUERIES.items():
        marts.await_true(f"{name} is followed again", lambda name=name: marts.is_following(name))  # type: ignore[misc]
        marts.settle(name)
        assert not marts.differences(name, query), name
