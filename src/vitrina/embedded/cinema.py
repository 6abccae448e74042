"""Load the demo cinema: a few hundred well-known films with their viewers, or any number of generated ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

Connection = psycopg.Connection[Any]

TABLES = (
    "content.film_work",
    "content.genre",
    "content.person",
    "content.genre_film_work",
    "content.person_film_work",
    "ugc.ratings",
    "ugc.reviews",
    "ugc.views",
    "auth.users",
    "auth.sessions",
)
# What pipelines must be allowed to read for the demo's marts. `auth` is not a default of an installation, where it may
# hold data that only its own service should see.
SCHEMAS = "content,ugc,auth"

# A viewer rates this many films, half of them popular ones; one film in fifty is popular.
RATINGS_PER_VIEWER = 20
FILMS_PER_POPULAR_ONE = 50


def load(connection: Connection) -> None:
    """Load the well-known films and their viewers by running init_demo_data.sql, which keeps existing rows."""
    script = (resources.files("vitrina.embedded") / "init_demo_data.sql").read_bytes()
    with connection.transaction():
        connection.execute(script)


def generate(connection: Connection, films: int, ratings: int, seed: int) -> None:
    """Fill the cinema up to this many films and ratings with generated ones.

    Existing rows count and stay: larger numbers add to them, and repeating the call changes nothing. The same cinema
    and seed give the same rows. Only `modified` differs, because it says when a row was written to this database.
    Pipelines that use it as a cursor rely on that: it is never before the transaction that wrote the row.
    """
    load(connection)
    with connection.transaction():
        connection.execute("SET LOCAL maintenance_work_mem = '512MB'")
        connection.execute(_CREATE_DICE)
        _fill_up(connection, "content.film_work", films, _add_films, seed)
        _fill_up(connection, "ugc.ratings", ratings, _add_ratings, seed)
        _register_viewers(connection)
        connection.execute("DROP FUNCTION pg_temp.dice")
    for table in TABLES:
        connection.execute(sql.SQL("ANALYZE {}").format(_table(table)))


def counts(connection: Connection) -> dict[str, int]:
    """Count the rows of every table of the cinema."""
    return {table: _count(connection, table) for table in TABLES}


def _fill_up(
    connection: Connection, table: str, wanted: int, add: Callable[[Connection, int, int, int], None], seed: int
) -> None:
    """Add rows, numbered from the current count on. After deletions some numbers are taken, and later ones are used."""
    first = existing = _count(connection, table)
    while existing < wanted:
        missing = wanted - existing
        add(connection, first, missing, seed)
        first += missing
        existing = _count(connection, table)


# A number from 0 to sides - 1 that looks random and is always the same for the same arguments. Because it is a single
# expression, the planner inlines it, and it costs no more than the hash function.
_CREATE_DICE = """
    CREATE OR REPLACE FUNCTION pg_temp.dice(n bigint, salt bigint, sides bigint) RETURNS bigint
    IMMUTABLE LANGUAGE sql AS $$ SELECT (pg_catalog.hashint8extended(n, salt) & 4294967295) % sides $$
"""


def _add_films(connection: Connection, first: int, number: int, seed: int) -> None:
    values = {"first": first, "last": first + number - 1, "seed": seed, "salt": seed * 1000}
    connection.execute("CREATE TEMPORARY TABLE new_film (n bigint, id uuid) ON COMMIT DROP")
    connection.execute(
        """
        INSERT INTO new_film (n, id)
        SELECT n, id
        FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
        CROSS JOIN LATERAL (SELECT md5('film/' || %(seed)s::bigint || '/' || n)::uuid AS id) AS made
        WHERE NOT EXISTS (SELECT FROM content.film_work AS known WHERE known.id = made.id)
        """,
        values,
    )
    connection.execute("ANALYZE new_film")
    _describe_films(connection, values)
    _link_genres(connection, values)
    _link_people(connection, values)
    connection.execute("DROP TABLE new_film")


def _describe_films(connection: Connection, values: Mapping[str, int]) -> None:
    connection.execute(
        """
        INSERT INTO content.film_work (id, title, description, creation_date, rating, type, created, modified)
        SELECT
            id,
            'The ' || adjectives[1 + pg_temp.dice(n, %(salt)s + 1, cardinality(adjectives))]
                || ' ' || nouns[1 + pg_temp.dice(n, %(salt)s + 2, cardinality(nouns))] || ' ' || n,
            'Nobody knows how it ends, but everybody has an opinion about film number ' || n || '.',
            date '1950-01-01' + pg_temp.dice(n, %(salt)s + 3, 27000)::integer,
            (15 + (pg_temp.dice(n, %(salt)s + 4, 82) + pg_temp.dice(n, %(salt)s + 5, 82)) / 2) / 10.0,
            CASE WHEN pg_temp.dice(n, %(salt)s + 6, 5) = 0 THEN 'tv_show' ELSE 'movie' END,
            timestamptz '2024-01-01 00:00:00+00' + pg_temp.dice(n, %(salt)s + 7, 43200000) * interval '1 second',
            now() + n * interval '1 microsecond'
        FROM new_film
        CROSS JOIN (VALUES (
            '{Silent,Crimson,Last,Hidden,Golden,Broken,Distant,Burning,Frozen,Forgotten,Endless,Invisible,Wandering,
              Secret,Hollow,Northern,Restless,Second,Electric,Paper,Velvet,Stolen,Quiet,Ancient}'::text[],
            '{Horizon,Garden,Station,Voyage,Mirror,Empire,River,Signal,Orchard,Planet,Winter,Engine,Island,Letter,
              Harbour,Colony,Machine,Shadow,Lighthouse,Comet,Kingdom,Railway,Forest,Clock,Theatre,Desert}'::text[]
        )) AS words (adjectives, nouns)
        """,
        values,
    )


def _link_genres(connection: Connection, values: Mapping[str, int]) -> None:
    connection.execute(
        """
        INSERT INTO content.genre_film_work (film_work_id, genre_id, created)
        SELECT
            film.id,
            genres[1 + (pg_temp.dice(n, %(salt)s + 8, cardinality(genres)) + k) %% cardinality(genres)],
            timestamptz '2024-01-01 00:00:00+00'
        FROM new_film AS film
        CROSS JOIN (SELECT array_agg(id ORDER BY id) AS genres FROM content.genre) AS known
        CROSS JOIN LATERAL generate_series(0, pg_temp.dice(n, %(salt)s + 9, 3)) AS k
        """,
        values,
    )


def _link_people(connection: Connection, values: Mapping[str, int]) -> None:
    """Link people to films: one person for ten films, but never so few that every actor plays with every other."""
    connection.execute("CREATE TEMPORARY TABLE new_crew (film_id uuid, p bigint, person_id uuid, role text)")
    connection.execute(
        """
        INSERT INTO new_crew (film_id, p, person_id, role)
        SELECT
            film.id,
            p,
            md5('person/' || %(seed)s::bigint || '/' || p)::uuid,
            CASE k WHEN 0 THEN 'director' ELSE 'actor' END
        FROM new_film AS film
        CROSS JOIN LATERAL generate_series(0, 1 + pg_temp.dice(n, %(salt)s + 10, 4)) AS k
        CROSS JOIN LATERAL (SELECT pg_temp.dice(n, %(salt)s + 20 + k, greatest(200, n / 10)) AS p) AS chosen
        """,
        values,
    )
    connection.execute(
        """
        INSERT INTO content.person (id, full_name, created)
        SELECT
            person_id,
            given[1 + pg_temp.dice(p, %(salt)s + 11, cardinality(given))]
                || ' ' || family[1 + pg_temp.dice(p, %(salt)s + 12, cardinality(family))],
            timestamptz '2024-01-01 00:00:00+00'
        FROM (SELECT DISTINCT p, person_id FROM new_crew) AS crew
        CROSS JOIN (VALUES (
            '{Ada,Boris,Clara,Dmitri,Elena,Felix,Grace,Hugo,Irina,Jonas,Katya,Leon,Maria,Nikolai,Olga,Pavel,Quentin,Rosa,
              Sergei,Tamara,Ulrich,Vera,Walter,Xenia,Yuri,Zoya}'::text[],
            '{Abel,Belova,Castro,Dorn,Ekman,Fischer,Gromov,Hale,Ivanova,Jansen,Kovacs,Lind,Moreau,Novak,Orlov,Petrova,
              Quinn,Rossi,Sokolov,Torres,Ueda,Vogel,Weiss,Xu,Yamada,Zhukov}'::text[]
        )) AS words (given, family)
        ON CONFLICT DO NOTHING
        """,
        values,
    )
    connection.execute(
        """
        INSERT INTO content.person_film_work (film_work_id, person_id, role, created)
        SELECT DISTINCT film_id, person_id, role, timestamptz '2024-01-01 00:00:00+00' FROM new_crew
        """
    )
    connection.execute("DROP TABLE new_crew")


def _add_ratings(connection: Connection, first: int, number: int, seed: int) -> None:
    """Add viewers, each of whom rates films with neighbouring ids, so that no viewer rates a film twice."""
    films = _count(connection, "content.film_work")
    per_viewer = min(RATINGS_PER_VIEWER, films)
    # If there are few films, all of them are popular, and a viewer's films form one sequence instead of two.
    popular = films // FILMS_PER_POPULAR_ONE if films // FILMS_PER_POPULAR_ONE >= per_viewer else films
    values = {
        "first": first,
        "number": number,
        "last_viewer": first + (number - 1) // per_viewer,
        "per_viewer": per_viewer,
        "popular": popular,
        "others": films - popular,
        "seed": seed,
        "salt": seed * 1000,
    }
    connection.execute(
        "CREATE TEMPORARY TABLE film_by_position (position bigint, film_id uuid, rating numeric) ON COMMIT DROP"
    )
    connection.execute(
        """
        INSERT INTO film_by_position (position, film_id, rating)
        SELECT row_number() OVER (ORDER BY id) - 1, id, coalesce(rating, 5) FROM content.film_work
        """
    )
    connection.execute("ANALYZE film_by_position")
    with _without_indexes(connection, "ugc.ratings", when=number > first):
        connection.execute(
            """
            INSERT INTO ugc.ratings (id, user_id, film_id, rating, created, modified)
            SELECT made.*
            FROM (
                SELECT
                    md5('rating/' || %(seed)s::bigint || '/' || viewer || '/' || film_id)::uuid AS id,
                    user_id,
                    film_id,
                    least(10, greatest(1, round(rating) + ((luck >> (k * 2)) & 3) + ((luck >> (k * 2 + 9)) & 1) - 2)),
                    timestamptz '2024-01-01 00:00:00+00' + ((luck & 33554431) + k * 86400) * interval '1 second',
                    now() + ((viewer - %(first)s) * %(per_viewer)s + k) * interval '1 microsecond'
                FROM (
                    SELECT
                        viewer,
                        md5('viewer/' || %(seed)s::bigint || '/' || viewer)::uuid AS user_id,
                        hashint8extended(viewer, %(salt)s + 30) AS luck
                    FROM generate_series(%(first)s::bigint, %(last_viewer)s::bigint) AS viewer
                    OFFSET 0  -- else the sums above are computed again for every rating
                ) AS viewers
                CROSS JOIN generate_series(0, %(per_viewer)s - 1) AS k
                JOIN film_by_position ON position = CASE
                    WHEN %(others)s = 0 THEN (pg_temp.dice(viewer, %(salt)s + 31, %(popular)s) + k) %% %(popular)s
                    WHEN k %% 2 = 0 THEN (pg_temp.dice(viewer, %(salt)s + 31, %(popular)s) + k / 2) %% %(popular)s
                    ELSE %(popular)s + (pg_temp.dice(viewer, %(salt)s + 32, %(others)s) + k / 2) %% %(others)s
                END
                WHERE (viewer - %(first)s) * %(per_viewer)s + k < %(number)s
            ) AS made
            WHERE NOT EXISTS (SELECT FROM ugc.ratings AS known WHERE known.id = made.id)
            """,
            values,
        )
    connection.execute("DROP TABLE film_by_position")


def _register_viewers(connection: Connection) -> None:
    """Create an account for each viewer who rates."""
    connection.execute(
        """
        INSERT INTO auth.users (id, login, country, birth_year, subscription, created)
        SELECT user_id, 'viewer-' || user_id, 'RU', 1950 + pg_temp.dice(hashtext(user_id::text), 40, 60), 'free', since
        FROM (SELECT user_id, min(created) AS since FROM ugc.ratings GROUP BY user_id) AS viewers
        ON CONFLICT DO NOTHING
        """
    )


@contextmanager
def _without_indexes(connection: Connection, table: str, *, when: bool) -> Iterator[None]:
    """Drop the indexes and rebuild them afterwards; many rows are written several times faster without them."""
    if not when:
        yield
        return
    indexes = _cursor(connection).execute(
        """
        SELECT c.relname, con.conname, pg_get_constraintdef(con.oid), pg_get_indexdef(i.indexrelid)
        FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid
        LEFT JOIN pg_constraint con ON con.conindid = i.indexrelid AND con.conrelid = i.indrelid
        WHERE i.indrelid = %s::regclass
        ORDER BY c.relname
        """,
        [table],
    ).fetchall()  # fmt: skip
    schema = table.partition(".")[0]
    for index, constraint, _, _ in indexes:
        connection.execute(
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(_table(table), sql.Identifier(constraint))
            if constraint
            else sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, index))
        )
    yield
    for _, constraint, constraint_definition, index_definition in indexes:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(
                _table(table), sql.Identifier(constraint), sql.SQL(constraint_definition)
            )
            if constraint
            else sql.SQL(index_definition)
        )


def _count(connection: Connection, table: str) -> int:
    row = _cursor(connection).execute(sql.SQL("SELECT count(*) FROM {}").format(_table(table))).fetchone()
    return int(row[0]) if row else 0


def _cursor(connection: Connection) -> psycopg.Cursor[tuple[Any, ...]]:
    """Return rows as tuples, whatever row factory the caller's connection has."""
    return connection.cursor(row_factory=tuple_row)


def _table(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))
