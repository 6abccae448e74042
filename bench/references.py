"""Do the same work with careful hand-written code: the references of every ratio."""

import psycopg

from bench.cinema import FILMS, RATINGS, Cinema

BATCH_ROWS = 10_000
ASSIGNMENTS = ", ".join(f"{name} = excluded.{name}" for name in ("title", "rating", "genres", "modified"))


def fresh_table(cinema: Cinema, query: str = FILMS, table: str = "analytics.reference", key: str = "id") -> None:
    """Create a new table, and its primary key when the rows are in."""
    with cinema.connect() as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table} AS {query}")
        connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({key})")


def aggregate(cinema: Cinema) -> None:
    fresh_table(cinema, RATINGS, "analytics.reference_ratings", "film_id")


def anti_join(cinema: Cinema) -> None:
    """Reload by comparison: delete what left, update what differs, insert what is new."""
    others = ("title", "rating", "genres", "modified")
    old, new = (", ".join(f"{alias}.{name}" for name in others) for alias in ("r", "s"))
    with cinema.connect() as connection, connection.transaction():
        connection.execute(f"CREATE TEMPORARY TABLE s ON COMMIT DROP AS {FILMS}")
        connection.execute("ANALYZE s")
        connection.execute("DELETE FROM analytics.reference r WHERE NOT EXISTS (SELECT FROM s WHERE s.id = r.id)")
        connection.execute(
            f"""
            UPDATE analytics.reference r SET {", ".join(f"{name} = s.{name}" for name in others)}
            FROM s WHERE s.id = r.id AND ({old}) IS DISTINCT FROM ({new})
            """
        )
        connection.execute(
            "INSERT INTO analytics.reference"
            " SELECT * FROM s WHERE NOT EXISTS (SELECT FROM analytics.reference r WHERE r.id = s.id)"
        )


def batched_upsert(cinema: Cinema) -> None:
    """Run INSERT .. SELECT .. ON CONFLICT by the cursor, in batches with a transaction each."""
    last: tuple[str, str] | None = ("-infinity", "00000000-0000-0000-0000-000000000000")
    with cinema.connect() as connection:
        while last is not None:
            last = connection.execute(
                f"""
                WITH batch AS (
                    {FILMS} WHERE (modified, id) > (%s::timestamptz, %s::uuid) ORDER BY modified, id LIMIT {BATCH_ROWS}
                ), written AS (
                    INSERT INTO analytics.reference SELECT * FROM batch ON CONFLICT (id) DO UPDATE SET {ASSIGNMENTS}
                )
                SELECT modified::text, id::text FROM batch ORDER BY batch.modified DESC, batch.id DESC LIMIT 1
                """,
                last,
            ).fetchone()


def copy_across(cinema: Cinema, target_url: str, query: str = FILMS) -> None:
    """COPY from one server into a fresh table on another, and add the primary key afterwards."""
    with cinema.connect() as source, psycopg.connect(target_url, autocommit=True) as target:
        target.execute("DROP TABLE IF EXISTS analytics.reference")
        target.execute(
            "CREATE TABLE analytics.reference"
            " (id uuid, title text, rating numeric(3,1), genres text[], modified timestamptz)"
        )
        with (
            source.cursor().copy(f"COPY ({query}) TO STDOUT") as rows,
            target.cursor().copy("COPY analytics.reference FROM STDIN") as sink,
        ):
            for data in rows:
                sink.write(data)
        target.execute("ALTER TABLE analytics.reference ADD PRIMARY KEY (id)")


def python_loop(cinema: Cinema) -> None:
    """COPY out, call one Python function per row, COPY in: the least that a row-wise program can do."""
    with cinema.connect() as source, cinema.connect() as target:
        target.execute("DROP TABLE IF EXISTS analytics.reference_loop")
        target.execute(f"CREATE TABLE analytics.reference_loop AS {FILMS} LIMIT 0")
        with (
            source.cursor().copy(f"COPY ({FILMS}) TO STDOUT") as rows,
            target.cursor().copy("COPY analytics.reference_loop FROM STDIN") as sink,
        ):
            for row in rows.rows():
                sink.write_row(_capitals(row))
        target.execute("ALTER TABLE analytics.reference_loop ADD PRIMARY KEY (id)")


def _capitals(row: tuple[str, ...]) -> tuple[str, ...]:
    film = dict(zip(("id", "title", "rating", "genres", "modified"), row, strict=True))
    film["title"] = film["title"].upper()
    return tuple(film.values())
