"""Dead letters sent again: the source's rows as they are now, resolved letters marked, refused ones still open."""

from typing import Any

import pytest
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_search_runs import INCREMENTAL, QUERY, documents, pipeline
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.errors import Conflict, FatalError
from vitrina.status import Status
from vitrina.transforms import transform

FILMS = """
CREATE TABLE content.film_work (
    id int PRIMARY KEY, title text, rating numeric(3,1), genres text[],
    modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film_work (id, title, rating, genres, modified)
SELECT i, '2024-01-01', i % 10, ARRAY['g' || i % 3], timestamptz '2024-01-01' + make_interval(secs => i)
FROM generate_series(1, 20) AS i;
UPDATE content.film_work SET title = 'no date' WHERE id IN (3, 5, 7);
"""
DATES = {"index": {"mappings": {"properties": {"title": {"type": "date"}}}}}


@pytest.fixture
def bench(workbench: Workbench, search: Target) -> Workbench:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "analytics.*,es:vitrina-test-*"}
    )
    return workbench


def letters(bench: Workbench) -> dict[str, tuple[str | None, str]]:
    """How each was resolved (None: open), and its error; by document."""
    found = bench.sql("SELECT document_id, resolution, resolved_at, error FROM etl.etl_dead_letters ORDER BY id")
    assert all((letter["resolved_at"] is None) == (letter["resolution"] is None) for letter in found)
    return {letter["document_id"]: (letter["resolution"], letter["error"]) for letter in found}


def resolutions(bench: Workbench) -> dict[str, str | None]:
    return {document: how for document, (how, _) in letters(bench).items()}


@pytest.mark.parametrize("action", ["update", "index"])
def test_mended_rows_are_sent_and_the_others_stay_open(
    bench: Workbench, client: SearchClient, index: str, action: str
) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES | {"action": action})
    assert bench.run("films")["rows_rejected"] == 3
    before = bench.checkpoint("films")
    bench.sql(
        "UPDATE content.film_work SET title = '2025-05-05' WHERE id = 3; DELETE FROM content.film_work WHERE id = 5"
    )

    report = bench.replay("films")

    assert {name: report[name] for name in ("letters", "sent", "refused", "gone", "unclear", "remaining")} == {
        "letters": 3, "sent": 1, "refused": 1, "gone": 1, "unclear": 0, "remaining": 1,
    }  # fmt: skip
    assert resolutions(bench) == {"3": "sent", "5": "gone", "7": None}
    found = documents(client, index)
    assert found["3"]["title"] == "2025-05-05"
    assert len(found) == 18
    assert bench.status("films") == Status.IDLE
    after = bench.checkpoint("films")
    assert (after.safe_upto, after.last_key, after.rows) == (before.safe_upto, before.last_key, before.rows)
    assert bench.last_run("films")["metrics"]["replay"]["sent"] == 1

    assert bench.replay("films")["refused"] == 1  # and again: one open letter, not two
    assert resolutions(bench) == {"3": "sent", "5": "gone", "7": None}


@pytest.mark.one_server
def test_some_letters_alone(bench: Workbench, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = '2025-05-05'")
    [five] = bench.sql("SELECT id FROM etl.etl_dead_letters WHERE document_id = '5'")

    assert bench.replay("films", five["id"])["sent"] == 1

    assert resolutions(bench) == {"3": None, "5": "sent", "7": None}


@pytest.mark.one_server
def test_a_row_that_is_refused_for_another_reason_has_one_open_letter(bench: Workbench, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = 'neither' WHERE id = 3")

    bench.replay("films")

    open_letters = bench.sql(
        "SELECT document_id, document FROM etl.etl_dead_letters WHERE resolved_at IS NULL ORDER BY document_id"
    )
    assert [letter["document_id"] for letter in open_letters] == ["3", "5", "7"]
    assert "neither" in str(open_letters[0]["document"])
    assert bench.sql("SELECT resolution FROM etl.etl_dead_letters WHERE document_id = '3' AND resolved_at IS NOT NULL")


@pytest.mark.one_server
def test_composite_keys_and_long_ones_are_found_again(bench: Workbench, client: SearchClient, index: str) -> None:
    bench.sql(
        """UPDATE content.film_work SET genres = ARRAY['a|b\\c' || repeat('x', CASE id WHEN 5 THEN 600 ELSE 0 END)]"""
    )
    query = "SELECT id, genres[1] AS genre, title, modified FROM content.film_work"
    pipeline(bench, index, query, **INCREMENTAL, target_key=["genre", "id"], options=DATES)
    assert bench.run("films")["rows_rejected"] == 3
    bench.sql("UPDATE content.film_work SET title = '2025-05-05'")

    assert bench.replay("films")["sent"] == 3

    assert len(documents(client, index)) == 20


PAYLOADS = {
    3: r'{"a": "\u0000"}',
    5: '{"a": 1e999999}',
    7: r'{"a": "\ud800"}',
    9: '{"a": 1}',
    11: '{"a": ' + "[" * 400 + "]" * 400 + "}",
}


@pytest.mark.one_server
@pytest.mark.parametrize("action", ["update", "index"])
def test_a_document_that_jsonb_or_its_readers_cannot_hold_is_on_record_all_the_same(
    bench: Workbench, client: SearchClient, index: str, action: str
) -> None:
    bench.sql("ALTER TABLE content.film_work ADD payload json")
    for number, payload in PAYLOADS.items():
        bench.sql(f"UPDATE content.film_work SET payload = $${payload}$$ WHERE id = {number}")
    query = "SELECT id, payload, modified FROM content.film_work WHERE payload IS NOT NULL"
    options = {"index": {"mappings": {"properties": {"payload": {"type": "long"}}}}, "action": action}
    pipeline(bench, index, query, **INCREMENTAL, options=options)

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 5)
    found = bench.sql("SELECT document_id AS id, document, jsonb_typeof(document) AS kind FROM etl.etl_dead_letters")
    assert {int(one["id"]): one["kind"] for one in found} == dict.fromkeys((3, 5, 7, 11), "string") | {9: "object"}
    assert all(PAYLOADS[int(one["id"])] in one["document"] for one in found if one["kind"] == "string")
    assert (bench.replay("films")["refused"], len(letters(bench))) == (5, 5), "each is read again, and has one letter"
    bench.sql("UPDATE content.film_work SET payload = '5' WHERE payload IS NOT NULL")
    assert bench.replay("films")["sent"] == 5
    assert {document["payload"] for document in documents(client, index).values()} == {5}


@pytest.mark.one_server
def test_documents_of_a_rebuild_are_replayed_into_what_is_shown(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index, options=DATES | {"max_dead_letters": 3})
    assert bench.run("films")["status"] == "SUCCESS"
    bench.sql("UPDATE content.film_work SET title = '2025-05-05' WHERE id = 3")

    assert bench.replay("films")["sent"] == 1

    assert documents(client, index)["3"]["title"] == "2025-05-05"
    bench.sql("UPDATE content.film_work SET title = '2025-05-05' WHERE id = 5")
    assert bench.run("films")["rows_rejected"] == 1  # rebuilt: what the load holds now is no longer open
    assert resolutions(bench) == {"3": "sent", "5": "rebuilt", "7": None}


@pytest.mark.one_server
def test_a_rebuild_past_its_budget_starts_over(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, batch_size=4, options=DATES | {"max_dead_letters": 1})
    assert "max_dead_letters" in bench.run("films")["error_message"]

    again = bench.run("films")

    assert again["status"] == "FAILED"  # not: went on behind the refused ones
    with pytest.raises(Conflict, match="FAILED"):
        bench.replay("films")
    bench.sql("UPDATE content.film_work SET title = '2025-05-05'")
    assert bench.run("films")["status"] == "SUCCESS"
    assert len(documents(client, index)) == 20
    assert set(resolutions(bench).values()) == {"rebuilt"}


@pytest.mark.one_server
def test_a_pass_past_its_budget_meets_the_refused_rows_again(
    bench: Workbench, client: SearchClient, index: str
) -> None:
    pipeline(bench, index, batch_size=4, **INCREMENTAL, options=DATES | {"max_dead_letters": 1})
    assert bench.run("films")["status"] == "FAILED"
    bench.sql("UPDATE content.film_work SET title = '2025-05-05'")  # `modified` stays: no newer version of the rows

    assert bench.run("films")["status"] == "SUCCESS"

    assert {"5", "7"} <= documents(client, index).keys()


@pytest.mark.one_server
def test_not_beside_a_run_and_not_in_the_middle_of_a_load(bench: Workbench, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES)
    bench.run("films")
    bench.request("films")
    claim = bench.claim()
    with pytest.raises(Conflict, match="RUNNING"):
        bench.replay("films")
    bench.perform(claim)
    bench.sql("UPDATE etl.etl_pipelines SET status = 'PAUSED'; UPDATE content.film_work SET title = '2025-05-05'")

    assert bench.replay("films")["sent"] == 3

    assert bench.status("films") == Status.PAUSED
    bench.sql("UPDATE etl.etl_state SET stage = 'unfinished'")
    with pytest.raises(Conflict, match="unfinished full load"):
        bench.replay("films")


@transform("replay_fail_on_no_date", rows=True)
def fail_on_no_date(row: dict[str, Any]) -> dict[str, Any]:
    """Fails on some films."""
    if row["title"] == "no date":
        raise ValueError(row["title"])
    return row


@transform("replay_make_key", rows=True)
def make_key(row: dict[str, Any]) -> dict[str, Any]:
    """Another key than the source's."""
    return row | {"id": f"film-{row['id']}"}


def tasks(step: str) -> list[dict[str, Any]]:
    return [
        {"order_index": 0, "task_type": "SQL", "body": QUERY},
        {"order_index": 1, "task_type": "PYTHON", "body": step, "params": {"on_error": "dead_letter"}},
    ]


@pytest.mark.one_server
def test_rows_that_a_step_failed_on_pass_the_steps_again(bench: Workbench, client: SearchClient, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, tasks=tasks("replay_fail_on_no_date"))
    assert bench.run("films")["rows_rejected"] == 3
    bench.sql("UPDATE content.film_work SET title = 'mended' WHERE id <> 7")

    report = bench.replay("films")

    assert (report["sent"], report["refused"]) == (2, 1)
    assert documents(client, index)["5"]["title"] == "mended"


@pytest.mark.parametrize("fields", [{"mode": "full"}, INCREMENTAL])
@pytest.mark.one_server
def test_rows_on_their_way_into_a_mart_too(bench: Workbench, fields: dict[str, Any]) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], tasks=tasks("replay_fail_on_no_date"), **fields)
    assert bench.run("films")["rows_rejected"] == 3
    bench.sql("UPDATE content.film_work SET title = 'mended' WHERE id = 3; DELETE FROM content.film_work WHERE id = 5")

    report = bench.replay("films")

    assert (report["sent"], report["gone"], report["refused"]) == (1, 1, 1)
    assert resolutions(bench) == {"3": "sent", "5": "gone", "7": None}
    assert bench.differences(f"{QUERY} WHERE id <> 7", "analytics.films", "id, title, rating, genres, modified") == 0


@pytest.mark.one_server
def test_a_key_that_steps_make_does_not_lead_back_to_a_row(bench: Workbench, index: str) -> None:
    pipeline(bench, index, options=DATES | {"max_dead_letters": 5}, tasks=tasks("replay_make_key"))
    bench.run("films")

    with pytest.raises(FatalError, match="steps make the key column 'id'"):
        bench.replay("films")
    assert bench.status("films") == Status.IDLE


@pytest.mark.one_server
@pytest.mark.parametrize("action", ["update", "index"])
def test_a_pass_that_delivers_a_document_resolves_its_letter(
    bench: Workbench, client: SearchClient, index: str, action: str
) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES | {"action": action})
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = '2025-05-05', modified = clock_timestamp() WHERE id IN (3, 4)")
    bench.sql("UPDATE content.film_work SET title = 'still none', modified = clock_timestamp() WHERE id = 5")

    run = bench.run("films")

    assert (run["status"], run["rows_rejected"]) == ("SUCCESS", 1)
    assert resolutions(bench) == {"3": "delivered", "5": None, "7": None}
    assert documents(client, index)["3"]["title"] == "2025-05-05"


@pytest.mark.one_server
def test_a_deletion_resolves_the_letter_too(bench: Workbench, index: str) -> None:
    bench.sql("ALTER TABLE content.film_work ADD gone boolean")
    query = QUERY.replace(" FROM", ", gone FROM")
    pipeline(bench, index, query, **INCREMENTAL, options=DATES | {"delete_when": "gone"})
    bench.run("films")
    bench.sql("UPDATE content.film_work SET gone = true, modified = clock_timestamp() WHERE id = 3")

    bench.run("films")

    assert resolutions(bench) == {"3": "delivered", "5": None, "7": None}


@pytest.mark.one_server
def test_a_letter_is_resolved_with_the_checkpoint_or_not_at_all(bench: Workbench, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = '2025-05-05', modified = clock_timestamp() WHERE id = 3")
    bench.request("films")
    bench.lose_a_runner("batch.fenced:crash:1")

    assert resolutions(bench) == {"3": None, "5": None, "7": None}


@pytest.mark.one_server
def test_a_row_that_is_refused_and_taken_in_one_run_leaves_no_open_letter(bench: Workbench, index: str) -> None:
    """It changed while the pass was under way, and comes again at its end."""
    query = f"{QUERY} UNION ALL SELECT 3, '2025-05-05', 1, ARRAY['g'], timestamptz '2025-05-05'"
    pipeline(bench, index, query, **INCREMENTAL, options=DATES, batch_size=10)

    assert bench.run("films")["status"] == "SUCCESS"

    assert resolutions(bench) == {"3": "delivered", "5": None, "7": None}


@pytest.mark.one_server
def test_a_repair_that_delivers_a_document_resolves_its_letter(bench: Workbench, index: str) -> None:
    pipeline(bench, index, **INCREMENTAL, options=DATES)
    bench.run("films")
    bench.sql("UPDATE content.film_work SET title = '2025-05-05' WHERE id = 3")

    bench.reconcile("films", repair=True)

    assert resolutions(bench) == {"3": "delivered", "5": None, "7": None}
