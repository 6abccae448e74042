"""The data of the Postgres benchmarks: a million films with uuid key, text, numeric and text[], two million ratings."""

from dataclasses import dataclass

import psycopg

COLUMNS = "id, title, rating, genres, modified"
FILMS = f"SELECT {COLUMNS} FROM content.films"
RATINGS = """
    SELECT film_id, round(avg(rating), 2)::numeric(4,2) AS avg_rating, count(*) AS rating_count
    FROM ugc.ratings GROUP BY film_id
"""


@dataclass(frozen=True)
class Cinema:
    """A database with the source tables in it."""

    admin_url: str
    rows: int

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.admin_url, autocommit=True)

    def make(self, *, ratings: bool) -> None:
        with self.connect() as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS content; CREATE SCHEMA IF NOT EXISTS ugc")
            connection.execute("DROP TABLE IF EXISTS content.films, ugc.ratings")
            connection.execute(
                f"""
                CREATE TABLE content.films AS
                SELECT md5(i::text)::uuid AS id, 'Film number ' || i AS title, (i % 100 / 10.0)::numeric(3,1) AS rating,
                       ARRAY['genre ' || i % 5, 'genre ' || i % 7] AS genres,
                       timestamptz '2024-01-01' + make_interval(secs => i) AS modified
                FROM generate_series(1, {self.rows}) AS i
                """
            )
            connection.execute("ALTER TABLE content.films ADD PRIMARY KEY (id)")
            connection.execute("CREATE INDEX ON content.films (modified, id)")
            if ratings:
                connection.execute(
                    f"""
                    CREATE TABLE ugc.ratings AS
                    SELECT md5((i % {self.rows} + 1)::text)::uuid AS film_id, (i % 10)::smallint AS rating
                    FROM generate_series(1, {2 * self.rows}) AS i
                    """
                )
            connection.execute("GRANT USAGE ON SCHEMA content, ugc TO vitrina_reader")
            connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO vitrina_reader")
            connection.execute("VACUUM ANALYZE")

    def touch_one_percent(self) -> None:
        with self.connect() as connection:
            connection.execute("UPDATE content.films SET title = title || '.' WHERE rating = 0.1")
            connection.execute("VACUUM ANALYZE content.films")

    def spoil(self, table: str) -> None:
        """Make every row of a mart differ from the source, without leaving dead rows behind."""
        with self.connect() as connection:
            connection.execute(f"UPDATE {table} SET title = 'spoiled'")
            connection.execute(f"VACUUM (FULL, ANALYZE) {table}")

    def differences(self, query: str, table: str, columns: str = "*") -> int:
        with self.connect() as connection:
            row = connection.execute(
                f"""
                WITH s AS ({query}), t AS (SELECT {columns} FROM {table})
                SELECT (SELECT count(*) FROM (TABLE s EXCEPT ALL TABLE t) a)
                     + (SELECT count(*) FROM (TABLE t EXCEPT ALL TABLE s) b)
                """
            ).fetchone()
            assert row is not None
            return int(row[0])

    def drop(self, *tables: str) -> None:
        with self.connect() as connection:
            for table in tables:
                connection.execute(f"DROP TABLE IF EXISTS {table}")
