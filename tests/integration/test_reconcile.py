"""A mart is held against its source: every kind of difference is found and repaired, and none is made up."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.workbench import Workbench
from vitrina.checks import reconcile
from vitrina.errors import Conflict, FatalError, ShrinkRefused
from vitrina.loads.control import RunControl
from vitrina.runner import requests as performing
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store import metrics, requests
from vitrina.store.leases import Claim
from vitrina.transforms import SourceContext, source

ROWS = 50_000
QUERY = "SELECT id, title, rating, genres, seen, modified FROM content.film_work"
FILMS = f"""
CREATE TABLE content.film_work (
    id uuid PRIMARY KEY, title text, rating numeric, genres text[], seen double precision,
    modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film_work
SELECT md5(i::text)::uuid, CASE i WHEN 4 THEN '' ELSE 'Film ' || i END, (i % 100) / 10.0,
       ARRAY['g' || i % 3, 'h' || i % 7], i / 3.0, timestamptz '2024-01-01 00:00:00.123456' + make_interval(secs => i)
FROM generate_series(1, {ROWS}) AS i;
"""


def key(number: int) -> str:
    return f"md5('{number}')::uuid"


def spoil(bench: Workbench, mart: str) -> None:
    """One row of each kind of difference; seven in all, of which the moved one counts twice."""
    for statement in (
        f"UPDATE {mart} SET title = 'Changed' WHERE id = {key(1)}",
        f"DELETE FROM {mart} WHERE id = {key(2)}",
        f"INSERT INTO {mart} (id, title, modified) VALUES ({key(0)}, 'Extra', now())",
        f"UPDATE {mart} SET id = {key(-1)} WHERE id = {key(3)}",
        f"UPDATE {mart} SET title = NULL WHERE id = {key(4)}",
        f"UPDATE {mart} SET modified = modified + interval '1 microsecond' WHERE id = {key(5)}",
        f"UPDATE {mart} SET genres = ARRAY[genres[2], genres[1]] WHERE id = {key(6)}",
        f"UPDATE {mart} SET rating = rating::numeric(10, 3) WHERE id = {key(7)}",
    ):
        bench.sql(statement)


def counts(report: dict[str, Any]) -> tuple[int, int, int, int]:
    return report["missing"], report["extra"], report["differing"], report["in_flight"]


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_every_kind_of_difference_is_found_and_repaired(workbench: Workbench, mode: str) -> None:
    workbench.source(FILMS)
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    workbench.pipeline("films", QUERY, target_key=["id"], mode=mode, options={"cursor_clock": "database"}, **cursor)
    assert workbench.run("films")["status"] == "SUCCESS"
    equal = workbench.reconcile("films")
    assert (equal["equal"], equal["differences"], equal["source"]["rows"]) == (True, 0, ROWS)

    spoil(workbench, "analytics.films")
    found = workbench.reconcile("films")

    assert counts(found) == (2, 2, 5, 0)
    assert (found["differences"], found["repair"]) == (9, {"done": False, "upserts": 7, "deletes": 2})
    columns = {
        name: values for one in found["keys"] if one["kind"] == "differing" for name, values in one["columns"].items()
    }
    assert set(columns) == {"title", "modified", "genres", "rating"}
    assert columns["genres"] == {"source": "{g0,h6}", "target": "{h6,g0}"}
    assert workbench.differences(QUERY, "analytics.films") > 0, "a dry run changes nothing"

    repaired = workbench.reconcile("films", repair=True)

    assert repaired["repair"] | {"run_id": None} == {
        "done": True, "inserted": 2, "updated": 5, "deleted": 2, "unchanged": 0, "rejected": 0, "keys": 9,
        "paused": False, "remaining": 0, "run_id": None,
    }  # fmt: skip
    assert workbench.differences(QUERY, "analytics.films") == 0
    assert workbench.reconcile("films")["equal"]
    assert workbench.status("films") == "IDLE"


FEW = FILMS.replace(str(ROWS), "500")


def films(bench: Workbench, *, mode: str = "full", **fields: Any) -> None:
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    options = {"cursor_clock": "database"} | fields.pop("options", {})
    bench.source(FEW)
    bench.pipeline("films", QUERY, **{"target_key": ["id"], "mode": mode, "options": options, **cursor, **fields})
    assert bench.run("films")["status"] == "SUCCESS"


def test_quick_tells_counts_and_ends(workbench: Workbench) -> None:
    films(workbench)
    equal = workbench.reconcile("films", level="quick")
    assert (equal["equal"], equal["source"]["rows"], equal["target"]["rows"]) == (True, 500, 500)

    workbench.sql("DELETE FROM analytics.films WHERE id = (SELECT id FROM analytics.films ORDER BY id DESC LIMIT 1)")
    found = workbench.reconcile("films", level="quick")

    assert (found["equal"], found["differences"], found["looks"]) == (False, 2, 2)
    assert found["findings"][0] == "the mart has 499 rows, but the source has 500 that must be in it"
    assert found["findings"][1].startswith("the greatest id is ff")


def test_a_sample_of_all_keys_misses_nothing(workbench: Workbench) -> None:
    films(workbench)
    assert workbench.reconcile("films", level="sample")["equal"]

    spoil(workbench, "analytics.films")

    assert counts(workbench.reconcile("films", level="sample", keys=5000)) == (2, 2, 5, 0)


def test_rows_behind_the_checkpoint_are_in_flight_and_not_drift(workbench: Workbench) -> None:
    films(workbench, mode="incremental")
    workbench.sql(f"UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = {key(1)}")
    workbench.sql(f"INSERT INTO content.film_work (id, title) VALUES ({key(501)}, 'New')")
    workbench.sql(f"UPDATE analytics.films SET title = 'Drifted' WHERE id = {key(2)}")
    # Changed without saying so: no pass will ever read it.
    workbench.sql(f"UPDATE content.film_work SET title = 'Unsaid' WHERE id = {key(3)}")

    found = workbench.reconcile("films")

    assert counts(found) == (0, 0, 2, 2)
    assert {one["columns"]["title"]["target"] for one in found["keys"]} == {"Drifted", "Film 3"}


def test_a_row_deleted_in_the_source_of_an_incremental_pipeline_is_extra(workbench: Workbench) -> None:
    films(workbench, mode="incremental")
    workbench.sql(f"DELETE FROM content.film_work WHERE id = {key(9)}")
    assert workbench.run("films")["status"] == "SUCCESS"

    assert counts(workbench.reconcile("films", repair=True)) == (0, 1, 0, 0)
    assert workbench.differences(QUERY, "analytics.films") == 0


def test_nothing_is_repaired_beside_a_run(workbench: Workbench) -> None:
    films(workbench)
    spoil(workbench, "analytics.films")
    workbench.request("films")
    with pytest.raises(Conflict, match="RUN_REQUESTED"):
        workbench.reconcile("films", repair=True)
    claim = workbench.claim()
    with pytest.raises(Conflict, match="RUNNING"):
        workbench.reconcile("films", repair=True)
    assert workbench.differences(QUERY, "analytics.films") > 0

    # A load at work will bring all of it: nobody needs to be woken.
    found = workbench.reconcile("films")
    assert (found["equal"], found["in_flight"]) == (True, 9)

    workbench.perform(claim)
    assert workbench.differences(QUERY, "analytics.films") == 0


def test_a_paused_pipeline_is_repaired_and_stays_paused(workbench: Workbench) -> None:
    films(workbench)
    spoil(workbench, "analytics.films")
    workbench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSED'")

    found = workbench.reconcile("films", repair=True)

    assert (found["repair"]["keys"], found["repair"]["paused"], found["remaining"]) == (9, False, 0)
    assert workbench.status("films") == "PAUSED"
    assert workbench.differences(QUERY, "analytics.films") == 0


def test_a_repair_can_be_paused_between_batches(workbench: Workbench) -> None:
    films(workbench, batch_size=2)
    spoil(workbench, "analytics.films")
    # A person asks for a pause while the first batch is written.
    workbench.sql(
        """
        CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED' WHERE status = 'RUNNING'; RETURN NULL; END $$;
        CREATE TRIGGER pause AFTER INSERT OR UPDATE OR DELETE ON analytics.films EXECUTE FUNCTION public.pause();
        GRANT USAGE ON SCHEMA public TO vitrina_app;
        """
    )

    found = workbench.reconcile("films", repair=True)

    assert (found["repair"]["keys"], found["repair"]["paused"], found["remaining"]) == (2, True, 7)
    assert workbench.status("films") == "PAUSED"


def test_a_repair_that_fails_leaves_the_pipeline_as_it_was(workbench: Workbench) -> None:
    films(workbench)
    workbench.sql("UPDATE analytics.films SET title = 'Nobody' WHERE id = " + key(1))
    workbench.sql("ALTER TABLE analytics.films ADD CHECK (title <> 'Film 1') NOT VALID")

    with pytest.raises(FatalError, match="violates check constraint"):
        workbench.reconcile("films", repair=True)

    run = workbench.last_run("films")
    assert (run["status"], workbench.status("films")) == ("FAILED", "IDLE")


def test_a_repair_does_not_delete_more_than_a_load_would(workbench: Workbench) -> None:
    films(workbench)
    workbench.sql("DELETE FROM content.film_work WHERE title > 'Film 2'")

    with pytest.raises(ShrinkRefused):
        workbench.reconcile("films", repair=True)


def test_rows_of_other_pipelines_in_a_shared_mart_are_left_alone(workbench: Workbench) -> None:
    films(workbench, options={"shared_target": True})
    spoil(workbench, "analytics.films")

    found = workbench.reconcile("films", repair=True)

    assert (counts(found)[:3], found["remaining"]) == ((2, 0, 5), 0)
    assert workbench.sql("SELECT count(*) AS rows FROM analytics.films")[0]["rows"] == 502


def test_a_key_of_several_columns_and_types(workbench: Workbench) -> None:
    workbench.source(
        """
        CREATE TABLE content.scores (day date, score numeric, note text COLLATE "C", points real);
        INSERT INTO content.scores
        SELECT date '2024-01-01' + i, 1.0 * i, 'a,(")' || i, i / 3.0 FROM generate_series(1, 300) i;
        """
    )
    workbench.sql(
        """
        CREATE TABLE analytics.scores (
            day date, score numeric, note text, points double precision, PRIMARY KEY (day, score, note));
        ALTER TABLE analytics.scores OWNER TO vitrina_app
        """
    )
    workbench.pipeline("scores", "SELECT day, score, note, points FROM content.scores")
    assert workbench.run("scores")["status"] == "SUCCESS"
    # Equal for the key, whatever it looks like.
    workbench.sql("UPDATE analytics.scores SET score = score + 0.00")
    assert workbench.reconcile("scores")["equal"]

    workbench.sql("UPDATE analytics.scores SET points = points + 1e-9 WHERE score = 7")
    workbench.sql("UPDATE analytics.scores SET note = note || ' ' WHERE score = 8")

    assert counts(workbench.reconcile("scores", repair=True)) == (1, 1, 1, 0)
    assert workbench.reconcile("scores")["equal"]


def test_what_python_steps_make_is_compared(workbench: Workbench) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "rename_columns", "params": {"names": {"title": "name"}}},
    ]
    films(workbench, tasks=tasks)
    assert workbench.reconcile("films")["equal"]
    workbench.sql(f"UPDATE analytics.films SET name = upper(name) WHERE id = {key(1)}")
    workbench.sql(f"DELETE FROM analytics.films WHERE id = {key(2)}")

    assert counts(workbench.reconcile("films", repair=True)) == (1, 0, 1, 0)
    assert workbench.reconcile("films")["equal"]
    assert workbench.sql(
        "SELECT count(*) AS tables FROM pg_tables WHERE schemaname = 'etl_stage' AND tablename ~ '^r_'"
    ) == [{"tables": 0}]


def test_steps_that_forget_when_a_row_changed_make_no_false_alarm(workbench: Workbench) -> None:
    tasks = [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": "drop_columns", "params": {"columns": ["modified"]}},
    ]
    films(workbench, mode="incremental", tasks=tasks)
    workbench.sql(f"UPDATE content.film_work SET title = 'New', modified = clock_timestamp() WHERE id = {key(1)}")
    workbench.sql(f"INSERT INTO content.film_work (id, title) VALUES ({key(501)}, 'New')")
    workbench.sql(f"UPDATE analytics.films SET title = 'Drifted' WHERE id = {key(2)}")

    assert counts(workbench.reconcile("films", repair=True)) == (0, 0, 1, 2)
    assert workbench.run("films")["status"] == "SUCCESS"
    assert workbench.reconcile("films")["equal"]


@source("reconcile_planets")
def planets(context: SourceContext) -> Iterator[Any]:
    """A few planets, from the first on or behind the checkpoint."""
    for number in range((context.checkpoint or 0) + 1, 8):
        context.checkpoint = number
        yield [{"n": number, "name": f"Planet {number}"}]


def test_a_python_source_that_starts_over_each_time_is_compared(workbench: Workbench) -> None:
    source_of = {"type": "PYTHON", "python_task": "reconcile_planets", "source_query": None, "target_key": ["n"]}
    workbench.pipeline("planets", "", **source_of)
    with pytest.raises(FatalError, match=r"analytics\.planets does not exist yet"):
        workbench.reconcile("planets")
    assert workbench.run("planets")["rows_written"] == 7
    workbench.sql("DELETE FROM analytics.planets WHERE n = 1")
    workbench.sql("UPDATE analytics.planets SET name = 'Pluto' WHERE n = 7")
    workbench.sql("INSERT INTO analytics.planets VALUES (9, 'Ninth')")

    assert counts(workbench.reconcile("planets", repair=True)) == (1, 1, 1, 0)
    assert workbench.reconcile("planets")["equal"]

    workbench.pipeline("moving", "", **source_of, mode="incremental")
    assert workbench.run("moving")["status"] == "SUCCESS"
    with pytest.raises(FatalError, match="cannot be asked for everything that it ever returned"):
        workbench.reconcile("moving")
    assert workbench.checkpoint("moving").safe_upto == "7"


def test_what_cannot_be_reconciled_is_named(workbench: Workbench) -> None:
    workbench.source(FEW)
    workbench.pipeline("fresh", QUERY, target_key=["id"])
    with pytest.raises(FatalError, match=r"analytics\.fresh does not exist yet: run the pipeline first"):
        workbench.reconcile("fresh")
    workbench.pipeline(
        "odd", "SELECT genres, max(id::text) AS id FROM content.film_work GROUP BY 1", target_key=["genres"]
    )
    assert workbench.run("odd")["status"] == "SUCCESS"
    with pytest.raises(FatalError, match=r"key column 'genres' of type text\[\]"):
        workbench.reconcile("odd")


def test_comparisons_are_scheduled_and_drift_is_told(workbench: Workbench) -> None:
    films(workbench, options={"reconcile": {"interval": "1h", "level": "quick"}})
    assert reconcile.request_due(workbench.metastore) == 0
    workbench.sql("UPDATE etl.etl_pipelines SET created_at = now() - interval '2 hours'")

    assert [reconcile.request_due(workbench.metastore) for _ in range(2)] == [1, 0]

    [asked] = workbench.sql("SELECT kind, payload, requested_by FROM etl.etl_requests")
    assert asked == {"kind": "reconcile", "payload": {"level": "quick"}, "requested_by": "schedule"}
    workbench.sql("DELETE FROM analytics.films")
    perform_asked(workbench)

    [event] = workbench.sql("SELECT payload FROM etl.etl_events WHERE topic = 'drift'")
    assert (event["payload"]["pipeline"], event["payload"]["level"]) == ("films", "quick")
    [told] = metrics.list_oldest(workbench.metastore, limit=10)
    assert told["drift_rows"] == event["payload"]["differences"] > 0


def perform_asked(workbench: Workbench) -> None:
    """As a runner does it, up to the stored report."""
    runner = uuid4()
    asked = requests.claim_next(workbench.metastore, runner, 60)
    assert asked is not None
    result, error = performing.perform(asked, workbench.metastore, workbench.settings, _nobody_holds)
    assert error is None
    assert requests.finish(workbench.metastore, asked["id"], runner, result=result, error=error)


def _nobody_holds(claim: Claim, asked_at: float) -> AbstractContextManager[RunControl]:
    raise AssertionError("a comparison takes no lease")


def test_no_false_alarm_while_the_source_is_written_to(workbench: Workbench) -> None:
    """Passes, writers and comparisons at once: whatever differs is on its way."""
    films(workbench, mode="incremental")
    stop = threading.Event()
    failures: list[str] = []
    assert workbench.settings.admin_url is not None
    url = workbench.settings.admin_url.get_secret_value()
    writers = [threading.Thread(target=_write, args=(url, stop, offset)) for offset in (0, 1000)]
    loads = threading.Thread(target=_load, args=(workbench.settings, stop, failures))
    for thread in (*writers, loads):
        thread.start()
    try:
        reports = [workbench.reconcile("films") for _ in range(5)]
        end = time.monotonic() + 60
        # However slowly the writers begin: something has to be on its way once.
        while not sum(report["in_flight"] for report in reports) and time.monotonic() < end:
            reports.append(workbench.reconcile("films"))
    finally:
        stop.set()
        for thread in (*writers, loads):
            thread.join()

    assert failures == []
    assert [report["differences"] for report in reports] == [0] * len(reports), [report["keys"] for report in reports]
    assert sum(report["in_flight"] for report in reports) > 0, "nothing was on its way: the test proves nothing"
    workbench.sql(f"UPDATE analytics.films SET title = 'Drifted' WHERE id = {key(400)}")
    assert workbench.run("films")["status"] == "SUCCESS"
    assert counts(workbench.reconcile("films"))[:3] == (0, 0, 1)


def _write(url: str, stop: threading.Event, offset: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        number = 0
        while not stop.wait(0.005):
            number += 1
            connection.execute(
                "INSERT INTO content.film_work (id, title) VALUES (gen_random_uuid(), 'Written')"
                if number % 3 == 0
                else "UPDATE content.film_work SET title = title || '!', modified = clock_timestamp() WHERE id = "
                + key(1 + (number + offset) % 300)
            )


def _load(settings: Settings, stop: threading.Event, failures: list[str]) -> None:
    with postgres.connect(settings.require_database_url(), "vitrina:test") as connection:
        bench = Workbench(settings, connection, connection)
        while not stop.is_set():
            run = bench.run("films")
            if run["status"] != "SUCCESS":
                failures.append(run["error_message"])
        bench.pool.close()


def test_rows_of_an_import_that_share_one_stamp_are_judged(workbench: Workbench) -> None:
    """Without a clock of the database the checkpoint is the stamp itself; what is missing is missing all the same."""
    workbench.source("CREATE TABLE content.imported (id int PRIMARY KEY, at timestamptz NOT NULL)")
    workbench.sql("INSERT INTO content.imported SELECT n, '2024-01-01' FROM generate_series(1, 20) n")
    cursor = {"mode": "incremental", "incremental_key": "at", "incremental_id_key": "id"}
    workbench.pipeline("imported", "SELECT id, at FROM content.imported", target_key=["id"], **cursor)
    assert workbench.run("imported")["status"] == "SUCCESS"
    assert workbench.reconcile("imported")["equal"]
    workbench.sql("DELETE FROM analytics.imported WHERE id <= 3")

    for level in ("quick", "full"):
        assert workbench.reconcile("imported", level=level)["equal"] is False, level
    assert workbench.reconcile("imported", repair=True)["repair"]["inserted"] == 3
