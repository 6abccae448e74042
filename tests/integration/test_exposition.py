"""What both processes expose, as a monitoring server reads it: clean, and not for ever what is no longer there."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.api import serving, without_auth
from tests.integration.test_observed_runner import Observed, observed
from tests.support import multitude, promlint
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.observe import monitoring
from vitrina.store import metrics, pipelines, runs
from vitrina.store.database import Connection

FILMS = "CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1), (2)"
QUERY = "SELECT id FROM content.films"
BROKEN = "SELECT 1 / (id - 1) AS id FROM content.films"
DIRTY = """
# HELP films_seconds Films.
# TYPE films_seconds gauge
films_seconds 1
{}
"""


def pipelines_in(text: str) -> set[str]:
    families = text_string_to_metric_families(text)
    return {
        sample.labels["pipeline"] for family in families for sample in family.samples if "pipeline" in sample.labels
    }


def test_api_and_runner_pass_the_linter_and_forget_deleted_pipelines(workbench: Workbench) -> None:
    settings = without_auth(workbench.settings, metrics_port=0, poll_seconds=0.2)
    workbench.source(FILMS)
    for name, query in (
        ("kept", QUERY),
        ("deleted", QUERY),
        ("failing", "SELECT 1 / (id - 1) AS id FROM content.films"),
    ):
        workbench.pipeline(name, query, target_key=["id"])
        workbench.request(name)
    with serving(settings) as api, observed(settings) as runner:
        until(lambda: workbench.status("failing") == "FAILED" and ended(runner) == 3)
        assert api.request("BREW", "/api/v1/pipelines").status_code == 405
        told = {"api": api.get("/metrics").text, "runner": runner.http.get("/metrics").text}
        assert {name: promlint.problems(text) for name, text in told.items()} == {"api": [], "runner": []}
        assert pipelines_in(told["runner"]) == {"kept", "deleted", "failing"}
        assert 'method="other"' in told["api"]
        assert "BREW" not in told["api"]

        assert api.delete("/api/v1/pipelines/deleted").status_code == 204
        assert pipelines_in(api.get("/metrics").text) == {"kept", "failing"}
        # What the runner counted is kept for one more look: a list may be older than the pipeline missing on it.
        runner.http.get("/metrics")
        runner.http.get("/metrics")
        assert pipelines_in(runner.http.get("/metrics").text) == {"kept", "failing"}
        assert runner.value("vitrina_runs_total", pipeline="kept", status="SUCCESS") == 1


def ended(runner: Observed) -> float:
    return sum(value for (name, _), value in runner.series().items() if name == "vitrina_runs_total")


@pytest.mark.parametrize(
    "line",
    [
        "films_seconds 2",
        "unknown 1",
        "# TYPE no_help_seconds gauge",
        "# HELP a_b A.\n# TYPE a_b counter",
        "# HELP a_total A.\n# TYPE a_total gauge",
        "# HELP a_count A.\n# TYPE a_count gauge",
        "# HELP a_gauge A.\n# TYPE a_gauge gauge",
        "# HELP a_milliseconds A.\n# TYPE a_milliseconds gauge",
        "# HELP aB A.\n# TYPE aB gauge",
        'films_seconds{filmTitle="x"} 1',
        'films_seconds{le="1"} 1',
    ],
)
def test_the_linter_finds(line: str) -> None:
    assert promlint.problems(DIRTY.format("")) == []
    assert promlint.problems(DIRTY.format(line))


def test_lag_stays_right_while_nothing_succeeds(workbench: Workbench) -> None:
    """Through repairs, failures and the pruning of history, it is counted from the last run that read the source."""
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.run("films")
    workbench.sql("UPDATE etl.etl_runs SET started_at = now() - interval '90 days', finished_at = started_at")
    workbench.sql("DELETE FROM analytics.films WHERE id = 1")
    workbench.reconcile("films", repair=True)
    workbench.change("films", source_query=BROKEN)
    assert workbench.run("films")["status"] == "FAILED"
    workbench.sql("UPDATE etl.etl_runs SET started_at = now() - interval '60 days' WHERE metrics ? 'repair'")
    pipeline = pipelines.find(workbench.metastore, "films")
    assert pipeline
    for _ in range(2):
        [row] = metrics.list_oldest(workbench.metastore, limit=10)
        assert (row["now"] - row["success_started"]) / 86_400 == pytest.approx(90, abs=1)
        last = runs.find_last_success(workbench.metastore, pipeline["id"])
        assert last
        assert "repair" not in last["metrics"]
        runs.prune(workbench.metastore, older_than_days=30)


# How the pipelines without a label of their own are put together, by the name of the series.
TOGETHER: dict[str, Callable[[Iterable[float]], float]] = {
    "vitrina_pipeline_status_since_timestamp_seconds": min,
    "vitrina_pipeline_failing_since_timestamp_seconds": min,
    "vitrina_last_success_timestamp_seconds": min,
    "vitrina_lag_seconds": max,
    "vitrina_lag_limit_seconds": min,
    "vitrina_run_progress_age_seconds": max,
    "vitrina_dead_letters": sum,
    "vitrina_drift_rows": sum,
    "vitrina_checkpoint_held_seconds": max,
    "vitrina_pipeline_status": sum,
    "vitrina_pipeline_failed": sum,
    "vitrina_pipelines": sum,
    "vitrina_queue_depth": sum,
}

# Texts in places of times, zones of their own, an error that nobody gave a code, limits that are no numbers.
ODD_CURSORS = """
UPDATE etl.etl_state s SET safe_upto = odd.safe_upto
FROM etl.etl_pipelines p, (VALUES ('12', '2020-01-01-a'), ('14', '2019-02-30 00:00:00+00'), ('16', 'infinity'),
                                  ('18', '2021-01-01T00:00:00Z'), ('20', '2021-01-01 00:00:00'), ('22', '77'),
                                  ('24', '2021-01-01 00:00:00.5+05:30'), ('26', '2021-01-01'),
                                  ('28', '0044-03-15 00:00:00+00 BC')) odd (number, safe_upto)
WHERE p.id = s.pipeline_id AND p.name LIKE '%' || odd.number;
UPDATE etl.etl_pipelines SET options = options || '{"cursor_timezone": "Asia/Tokyo"}' WHERE name LIKE '%20';
UPDATE etl.etl_pipelines SET options = options || '{"cursor_timezone": "No/Where"}' WHERE name LIKE '%26';
UPDATE etl.etl_pipelines SET options = options || '{"max_lag_seconds": 1e305}' WHERE name LIKE '%29';
UPDATE etl.etl_pipelines SET options = options || '{"max_lag_seconds": "soon"}' WHERE name LIKE '%31';
UPDATE etl.etl_pipelines SET hold = '{"pid": 7}' WHERE name LIKE '%33';
UPDATE etl.etl_runs SET error_code = NULL WHERE pipeline_id IN (SELECT id FROM etl.etl_pipelines WHERE name LIKE '%03');
UPDATE etl.etl_runs SET started_at = started_at - interval '7 years', finished_at = finished_at - interval '7 years'
WHERE pipeline_id IN (SELECT id FROM etl.etl_pipelines WHERE name LIKE '%37');
UPDATE etl.etl_pipelines SET status = 'FAILED', failing_since = '2020-02-02' WHERE name LIKE '%09';
UPDATE etl.etl_runs SET error_code = 'bad_key'
WHERE pipeline_id IN (SELECT id FROM etl.etl_pipelines WHERE name LIKE '%09');
UPDATE etl.etl_pipelines SET status = 'RUNNING' WHERE name LIKE '%40';
INSERT INTO etl.etl_runs (pipeline_id, trigger, status, updated_at)
SELECT id, 'api', 'RUNNING', '2023-03-03' FROM etl.etl_pipelines WHERE status = 'RUNNING';
UPDATE etl.etl_pipelines SET hold = '{"since": "2022-02-02T00:00:00+00:00"}' WHERE name LIKE '%35';
INSERT INTO etl.etl_requests (kind, pipeline_id, payload, requested_by, status, result)
SELECT 'reconcile', id, '{}', 'me', 'DONE', '{"differences": 5, "remaining": 3}' FROM etl.etl_pipelines
WHERE name LIKE '%39';
"""
# Seconds that may lie between two scrapes; the times above are years apart.
A_WHILE = 3600


@pytest.mark.parametrize("oldest_cursor", ["2018-05-05 05:05:05.5+00", None])
def test_pipelines_without_a_label_of_their_own_are_put_together(
    workbench: Workbench, oldest_cursor: str | None
) -> None:
    """As from each of them alone; whether the oldest is one with a cursor or one without."""
    multitude.fill(workbench.admin, pipelines=150, runs=1500)
    workbench.sql("SET session_replication_role = replica")
    workbench.sql(ODD_CURSORS)
    if oldest_cursor:
        workbench.sql(
            f"UPDATE etl.etl_state s SET safe_upto = '{oldest_cursor}' FROM etl.etl_pipelines p"
            " WHERE p.id = s.pipeline_id AND p.name LIKE '%48'"
        )
    each, shared = series(workbench, 1000), series(workbench, 4)
    own = {"pipeline_000001", "pipeline_000002", "pipeline_000003", "pipeline_000004"}
    expected: dict[tuple[str, Labels], list[float]] = {}
    for (name, labels), value in each.items():
        named = {label: monitoring.OTHER if label == "pipeline" and text not in own else text for label, text in labels}
        expected.setdefault((name, frozenset(named.items())), []).append(value)
    assert shared.keys() == expected.keys()
    assert {name for name, _ in shared} == set(TOGETHER)
    for (name, labels), value in shared.items():
        wanted = TOGETHER[name](expected[name, labels])
        assert value == pytest.approx(wanted, abs=A_WHILE if name.endswith(AGES) else 1e-6), (name, labels)


Labels = frozenset[tuple[str, str]]
AGES = ("_lag_seconds", "_age_seconds", "_held_seconds")


def series(workbench: Workbench, own_labels: int) -> dict[tuple[str, Labels], float]:
    """What the metastore is seen to be when so many pipelines may have their own label."""

    @contextmanager
    def connect() -> Iterator[Connection]:
        yield workbench.metastore

    registry = CollectorRegistry()
    registry.register(monitoring.MetastoreCollector(connect, workbench.settings, max_pipelines=own_labels))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name in TOGETHER
    }


def test_what_takes_long_to_sum_up_is_kept_and_its_ages_grow(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    multitude.fill(workbench.admin, pipelines=10, runs=100)
    workbench.sql("UPDATE etl.etl_runs SET finished_at = '2020-01-01', started_at = '2020-01-01'")
    rest = monitoring.Rest()
    last = metrics.list_oldest(workbench.metastore, limit=3)[-1]
    monkeypatch.setattr(monitoring, "QUICK_SECONDS", 0)
    monkeypatch.setattr(monitoring, "_KEEP_FACTOR", 1e9)
    first = rest.read(workbench.metastore, last)
    workbench.sql("UPDATE etl.etl_runs SET finished_at = '2021-01-01', started_at = '2021-01-01'")
    later = rest.read(workbench.metastore, last | {"now": last["now"] + 500})
    assert later == first | {"now": last["now"] + 500}
    [lag] = [gauge for gauge in monitoring.PIPELINE_GAUGES if gauge.name == "vitrina_lag_seconds"]
    grown = lag.of_rest(later), lag.of_rest(first)
    assert grown[0] is not None
    assert grown[1] is not None
    assert grown[0] - grown[1] == pytest.approx(500)
    # A pipeline before it was deleted: these are others now.
    other = metrics.list_oldest(workbench.metastore, limit=4)[-1]
    assert rest.read(workbench.metastore, other)["success_finished"] > first["success_finished"]
