"""Definitions whose ranges a cluster would load: what is asked of it, when, and what is said if it does not answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.workbench import Workbench
from vitrina.errors import CannotConnect, ConfigError, FatalError, TransientError
from vitrina.loads import processors
from vitrina.ports import registry
from vitrina.runner import requests
from vitrina.settings import ConnectionLimits
from vitrina.store import pipelines

QUERY = "SELECT id, title FROM content.films"
CUT = {"engine": "spark", "checkpoint_rows": 150, "route": "copy"}


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source(
        """
        CREATE TABLE content.films (id int PRIMARY KEY, title text);
        INSERT INTO content.films SELECT i, 'Film ' || i FROM generate_series(1, 1500) AS i;
        ANALYZE content.films;
        """
    )
    workbench.settings = workbench.settings.model_copy(
        update={"connections": {"cluster": SecretStr("sc://127.0.0.1:1")}}
    )
    return workbench


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[float]]:
    """Let the cluster answer, and return the limits of time that it was asked with."""
    asked: list[float] = []
    installed = registry.installed()

    def answering(with_what: Any) -> list[float]:
        def check(url: str, limit_seconds: float) -> Sequence[str]:
            asked.append(limit_seconds)
            if isinstance(with_what, Exception):
                raise with_what
            return list(with_what)

        spark = replace(installed.connectors["spark"], check_engine=check)
        changed = replace(installed, connectors={**installed.connectors, "spark": spark})
        monkeypatch.setattr(registry, "installed", lambda: changed)
        return asked

    return answering


def warnings_of(bench: Workbench) -> list[str]:
    return [str(line) for line in plan_of(bench)["warnings"]]


def plan_of(bench: Workbench) -> dict[str, Any]:
    row = pipelines.find(bench.metastore, "films")
    assert row is not None
    found = requests.validate({"pipeline_id": row["id"], "payload": {}}, bench.metastore, bench.settings)
    plan: dict[str, Any] = found["plan"]
    return plan


def test_a_plan_names_what_the_cluster_has_in_another_version(bench: Workbench, answer: Any) -> None:
    asked = answer(["executors have an old vitrina"])
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT)

    assert "executors have an old vitrina" in warnings_of(bench)
    assert len(asked) == 1
    assert asked[0] < 60


@pytest.mark.parametrize("error", [CannotConnect("it is stopped"), TransientError("it stumbled"), FatalError("is old")])
def test_a_cluster_that_does_not_answer_is_a_warning(bench: Workbench, answer: Any, error: Exception) -> None:
    answer(error)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT)

    [said] = [line for line in warnings_of(bench) if "were not compared" in line]
    assert str(error) in said


def test_a_cluster_that_is_not_configured_is_refused(bench: Workbench, answer: Any) -> None:
    answer([])
    bench.settings = bench.settings.model_copy(update={"connections": {}})
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT)

    with pytest.raises(ConfigError, match="VITRINA_CONN_CLUSTER"):
        warnings_of(bench)


def test_only_a_validation_asks_the_cluster(bench: Workbench, answer: Any) -> None:
    """A replay writes single rows, which no cluster loads."""
    asked = answer([])
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT | {"engine": "local"})
    assert bench.run("films")["status"] == "SUCCESS"
    bench.change("films", options=CUT)

    bench.sql(
        "INSERT INTO etl.etl_dead_letters (pipeline_id, document_id, error, document)"
        " SELECT id, '7', 'it was odd', '{}' FROM etl.etl_pipelines"
    )

    assert bench.replay("films")["letters"] == 1
    assert asked == []


@pytest.mark.parametrize(("most", "promised"), [(None, True), (20, False)])
def test_a_plan_promises_the_sessions_that_a_comparison_opens(
    bench: Workbench, answer: Any, most: int | None, promised: bool
) -> None:
    answer([])
    assert bench.settings.database_url
    connections = bench.settings.connections | {"marts": bench.settings.database_url}
    limits = {"marts": ConnectionLimits(max_connections=most)} if most else {}
    update = {"connections": connections, "connection_limits": limits}
    bench.settings = bench.settings.model_copy(update=update)
    options = CUT | {"parallel": 3, "target_connection": "marts"}
    bench.pipeline("films", QUERY, target_key=["id"], options=options)

    plan = plan_of(bench)

    assert plan["paging"] == "key ranges"
    assert ("up to 3 sessions" in " ".join(map(str, plan["reasons"]))) is promised


def test_the_runner_is_compared_with_the_cluster_on_all_of_its_processors(
    bench: Workbench, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer([])
    monkeypatch.setattr(processors, "usable", lambda: 12)
    bench.pipeline("films", QUERY, target_key=["id"], options=CUT)

    assert "on its 12 processor(s)" in " ".join(warnings_of(bench))
