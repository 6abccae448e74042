"""Old events, logs, notifications, requests and plans are deleted, whatever has piled up."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.workbench import Workbench
from vitrina.store import data_plans, events, notifications, pruning, requests, run_logs
from vitrina.store.database import Connection

OLD, NEW = 25, 3
AT = f"now() - CASE WHEN n > {OLD} THEN interval '0' ELSE interval '40 days' END FROM generate_series(1, {OLD + NEW}) n"
PIPELINE, RUN = "(SELECT id FROM etl.etl_pipelines)", "(SELECT id FROM etl.etl_runs)"
UUID = "gen_random_uuid()"
PILES: dict[str, tuple[str, Callable[[Connection], int]]] = {
    "etl_events": (f"(topic, payload, at) SELECT 'old', '{{}}', {AT}", partial(events.prune, older_than_hours=24)),
    "etl_run_logs": (
        f"(run_id, level, event, at) SELECT {RUN}, '', '', {AT}",
        partial(run_logs.prune, older_than_days=7),
    ),
    "etl_notifications": (
        f"(kind, pipeline_id, done_at) SELECT 'failed', {PIPELINE}, {AT}",
        partial(notifications.prune, older_than_days=7),
    ),
    "etl_requests": (f"(kind, finished_at) SELECT 'tables', {AT}", partial(requests.prune, older_than_days=7)),
    "etl_plans": (
        f"(id, pipeline, fingerprint, result, created_by, created_at) SELECT {UUID}, 'films', '', '{{}}', '', {AT}",
        partial(data_plans.prune, older_than_days=7),
    ),
}
# A statement that deletes more than a slice fails, as one does that takes longer than it may.
LIMIT = """
CREATE FUNCTION etl.limits() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF (SELECT count(*) FROM gone) > 10 THEN RAISE EXCEPTION 'too long'; END IF; RETURN NULL; END $$;
CREATE TRIGGER limits AFTER DELETE ON etl.{table}
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION etl.limits()
"""


@pytest.mark.parametrize("table", PILES)
def test_a_pile_of_old_rows_is_deleted_in_slices(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    workbench.run("films")
    rows, prune = PILES[table]
    workbench.sql(f"DELETE FROM etl.{table}")
    workbench.sql(f"INSERT INTO etl.{table} {rows}")
    workbench.sql(LIMIT.format(table=table))
    monkeypatch.setattr(pruning, "ROWS", 10)

    assert prune(workbench.metastore) == OLD
    assert workbench.sql(f"SELECT count(*) AS left FROM etl.{table}") == [{"left": NEW}]


def test_a_round_ends_although_more_is_left(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    workbench.sql("DELETE FROM etl.etl_events")
    workbench.sql(f"INSERT INTO etl.etl_events {PILES['etl_events'][0]}")
    monkeypatch.setattr(pruning, "ROWS", 10)
    monkeypatch.setattr(pruning, "SLICES", 2)
    assert [events.prune(workbench.metastore, older_than_hours=24) for _ in range(3)] == [20, 5, 0]
