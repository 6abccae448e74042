"""The demo cinema: the same everywhere, complete, and what the demo script shows of it."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.conftest import admin, url_of
from vitrina import sqlguard
from vitrina.embedded import cinema
from vitrina.embedded.cluster import postgres_binaries
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "sql" / "init_demo_data.sql"
FILM_DIM = "11111111-1111-1111-1111-111111111111"
FILM_RATING_AGG = "22222222-2222-2222-2222-222222222222"

Rows = list[tuple[Any, ...]]


@pytest.fixture
def bare(server: TemporaryServer) -> Iterator[str]:
    """The superuser's login to a database in which there is nothing."""
    name = f"bare_{uuid4().hex[:12]}"
    admin(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield url_of(server.urls.admin, name)
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def loaded(database: Settings) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """The superuser's session on a migrated database with the cinema in it."""
    with psycopg.connect(admin_url(database), autocommit=True) as connection:
        cinema.load(connection)
        yield connection


def admin_url(database: Settings) -> str:
    assert database.admin_url is not None
    return database.admin_url.get_secret_value()


def psql(url: str, script: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    with script.open() as lines:
        return subprocess.run(
            [postgres_binaries() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url],
            stdin=lines,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )


def rows(connection: psycopg.Connection[Any], query: str) -> Rows:
    return connection.execute(query.encode()).fetchall()


def fingerprint(connection: psycopg.Connection[Any], without: str = "") -> dict[str, str]:
    """One sum for each table over all of its rows, in whatever order they lie, without the columns named."""
    lines = "SELECT (to_jsonb(t) - '{%s}'::text[])::text AS line FROM %s t"
    summed = "SELECT md5(string_agg(line, '|' ORDER BY line)) FROM (%s) lines"
    return {table: rows(connection, summed % (lines % (without, table)))[0][0] for table in cinema.TABLES}


# --- the script ---------------------------------------------------------------------------------------------------


def test_plain_psql_loads_it_into_an_empty_database_once_and_for_all(bare: str) -> None:
    first = psql(bare, SCRIPT)
    assert "no pipelines added" in first.stderr
    with psycopg.connect(bare) as connection:
        before = fingerprint(connection)
        connection.rollback()
        # Neither may depend on how the session writes dates, nor on its time zone.
        psql(bare, SCRIPT, PGOPTIONS="-c datestyle=german -c timezone=Asia/Tokyo")
        assert fingerprint(connection) == before
        assert rows(connection, "SELECT count(*) FROM analytics.film_dim") == [(0,)]


def test_every_cinema_is_alike_whoever_loads_it(bare: str, loaded: psycopg.Connection[Any]) -> None:
    psql(bare, SCRIPT, PGOPTIONS="-c datestyle=german -c timezone=Asia/Tokyo")
    with psycopg.connect(bare, options="-c timezone=UTC") as other:
        assert fingerprint(other) == fingerprint(loaded)


def test_it_is_a_cinema_worth_looking_at(loaded: psycopg.Connection[Any]) -> None:
    counts = cinema.counts(loaded)
    assert counts["content.film_work"] >= 200
    assert counts["ugc.ratings"] >= 5000
    assert min(counts.values()) > 0
    assert rows(loaded, "SELECT DISTINCT type FROM content.film_work ORDER BY type") == [("movie",), ("tv_show",)]
    strangers = "SELECT count(*) FROM ugc.{} WHERE film_id NOT IN (SELECT id FROM content.film_work)"
    assert [rows(loaded, strangers.format(table)) for table in ("ratings", "reviews", "views")] == [[(0,)]] * 3


def test_every_alphabet_begins_with_star_trek(loaded: psycopg.Connection[Any]) -> None:
    """The first rows of every list are what the audience knows, whatever the database's collation."""
    wanted = "('C', 'POSIX', 'C.utf8', 'en_US.utf8', 'en-x-icu', 'ru-x-icu', 'de-x-icu')"
    collations = [
        name for (name,) in rows(loaded, f"SELECT DISTINCT collname FROM pg_collation WHERE collname IN {wanted}")
    ]
    assert collations
    for collation in collations:
        first = rows(loaded, f'SELECT title FROM content.film_work ORDER BY title COLLATE "{collation}" LIMIT 5')
        assert all(title.startswith("Star Trek") for (title,) in first), (collation, first)


def test_a_change_shows_in_modified(loaded: psycopg.Connection[Any]) -> None:
    for table, change in {"content.film_work": "rating = 5", "ugc.ratings": "rating = 5"}.items():
        with loaded.transaction():
            touched = f"WITH one AS (SELECT id FROM {table} ORDER BY id LIMIT 1) UPDATE {table} t SET {change} FROM one"
            assert rows(loaded, f"{touched} WHERE t.id = one.id RETURNING modified = now()") == [(True,)]


def test_changes_made_by_hand_survive_loading_it_again(loaded: psycopg.Connection[Any]) -> None:
    loaded.execute("UPDATE content.film_work SET title = 'Zzz' WHERE title = 'The Matrix'")
    loaded.execute("UPDATE etl.etl_pipelines SET batch_size = 7")
    loaded.execute("INSERT INTO ugc.views (user_id, film_id, seconds) SELECT id, id, 1 FROM content.film_work LIMIT 1")
    before = fingerprint(loaded)
    cinema.load(loaded)
    assert fingerprint(loaded) == before
    assert rows(loaded, "SELECT DISTINCT batch_size FROM etl.etl_pipelines") == [(7,)]


# --- the demo script ----------------------------------------------------------------------------------------------


def demo_script() -> dict[str, str]:
    """Statements by the comment above them."""
    text = (REPOSITORY / "tests" / "integration" / "demo_script.sql").read_text()
    parts = re.split(r"^-- (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_demo_script_shows_what_it_promises(loaded: psycopg.Connection[Any]) -> None:
    shown: dict[str, Any] = {}
    for title, statements in demo_script().items():
        for statement in (part for part in statements.split(";") if part.strip() and part.strip() != "\\q"):
            cursor = loaded.execute(statement.encode())
            shown[title] = cursor.fetchall() if cursor.description else cursor.rowcount

    assert all(title.startswith("Star ") for _, title, _ in shown["films"])
    films = {film for (film,) in rows(loaded, "SELECT id FROM content.film_work")}
    assert len(shown["ratings"]) == 5
    assert {film for film, _ in shown["ratings"]} <= films
    assert all(title.startswith("Star ") and 1 <= rating <= 10 for title, rating in shown["ratings with titles"])
    assert shown["film_dim before"] == []
    assert shown["film_dim by hand"] == len(films)
    assert [row[1:] for row in shown["film_dim after"]] == [row[1:] for row in shown["films"]]
    pipelines = [(str(id), name, status) for id, name, status in shown["pipelines"]]
    assert pipelines == [(FILM_DIM, "film_dim_full", "IDLE"), (FILM_RATING_AGG, "film_rating_agg_full", "IDLE")]
    assert [row[3:] for row in shown["pipelines in full"]] == [
        ("analytics.film_dim", "full", 5000, True, "IDLE"),
        ("analytics.film_rating_agg", "full", 5000, True, "IDLE"),
    ]


def test_the_demo_script_runs_in_psql(database: Settings) -> None:
    psql(admin_url(database), SCRIPT)
    shown = psql(admin_url(database), REPOSITORY / "tests" / "integration" / "demo_script.sql")
    assert shown.stderr == ""
    assert shown.stdout.count("Star Trek") == 15


# --- the pipelines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [FILM_DIM, FILM_RATING_AGG])
def test_a_pipelines_query_is_allowed_and_fits_its_mart(
    loaded: psycopg.Connection[Any], database: Settings, pipeline: str
) -> None:
    query, target, key = rows(
        loaded, f"SELECT source_query, target_table, target_key FROM etl.etl_pipelines WHERE id = '{pipeline}'"
    )[0]
    sqlguard.check(query, sqlguard.SqlPolicy(frozenset(database.source_schemas)))
    assert key == ["film_id"]
    assert database.reader_url is not None
    with psycopg.connect(database.reader_url.get_secret_value()) as reader:
        found = reader.execute(query)
        assert found.description is not None
        shape = {column.name: (column.type_code, column.precision, column.scale) for column in found.description}
        assert len(found.fetchall()) > 200
    mart = loaded.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(*target.split("."))))
    assert mart.description is not None
    columns = {column.name: (column.type_code, column.precision, column.scale) for column in mart.description}
    columns.pop("updated_at")
    assert shape == columns


def test_film_dim_holds_sorted_lists_and_no_nulls(loaded: psycopg.Connection[Any]) -> None:
    query = rows(loaded, f"SELECT source_query FROM etl.etl_pipelines WHERE id = '{FILM_DIM}'")[0][0]
    films = {(row[1], row[3]): row for row in rows(loaded, query)}
    assert films["Star Wars: Episode IV – A New Hope", "movie"][5:] == (
        ["Action", "Adventure", "Fantasy", "Sci-Fi"],
        ["Alec Guinness", "Carrie Fisher", "Harrison Ford", "Mark Hamill"],
        ["George Lucas"],
    )
    assert films["Star Trek: Short Treks", "tv_show"][6:] == ([], [])
    assert all(None not in row for row in films.values())


def test_film_rating_agg_is_what_the_ratings_say(loaded: psycopg.Connection[Any]) -> None:
    query = rows(loaded, f"SELECT source_query FROM etl.etl_pipelines WHERE id = '{FILM_RATING_AGG}'")[0][0]
    given: dict[object, list[int]] = {}
    for film, rating in rows(loaded, "SELECT film_id, rating FROM ugc.ratings"):
        given.setdefault(film, []).append(rating)
    aggregated = {film: (float(average), number) for film, average, number in rows(loaded, query)}
    assert {film: number for film, (_, number) in aggregated.items()} == {
        film: len(all_) for film, all_ in given.items()
    }
    for film, (average, _) in aggregated.items():
        assert average == pytest.approx(sum(given[film]) / len(given[film]), abs=0.0051)


def test_the_reader_reads_and_the_application_owns_the_marts(
    loaded: psycopg.Connection[Any], database: Settings
) -> None:
    loaded.execute("CREATE TABLE content.later ()")
    assert database.reader_url is not None
    with psycopg.connect(database.reader_url.get_secret_value(), autocommit=True) as reader:
        for table in (*cinema.TABLES, "content.later"):
            rows(reader, f"SELECT FROM {table} LIMIT 1")
        for forbidden in ("SELECT FROM analytics.film_dim", "DELETE FROM ugc.ratings"):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)):
                reader.execute(forbidden.encode())
    owners = "SELECT tablename, tableowner FROM pg_tables WHERE schemaname = 'analytics' ORDER BY 1"
    assert rows(loaded, owners) == [("film_dim", "vitrina_app"), ("film_rating_agg", "vitrina_app")]


# --- a large cinema -----------------------------------------------------------------------------------------------


def generated(connection: psycopg.Connection[Any], films: int, ratings: int, seed: int = 1) -> dict[str, int]:
    cinema.generate(connection, films, ratings, seed)
    return cinema.counts(connection)


def test_generates_as_much_as_was_asked_for_and_asking_again_adds_nothing(loaded: psycopg.Connection[Any]) -> None:
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('content', 'ugc') ORDER BY 1"
    before = rows(loaded, indexes)
    counts = generated(loaded, films=1500, ratings=30_000)
    assert (counts["content.film_work"], counts["ugc.ratings"]) == (1500, 30_000)
    assert rows(loaded, indexes) == before
    sums = fingerprint(loaded)
    assert generated(loaded, films=1500, ratings=30_000) == counts
    assert generated(loaded, films=10, ratings=10) == counts
    assert fingerprint(loaded) == sums


def test_the_seed_decides_what_is_generated(loaded: psycopg.Connection[Any], bare: str) -> None:
    cinema.generate(loaded, 1500, 20_000, seed=5)
    with psycopg.connect(bare, autocommit=True) as other:
        cinema.generate(other, 1500, 20_000, seed=5)
        assert fingerprint(other, without="modified") == fingerprint(loaded, without="modified")


def test_another_seed_makes_another_cinema(loaded: psycopg.Connection[Any], bare: str) -> None:
    cinema.generate(loaded, 400, 10_000, seed=5)
    with psycopg.connect(bare, autocommit=True) as other:
        cinema.generate(other, 400, 10_000, seed=6)
        assert cinema.counts(other)["ugc.ratings"] == cinema.counts(loaded)["ugc.ratings"]
        assert common_rows(loaded, other, "SELECT id FROM content.film_work") == 298
        assert common_rows(loaded, other, "SELECT user_id, film_id FROM ugc.ratings") == 8107


def common_rows(one: psycopg.Connection[Any], other: psycopg.Connection[Any], query: str) -> int:
    return len(set(rows(one, query)) & set(rows(other, query)))


def test_it_grows_from_what_is_there(loaded: psycopg.Connection[Any]) -> None:
    cinema.generate(loaded, 600, 12_000, seed=1)
    loaded.execute("CREATE TABLE ugc.before AS TABLE ugc.ratings")
    loaded.execute("DELETE FROM ugc.ratings WHERE rating = 4")
    loaded.execute("DELETE FROM content.film_work WHERE rating = 4")
    counts = generated(loaded, films=5000, ratings=16_000)
    assert (counts["content.film_work"], counts["ugc.ratings"]) == (5000, 16_000)
    lost = "SELECT count(*) FROM (TABLE ugc.before EXCEPT TABLE ugc.ratings) gone WHERE rating <> 4"
    assert rows(loaded, lost) == [(0,)]


def test_modified_tells_when_a_generated_row_arrived(loaded: psycopg.Connection[Any]) -> None:
    """An incremental pipeline that has already passed by must still see the new rows, in batches of any size."""
    started = rows(loaded, "SELECT clock_timestamp()")[0][0]
    cinema.generate(loaded, 1000, 12_000, seed=1)
    for table, added in {"content.film_work": 702, "ugc.ratings": 3893}.items():
        arrived = f"SELECT count(*), count(DISTINCT modified), max(modified) < clock_timestamp() FROM {table}"
        assert rows(loaded, f"{arrived} WHERE modified > '{started}'") == [(added, added, True)]


# --- the package --------------------------------------------------------------------------------------------------


def test_the_repository_and_the_package_have_one_and_the_same_script() -> None:
    packaged = resources.files("vitrina.embedded") / "init_demo_data.sql"
    with resources.as_file(packaged) as path:
        assert path.samefile(SCRIPT)


def test_the_wheel_brings_the_script(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert wheel.read("vitrina/embedded/init_demo_data.sql") == SCRIPT.read_bytes()
