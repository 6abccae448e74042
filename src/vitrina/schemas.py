"""Models of the API's answers. The server builds them and the client reads them."""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vitrina import sentences
from vitrina.status import RunStatus, Status


class Answer(BaseModel):
    """Allow unknown fields, because a client may be older than its server."""

    # A program uses few of these models, so each is built on first use.
    model_config = ConfigDict(extra="ignore", from_attributes=True, defer_build=True)


class Said(Answer):
    """Code and parameters of a sentence, with which a client can show it in another language."""

    code: str = Field(description="Stable code, such as `pipeline.disabled` or `run.key_repeated`.")
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Values of the placeholders. One that is a sentence itself has `text`, `code` and `params`.",
    )


class Told(Answer):
    """Add code and parameters of each sentence in a field with the suffix `_said`; null for other texts."""

    @model_validator(mode="before")
    @classmethod
    def _tell(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        missing = {name: _said(fields[text]) for name, text in _told(cls) if fields.get(text) and name not in fields}
        return {**fields, **missing} if missing else fields


@cache
def _told(model: type[Told]) -> tuple[tuple[str, str], ...]:
    """List the `_said` fields, each with the field of its sentence."""
    return tuple((name, name.removesuffix("_said")) for name in model.model_fields if name.endswith("_said"))


def _said(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: sentences.said(text) for name, text in value.items() if isinstance(text, str)}
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return sentences.all_said(value)
    return sentences.said(value) if isinstance(value, str) else None


def _telling(value: Any) -> Any:
    """Add code and parameters of the sentences in a runner's JSON."""
    if isinstance(value, list):
        return [_telling(part) for part in value]
    if not isinstance(value, dict) or not value:
        return value
    told = {f"{name}_said": said for name in _TOLD_BY_RUNNERS if name in value and (said := _said(value[name]))}
    return {name: _telling(part) if name in _TELLING_PARTS else part for name, part in value.items()} | told


_TOLD_BY_RUNNERS = (
    "message", "reasons", "warnings", "findings", "finding", "found", "next_step", "notes", "refusals"
)  # fmt: skip
_TELLING_PARTS = ("checks", "plan", "findings")
TellingObject = Annotated[dict[str, Any], BeforeValidator(_telling)]


def _as_object(value: object) -> object:
    """Wrap a value that is not an object. A row may have been edited by hand, and one bad value must not hide it."""
    if value is None:  # JSON's null
        return {}
    return value if isinstance(value, dict) else {NO_OBJECT: value}


def _as_texts(value: object) -> object:
    if value == {}:
        return value
    found = _as_object(value)
    if not isinstance(found, dict):
        return found
    return {name: text if isinstance(text, str) else json.dumps(text) for name, text in found.items()}


NO_OBJECT = "(not an object)"
StoredObject = Annotated[dict[str, Any], BeforeValidator(_as_object)]
StoredTexts = Annotated[dict[str, str], BeforeValidator(_as_texts)]


def _as_names(value: object) -> object:
    """Name what is no text in an array of a row: `{NULL}` is one, too."""
    return [part if isinstance(part, str) else json.dumps(part) for part in value] if isinstance(value, list) else value


StoredNames = Annotated[list[str], BeforeValidator(_as_names)]


def _as_objects(value: object) -> object:
    return [_as_object(part) or {} for part in value] if isinstance(value, list) else [{NO_OBJECT: value}]


StoredObjects = Annotated[list[dict[str, Any]], BeforeValidator(_as_objects)]

Item = TypeVar("Item")


class Page(Answer, Generic[Item]):
    """A page of a list; `next_cursor` requests the next page."""

    items: list[Item]
    next_cursor: str | None = Field(None, description="Send it as `cursor` to get the next page; null at the end.")


# --- errors (RFC 9457) -----------------------------------------------------------------------------------------


class FieldProblem(Told):
    """One wrong field of a request."""

    path: str = Field(description="Path of the field: `batch_size`, `tasks.1.body`, `query.limit`.")
    line: int | None = Field(None, description="Position in the text of a query, counted from 1.")
    column: int | None = None
    message: str
    message_said: Said | None = None
    code: str


class Problem(Told):
    """Why a request was not carried out."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="Error message: what is wrong, the value and the next step.")
    detail_said: Said | None = None
    code: str = Field(description="Stable error code, for programs.")
    instance: str | None = None
    request_id: str | None = None
    errors: list[FieldProblem] = Field(default_factory=list)


# --- pipelines -------------------------------------------------------------------------------------------------


class Task(Answer):
    """One step of a task plan."""

    order_index: int
    task_type: str
    body: str
    params: StoredObject = Field(default_factory=dict)
    source_table: str | None = None
    target_table: str | None = None


class TaskPlan(Answer):
    """The steps of a pipeline, in order."""

    items: list[Task]


class RunAfter(Answer):
    """A pipeline that another one runs after."""

    pipeline: str
    only_if_changed: bool = False


class WaitsFor(Told, RunAfter):
    """One of the pipelines that this one runs after, and whether it has succeeded since."""

    status: Status
    arrived: bool = Field(description="It has succeeded since its latest run was used.")
    arrived_run_id: UUID | None = None
    used_run_id: UUID | None = Field(None, description="Its run that was used last.")
    message: str = Field(description="What the pipeline waits for, in words.")
    message_said: Said | None = None


class Pipeline(Told):
    """A pipeline: its definition, and its state in the platform."""

    id: UUID
    name: str
    description: str
    type: str
    source_type: str
    source_connection: str
    source_query: str | None
    source_table: str | None = None
    python_task: str | None
    target_table: str
    target_key: StoredNames | None
    mode: str
    incremental_key: str | None
    incremental_id_key: str | None
    batch_size: int
    enabled: bool
    schedule_interval: str | None
    run_after: list[RunAfter] = Field(default_factory=list, description="Pipelines whose successes start this one.")
    options: StoredObject
    checks: StoredObjects = Field(
        default_factory=list, description=("Conditions that must hold before rows are published.")
    )
    tasks: list[Task]
    labels: StoredTexts = Field(default_factory=dict)
    status: Status
    status_since: datetime
    version: int
    managed_by: str | None = Field(
        None, description=("Set when files manage the pipeline: change the file, then apply it.")
    )
    run_requested_at: datetime | None = None
    next_run_at: datetime | None = None
    last_error: str | None = None
    last_error_said: Said | None = None
    needs_attention: StoredTexts = Field(
        default_factory=dict, description="Why the platform cannot handle a part of the row: schedule, claim, recovery."
    )
    needs_attention_said: dict[str, Said | None] = Field(default_factory=dict)
    waiting: str | None = Field(
        None, description="Why no live runner can run it: `waits for a runner with connector X`."
    )
    waiting_said: Said | None = None
    created_at: datetime
    updated_at: datetime


class RecentRun(Answer):
    """One bar of a pipeline's latest runs."""

    id: UUID
    status: RunStatus
    started_at: datetime
    seconds: float
    rows_written: int


class PipelineOverview(Told):
    """A pipeline as a line of a list, with its latest runs (oldest first)."""

    id: UUID
    name: str
    description: str
    type: str
    mode: str
    source_connection: str
    target_table: str
    enabled: bool
    schedule_interval: str | None
    next_run_at: datetime | None
    status: Status
    status_since: datetime
    version: int
    managed_by: str | None
    labels: StoredTexts = Field(default_factory=dict)
    last_error: str | None
    last_error_said: Said | None = None
    waiting: str | None = Field(
        None, description="Why no live runner can run it: `waits for a runner with connector X`."
    )
    waiting_said: Said | None = None
    is_held: bool = Field(description="Another open transaction keeps the checkpoint from advancing.")
    last_success_at: datetime | None
    dead_letters: int
    recent: list[RecentRun]


class Attention(Answer):
    """One reason to look at a pipeline."""

    kind: Literal["failed", "stale", "overdue", "differs", "dead_letters", "held", "blocked", "queued"]
    pipeline_id: UUID
    pipeline: str
    since: datetime | None = Field(None, description="Start of this condition.")
    count: int | None = Field(None, description="Rows that differ, or dead letters.")
    seconds: float | None = Field(None, description="For `stale`: age of the mart's data.")
    limit_seconds: float | None = Field(None, description="For `stale`: allowed age.")
    message: str | None = Field(None, description="The last error, or why the platform cannot handle the pipeline.")
    message_said: Said | None = None


class ActivityRun(Answer):
    """A run as a bar on a line of time."""

    id: UUID
    status: RunStatus
    trigger: str
    started_at: datetime
    seconds: float


class Activity(Answer):
    """Recent runs of one pipeline, oldest first."""

    pipeline_id: UUID
    pipeline: str
    runs: list[ActivityRun]


class UpcomingRun(Answer):
    """A run that the schedule will request."""

    pipeline_id: UUID
    pipeline: str
    next_run_at: datetime
    schedule_interval: str


class Workforce(Answer):
    """The runners that are alive, together."""

    alive: int
    capacity: int
    running: int


class Home(Answer):
    """Problems, recent runs, upcoming runs, and live runners."""

    at: datetime = Field(description="Now, by the metastore's clock.")
    hours: int
    pipelines: int
    statuses: dict[str, int] = Field(description="How many pipelines have each status.")
    dead_letters: int = Field(description="Dead letters that are not resolved.")
    attention: list[Attention] = Field(description="The worst first; at most a few of each kind.")
    attention_counts: dict[str, int] = Field(description="How many pipelines there are of each kind.")
    activity: list[Activity] = Field(description="Of the pipelines that ran last.")
    activity_left_out: int = Field(description="How many other pipelines ran, among the runs that were searched.")
    upcoming: list[UpcomingRun]
    runners: Workforce


class ScheduleTimes(Answer):
    """When a schedule is due."""

    times: list[datetime]


class GraphNode(Answer):
    """A table or index, a Python source, or a pipeline."""

    id: str
    kind: Literal["table", "index", "python", "pipeline"]
    name: str
    connection: str | None = Field(None, description="Name of the connection of a table.")
    status: Status | None = Field(None, description="Of a pipeline.")
    enabled: bool = True
    data_as_of: datetime | None = Field(None, description="Start of the oldest run that a pipeline's mart is built on.")


class GraphEdge(Answer):
    """A pipeline reads a table, writes its target, or runs after another pipeline."""

    source: str
    target: str
    kind: Literal["reads", "writes", "run_after"]
    arrived: bool | None = Field(None, description="For run_after: the upstream pipeline has succeeded again.")
    only_if_changed: bool = False


class Graph(Answer):
    """Pipelines, the tables that they read and write, and which pipeline runs after which."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    next_cursor: str | None = Field(
        None, description="More pipelines match: send it as `cursor` to get them. Null when all are shown."
    )


class Accepted(Told):
    """The answer to an action."""

    pipeline_id: UUID
    pipeline: str
    status: Status
    enabled: bool
    version: int
    message: str = Field(description="What happens next, in words.")
    message_said: Said | None = None


class Run(Told):
    """One attempt to bring the target up to date."""

    id: UUID
    pipeline_id: UUID
    pipeline: str
    pipeline_version: int
    trigger: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    duration_seconds: float
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    rows_per_second: float | None
    batches: int
    attempts: int
    runner_id: UUID | None
    cursor_from: str | None
    cursor_to: str | None
    error_code: str | None
    error_message: str | None
    error_message_said: Said | None = None
    next_step: str | None = Field(None, description="What to do about the error.")
    next_step_said: Said | None = None
    metrics: Annotated[StoredObject, BeforeValidator(_telling)] = Field(default_factory=dict)
    reason: str | None = Field(None, description="Why this run exists, if the trigger alone does not show it.")
    reason_said: Said | None = None
    backfill: StoredObject | None = Field(None, description="The range that was read again.")
    labels: StoredTexts = Field(default_factory=dict, description="Current labels of the pipeline.")
    answers_request: datetime | None = Field(
        None, description="`run_requested_at` of the request that the run answers; null if it continues an earlier run."
    )


class RunAccepted(Accepted):
    """A run was requested. The run that answers starts after `run_requested_at`; `message` says what runs before it."""

    run_requested_at: datetime
    asked: Literal["run", "backfill", "resume"] = "run"
    run: Run | None = Field(None, description="The current run, if there is one.")


class RunnerName(Answer):
    """The runner that runs a pipeline."""

    id: UUID
    host: str
    pid: int
    alive: bool
    heartbeat_at: datetime | None = Field(None, description="Time of its last heartbeat.")


class RangeUnderWay(Answer):
    """A range of the key that a process is loading, with the names used in the log."""

    part: int
    range: str
    # Rows read so far, as last reported; executors of a cluster do not report them.
    rows: int | None = None


class RangesProgress(Answer):
    """Progress of a load in ranges of the key. Ranges that turn out to be large are split again."""

    done: int
    left: int
    workers: int
    under_way: list[RangeUnderWay] = []
    # How many of these a cluster runs now; the others wait there. None for processes of the runner, which run all.
    running: int | None = None


class Progress(Answer):
    """Progress of the current run."""

    rows_read: int
    rows_written: int
    batches: int
    elapsed_seconds: float
    rows_per_second: float | None
    rows_estimate: int | None = None
    percent: float | None = None
    eta_seconds: float | None = None
    # For a load in parallel (`options.parallel`).
    ranges: RangesProgress | None = None


class Checkpoint(Answer):
    """Where the next batch starts."""

    pipeline_id: UUID
    last_processed_key: str | None = None
    last_processed_id: str | None = None
    safe_upto: str | None = None
    held_upto: str | None = None
    batch_no: int = 0
    rows: int = 0
    stage: str | None = None
    run_id: UUID | None = None
    updated_at: datetime | None = None


class Lag(Answer):
    """How far the target is behind: seconds since the last successful run, and the cursor's own distance."""

    pipeline_id: UUID
    pipeline: str
    last_success_at: datetime | None
    seconds_since_success: float | None
    safe_upto: str | None = None
    cursor_lag_seconds: float | None = Field(None, description="Age of the checkpoint, if the cursor is a time.")
    data_as_of: datetime | None = Field(
        None, description="Start of the oldest run that the target is built on: its own, or an upstream's."
    )


class Following(Answer):
    """Position of a live pipeline: its target is the query's result at `as_of`."""

    as_of: datetime
    lag_seconds: float


class LastError(Told):
    """The latest error of a pipeline."""

    code: str
    message: str
    message_said: Said | None = None
    next_step: str
    next_step_said: Said | None = None
    run_id: UUID | None = None
    at: datetime | None = None


class RecentRuns(Answer):
    """Aggregates over the latest finished runs; repairs and replays do not count."""

    runs: int
    succeeded: int
    failed: int
    success_rate: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    rows_read: int
    rows_written: int
    last_success_at: datetime | None


class PipelineStatus(Told):
    """The status of one pipeline."""

    pipeline_id: UUID
    pipeline: str
    status: Status
    since: datetime
    enabled: bool
    version: int
    run_requested_at: datetime | None
    next_run_at: datetime | None
    needs_attention: StoredTexts = Field(
        default_factory=dict, description="Why the platform cannot handle a part of the row: schedule, claim, recovery."
    )
    needs_attention_said: dict[str, Said | None] = Field(default_factory=dict)
    waiting: str | None = Field(
        None, description="Why no live runner can run it: `waits for a runner with connector X`."
    )
    waiting_said: Said | None = None
    runner: RunnerName | None
    lease_until: datetime | None
    lease_is_over: bool = Field(
        False, description=("Its runner stopped sending heartbeats: another one takes over and continues.")
    )
    run: Run | None = Field(None, description="The current run, else the latest one.")
    last_load: Run | None = Field(None, description="The same, without repairs and replays, which correct single rows.")
    progress: Progress | None
    following: Following | None = Field(None, description="Set for a live pipeline that follows its source.")
    checkpoint: Checkpoint | None
    lag: Lag
    waits_for: list[WaitsFor] = Field(default_factory=list, description="The pipelines that it runs after.")
    hold: StoredObject | None = Field(None, description="Transaction that holds the checkpoint back: pid, user, start.")
    guarantee: str | None = Field(None, description="exact, bounded-lag or reconciled, as the latest run found it.")
    last_error: LastError | None
    recent: RecentRuns


class Alert(Told):
    """A notification about a pipeline, also if no receiver is configured."""

    id: UUID
    kind: str = Field(description="failed, recovered, drift or warned.")
    at: datetime
    run_id: UUID | None
    error: str | None = None
    error_said: Said | None = None
    failing_since: datetime | None = None
    differences: int | None = None
    checks: list[str] | None = Field(None, description="For a warning: the checks that published rows violate.")
    delivered: list[str] = Field(description="The receivers that accepted it.")
    delivery_error: str | None = None


class Receiver(Answer):
    """A receiver of notifications. Its address is a secret of the operator."""

    name: str
    is_set: bool = Field(description="Whether a runner has an address for it.")
    setting: str = Field(description="The setting with its address, for every runner.")


class PipelineAlert(Alert):
    """An alert, with the pipeline that it is about."""

    pipeline: str


class Notifications(Answer):
    """The receivers that are notified of failures, recoveries and drift, and the latest messages."""

    receivers: list[Receiver] | None = Field(
        None, description=("As a runner reported them; null if no runner has answered.")
    )
    latest: list[PipelineAlert]


class Reconciliation(Answer):
    """A summary of one comparison of source and target; `GET .../reconcile` returns the latest in full."""

    id: UUID
    created_at: datetime
    finished_at: datetime | None
    status: str = Field(description="QUEUED, WORKING, DONE or FAILED.")
    requested_by: str
    level: str
    repair: bool
    differences: int | None = Field(None, description="Rows that differed from the source.")
    remaining: int | None = Field(None, description="Rows that still differ after the repair.")
    error: str | None = None


class Version(Told):
    """A version of a pipeline's definition."""

    pipeline_id: UUID
    version: int
    definition: StoredObject
    changed_by: str
    changed_at: datetime
    change_summary: str
    change_summary_said: Said | None = None


class FieldChange(Answer):
    """One difference between two definitions."""

    path: str
    before: Any = None
    after: Any = None


class VersionComparison(Answer):
    """What changed between two versions."""

    pipeline: str
    from_version: int
    to_version: int
    changes: list[FieldChange]


# --- what a runner performs on request -------------------------------------------------------------------------


class Request(Answer):
    """Work that only a runner can do: preview, deep validation, reconciliation."""

    id: UUID
    kind: str
    pipeline_id: UUID | None
    status: str = Field(description="QUEUED, WORKING, DONE or FAILED.")
    result: TellingObject | None = Field(
        None, description="Code and parameters of its sentences (`reasons`) are in `reasons_said`."
    )
    error: TellingObject | None = None
    created_at: datetime
    finished_at: datetime | None = None

    @property
    def is_finished(self) -> bool:
        return self.status in ("DONE", "FAILED")


class PlanSummary(Answer):
    """One plan in the history of a pipeline."""

    id: UUID
    pipeline: str
    base_version: int | None = Field(
        description=("The pipeline's version when the plan was created; null if there was none.")
    )
    created_at: datetime
    created_by: str
    applied_at: datetime | None = None
    applied_by: str | None = None
    applied_version: int | None = None
    added: int | None = None
    changed: int | None = None
    removed: int | None = None
    refused: bool = Field(False, description="Whether the run would publish nothing.")


class Plan(Answer):
    """What a definition would change in its target, as found by a runner."""

    id: UUID
    pipeline: str
    base_version: int | None
    fingerprint: str = Field(description="Fingerprint of the planned definition.")
    created_at: datetime
    created_by: str
    applied_at: datetime | None = None
    applied_by: str | None = None
    applied_version: int | None = None
    result: TellingObject


class ValidationReport(Told):
    """Errors that prevent the pipeline from running."""

    valid: bool
    errors: list[FieldProblem]
    warnings: list[str]
    warnings_said: list[Said | None] = Field(default_factory=list)
    deep: Request | None = Field(None, description="The runner's part: the query is planned against the real source.")


# --- the caller ------------------------------------------------------------------------------------------------


class Me(Answer):
    """The caller, as the audit names it."""

    name: str
    role: str = Field(description="viewer, operator or admin. Each may do everything that the roles before it may.")
    auth: str = Field(description="`off` on a loopback address without tokens, else `token`.")


# --- the installation ------------------------------------------------------------------------------------------


class Runner(Answer):
    """A process that runs pipelines."""

    id: UUID
    host: str
    pid: int
    version: str
    started_at: datetime
    heartbeat_at: datetime
    alive: bool
    capacity: int
    running: int
    pipelines: list[dict[str, Any]]


class Transform(Answer):
    """A registered Python step."""

    model_config = ConfigDict(extra="allow")

    name: str
    kind: str = "transform"
    doc: str = ""
    params: dict[str, Any] | None = None
    runners: int = Field(0, description="How many live runners have it.")


class Connector(Answer):
    """A kind of source, of target, or of both: a package with an entry point `vitrina.connectors`."""

    name: str = Field(description="Used in `source_type` and `options.<name>`.")
    summary: str = ""
    package: str = ""
    version: str = ""
    schemes: list[str] = Field(default_factory=list, description="Schemes of the URLs of its connections.")
    prefix: str | None = Field(None, description="Prefix of its targets: `<prefix>:<name>`.")
    source: bool = False
    target: bool = False
    options: dict[str, Any] | None = Field(None, description="JSON Schema of `options.<name>`.")
    runners: int = Field(0, description="How many live runners have it.")


class Follower(Answer):
    """A live pipeline and how far it is behind its feed."""

    pipeline: str
    tables: list[str] = Field(default_factory=list, description="Tables of the source whose changes it needs.")
    is_ready: bool = Field(description="Whether all of its tables are in the log.")
    backlog_changes: int | None = Field(
        None, description=("Stored changes that it has not processed; null if none are kept.")
    )
    must_reload: str | None = Field(None, description="Why it is loaded again: changes that it needed are lost.")
    problem: str | None = Field(None, description="What it waits for, with the statements to run.")


class Feed(Answer):
    """The log of a source database, which a runner reads for all live pipelines on it."""

    id: UUID
    connection: str
    slot: str = Field(description="The replication slot at the source.")
    publication: str
    is_owned: bool = Field(description="Whether a runner reads it now.")
    host: str | None = Field(None, description="Host of that runner.")
    problem: str | None = Field(None, description="Why it cannot be read, with the statements to run.")
    problem_since: datetime | None = None
    lag_seconds: float | None = Field(None, description="Age of the changes that are being read, in seconds.")
    behind_bytes: int | None = Field(None, description="Bytes that the source has written since.")
    retained_bytes: int | None = Field(None, description="Bytes of its log that the source keeps for the slot.")
    keep_bytes: int | None = Field(
        None, description=("Bytes that it may keep before it drops the slot; null if unlimited.")
    )
    wal_status: str | None = Field(None, description="State of the slot, as pg_replication_slots shows it.")
    stored_changes: int = Field(0, description="Changes stored since the feed was created.")
    kept_changes: int = Field(0, description="Stored changes that are still kept, because a pipeline needs them.")
    segments: int = 0
    stored_commit_at: datetime | None = Field(None, description="When the last stored change was committed.")
    measured_at: datetime | None = None
    followers: list[Follower] = Field(default_factory=list)


class Connection(Answer):
    """A named place to read from or write to. Its address and login are not shown."""

    name: str
    connector: str | None = Field(None, description="What opens it; null when no connector for it is installed here.")
    set_in: Literal["environment", "metastore"] = "environment"
    pipelines: list[str] = Field(default_factory=list, description="Pipelines that read from it or write to it.")
    updated_at: datetime | None = Field(
        None, description=("When its URL was last set, if it is stored in the metastore.")
    )
    updated_by: str | None = None


class Target(Answer):
    """A target that pipelines write to."""

    target: str
    pipelines: list[str]


class Targets(Answer):
    """Where pipelines may write, and where they do."""

    allowed: list[str]
    items: list[Target]
    next_cursor: str | None = Field(None, description="Send it as `cursor` to get the next page; null at the end.")


class Event(Answer):
    """An event: a change of status, progress, the start or stop of a runner."""

    id: int
    at: datetime
    topic: str
    payload: dict[str, Any]


class LogLine(Event):
    """One line of a run's log: `topic` is the name of the event, `payload` its details."""

    level: str


class AuditEntry(Answer):
    """One change, and the caller who made it."""

    id: int
    at: datetime
    who: str
    action: str
    object: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None


class DeadLetter(Answer):
    """A row that the target, a step or a check rejected."""

    id: int
    pipeline_id: UUID
    pipeline: str
    run_id: UUID | None
    document_id: str
    error: str
    document: Any
    created_at: datetime
    resolved_at: datetime | None
    resolution: str | None = Field(
        None,
        description="`sent` again, `gone` from the source, `superseded` by another reason, `rebuilt` by a full load,"
        " `delivered` by a later run.",
    )


class DeadLetterGroup(Answer):
    """Dead letters of one pipeline that have the same reason."""

    pipeline: str
    pipeline_id: UUID
    reason: str = Field(description="The error without the values and numbers that it quotes.")
    error: str = Field(description="Full error message of the newest dead letter.")
    letters: int
    first_at: datetime
    last_at: datetime


class Token(Answer):
    """An API token; the secret itself is known to its owner only."""

    id: UUID
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Token):
    """A new token with its secret, which is shown once: Vitrina stores only a hash."""

    token: str


class Health(Answer):
    """Health of the API."""

    status: str
    version: str
    database: str
    runners: int | None = Field(None, description="Runners with a recent heartbeat.")
    working: str | None = Field(None, description="`ok`, or why no pipeline runs.")
    checks: dict[str, str] | None = Field(None, description="Result of each check, with `verbose`.")


class VersionInfo(Answer):
    """Version of this installation."""

    version: str
    api: str
    metastore: str | None = None


# --- pipelines as files ----------------------------------------------------------------------------------------


class ManifestChange(Answer):
    """What `apply` does, or would do, to one pipeline."""

    name: str
    action: str = Field(description="create, update, delete or unchanged.")
    changes: list[FieldChange] = Field(default_factory=list)


class ApplyReport(Answer):
    """The result of an apply, which changes all pipelines or none."""

    dry_run: bool
    items: list[ManifestChange]

    @property
    def has_changes(self) -> bool:
        return any(item.action != "unchanged" for item in self.items)
