"""Traces: a run belongs to the trace of the request that asked for it, and shows its batches and their stages."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.integration.api import serving, without_auth
from tests.integration.test_observed_runner import kept, observed
from tests.support.receiver import Receiver
from tests.support.waiting import until
from tests.support.workbench import NO_HEARTBEAT_SECONDS, Workbench
from vitrina.loads.control import RunControl
from vitrina.observe import logs, tracing
from vitrina.observe import run_trace as runner_traces
from vitrina.observe.observer import RunOutcome
from vitrina.observe.run_trace import RunTrace
from vitrina.ports.batch import Part, Timing
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.status import Trigger
from vitrina.store import pipelines
from vitrina.store.runs import Counters

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FILMS = """
CREATE TABLE content.films (id int PRIMARY KEY, title text, modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.films (id, title) SELECT n, 'film ' || n FROM generate_series(1, 1000) n;
"""
QUERY = "SELECT id, title, modified FROM content.films"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A real OTLP receiver on loopback, and the environment that names it."""
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url(""))
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield receiver


def spans_at(collector: Receiver) -> dict[str, list[Span]]:
    """By name, as they came over the wire."""
    found: dict[str, list[Span]] = {}
    for received in collector.at("/v1/traces"):
        for resource in ExportTraceServiceRequest.FromString(received.body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found.setdefault(span.name, []).append(span)
    return found


def services_at(collector: Receiver) -> set[str]:
    return {
        attribute.value.string_value
        for received in collector.at("/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(received.body).resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }


def values_of(span: Span) -> dict[str, object]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_one_trace_from_the_request_to_the_stages_of_each_batch(
    workbench: Workbench, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_traces, "SHORTEST_STAGE_SECONDS", 0.0)
    before = structlog.get_config()
    settings = without_auth(workbench.settings, metrics_port=0, poll_seconds=0.2, log_level="error")
    logs.configure(settings)
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"], batch_size=400, options={"route": "arrow"})

    with serving(settings) as api, observed(settings):
        asked = api.post("/api/v1/pipelines/films/run", headers={"traceparent": CALLER})
        assert asked.status_code == 202
        collector.wait_for(lambda r: "run films" in spans_at(r))
    structlog.configure(**before)

    spans = spans_at(collector)
    [request], [run] = spans["POST /pipelines/{pipeline}/run"], spans["run films"]
    trace = bytes.fromhex(CALLER.split("-")[1])
    assert request.trace_id == run.trace_id == trace
    assert request.parent_span_id == bytes.fromhex(CALLER.split("-")[2])
    assert run.parent_span_id == request.span_id
    assert services_at(collector) == {"vitrina-api", "vitrina-runner"}

    batches = spans["batch"]
    assert [values_of(batch)["vitrina.rows"] for batch in batches] == [400, 400, 200]
    for stage in ("read", "stage", "merge", "wait"):
        assert [span.parent_span_id for span in spans[stage]] == [batch.span_id for batch in batches], stage
    for outer in (*batches, *spans["plan"], *spans["publish"]):
        assert (outer.trace_id, outer.parent_span_id) == (trace, run.span_id)
        assert run.start_time_unix_nano <= outer.start_time_unix_nano <= outer.end_time_unix_nano
        assert outer.end_time_unix_nano <= run.end_time_unix_nano
    facts = values_of(run)
    last = workbench.last_run("films")
    assert (facts["vitrina.run_id"], facts["vitrina.outcome"]) == (str(last["id"]), "SUCCESS")
    assert (facts["vitrina.rows_read"], facts["vitrina.rows_written"]) == (1000, 1000)
    assert {line["payload"]["trace_id"] for line in kept(workbench, last["id"])} == {trace.hex()}


def test_stages_that_nobody_could_see_are_left_out(workbench: Workbench, collector: Receiver) -> None:
    traces = tracing.start("vitrina-test")
    assert traces is not None
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.request("films")
    run = RunTrace(traces, workbench.claim())
    filled = Part(number=1, rows=10, last=None, seconds=1.0)
    run.batch_done(filled, {"read": Timing(100.0, 0.5), "stage": Timing(100.5, 0.0009), "merge": Timing(100.6, 0.001)})
    run.ended(RunOutcome("SUCCESS"), Counters())
    traces.stop()
    spans = spans_at(collector)
    assert sorted(spans) == ["batch", "merge", "read", "run films"]
    assert spans["read"][0].parent_span_id == spans["batch"][0].span_id
    assert (spans["read"][0].end_time_unix_nano - spans["read"][0].start_time_unix_nano) / 1e9 == 0.5


def test_a_run_that_fails_is_told_with_its_error(workbench: Workbench, collector: Receiver) -> None:
    traces = tracing.start("vitrina-test")
    assert traces is not None
    workbench.source(FILMS)
    workbench.pipeline("films", "SELECT id, 1 / (id - 1) AS broken FROM content.films", target_key=["id"])
    workbench.request("films")
    claim = workbench.claim()
    watched = PipelineDispatcher(workbench.settings, observers=lambda claim: [RunTrace(traces, claim)])
    watched.work(claim, RunControl(NO_HEARTBEAT_SECONDS, threading.Event()))
    traces.stop()

    [run] = spans_at(collector)["run films"]
    assert run.parent_span_id == b""
    assert run.status.code == Status.STATUS_CODE_ERROR
    assert "division by zero" in run.status.message
    assert values_of(run)["error.type"] == "source_query_failed"


def test_a_run_does_not_depend_on_the_collector(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as closed:
        nobody_there = closed.url("")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nobody_there)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    workbench.source(FILMS)
    workbench.pipeline("films", QUERY, target_key=["id"])
    workbench.request("films")
    with observed(workbench.settings.model_copy(update={"metrics_port": 0, "poll_seconds": 0.2})) as runner:
        until(lambda: runner.value("vitrina_runs_total", pipeline="films", status="SUCCESS") == 1)


def test_the_trace_of_a_request_stays_with_what_answers_it(workbench: Workbench) -> None:
    workbench.source(FILMS)
    pipeline_id = workbench.pipeline("films", QUERY, target_key=["id"])

    def traced() -> str | None:
        found: str | None = workbench.last_run("films")["traceparent"]
        return found

    assert pipelines.request_run(workbench.metastore, pipeline_id, trigger=Trigger.API, traceparent=CALLER)
    workbench.claim()
    assert traced() == CALLER
    # Its runner dies: whoever goes on with it works for the same request.
    workbench.sql("UPDATE etl.etl_pipelines SET lease_until = now() - interval '1 second'")
    with observed(workbench.settings.model_copy(update={"metrics_port": 0, "poll_seconds": 0.2})) as runner:
        until(lambda: runner.value("vitrina_runs_total", pipeline="films", status="SUCCESS") == 1)
    assert (workbench.last_run("films")["trigger"], traced()) == ("recovery", CALLER)
    workbench.run("films")
    assert traced() is None


@pytest.mark.parametrize(
    "given",
    [
        "",
        "nonsense",
        CALLER.upper(),
        CALLER + "-more",
        CALLER.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        CALLER + "\n",
    ],
)
def test_what_is_no_traceparent_is_not_kept(given: str) -> None:
    assert tracing.acceptable(given) is None
    assert tracing.acceptable(CALLER) == CALLER


ASK = """
import json, sys
if "hidden" in sys.argv: sys.modules["opentelemetry.sdk.trace"] = None
from vitrina.observe import tracing
found = tracing.start("vitrina-test")
print(json.dumps([found is not None, any(name.startswith("opentelemetry") for name in sys.modules)]))
"""
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environ", "arguments", "told"),
    [
        pytest.param({}, [], [False, False], id="no endpoint: nothing is loaded"),
        pytest.param(ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, [], [False, False], id="disabled"),
        pytest.param(ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, [], [False, False], id="another exporter"),
        pytest.param(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [], [False, False], id="another protocol"),
        pytest.param(ENDPOINT, ["hidden"], [False, True], id="not installed"),
        pytest.param(ENDPOINT, [], [True, True], id="on"),
    ],
)
def test_it_costs_nothing_unless_it_is_asked_for(
    environ: dict[str, str], arguments: list[str], told: list[bool]
) -> None:
    found = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        env=found | environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == told
    assert ("tracing.unavailable" in done.stdout + done.stderr) == ("grpc" in str(environ) or "hidden" in arguments)
