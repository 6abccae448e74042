"""Describe runs as OpenLineage events: START, then COMPLETE, FAIL or ABORT, with what was read and written."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from vitrina import __version__, revalidation
from vitrina.data_checks import CheckOption
from vitrina.definition import Definition
from vitrina.errors import ConfigError, RequestError, RunError
from vitrina.observe.observer import PlannedRun, RunObserver, RunOutcome
from vitrina.ports import registry
from vitrina.ports.batch import Timing
from vitrina.ports.connector import Connector
from vitrina.ports.schema import Column
from vitrina.settings import Settings
from vitrina.store.leases import Claim
from vitrina.store.runs import Counters
from vitrina.targets import parse_target

PRODUCER = f"urn:vitrina:{__version__}"
SPEC = "https://openlineage.io/spec"
RUN_EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"

# A runner that continues a lost or paused run starts a run with its own id.
_ENDINGS = {"SUCCESS": "COMPLETE", "FAILED": "FAIL"}
_NO_OWNER = UUID(int=0)

Row = dict[str, Any]
Event = dict[str, Any]
Dataset = dict[str, Any]


class RunLineage(RunObserver):
    """Emit the events of one run. The first has names only; schemas come with the last, once the query is described."""

    def __init__(
        self, settings: Settings, claim: Claim, send: Callable[[Event], None], *, ended_at: datetime | None = None
    ) -> None:
        """Emit the start of a run. If `ended_at` is set, the run ended then and its start was sent before."""
        self._claim = claim
        self._send = send
        self._ended_at = ended_at
        self._job = {"namespace": settings.lineage_namespace, "name": claim.name, "facets": _job_facets(claim)}
        self._inputs: list[Dataset] = []
        self._outputs: list[Dataset] = []
        self._checks: Sequence[CheckOption] = ()
        # An invalid definition has neither; the run will report that itself.
        with suppress(RunError, RequestError, ConfigError):
            self._name(revalidation.definition_of(claim), settings)
        if ended_at is None:
            self._tell("START")

    def _name(self, definition: Definition, settings: Settings) -> None:
        self._outputs = [_target(definition, settings)]
        self._inputs = _sources(definition, settings)
        self._checks = definition.checks

    def planned(self, job: PlannedRun, timing: Timing) -> None:
        if not self._outputs or not self._inputs:
            self._name(job.definition, job.settings)  # a connection of the metastore is open by now
        for output in self._outputs:
            output["facets"] = {"schema": _schema(job.output)}
        if job.judged is None:
            return
        with suppress(psycopg.Error):  # the run will notice itself that its session is lost
            known = job.reader.columns_of(job.judged.tables)
            for dataset, table in zip(self._inputs, _unique(job.judged.tables), strict=False):
                if table in known:
                    dataset["facets"] = {"schema": _schema(known[table])}

    def ended(self, outcome: RunOutcome, counters: Counters) -> None:
        for output in self._outputs:
            facet = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=counters.rows_written)
            output["outputFacets"] = {"outputStatistics": facet}
            if judged := counters.metrics.get("checks"):
                assertions = _assertions(judged, self._checks)
                output["facets"] = output.get("facets", {}) | {"dataQualityAssertions": assertions}
        if len(self._inputs) == 1:  # for a join, the rows of each table are unknown
            facet = _facet("1-0-0/InputStatisticsInputDatasetFacet", rowCount=counters.rows_read)
            self._inputs[0]["inputFacets"] = {"inputStatistics": facet}
        facets = {}
        if outcome.message:
            facets["errorMessage"] = _facet(
                "1-0-1/ErrorMessageRunFacet", message=outcome.message, programmingLanguage="python"
            )
        self._tell(_ENDINGS.get(outcome.status, "ABORT"), facets)

    def _tell(self, kind: str, facets: dict[str, Any] | None = None) -> None:
        engine = _facet("1-1-1/ProcessingEngineRunFacet", name="vitrina", version=__version__)
        self._send(
            {
                "eventType": kind,
                "eventTime": (self._ended_at or datetime.now(UTC)).isoformat(),
                "producer": PRODUCER,
                "schemaURL": RUN_EVENT,
                "run": {"runId": str(self._claim.run_id), "facets": {"processing_engine": engine, **(facets or {})}},
                "job": self._job,
                "inputs": [dict(dataset) for dataset in self._inputs],
                "outputs": [dict(dataset) for dataset in self._outputs],
            }
        )


def tell_left_behind(settings: Settings, run: Row, pipeline: Row, send: Callable[[Event], None]) -> None:
    """Emit the end of a run, from the metastore, if the run's own runner no longer can."""
    names = (run["pipeline_id"], pipeline["name"], run["epoch"], _NO_OWNER, run["run_id"], run["pipeline_version"])
    told = RunLineage(settings, Claim(*names, pipeline), send, ended_at=run["finished_at"])
    # A run taken from a silent runner continues as a new run; after too many losses it does not.
    status = "LOST" if run["error_code"] == "lease_lost" else run["status"]
    counters = Counters(run["rows_read"], run["rows_written"], metrics=run["metrics"] or {})
    told.ended(RunOutcome(status, run["error_code"], run["error_message"]), counters)


def _sources(definition: Definition, settings: Settings) -> list[Dataset]:
    """Return the tables of the query; what a Python source reads is unknown."""
    if definition.python_source:
        return []
    url = settings.connection_url(definition.source_connection)
    connector = registry.get(definition.source_type)
    if not definition.reads_postgres:
        return [_dataset(connector, url, definition.source_table)] if definition.source_table else []
    judged = revalidation.revalidate(definition, settings)
    tables = judged.tables if judged else ()
    return [_dataset(connector, url, f"{schema}.{table}") for schema, table in _unique(tables)]


def _target(definition: Definition, settings: Settings) -> Dataset:
    target = parse_target(definition.final_target, settings.target_policy)
    connector = registry.get(target.connector)
    name = str(target).removeprefix(f"{connector.prefix}:")
    return _dataset(connector, settings.target_url(target.connector, definition.options.target_connection), name)


def _dataset(connector: Connector, url: str | None, name: str) -> Dataset:
    """Name a dataset as its connector does, without any part of the login."""
    namespace, named = connector.dataset(url, name) if connector.dataset else (connector.name, name)
    return {"namespace": namespace, "name": named}


def _unique(tables: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(tables))


def _job_facets(claim: Claim) -> dict[str, Any]:
    facets = {
        "jobType": _facet("2-0-4/JobTypeJobFacet", processingType="BATCH", integration="VITRINA", jobType="PIPELINE")
    }
    if claim.row["source_query"]:
        facets["sql"] = _facet("1-1-0/SQLJobFacet", query=claim.row["source_query"])
    if claim.row["description"]:
        facets["documentation"] = _facet("1-1-0/DocumentationJobFacet", description=claim.row["description"])
    return facets


def _schema(columns: Sequence[Column]) -> dict[str, Any]:
    fields = [{"name": column.name, "type": column.type} for column in columns]
    return _facet("1-2-0/SchemaDatasetFacet", fields=fields)


# Kinds that describe the assertion by themselves; for the others, the check's name does.
_SAYING_KINDS = frozenset({"not_null", "unique", "accepted_values", "relationship", "row_count", "freshness"})


def _assertions(judged: Sequence[Row], checks: Sequence[CheckOption]) -> dict[str, Any]:
    """Return the results of a run's checks. A warning, or rejected rows, do not count as success."""
    columns = {check.called: check.columns_read for check in checks}
    told = [
        {
            "assertion": found["kind"] if found["kind"] in _SAYING_KINDS else found["name"],
            "success": found["result"] == "passed",
            # With several columns, no single one was checked.
            **({"column": named[0]} if len(named := columns.get(found["name"], ())) == 1 else {}),
        }
        for found in judged
    ]
    return _facet("1-0-1/DataQualityAssertionsDatasetFacet", assertions=told)


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{schema}.json#/$defs/{name}", **fields}
