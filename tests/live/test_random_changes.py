"""Random changes of rows and of tables, several live pipelines, a runner that is killed: at rest all marts are equal.

`VITRINA_CHAOS=long` makes ten such lives.
"""

import random

import psycopg
import pytest

from tests.chaos.conftest import LONG
from tests.live import application
from tests.live.application import FORMS, QUERIES, QUERIES_OF_FORMS
from tests.live.marts import Marts

TRANSACTIONS = 300 if LONG else 120
# One transaction in so many changes what a table is.
ONE_ALTERATION_IN = 12
QUERIES_AND_KEYS = {name: (query, ["id"]) for name, query in QUERIES.items()} | QUERIES_OF_FORMS


@pytest.mark.timeout(1800 if LONG else 240)
@pytest.mark.parametrize("seed", range(1, 11) if LONG else [1, 2])
def test_marts_are_equal_at_rest(marts: Marts, seed: int) -> None:
    chance = random.Random(seed)
    marts.sql(FORMS)
    for name, (query, key) in QUERIES_AND_KEYS.items():
        marts.live(name, query, target_key=key, options={"allow_empty": True, "allow_shrink": True})
    marts.start_runner()
    marts.await_following(*QUERIES_AND_KEYS)
    assert marts.settings.admin_url
    with psycopg.connect(marts.settings.admin_url.get_secret_value()) as session:
        for number in range(TRANSACTIONS):
            application.change(session, chance)
            if number % ONE_ALTERATION_IN == 0:
                application.alter(session, chance)
            if number == TRANSACTIONS // 2:
                marts.kill(marts.runners[0])
                marts.start_runner()
    for name, (query, _) in QUERIES_AND_KEYS.items():
        marts.await_true(f"{name} is followed again", lambda name=name: marts.is_following(name))  # type: ignore[misc]
        marts.settle(name)
        assert not marts.differences(name, query), name
