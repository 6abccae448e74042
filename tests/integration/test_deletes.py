"""Rows that left the source of an incremental pipeline: a scan of keys finds exactly these, and removes them."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from tests.support.workbench import Workbench
from vitrina.checks import compare, delete_scan
from vitrina.definition import Definition
from vitrina.errors import ShrinkRefused
from vitrina.ports import registry
from vitrina.ports.connector import Connector
from vitrina.ports.registry import Installed

ITEMS = """
CREATE TABLE content.items (id bigint PRIMARY KEY, note text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.items SELECT n, 'item ' || n, '2020-01-01' FROM generate_series(1, 1000) n;
"""
QUERY = "SELECT id, note, modified FROM content.items"
NO_CASE = "CREATE COLLATION content.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


def make(bench: Workbench, **options: Any) -> None:
    bench.source(ITEMS)
    bench.pipeline(
        "items",
        QUERY,
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        options={"deletes": {"scan": "1h"}, "cursor_clock": "database", **options},
    )
    assert bench.run("items")["status"] == "SUCCESS"


def scan(bench: Workbench) -> dict[str, Any]:
    return bench.scan_deletes("items")


def test_a_scan_removes_exactly_what_left_the_source(workbench: Workbench) -> None:
    make(workbench)
    assert scan(workbench) == {"found": 0}
    workbench.sql("DELETE FROM content.items WHERE id % 10 = 0")
    # Changed and not passed on yet: none of a scan's business.
    workbench.sql("UPDATE content.items SET note = 'quiet' WHERE id = 1")
    workbench.source("INSERT INTO content.items VALUES (2000, 'new', now()), (2001, 'late', '2001-01-01')")
    found = scan(workbench)
    assert (found["found"], found["deleted"], found["inserted"], found["updated"]) == (100, 100, 0, 0)
    kept = {row["id"] for row in workbench.sql("SELECT id FROM analytics.items")}
    assert kept == {number for number in range(1, 1001) if number % 10}
    assert workbench.sql("SELECT note FROM analytics.items WHERE id = 1") == [{"note": "item 1"}]
    run = workbench.last_run("items")
    assert (run["status"], run["rows_deleted"]) == ("SUCCESS", 100)
    # The next pass goes on as if nothing had been.
    assert workbench.run("items")["rows_written"] == 1


@pytest.mark.parametrize("unique_by", ["valid_from", "valid_to"])
def test_a_scan_closes_the_states_of_a_history(workbench: Workbench, unique_by: str) -> None:
    make(workbench, history={"unique_by": unique_by})
    workbench.sql("DELETE FROM content.items WHERE id = 7")
    assert scan(workbench)["deleted"] == 1
    [state] = workbench.sql("SELECT valid_from < valid_to AS ended, is_current FROM analytics.items WHERE id = 7")
    assert state == {"ended": True, "is_current": False}
    assert workbench.reconcile("items", level="full")["differences"] == 0


@pytest.mark.parametrize("side", ["source", "mart", "both"])
@pytest.mark.parametrize("key", [["name"], ["name", "kind"]])
def test_keys_that_a_collation_calls_equal_are_told_apart(workbench: Workbench, side: str, key: list[str]) -> None:
    """Of 'two' and 'TWO' one was removed, and the other came without a stamp, for a comparison to find."""
    # Not every build of PostgreSQL has ICU; without, every collation tells the two apart.
    loose = ""
    if workbench.sql("SELECT 1 FROM pg_collation WHERE collname = 'en-x-icu'"):
        loose = "COLLATE content.caseless"
        workbench.sql(NO_CASE)
    workbench.source(
        f"""
        CREATE TABLE content.items (name text {loose if side != "mart" else ""}, kind text, note text,
            modified timestamptz NOT NULL, PRIMARY KEY (name, kind));
        INSERT INTO content.items VALUES ('one', 'k', '1', '2020-01-01'), ('two', 'k', '2', '2020-01-01'),
            ('three', 'k', '3', '2020-01-01');
        CREATE TABLE analytics.items (name text {loose if side != "source" else ""}, kind text, note text,
            modified timestamptz, PRIMARY KEY ({", ".join(key)}));
        ALTER TABLE analytics.items OWNER TO vitrina_app;
        GRANT USAGE ON SCHEMA content TO vitrina_app;
        """
    )
    workbench.pipeline(
        "items",
        "SELECT name, kind, note, modified FROM content.items",
        target_key=key,
        batch_size=1,
        mode="incremental",
        incremental_key="modified",
        options={"deletes": {"scan": "1h"}, "cursor_clock": "database"},
    )
    assert workbench.run("items")["status"] == "SUCCESS"
    assert scan(workbench) == {"found": 0}
    workbench.sql("UPDATE content.items SET name = 'TWO' WHERE name = 'two'")
    found = scan(workbench)
    assert (found["found"], found["deleted"], found["remaining"]) == (1, 1, 0)
    assert {row["name"] for row in workbench.sql("SELECT name FROM analytics.items")} == {"one", "three"}
    found = workbench.reconcile("items", level="full", repair=True)
    assert (found["missing"], found["remaining"]) == (1, 0)
    assert {row["name"] for row in workbench.sql("SELECT name FROM analytics.items")} == {"one", "three", "TWO"}
    assert scan(workbench) == {"found": 0}
    # A repair in several batches, in which the new row comes before the old one leaves.
    workbench.sql("UPDATE content.items SET name = 'One' WHERE name = 'one'")
    found = workbench.reconcile("items", level="full", repair=True)
    assert found["remaining"] == 0
    assert workbench.reconcile("items", level="full")["equal"]


def admin_url(bench: Workbench) -> str:
    assert bench.settings.admin_url is not None
    return bench.settings.admin_url.get_secret_value()


@contextmanager
def writing(bench: Workbench, *, least_key: int = 1) -> Iterator[None]:
    """Let three sessions delete rows, and insert most of them again at once, until the block ends."""
    stop = threading.Event()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(admin_url(bench), autocommit=True) as connection:
            while not stop.is_set():
                key = rng.randint(least_key, 1000)
                connection.execute("DELETE FROM content.items WHERE id = %s", [key])
                if rng.random() < 0.7:
                    connection.execute("INSERT INTO content.items VALUES (%s, 'again') ON CONFLICT DO NOTHING", [key])

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_a_scan_finds_the_missing_keys_under_writers(workbench: Workbench) -> None:
    make(workbench, allow_shrink=True)
    with writing(workbench):
        for _ in range(4):
            scan(workbench)
            assert workbench.run("items")["status"] == "SUCCESS"
    # Whatever they did: with the next pass and scan the mart is the source.
    assert workbench.run("items")["status"] == "SUCCESS"
    scan(workbench)
    assert workbench.differences(QUERY, "analytics.items") == 0


UNTOUCHED = """
INSERT INTO content.items SELECT n, 'no pass reads this', '2001-01-01' FROM generate_series(10001, 12000) n
"""


def test_rows_that_no_pass_delivered_take_no_place_of_keys_to_remove(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan kept these rows too, up to its limit, and then removed only a part of what had left the source."""
    monkeypatch.setattr(compare, "KEPT_KEYS", 100)
    make(workbench)
    workbench.source(UNTOUCHED)
    workbench.sql("DELETE FROM content.items WHERE id <= 80")
    found = scan(workbench)
    assert (found["found"], found["deleted"], found["remaining"]) == (80, 80, 0)
    assert {row["id"] for row in workbench.sql("SELECT id FROM analytics.items")} == set(range(81, 1001))
    assert scan(workbench) == {"found": 0}


def test_what_one_scan_may_not_remove_is_counted_and_left_to_the_next(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "KEPT_KEYS", 100)
    monkeypatch.setattr(compare, "LOOKUP_KEYS", 30)
    make(workbench)
    workbench.source(UNTOUCHED)
    workbench.sql("DELETE FROM content.items WHERE id <= 250")
    found = [scan(workbench) for _ in range(3)]
    assert [(each["found"], each["deleted"], each["remaining"]) for each in found] == [
        (250, 100, 150),
        (150, 100, 50),
        (50, 50, 0),
    ]
    assert {row["id"] for row in workbench.sql("SELECT id FROM analytics.items")} == set(range(251, 1001))


def test_the_guard_counts_keys_beyond_those_that_one_scan_removes(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "KEPT_KEYS", 100)
    make(workbench)
    workbench.sql("DELETE FROM content.items WHERE id > 100")
    with pytest.raises(ShrinkRefused, match="900"):
        scan(workbench)
    assert workbench.reconcile("items", level="full")["extra"] == 900
    with pytest.raises(ShrinkRefused, match="900"):
        workbench.reconcile("items", level="full", repair=True)
    assert len(workbench.sql("SELECT id FROM analytics.items")) == 1000


def test_a_scan_is_exact_while_a_transaction_stays_open(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds back the checkpoint, and has deleted a row that everybody else still sees."""
    monkeypatch.setattr(compare, "KEPT_KEYS", 700)
    monkeypatch.setattr(compare, "LOOKUP_KEYS", 50)
    make(workbench, allow_shrink=True)
    workbench.source(UNTOUCHED)
    with psycopg.connect(admin_url(workbench)) as long:
        long.execute("DELETE FROM content.items WHERE id = 1")
        long.execute("INSERT INTO content.items VALUES (3000, 'late')")
        with writing(workbench, least_key=2):
            for _ in range(3):
                scan(workbench)
                assert workbench.run("items")["status"] == "SUCCESS"
        scan(workbench)
        there = "SELECT id FROM content.items WHERE id <= 1000"
        gone = workbench.sql(f"SELECT id FROM analytics.items WHERE id NOT IN ({there})")
        assert (gone, scan(workbench)) == ([], {"found": 0})
        assert workbench.sql("SELECT id FROM analytics.items WHERE id = 1 OR id > 1000") == [{"id": 1}]
    # Committed: the next pass and scan pass on what it did.
    assert workbench.run("items")["status"] == "SUCCESS"
    assert scan(workbench)["found"] == 1
    assert workbench.differences(f"{QUERY} WHERE id <= 10000", "analytics.items") == 0


def test_a_key_that_comes_back_before_it_is_removed_stays(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(workbench)
    workbench.sql("DELETE FROM content.items WHERE id IN (1, 2)")
    waits = delete_scan._wait_for_runs

    def come_back(*arguments: Any) -> None:
        workbench.source("INSERT INTO content.items VALUES (1, 'back', '2020-01-01')")
        waits(*arguments)

    monkeypatch.setattr(delete_scan, "_wait_for_runs", come_back)
    found = scan(workbench)
    assert (found["found"], found["deleted"], found["updated"]) == (2, 1, 1)
    assert workbench.differences(QUERY, "analytics.items") == 0


def test_a_scan_does_not_empty_a_mart(workbench: Workbench) -> None:
    make(workbench)
    workbench.sql("DELETE FROM content.items WHERE id > 100")
    with pytest.raises(ShrinkRefused):
        scan(workbench)
    assert len(workbench.sql("SELECT id FROM analytics.items")) == 1000


def test_scans_are_asked_for_when_they_are_due(workbench: Workbench) -> None:
    make(workbench)
    assert delete_scan.request_due(workbench.metastore) == 0
    workbench.sql("UPDATE etl.etl_pipelines SET created_at = now() - interval '2 hours'")
    assert delete_scan.request_due(workbench.metastore) == 1
    assert delete_scan.request_due(workbench.metastore) == 0
    workbench.sql("UPDATE etl.etl_requests SET status = 'DONE', finished_at = now()")
    assert delete_scan.request_due(workbench.metastore) == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "full"}, "removes rows that left the source anyway"),
        ({"options": {"deletes": {"scan": "1h"}, "shared_target": True}}, "belong to another pipeline"),
        ({"options": {"deletes": {"scan": "sometimes"}}}, "sometimes"),
        ({"options": {"deletes": {"scan": "1h", "keep": True}}}, "remove one of the two"),
        ({"options": {"deletes": {"soft": "gone_at", "keep": True}}}, "remove one of the two"),
        ({"options": {"deletes": "none"}, "mode": "live"}, "keeps the target equal to the query"),
        ({"options": {"deletes": "none", "delete_when": "gone"}, "mode": "full"}, "contradicts delete_when"),
        ({"options": {"deletes": "some"}}, "some"),
        ({"type": "PYTHON", "python_task": "made_up", "source_query": None}, "returns only new rows"),
    ],
)
def test_what_does_not_go_with_a_scan_is_refused(fields: dict[str, Any], said: str) -> None:
    whole: dict[str, Any] = {
        "name": "items",
        "source_query": QUERY,
        "target_table": "analytics.items",
        "mode": "incremental",
    }
    whole |= {"incremental_key": "modified", "options": {"deletes": {"scan": "1h"}}}
    with pytest.raises(ValidationError, match=said):
        Definition.model_validate(whole | fields)


FLAGGED = "SELECT id, note, modified, note = 'gone' AS is_deleted FROM content.items"
LIVE = "SELECT id, note, modified FROM content.items WHERE note <> 'gone'"


def test_rows_that_are_gone_do_not_count_when_a_trigger_leaves_others_out(workbench: Workbench) -> None:
    workbench.source(ITEMS + "UPDATE content.items SET note = 'gone' WHERE id <= 3;")
    workbench.sql(
        """
        CREATE TABLE analytics.items (id bigint PRIMARY KEY, note text, modified timestamptz);
        ALTER TABLE analytics.items OWNER TO vitrina_app;
        CREATE FUNCTION public.skip_tenth() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.id = 10 THEN RETURN NULL; END IF; RETURN NEW; END $$;
        CREATE TRIGGER no_tenth BEFORE INSERT ON analytics.items FOR EACH ROW EXECUTE FUNCTION public.skip_tenth()
        """
    )
    workbench.pipeline("items", FLAGGED, target_key=["id"], options={"delete_when": "is_deleted"})
    done = workbench.run("items")
    assert done["status"] == "FAILED"
    assert "analytics.items took 996 of 997 rows of an INSERT: trigger no_tenth" in done["error_message"]


@pytest.mark.parametrize("unique_by", [None, "valid_from", "valid_to"])
@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_rows_that_say_they_are_gone_are_removed(
    workbench: Workbench, mode: str, route: str, unique_by: str | None
) -> None:
    workbench.source(ITEMS + "UPDATE content.items SET note = 'gone' WHERE id <= 3;")
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    options: dict[str, Any] = {"delete_when": "is_deleted", "route": route, "cursor_clock": "database"}
    if unique_by:
        options["history"] = {"unique_by": unique_by}
    workbench.pipeline("items", FLAGGED, target_key=["id"], mode=mode, batch_size=100, options=options, **cursor)
    current = "(SELECT * FROM analytics.items WHERE is_current) AS t" if unique_by else "analytics.items"

    def run() -> dict[str, Any]:
        done = workbench.run("items")
        assert done["status"] == "SUCCESS", done["error_message"]
        assert workbench.differences(LIVE, current, "id, note, modified") == 0
        return done

    assert run()["rows_written"] == 997
    changed = "UPDATE content.items SET modified = clock_timestamp(), note = "
    workbench.sql(f"{changed} 'gone' WHERE id BETWEEN 2 AND 6")
    assert (run()["rows_deleted"], run()["rows_deleted"]) == (3, 0)
    workbench.sql(f"{changed} 'back' WHERE id IN (1, 4)")
    assert run()["rows_written"] == 2
    # Behind the cursor's back; with old stamps, which no pass can be about to bring.
    workbench.sql("UPDATE content.items SET note = 'gone' WHERE id = 10")
    workbench.sql("UPDATE content.items SET note = 'x', modified = '2020-01-01' WHERE id = 5")
    found = workbench.reconcile("items", level="full", repair=True)
    assert found["remaining"] == 0
    assert workbench.differences(LIVE, current, "id, note, modified") == 0
    for level in ("quick", "sample", "full"):
        assert workbench.reconcile("items", level=level)["differences"] == 0
    assert run()["rows_written"] == 0


def test_the_flag_is_a_boolean_column_of_the_result(workbench: Workbench) -> None:
    workbench.source(ITEMS)
    workbench.pipeline("items", QUERY, target_key=["id"], options={"delete_when": "note"})
    assert "'note', which is text" in workbench.run("items")["error_message"]
    workbench.change("items", options={"delete_when": "is_deleted"})
    assert "'is_deleted', which is missing" in workbench.run("items")["error_message"]


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_rows_that_left_may_stay_with_the_time_at_which_they_did(workbench: Workbench, mode: str) -> None:
    workbench.source(ITEMS)
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    options = {"deletes": {"soft": "deleted_at"}, "cursor_clock": "database"}
    workbench.pipeline("items", QUERY, target_key=["id"], mode=mode, options=options, **cursor)
    there = "(SELECT * FROM analytics.items WHERE deleted_at IS NULL) AS t"

    def run() -> dict[str, Any]:
        done = workbench.run("items")
        assert done["status"] == "SUCCESS", done["error_message"]
        if mode == "incremental":
            scan(workbench)
        assert workbench.differences(QUERY, there, "id, note, modified") == 0
        assert len(workbench.sql("SELECT id FROM analytics.items")) == 1000
        return done

    run()
    workbench.sql("DELETE FROM content.items WHERE id <= 10")
    deleted = run()["rows_deleted"]
    assert deleted == (10 if mode == "full" else 0)
    [when] = workbench.sql("SELECT DISTINCT deleted_at AS at FROM analytics.items WHERE id <= 10")
    assert when["at"] is not None
    again = run()
    assert (again["rows_written"], again["rows_deleted"]) == (0, 0)
    assert workbench.sql("SELECT DISTINCT deleted_at AS at FROM analytics.items WHERE id <= 10") == [when]
    workbench.source("INSERT INTO content.items SELECT n, 'item ' || n FROM generate_series(1, 3) n")
    assert run()["rows_written"] == 3
    for level in ("quick", "sample", "full"):
        assert workbench.reconcile("items", level=level)["differences"] == 0


def test_a_mart_that_is_there_needs_the_column_of_soft_deletes(workbench: Workbench) -> None:
    make(workbench)
    workbench.change("items", options={"deletes": {"soft": "deleted_at"}})
    assert "deleted_at timestamp with time zone" in workbench.run("items")["error_message"]
    workbench.change("items", options={"deletes": {"soft": "deleted_at"}, "on_schema_change": "add_columns"})
    assert workbench.run("items")["status"] == "SUCCESS"
    workbench.sql("DELETE FROM content.items WHERE id = 1")
    assert scan(workbench)["deleted"] == 1
    workbench.change("items", options={"deletes": {"soft": "note"}})
    assert "reserves" in workbench.run("items")["error_message"]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("route", ["auto", "arrow"])
def test_a_full_load_keeps_what_left_when_asked(workbench: Workbench, route: str, history: bool) -> None:
    workbench.source(ITEMS)
    options: dict[str, Any] = {"deletes": "none", "route": route, **({"history": {}} if history else {})}
    workbench.pipeline("items", QUERY, target_key=["id"], options=options)
    assert workbench.run("items")["status"] == "SUCCESS"
    workbench.sql("DELETE FROM content.items WHERE id > 100; UPDATE content.items SET note = 'new' WHERE id = 1")
    done = workbench.run("items")
    assert (done["status"], done["rows_written"], done["rows_deleted"]) == ("SUCCESS", 1, 0), done["error_message"]
    plan = done["metrics"]["plan"]
    assert plan["deletes"] is False
    assert "options.deletes: none: rows that left the source are not deleted" in plan["reasons"]
    current = "SELECT count(*) AS rows FROM analytics.items" + (" WHERE is_current" if history else "")
    assert workbench.sql(current) == [{"rows": 1000}]
    # What stays is no difference, and a repair leaves it alone.
    for level in ("quick", "full"):
        assert workbench.reconcile("items", level=level)["equal"]
    workbench.sql("UPDATE content.items SET note = 'newer' WHERE id = 2")
    repaired = workbench.reconcile("items", level="full", repair=True)["repair"]
    assert (repaired["updated"], repaired["deleted"]) == (1, 0)
    workbench.sql("TRUNCATE content.items")
    assert workbench.run("items")["status"] == "SUCCESS"
    assert workbench.sql(current) == [{"rows": 1000}]
    workbench.change("items", options={**options, "deletes": "hard", "allow_empty": True, "allow_shrink": True})
    assert workbench.run("items")["rows_deleted"] == 1000


def test_targets_that_cannot_delete_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector of another package, whose description promises nothing about deletes."""
    made = Connector(name="pile", prefix="pile", open_target=lambda _: pytest.fail("nothing is opened"))
    found = registry.installed()
    monkeypatch.setattr(registry, "installed", lambda: Installed(found.connectors | {"pile": made}))
    whole: dict[str, Any] = {"name": "items", "source_query": QUERY, "target_table": "pile:items", "target_key": ["id"]}
    cursor = {"mode": "incremental", "incremental_key": "modified"}
    with pytest.raises(ValidationError, match=r"pile:items does not support options\.delete_when"):
        Definition.model_validate(whole | {"options": {"delete_when": "gone"}})
    with pytest.raises(ValidationError, match="pile:items cannot delete single rows"):
        Definition.model_validate(whole | cursor | {"options": {"deletes": {"scan": "1h"}}})
    made = replace(made, takes_delete_when=True, removes_rows=True)
    monkeypatch.setattr(registry, "installed", lambda: Installed(found.connectors | {"pile": made}))
    Definition.model_validate(whole | cursor | {"options": {"delete_when": "gone", "deletes": {"scan": "1h"}}})
