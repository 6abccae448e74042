"""Live ClickHouse tables: rows follow a query of Postgres, deleted ones too, and a late runner changes nothing."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import vitrina
from tests.clickhouse.places import Place
from tests.clickhouse.test_interleavings import attempt, interrupt, loaded
from tests.live.marts import FILMS, PATIENCE_SECONDS, ROOT, SOURCE, Marts
from vitrina.connectors.clickhouse import absent, tables
from vitrina.connectors.clickhouse.client import Missing
from vitrina.errors import VitrinaError
from vitrina.ports.live import Stale
from vitrina.ports.target import Done
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection
from vitrina.testing.contracts import Attempt, Ledger

pytestmark = pytest.mark.timeout(600)

TARGETS = "analytics.*,clickhouse:*"
COLUMNS = "id, title, studio, votes, total"
# Sums of bigint are numeric without limits, which ClickHouse has no type for.
QUERY = FILMS.replace("coalesce(r.total, 0) AS total", "coalesce(r.total, 0)::bigint AS total")


@pytest.fixture
def marts(database: Settings, metastore: Connection, tmp_path: Path, place: Place) -> Iterator[Marts]:
    assert database.admin_url
    packages = Path(os.environ["PYTHONPATH"]).resolve()
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-admin") as admin:
        connections = {"olap": SecretStr(place.url)}
        settings = database.model_copy(update={"allowed_targets": TARGETS, "connections": connections})
        made = Marts(settings, admin, metastore, tmp_path)
        made.more = {
            "PYTHONPATH": f"{packages}:{ROOT}:{Path(vitrina.__file__).parents[1]}",
            "VITRINA_CONN_OLAP": place.url,
            "VITRINA_ALLOWED_TARGETS": TARGETS,
        }
        made.sql(SOURCE)
        yield made
        made.stop()
        made.drop_feeds()


def follow(marts: Marts, place: Place, query: str = QUERY, **fields: Any) -> None:
    options = {"target_connection": "olap"} | fields.pop("options", {})
    marts.live("films", query, target_table=f"clickhouse:{place.database}.films", options=options, **fields)
    marts.start_runner()
    marts.await_following("films")


def await_equal(marts: Marts, place: Place, query: str = QUERY, columns: str = COLUMNS) -> None:
    def is_equal() -> bool:
        wanted = [tuple(row.values()) for row in marts.sql(f"SELECT {columns} FROM ({query}) AS q ORDER BY 1")]
        with suppress(Missing):  # for a moment, where a test dropped it
            return place.rows(columns) == wanted
        return False

    marts.await_true("the table equals its query", is_equal)


# --- end to end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"partition_by": "studio"}], ids=["whole", "partitions"])
def test_rows_follow_their_query(marts: Marts, place: Place, options: dict[str, Any]) -> None:
    follow(marts, place, options={"clickhouse": options})
    runs = marts.count_runs("films")
    for statement in (
        "INSERT INTO content.film VALUES (51, 'new', 1); UPDATE content.film SET title = 'renamed' WHERE id = 7",
        "DELETE FROM content.film WHERE id = 9; UPDATE content.rating SET film_id = 51 WHERE film_id = 10",
        "UPDATE content.film SET studio_id = 4 WHERE studio_id = 2",
        "UPDATE content.film SET id = 1000 WHERE id = 11; DELETE FROM content.film WHERE id = 51",
        "INSERT INTO content.film VALUES (9, 'again', 2)",
    ):
        marts.sql(statement)
        await_equal(marts, place)
    assert marts.count_runs("films") == runs, "all of it came by following, none by a full load"
    assert marts.reconcile("films")["differences"] == 0
    assert not [name for name in place.tables() if "__s" in name], "no part is left beside the table"


def test_keys_of_every_type_are_found_again(marts: Marts, place: Place) -> None:
    """A key that is written otherwise by Postgres than by ClickHouse would never be deleted."""
    key = {
        "big": "bigint", "word": "text", "padded": "char(6)", "known": "uuid", "day": "date", "at": "timestamptz",
        "plain": "timestamp", "price": "numeric(10,2)", "yes": "boolean",
    }  # fmt: skip
    marts.sql(
        f"""
        CREATE TABLE content.odd ({", ".join(f"{name} {kind}" for name, kind in key.items())}, note text,
            PRIMARY KEY ({", ".join(key)}));
        INSERT INTO content.odd SELECT n, 'it''s | "' || n, 'p' || n, gen_random_uuid(), date '1955-11-05' + n,
            timestamptz '2024-03-01 12:00+03' + n * interval '1.5 seconds',
            timestamp '1901-01-01 00:00:00.25' + n * interval '1 day', n * 1.5, n % 2 = 0, 'first'
        FROM generate_series(1, 40) n;
        GRANT SELECT ON content.odd TO vitrina_reader;
        """
    )
    query = "SELECT * FROM content.odd"
    follow(marts, place, query, target_key=list(key))
    runs = marts.count_runs("films")
    marts.sql("UPDATE content.odd SET note = 'second' WHERE big < 10; DELETE FROM content.odd WHERE big IN (3, 4, 20)")
    marts.sql("UPDATE content.odd SET price = price + 0.01 WHERE big = 7")
    await_equal(marts, place, query, "big, note")
    assert marts.count_runs("films") == runs


def test_one_column_of_a_key_is_enough(marts: Marts, place: Place) -> None:
    """Only the film is derived from a changed studio; which of its rows are absent is asked of the table."""
    marts.sql(
        """
        CREATE TABLE content.tag (film_id int NOT NULL, tag text NOT NULL, PRIMARY KEY (film_id, tag));
        INSERT INTO content.tag SELECT f, t FROM generate_series(1, 50) f, unnest(ARRAY['a', 'b', 'c']) t;
        GRANT SELECT ON content.tag TO vitrina_reader;
        """
    )
    query = """
        SELECT f.id, t.tag, f.title FROM content.film f JOIN content.tag t ON t.film_id = f.id
        WHERE f.studio_id <> 3 OR t.tag = 'a'
    """
    follow(marts, place, query, target_key=["id", "tag"])
    runs = marts.count_runs("films")
    marts.sql("UPDATE content.film SET studio_id = 3 WHERE id < 3; UPDATE content.film SET title = 'x' WHERE id = 6")
    marts.sql("DELETE FROM content.tag WHERE film_id = 4 AND tag = 'b'")
    marts.await_true("equal", lambda: _pairs(marts, query) == place.rows("concat(toString(id), tag) AS name, title"))
    assert marts.count_runs("films") == runs


def _pairs(marts: Marts, query: str) -> list[tuple[Any, ...]]:
    rows = marts.sql(f"SELECT id || tag AS name, title FROM ({query}) AS q")
    return sorted((row["name"], row["title"]) for row in rows)


@pytest.mark.parametrize("point", ["clickhouse.inserted", "clickhouse.checked", "merge.applied", "batch.fenced"])
def test_a_batch_that_is_killed_is_done_by_the_next_runner(marts: Marts, place: Place, point: str) -> None:
    follow(marts, place)
    marts.plan(f"{point}:kill:1")
    marts.sql("UPDATE content.film SET title = 'x' || title WHERE id < 9; DELETE FROM content.film WHERE id = 31")
    marts.runners[0].wait(timeout=PATIENCE_SECONDS)
    marts.start_runner()
    marts.await_true("it is taken over", lambda: marts.count_runs("films") == 2)
    marts.await_following("films")
    await_equal(marts, place)
    assert "loads_because" not in marts.run("films")["metrics"]


def test_a_delete_without_where_is_refused_before_a_row_is_gone(marts: Marts, place: Place) -> None:
    marts.sql("INSERT INTO content.film SELECT n, 'film ' || n, n % 5 + 1 FROM generate_series(100, 400) n")
    follow(marts, place)
    rows = place.rows()
    marts.sql("DELETE FROM content.film WHERE id > 20")
    marts.await_failed("films", "options.allow_shrink")
    assert place.rows() == rows


def test_a_table_that_is_dropped_by_hand_is_loaded_again(marts: Marts, place: Place) -> None:
    follow(marts, place)
    place.session.command(f"DROP TABLE {place.database}.films")
    marts.sql("UPDATE content.film SET title = 'other' WHERE id = 3")
    await_equal(marts, place)


# --- move by move ----------------------------------------------------------------------------------------------------

FIRST, AFTER = {1: "one", 2: "two", 3: "three"}, {1: "new", 3: "three"}
STALE = Stale(("id",), [("1",), ("2",), ("4",), ("9",)])
# The statement of a correction that shows it.
ATTACH = 7


def correct(made: Attempt, number: int, rows: dict[int, str], stale: Stale = STALE) -> None:
    part, load = made.write(number, rows), made.load
    read = [(str(key),) for key in rows]

    def move(_: Done) -> Any:
        return replace(made.ledger.checkpoint, batch_no=number)

    made.passing(lambda fence: load.correct(part, stale, read, fence, lambda *_: None), move)  # type: ignore[attr-defined]


def following(place: Place, ledger: Ledger, epoch: int) -> Attempt:
    made = attempt(place, ledger, epoch)
    made.begin("merge")
    return made


def deletes_what_is_absent(place: Place) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    correct(following(place, ledger, 2), 2, {1: "new"})
    assert place.titles() == AFTER


def test_what_is_absent_is_deleted_and_counted_once(place: Place) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    made = following(place, ledger, 2)
    correct(made, 2, {1: "new"})
    assert place.titles() == AFTER
    assert made.counts.deleted == 1, "a key that the table never had is no deleted row"
    correct(made, 3, {1: "new"})
    assert (place.titles(), made.counts.deleted) == (AFTER, 1), "a batch that is repeated changes nothing"
    correct(made, 4, {2: "back"}, Stale(("id",), [("2",)]))
    assert place.titles() == AFTER | {2: "back"}


def successor_has_the_last_word(place: Place, at: int) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    late = following(place, ledger, 2)

    def take_over() -> None:
        correct(following(place, ledger, 3), 2, {1: "of the successor", 2: "two"})

    interruption = interrupt(late.target, at, take_over)  # type: ignore[arg-type]
    with suppress(VitrinaError):
        correct(late, 2, {1: "of the late runner", 4: "of the late runner"})
    interruption.finish()
    assert place.titles() == {1: "of the successor", 2: "two", 3: "three"}


@pytest.mark.parametrize("at", range(1, ATTACH + 4))
def test_a_late_runner_corrects_nothing_once_another_has_taken_over(place: Place, at: int) -> None:
    """The successor comes before each statement of a correction, and after the last."""
    successor_has_the_last_word(place, at)


def test_a_late_runner_whose_table_is_left_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.Tables, "seize", lambda self: None)
    with pytest.raises(AssertionError):
        successor_has_the_last_word(place, ATTACH)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("absent_keys", lambda *_: []), ("_canonical", lambda _, columns, keys: [key for key in keys if key != ("2",)])],
)
def test_absent_rows_that_are_kept_are_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(absent, name, mutant)
    with pytest.raises(AssertionError):
        deletes_what_is_absent(place)
