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

# Tables that change their form, and queries over them with their keys.
FORMS = """
CREATE TABLE content.event (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE content.event_1 PARTITION OF content.event FOR VALUES FROM (0) TO (10);
CREATE TABLE content.event_2 PARTITION OF content.event FOR VALUES FROM (10) TO (20);
INSERT INTO content.event SELECT n, n % 20, 'note ' || n FROM generate_series(1, 200) n;
CREATE TABLE content.label (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO content.label SELECT n, 'label ' || n FROM generate_series(1, 50) n;
CREATE VIEW content.shown AS SELECT id, name FROM content.label WHERE id < 40;
GRANT SELECT ON ALL TABLES IN SCHEMA content TO vitrina_reader;
"""
QUERIES_OF_FORMS = {
    "events": ("SELECT id, day, note FROM content.event", ["id", "day"]),
    "shown": ("SELECT id, name FROM content.shown", ["id"]),
}
_DETACH = "ALTER TABLE content.event DETACH PARTITION content.event_2"
_ATTACH = "ALTER TABLE content.event ATTACH PARTITION content.event_2 FOR VALUES FROM (10) TO (20)"
_MOVED_ROWS = """
UPDATE content.event AS e SET day = day + 10 WHERE day < 10 AND id % 20 = {day}
    AND NOT EXISTS (SELECT FROM content.event o WHERE o.id = e.id AND o.day = e.day + 10);
"""
_ALTERATIONS = (
    "TRUNCATE content.event_1",
    "TRUNCATE content.rating",
    "INSERT INTO content.event VALUES ({number}, 5, 'new') ON CONFLICT DO NOTHING; UPDATE content.event SET note = '.'",
    """
    DROP TABLE content.event_1;
    CREATE TABLE content.event_1 PARTITION OF content.event FOR VALUES FROM (0) TO (10);
    INSERT INTO content.event SELECT n, n % 10, 'renewed' FROM generate_series(300, 300 + {number}) n;
    GRANT SELECT ON content.event_1 TO vitrina_reader
    """,
    """
    CREATE TABLE content.film_new (LIKE content.film INCLUDING ALL);
    INSERT INTO content.film_new SELECT * FROM content.film WHERE id % 20 <> {day};
    ALTER TABLE content.film_new REPLICA IDENTITY FULL;
    GRANT SELECT ON content.film_new TO vitrina_reader;
    ALTER TABLE content.film RENAME TO film_old;
    ALTER TABLE content.film_new RENAME TO film;
    DROP TABLE content.film_old
    """,
    "CREATE OR REPLACE VIEW content.shown AS SELECT id, name || '{number}' AS name FROM content.label WHERE id > {day}",
    "UPDATE content.label SET name = 'named {number}' WHERE id % 20 = {day}",
    "ALTER TABLE content.studio REPLICA IDENTITY FULL; UPDATE content.studio SET name = name || '{number}'",
    "UPDATE content.studio SET name = 'of {number}'; ALTER TABLE content.studio REPLICA IDENTITY DEFAULT",
    """
    ALTER TABLE content.film ADD COLUMN IF NOT EXISTS extra int DEFAULT {number};
    UPDATE content.film SET title = 'wider {number}' WHERE id = {number}
    """,
    "ALTER TABLE content.film DROP COLUMN IF EXISTS extra; UPDATE content.film SET title = title || '.'",
)


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


def alter(session: "psycopg.Connection[tuple[object, ...]]", chance: random.Random) -> None:
    """One transaction that changes what a table is, and rows of it."""
    number = chance.randint(1, 60)
    is_whole = session.execute("SELECT relispartition FROM pg_class WHERE oid = 'content.event_2'::regclass").fetchone()
    partition = _MOVED_ROWS + _DETACH if is_whole == (True,) else _ATTACH
    text = chance.choice([*_ALTERATIONS, partition, partition]).format(number=number, day=number % 20)
    session.execute(text.encode())
    session.commit()
