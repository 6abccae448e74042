"""What both processes expose, as a monitoring server reads it: clean, and not for ever what is no longer there."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.api import serving, without_auth
from tests.integration.test_observed_runner import Observed, observed
from tests.support import promlint
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.store import figures, pipelines, runs

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
        [row] = figures.list_oldest(workbench.metastore, limit=10)
        assert (row["now"] - row["success_started"]) / 86_400 == pytest.approx(90, abs=1)
        last = runs.find_last_success(workbench.metastore, pipeline["id"])
        assert last
        assert "repair" not in last["metrics"]
        runs.prune(workbench.metastore, older_than_days=30)
