"""An application that changes its tables at random, and queries over them that are hard to follow."""

import random

import psycopg

from tests.live.marts import FILMS

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


def change(session: "psycopg.Connection[tuple[object, ...]]", chance: random.Random) -> None:
    """One transaction of a few statements: some are rolled back, as a whole or in part, some are prepared first."""
    for _ in range(chance.randint(1, 4)):
        text = statement(chance).encode()
        if chance.random() < 0.2:
            session.execute("SAVEPOINT part")
            session.execute(text)
            session.execute("ROLLBACK TO part" if chance.random() < 0.5 else "RELEASE part")
        else:
            session.execute(text)
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


def statement(chance: random.Random) -> str:
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


def move(session: "psycopg.Connection[tuple[object, ...]]", chance: random.Random) -> None:
    """Move money from one account to another, in one transaction of two updates."""
    giver, taker = sorted(chance.sample(range(1, 201), 2))
    session.execute("UPDATE content.account SET balance = balance - 1 WHERE id = %s", [giver])
    session.execute("UPDATE content.account SET balance = balance + 1 WHERE id = %s", [taker])
    session.commit()


def finish_prepared(session: "psycopg.Connection[tuple[object, ...]]") -> None:
    """Roll back what was prepared before a crash of the server: it would hold its locks for ever."""
    prepared = session.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
    session.rollback()
    session.autocommit = True
    for (name,) in prepared:
        session.execute(f"ROLLBACK PREPARED '{name}'".encode())
    session.autocommit = False
