"""Random changes of several tables, with several live pipelines and a runner that is killed: at rest all are equal."""

import random

import psycopg
import pytest

from tests.live.marts import FILMS, Marts

QUERIES = {
    "films": FILMS,
    "unrated": """
        SELECT f.id, f.title FROM content.film f
        WHERE NOT EXISTS (SELECT FROM content.rating r WHERE r.film_id = f.id)
    """,
    "best": """
        SELECT DISTINCT ON (r.film_id) r.film_id AS id, r.id AS rating, r.score FROM content.rating r
        ORDER BY r.film_id, r.score DESC, r.id
    """,
    "studios": """
        SELECT s.id, s.name, count(f.id) AS films FROM content.studio s
        LEFT JOIN content.film f ON f.studio_id = s.id GROUP BY s.id, s.name
    """,
}
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
            _change(session, chance)
            if number == TRANSACTIONS // 2:
                marts.kill(marts.runners[0])
                marts.start_runner()
    for name, query in QUERIES.items():
        marts.await_true(f"{name} is followed again", lambda name=name: marts.is_following(name))  # type: ignore[misc]
        marts.settle(name)
        assert not marts.differences(name, query), name


def _change(session: "psycopg.Connection[tuple[object, ...]]", chance: random.Random) -> None:
    """One transaction of a few statements: some are rolled back, as a whole or in part, some are prepared first."""
    for _ in range(chance.randint(1, 4)):
        statement = _statement(chance).encode()
        if chance.random() < 0.2:
            session.execute("SAVEPOINT part")
            session.execute(statement)
            session.execute("ROLLBACK TO part" if chance.random() < 0.5 else "RELEASE part")
        else:
            session.execute(statement)
    if chance.random() < 0.1:
        session.rollback()
    elif chance.random() < 0.1:
        name = f"live_{chance.randrange(10**9)}"
        session.execute(f"PREPARE TRANSACTION '{name}'".encode())
        session.rollback()
        session.autocommit = True
        session.execute(f"COMMIT PREPARED '{name}'".encode())
        session.autocommit = False
    else:
        session.commit()


def _statement(chance: random.Random) -> str:
    film, other, rating = chance.randint(1, 60), chance.randint(61, 10_000), chance.randint(1, 450)
    studio, score = chance.randint(1, 6), chance.randint(0, 10)
    return chance.choice(
        [
            f"INSERT INTO content.film VALUES ({film}, 'film {other}', {studio}) ON CONFLICT DO NOTHING",
            f"UPDATE content.film SET title = 'film {other}' WHERE id = {film}",
            f"UPDATE content.film SET studio_id = {studio} WHERE id % 7 = {film % 7}",
            f"UPDATE content.film SET studio_id = NULL WHERE id = {film}",
            f"UPDATE content.film SET id = {other} WHERE id = {film} AND {other} NOT IN (SELECT id FROM content.film)",
            f"DELETE FROM content.film WHERE id = {film}",
            f"INSERT INTO content.rating VALUES ({rating}, {film}, {score}) ON CONFLICT DO NOTHING",
            f"UPDATE content.rating SET film_id = {film} WHERE id = {rating}",
            f"UPDATE content.rating SET score = {score} WHERE film_id = {film}",
            f"DELETE FROM content.rating WHERE film_id = {film}",
            f"INSERT INTO content.studio VALUES ({studio}, 'studio {other}') ON CONFLICT DO NOTHING",
            f"UPDATE content.studio SET name = 'studio {other}' WHERE id = {studio}",
        ]
    )
