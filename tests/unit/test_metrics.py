"""Names, help texts and units of metrics; every metric that rules and dashboard name exists; labels stay few."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from tests.support import promlint
from vitrina.api.middleware import RequestContextMiddleware
from vitrina.errors import CannotConnect
from vitrina.observe import monitoring
from vitrina.observe.prometheus import Instruments, RunTally
from vitrina.settings import Settings
from vitrina.store import feed_reports, metrics
from vitrina.store.database import Connection
from vitrina.store.runs import Counters

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "infra" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "infra" / "grafana" / "dashboards" / "vitrina.json"

# Named by the design: dashboards of users depend on them.
PROMISED = """
vitrina_runs_total vitrina_run_duration_seconds vitrina_rows_read_total vitrina_rows_written_total
vitrina_rows_rejected_total vitrina_batch_duration_seconds vitrina_lag_seconds vitrina_last_success_timestamp_seconds
vitrina_queue_depth vitrina_lease_lost_total vitrina_pipeline_status vitrina_runners_alive vitrina_dead_letters
vitrina_checkpoint_held_seconds
""".split()


class Figures:
    """Rows as the metastore would give them."""

    def __init__(self, count: int) -> None:
        self.rows = [self.row(number) for number in range(count)]

    def row(self, number: int) -> dict[str, Any]:
        return {
            "name": f"pipeline_{number}",
            "status": "FAILED" if number % 2 else "IDLE",
            "enabled": True,
            "mode": "incremental",
            "options": {"max_lag_seconds": 5},
            "now": 1000.0,
            "status_since": 900.0,
            "failing_since": 900.0,
            "safe_upto": f"1970-01-01 00:{number % 10:02}:00+00",
            "hold": {"since": "1970-01-01T00:10:00+00:00"},
            "success_started": 1.0,
            "success_finished": 2.0 + number,
            "progressed": 997.0,
            "error_code": "bad_key",
            "dead_letters": 1,
            "drift_rows": 0.0,
        }


@pytest.fixture
def metastore(monkeypatch: pytest.MonkeyPatch) -> Figures:
    found = Figures(6)
    totals = {"runners_alive": 1, "queue_depth": 0, "queue_oldest": 0.0, "notifications_waiting": 0}
    monkeypatch.setattr(metrics, "list_oldest", lambda connection, limit: found.rows)
    monkeypatch.setattr(metrics, "totals", lambda connection, stale_after_seconds: totals)
    monkeypatch.setattr(feed_reports, "list_all", lambda connection: [FEED])
    return found


FEED = {
    "connection": "default",
    "is_owned": True,
    "problem": None,
    "lag_seconds": 0.5,
    "behind_bytes": 100,
    "retained_bytes": 200,
    "keep_bytes": 300,
    "stored_changes": 4,
    "kept_changes": 3,
    "followers": [{"pipeline": "films", "backlog_changes": 2, "must_reload": None}],
}


@contextmanager
def session() -> Iterator[Connection]:
    yield None  # type: ignore[misc]


def exposed(registry: CollectorRegistry) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


@pytest.fixture
def families(metastore: Figures) -> dict[str, Metric]:
    """Everything that API and runner expose, after something has happened."""
    instruments = Instruments()
    instruments.registry.register(monitoring.MetastoreCollector(session, Settings()))
    RequestContextMiddleware(Starlette(), registry=instruments.registry)._seconds.labels("GET", "/", 200).observe(0.1)
    tally = RunTally(instruments, "films")
    tally.advance(Counters(rows_read=1), {"read": 0.1}, [0.1])
    tally.retried()
    tally.failed("bad_key")
    tally.lost_lease()
    tally.ended("SUCCESS")
    instruments.notifications.labels("webhook", "delivered").inc()
    instruments.lineage_events.labels("sent").inc()
    return exposed(instruments.registry)


def test_every_metric_says_what_it_is_in_base_units(families: dict[str, Metric]) -> None:
    """What `promtool check metrics` looks at."""
    for name, family in families.items():
        assert re.fullmatch(r"vitrina_[a-z][a-z_]*[a-z]", name), name
        assert family.documentation.endswith("."), f"{name} has no help text"
        assert family.type in ("counter", "gauge", "histogram"), name
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|percent)(_|$)", name), f"{name}: not a base unit"
        assert not re.search(r"counter|gauge|histogram", name), f"{name} repeats its type"
        if family.type == "gauge":
            assert not name.endswith(("_total", "_count", "_sum", "_bucket")), name
        labels = {label for sample in family.samples for label in sample.labels}
        known = "pipeline status stage code seen_by channel outcome version le method route connection"
        assert labels <= {*known.split()}, f"{name} has the labels {labels}"


def test_the_names_of_the_design_are_there(families: dict[str, Metric]) -> None:
    assert not {name for name in PROMISED if name.removesuffix("_total") not in families}


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_every_metric_that_is_named_exists(path: Path, families: dict[str, Metric]) -> None:
    samples = {sample.name for family in families.values() for sample in family.samples}
    named = set(re.findall(r"\bvitrina_[a-z_]+", " ".join(expressions(path))))
    assert len(named) > 8
    assert not named - samples, f"{path.name} names {sorted(named - samples)}, which nobody exposes"


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_expressions_use_labels_that_the_metrics_have(path: Path, families: dict[str, Metric]) -> None:
    labels = {
        sample.name: set(sample.labels) for family in families.values() for sample in family.samples if sample.labels
    }
    for expression in expressions(path):
        for metric, selector in re.findall(r"\b(vitrina_[a-z_]+)\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)\s*[=!]", selector):
                assert label in labels.get(metric, set()), f"{expression}: {metric} has no label {label}"


def test_there_is_an_alert_for_each_kind_of_trouble() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    wanted = "PipelineFailed PipelineStuck PipelineLagging NoRunner DeadLetters Drift CheckpointHeldBack".split()
    assert {f"Vitrina{name}" for name in wanted} <= alerts


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert {"summary", "description"} <= set(rule["annotations"]), rule["alert"]
            for text in rule["annotations"].values():
                assert re.fullmatch(r"([^{}]|\{\{ \$(value|labels\.\w+)( \| \w+)? \}\})*", text), text
            assert rule["expr"].count("(") == rule["expr"].count(")"), rule["alert"]
    assert promlint.rule_problems(ALERTS) == []


def test_a_deleted_pipeline_leaves_its_label_to_another() -> None:
    instruments = Instruments(max_pipelines=2)
    for name in ("old", "kept"):
        RunTally(instruments, name).ended("SUCCESS")
    assert instruments.label("new") == monitoring.OTHER
    instruments.retain(["kept"])  # the list may be older than the pipeline
    assert instruments.registry.get_sample_value("vitrina_runs_total", {"pipeline": "old", "status": "SUCCESS"}) == 1
    instruments.retain(["kept"])
    assert instruments.registry.get_sample_value("vitrina_runs_total", {"pipeline": "old", "status": "SUCCESS"}) is None
    assert instruments.registry.get_sample_value("vitrina_run_duration_seconds_count", {"pipeline": "old"}) is None
    assert instruments.label("new") == "new"
    assert instruments.registry.get_sample_value("vitrina_runs_total", {"pipeline": "kept", "status": "SUCCESS"}) == 1


def test_many_pipelines_share_one_label_of_counters() -> None:
    instruments = Instruments(max_pipelines=2)
    for number in range(5):
        RunTally(instruments, f"pipeline_{number}").ended("SUCCESS")
    runs = {
        s.labels["pipeline"]: s.value
        for s in exposed(instruments.registry)["vitrina_runs"].samples
        if "total" in s.name
    }
    assert runs == {"pipeline_0": 1, "pipeline_1": 1, "other": 3}


def test_a_metastore_that_is_away_is_told_and_nothing_is_invented() -> None:
    def away() -> Any:
        raise CannotConnect("it is away")

    registry = CollectorRegistry()
    registry.register(monitoring.MetastoreCollector(away, Settings()))
    found = exposed(registry)
    assert list(found) == ["vitrina_metastore_up"]
    assert found["vitrina_metastore_up"].samples[0].value == 0


def test_counters_never_go_back_when_a_batch_is_tried_again() -> None:
    instruments = Instruments()
    tally = RunTally(instruments, "films")
    for rows in (100, 50, 120):
        tally.advance(Counters(rows_read=rows), {}, [])
    assert instruments.registry.get_sample_value("vitrina_rows_read_total", {"pipeline": "films"}) == 120


def expressions(path: Path) -> list[str]:
    if path is ALERTS:
        return [rule["expr"] for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    dashboard = json.loads(path.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*asked, *(variable["query"] for variable in dashboard["templating"]["list"])]
