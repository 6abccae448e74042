"""Create the data of the Postgres benchmarks: a million films with uuid, text, numeric and text[], and ratings."""

from dataclasses import dataclass

import psycopg

COLUMNS = "id, title, rating, genres, modified"
FILMS = f"SELECT {COLUMNS} FROM content.films"
RATINGS = """
    SELECT film_id, round(avg(rating), 2)::numeric(4,2) AS avg_rating, count(*) AS rating_count
    FROM ugc.ratings GROUP BY film_id
"""

# Independent of order; one wrong value anywhere changes the sum.
FINGERPRINT = "SELECT count(*), sum(hashtextextended(q::text, 0)::numeric) FROM ({}) AS q"


@dataclass(frozen=True)
class Cinema:
    """Represent a database with the source tables in it."""

    admin_url: str
    rows: int
    # Additional characters in every title. A film takes about 140 bytes of its table without them.
    padding: int = 0

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.admin_url, autocommit=True)

    def make(self, *, ratings: bool) -> None:
        with self.connect() as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc")
            connection.execute("GRANT USAGE ON SCHEMA content, ugc TO vitrina_reader")
        self.make_films("content.films", self.rows)
        with self.connect() as connection:
            connection.execute("CREATE INDEX ON content.films (modified, id)")
            if ratings:
                connection.execute(
                    f"""
                    CREATE TABLE ugc.ratings AS
                    SELECT md5((i % {self.rows} + 1)::text)::uuid AS film_id, (i % 10)::smallint AS rating
                    FROM generate_series(1, {2 * self.rows}) AS i
                    """
                )
                connection.execute("GRANT SELECT ON ugc.ratings TO vitrina_reader")
            connection.execute("VACUUM ANALYZE")

    def make_films(self, table: str, rows: int) -> None:
        with self.connect() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute(
                f"""
                CREATE TABLE {table} AS
                SELECT md5(i::text)::uuid AS id,
                       'Film number ' || i || left(repeat(md5(i::text), 10), {self.padding}) AS title,
                       (i % 100 / 10.0)::numeric(3,1) AS rating,
                       ARRAY['genre ' || i % 5, 'genre ' || i % 7] AS genres,
                       timestamptz '2024-01-01' + make_interval(secs => i) AS modified
                FROM generate_series(1, {rows}) AS i
                """
            )
            connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (id)")
            connection.execute(f"GRANT SELECT ON {table} TO vitrina_reader")
            connection.execute(f"VACUUM ANALYZE {table}")

    def touch_one_percent(self) -> None:
        with self.connect() as connection:
            connection.execute("UPDATE content.films SET title = title || '.' WHERE rating = 0.1")
            connection.execute("VACUUM ANALYZE content.films")

    def spoil(self, table: str) -> None:
        """Make every row of a mart differ from the source, without leaving dead rows."""
        with self.connect() as connection:
            connection.execute(f"UPDATE {table} SET title = overlay(title PLACING 'Spoiled' FROM 1)")
            connection.execute(f"VACUUM (FULL, ANALYZE) {table}")

    def fingerprint(self, query: str) -> tuple[object, ...]:
        """Return the number of rows, and a sum over hashes of the rows as text."""
        with self.connect() as connection:
            row = connection.execute(FINGERPRINT.format(query)).fetchone()
            assert row is not None
            return tuple(row)

    def drop(self, *tables: str) -> None:
        with self.connect() as connection:
            for table in tables:
                connection.execute(f"DROP TABLE IF EXISTS {table}")
