"""What a pipeline is: the fields its author may set, their limits and the rules between them."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from vitrina import schedule
from vitrina.errors import InvalidField
from vitrina.json_values import BoundedObject
from vitrina.step_rules import STEP_NAME, StepRule

MAX_BATCH_SIZE = 1_000_000
DEFAULT_BATCH_SIZE = 5_000
MAX_QUERY_LENGTH = 100_000
MAX_TASKS = 50
MAX_RUN_AFTER = 100
# Ten years: no time that anybody means is longer, and every program can count with it.
MAX_SECONDS = 315_360_000

# The name stands in URLs, metrics and file names. A uuid is refused because `{id}` takes either.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]


class Unfit(ValueError):
    """A rule between several fields is broken; `field` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Strict(BaseModel):
    """Unknown fields and silent conversions (`false` for 0) are refused: a typo must not pass as a setting."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ReconcileSchedule(Strict):
    """How often runners hold the mart against its source, and how closely."""

    interval: str = Field(max_length=200, description="Like schedule_interval: 6h, PT6H, or cron.", examples=["6h"])
    level: Literal["quick", "full", "sample"] = Field(
        "full", description="Counts and ends, every row and column, or some hundred random keys."
    )

    @field_validator("interval")
    @classmethod
    def _interval_is_understood(cls, value: str) -> str:
        try:
            schedule.check(value)
        except InvalidField as exc:
            raise ValueError(exc.message.replace("schedule_interval", "interval")) from exc
        return value


class Options(Strict):
    """Rarely needed switches of one pipeline."""

    consistency: Literal["mixed", "snapshot"] = Field(
        "mixed", description="`snapshot`: an interrupted full load starts over instead of continuing."
    )
    checkpoint_rows: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description="A pushdown load larger than this is cut into chunks of this size. By default: one that takes more"
        " than a minute at the rate of the last run, into chunks of ten seconds.",
    )
    max_stage_age_seconds: int = Field(
        86_400, ge=1, le=MAX_SECONDS, description="An interrupted load older than this starts over."
    )
    max_snapshot_seconds: int = Field(
        3_600,
        ge=1,
        le=MAX_SECONDS,
        description="A read longer than this goes on in a new snapshot, unless `consistency: snapshot`.",
    )
    allow_shrink: bool = Field(False, description="Let a full load delete more than half of the mart.")
    allow_empty: bool = Field(False, description="Let a full load publish a source without rows.")
    allow_cascade: bool = Field(False, description="Let deletes cascade through foreign keys.")
    shared_target: bool = Field(
        False, description="Several pipelines write to this target; a full load deletes nothing."
    )
    on_schema_change: Literal["fail", "add_columns"] = Field(
        "fail", description="What happens when the query gives a column that the target lacks."
    )
    on_missing_columns: Literal["keep", "null"] | None = Field(
        None,
        description="What happens to a column of the mart that this pipeline wrote before and no longer gives: `keep`"
        " its values, or set it to `null` in all rows. Unless said, the run is refused.",
    )
    stamps: list[ColumnName] = Field(default_factory=list, description="Result columns that are not compared.")
    lookback_seconds: float = Field(
        0,
        ge=0,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Re-read this much before the checkpoint on each pass.",
    )
    cursor_clock: Literal["database", "application"] | None = Field(
        None, description="Who stamps the cursor column; `database` allows the guarantee `exact`."
    )
    cursor_timezone: str | None = Field(
        None, description="Zone of a cursor of type timestamp without time zone; by default the server's `TimeZone`."
    )
    null_cursor: Literal["reject", "read"] = Field(
        "reject", description="Rows without a cursor value: left out with a warning, or read again on every pass."
    )
    schedule_after_failure: bool = Field(False, description="Let the schedule start a FAILED pipeline again.")
    schedule_jitter_seconds: float = Field(
        0, ge=0, le=86_400, allow_inf_nan=False, description="Spread of pipelines that share a schedule; a day at most."
    )
    target_connection: str | None = Field(None, description="Named connection that holds the target table.")
    route: Literal["auto", "copy", "arrow"] = Field(
        "auto", description="`copy`, `arrow`: rows pass through the runner, as they come or as Arrow."
    )
    max_attempts: int | None = Field(None, ge=1, le=20, description="Instead of VITRINA_MAX_ATTEMPTS.")
    statement_timeout_seconds: float | None = Field(
        None,
        ge=0.001,
        le=2_000_000,
        allow_inf_nan=False,
        description="Shorter than VITRINA_STATEMENT_TIMEOUT_SECONDS, for this pipeline.",
    )
    max_cost: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Refuse a query whose EXPLAIN cost is higher."
    )
    max_lag_seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Older than this, the mart is late: monitoring alerts.",
    )
    notify: list[Literal["failed", "recovered", "drift"]] | None = Field(
        None, description="What the operator's webhooks are told about this pipeline; everything unless said."
    )
    params: BoundedObject = Field(default_factory=dict, description="Parameters of `python_task`.")
    parallel: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        1, description="Worker processes for the Python steps of a run, a batch each; `auto`: one for each processor."
    )
    step_timeout_seconds: float = Field(
        600, gt=0, le=86_400, description="What the Python steps may take for one batch, or a source to make one."
    )
    step_memory_mb: int = Field(2_048, ge=128, description="Resident memory of a worker process, in MB.")
    reconcile: ReconcileSchedule | None = Field(None, description="Compare mart and source regularly.")
    # search targets
    action: Literal["update", "index"] = Field(
        "update", description="`update` merges into a document, `index` replaces it unless a newer version is there."
    )
    delete_when: ColumnName | None = Field(None, description="Boolean result column: true deletes the document.")
    index: BoundedObject = Field(default_factory=dict, description="`settings` and `mappings` of a new index.")
    keep_generations: int = Field(1, ge=0, le=100, description="Replaced generations of an index that are kept.")
    max_dead_letters: int | None = Field(
        None,
        ge=0,
        le=10**9,
        description="Refused documents before a run stops; default 0 for full, 100 for incremental.",
    )
    on_concrete_index: Literal["take_over", "refuse"] = Field(
        "take_over", description="Whether a full load may replace an index of the target's name by an alias."
    )

    @field_validator("index")
    @classmethod
    def _index_has_parts(cls, value: dict[str, Any]) -> dict[str, Any]:
        """As far as we read it ourselves: the rest is the server's to judge."""
        unknown = sorted(value.keys() - {"settings", "mappings"})
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: an index has `settings` and `mappings`")
        for name, part in _parts_of_index(value):
            if not isinstance(part, dict):
                raise ValueError(f"{name} is {part!r:.80}: write an object, for a field such as {{'type': 'keyword'}}")
        return value


def _parts_of_index(index: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from index.items()
    mappings = index.get("mappings")
    if not isinstance(mappings, dict):
        return
    yield from ((f"mappings.{name}", mappings[name]) for name in ("_meta", "properties") if name in mappings)
    fields = mappings.get("properties")
    if isinstance(fields, dict):
        yield from ((f"mappings.properties.{name}", field) for name, field in fields.items())


class Task(Strict):
    """One step of a task plan."""

    order_index: int = Field(ge=0, le=10_000, description="Place in the plan: unique, without gaps.")
    task_type: Literal["SQL", "PYTHON"] = Field(
        description="The first task is SQL, unless `python_task` names a source; the others are PYTHON."
    )
    body: str = Field(
        min_length=1, max_length=MAX_QUERY_LENGTH, description="The query, or the name of a registered step."
    )
    params: BoundedObject = Field(default_factory=dict, description="Of the step, checked against its model.")
    source_table: str | None = Field(None, max_length=200, description="For people: where the task reads.")
    target_table: str | None = Field(
        None, max_length=200, description="The last task may override the pipeline's target."
    )


class RunAfter(Strict):
    """A pipeline that this one runs after."""

    pipeline: Name = Field(description="Its name.")
    only_if_changed: bool = Field(False, description="Only successes that wrote or deleted rows count.")


def _by_name(value: object) -> object:
    """A name alone says all that most need to say."""
    return {"pipeline": value} if isinstance(value, str) else value


RunAfterEdge = Annotated[RunAfter, BeforeValidator(_by_name, json_schema_input_type=Name | RunAfter)]


class ErrorRule(Strict):
    """What becomes of rows that a Python step fails on; stands among the step's own params."""

    on_error: Literal["fail", "dead_letter"] = "fail"
    max_dead_letters: int = Field(StepRule.max_dead_letters, ge=1, le=10**9)


class Definition(Strict):
    """A pipeline as its author writes it; everything else in `etl_pipelines` belongs to the platform."""

    name: Name = Field(description="Unique; letters, digits, `_`, `.` and `-`. Stands in addresses and metrics.")
    description: str = Field("", max_length=10_000, description="For people.")
    type: Literal["SQL", "PYTHON"] = Field("SQL", description="`PYTHON`: rows come from, or pass, `python_task`.")
    source_type: Literal["postgres"] = Field("postgres", description="What the source is.")
    source_connection: str = Field(
        "default", pattern=r"^[a-z0-9_]{1,63}$", description="Named source database (`VITRINA_CONN_<NAME>`)."
    )
    source_query: str | None = Field(None, max_length=MAX_QUERY_LENGTH, description="One SELECT over allowed schemas.")
    python_task: str | None = Field(None, max_length=200, description="A registered step or source, by name.")
    target_table: str = Field(
        min_length=1, max_length=200, description="`schema.table` or `es:index`; must be on the allow-list."
    )
    target_key: list[ColumnName] | None = Field(
        None, min_length=1, max_length=32, description="Key of the target; by default its existing primary key."
    )
    mode: Literal["full", "incremental"] = Field("full", description="Everything each time, or what is new.")
    incremental_key: ColumnName | None = Field(None, description="Result column that says what is new.")
    incremental_id_key: ColumnName | None = Field(None, description="Result column that orders equal cursors.")
    batch_size: int = Field(DEFAULT_BATCH_SIZE, ge=1, le=MAX_BATCH_SIZE, description="Rows of a batch, at most.")
    enabled: bool = Field(True, description="A disabled pipeline does not run, however it is asked.")
    schedule_interval: str | None = Field(
        None, max_length=200, description="`15m`, `1h`, `PT15M`, or cron such as `0 3 * * * Europe/Moscow`."
    )
    run_after: list[RunAfterEdge] = Field(
        default_factory=list,
        max_length=MAX_RUN_AFTER,
        description="Pipelines, by name or as below: when all have succeeded anew, this one runs.",
    )
    options: Options = Field(default_factory=Options, description="Rarely needed switches, see below.")
    tasks: list[Task] = Field(
        default_factory=list, max_length=MAX_TASKS, description="The task plan; wins over `source_query`."
    )

    @field_validator("name")
    @classmethod
    def _name_is_not_an_id(cls, name: str) -> str:
        try:
            UUID(name)
        except ValueError:
            return name
        raise ValueError("a name may not look like a uuid, because pipelines are found by either")

    @field_validator("python_task")
    @classmethod
    def _task_is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not STEP_NAME.fullmatch(value):
            raise ValueError(not_a_step_name("python_task", value))
        return value

    @field_validator("schedule_interval")
    @classmethod
    def _schedule_is_understood(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                schedule.check(value)
            except InvalidField as exc:
                raise ValueError(exc.message) from exc
        return value

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.mode == "incremental" and not self.incremental_key and self.python_source is None:
            raise Unfit("incremental_key", "mode 'incremental' needs incremental_key, the column that says what is new")
        if self.type == "SQL" and not self.tasks and not (self.source_query or "").strip():
            raise Unfit("source_query", "a SQL pipeline needs source_query or tasks")
        if self.type == "PYTHON" and not self.tasks and not self.python_task:
            raise Unfit("python_task", "a PYTHON pipeline needs python_task, the name of a registered step or source")
        return self

    @model_validator(mode="after")
    def _runs_after_others(self) -> Self:
        names = [edge.pipeline for edge in self.run_after]
        for place, name in enumerate(names):
            if name == self.name:
                raise Unfit("run_after", f"run_after.{place}: pipeline {name} cannot run after itself")
            if name in names[:place]:
                raise Unfit("run_after", f"run_after.{place}: {name} stands there twice")
        return self

    @property
    def python_source(self) -> str | None:
        """The registered source that rows come from when there is no SQL to read; tasks are then steps after it."""
        reads_sql = self.tasks and self.ordered_tasks[0].task_type == "SQL"
        is_source = self.type == "PYTHON" and not reads_sql and not (self.source_query or "").strip()
        return self.python_task if is_source else None

    @property
    def steps(self) -> list[Task]:
        """What rows pass through behind the SQL, in order: the plan's Python tasks, or `python_task` alone."""
        if self.tasks:
            return self.ordered_tasks if self.python_source else self.ordered_tasks[1:]
        if self.type == "PYTHON" and self.python_task and self.python_source is None:
            return [Task(order_index=1, task_type="PYTHON", body=self.python_task, params=self.options.params)]
        return []

    @property
    def query(self) -> str | None:
        """The SQL that is read: the first task's when there is a task plan, else `source_query`."""
        if self.tasks and not self.python_source:
            return self.ordered_tasks[0].body
        return self.source_query

    @property
    def ordered_tasks(self) -> list[Task]:
        return sorted(self.tasks, key=lambda task: task.order_index)

    @property
    def final_target(self) -> str:
        """The last step may override the pipeline's target."""
        if self.tasks and self.ordered_tasks[-1].target_table:
            return self.ordered_tasks[-1].target_table
        return self.target_table


def not_a_step_name(where: str, value: str) -> str:
    return (
        f"{where} {value[:80]!r} is not the name of a Python step: names have lower-case letters, digits and"
        " underscores, and begin with a letter; `GET /transforms` lists them"
    )


# May not change while a runner works on the pipeline. Of the rest, `batch_size` reaches the run at work with
# `reload-config`, from its next batch; everything else counts from the next run.
LOCKED_WHILE_RUNNING = frozenset(
    {
        "type",
        "source_type",
        "source_connection",
        "source_query",
        "python_task",
        "target_table",
        "target_key",
        "mode",
        "incremental_key",
        "incremental_id_key",
        "options",
        "tasks",
    }
)


def fingerprint(definition: Definition, key: list[str], result_types: list[str]) -> str:
    """Whether an interrupted load may be continued: same query, steps, key, target and types."""
    parts = [
        definition.query,
        definition.source_connection,
        definition.python_task,
        [task.model_dump() for task in definition.ordered_tasks],
        definition.options.params,
        definition.final_target,
        definition.options.target_connection,
        definition.mode,
        definition.incremental_key,
        definition.incremental_id_key,
        key,
        result_types,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
