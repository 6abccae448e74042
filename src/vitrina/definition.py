"""Define pipelines: the fields that an author may set, their limits and the rules between them."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    TypeAdapter,
    create_model,
    field_serializer,
    field_validator,
    model_validator,
)

from vitrina import data_checks, schedule
from vitrina.data_checks import Check, Relationship
from vitrina.errors import InvalidField
from vitrina.json_values import BoundedObject
from vitrina.mart_options import DeletesOption, History, TableOptions
from vitrina.ports import registry
from vitrina.sentences import said_again, say
from vitrina.step_rules import STEP_NAME, StepRule
from vitrina.table_names import is_table, quoted_table

MAX_BATCH_SIZE = 1_000_000
DEFAULT_BATCH_SIZE = 5_000
MAX_QUERY_LENGTH = 100_000
MAX_TASKS = 50
MAX_RUN_AFTER = 100
# Ten years: no useful duration is longer, and every program can represent it.
MAX_SECONDS = 315_360_000

# The name is part of URLs, metrics and file names. A UUID is refused because `{id}` accepts either.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]


class Unfit(ValueError):
    """A rule between several fields is violated; `field` is the one to correct."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Strict(BaseModel):
    """Refuse unknown fields and silent conversions (`false` for 0): a typo must not pass as a setting."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ReconcileSchedule(Strict):
    """Configure how often runners compare the mart with its source, and how thoroughly."""

    interval: str = Field(max_length=200, description="Like schedule_interval: 6h, PT6H, or cron.", examples=["6h"])
    level: Literal["quick", "full", "sample"] = Field(
        "full",
        description=(
            "`quick`: counts, minimum and maximum; `full`: every row and column; `sample`: some hundred random keys."
        ),
    )

    @field_validator("interval")
    @classmethod
    def _interval_is_understood(cls, value: str) -> str:
        try:
            schedule.check(value)
        except InvalidField as exc:
            raise ValueError(said_again(exc.message, field="interval")) from exc
        return value


class LiveOptions(Strict):
    """Configure how a live pipeline follows its source, where the query alone does not show it."""

    affects: dict[str, str] = Field(
        default_factory=dict,
        max_length=100,
        description=(
            "For a source table, `schema.table`: a query that returns the target keys which a changed row affects;"
            " `:column` is a value of that row."
        ),
    )
    reload: str | None = Field(
        None,
        max_length=200,
        description=(
            "Load everything this often in addition to following, such as `15m`, for queries whose result changes"
            " with time. Changes that affect every key start a load at most this often."
        ),
        examples=["15m"],
    )

    @field_validator("reload")
    @classmethod
    def _reload_is_an_interval(cls, value: str | None) -> str | None:
        if value is not None and schedule.interval_of(value) is None:
            raise ValueError(say("definition.live_reload", reload=value))
        return value


# The engine that comes with every runner: its own processes.
LOCAL = "local"


class OwnOptions(Strict):
    """Hold the options of one pipeline."""

    consistency: Literal["mixed", "snapshot"] = Field(
        "mixed", description="`snapshot`: an interrupted full load starts over instead of continuing."
    )
    checkpoint_rows: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description=(
            "A pushdown load with more rows than this is split into chunks of this size. A load to another database"
            " is read in key order, so that it can resume where it was interrupted. Default: loads that take more"
            " than a minute at the rate of the last run, and chunks of ten seconds for a pushdown. With `parallel`:"
            " rows per range of the key, 100,000 by default."
        ),
    )
    max_stage_age_seconds: int = Field(
        86_400, ge=1, le=MAX_SECONDS, description="An interrupted load older than this starts over."
    )
    max_snapshot_seconds: int = Field(
        3_600,
        ge=1,
        le=MAX_SECONDS,
        description="A read that takes longer than this continues in a new snapshot, unless `consistency: snapshot`.",
    )
    allow_shrink: bool = Field(False, description="Allow a full load to delete more than half of the mart.")
    allow_empty: bool = Field(False, description="Allow a full load to publish a source without rows.")
    allow_cascade: bool = Field(False, description="Allow deletes to cascade through foreign keys.")
    shared_target: bool = Field(
        False, description="Several pipelines write to this target; a full load deletes nothing."
    )
    on_schema_change: Literal["fail", "add_columns"] = Field(
        "fail", description="What happens when the query returns a column that the target lacks."
    )
    on_missing_columns: Literal["keep", "null"] | None = Field(
        None,
        description=(
            "What happens to a column of the mart that this pipeline wrote before and no longer returns: `keep` its"
            " values, or set it to `null` in all rows. Default: the run is refused."
        ),
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
        None, description="Which clock sets the cursor column; `database` allows the guarantee `exact`."
    )
    cursor_timezone: str | None = Field(
        None, description="Time zone of a cursor of type timestamp without time zone. Default: the server's `TimeZone`."
    )
    null_cursor: Literal["reject", "read"] = Field(
        "reject", description="Rows without a cursor value: omitted with a warning, or read again on every pass."
    )
    schedule_after_failure: bool = Field(False, description="Allow the schedule to start a FAILED pipeline again.")
    schedule_jitter_seconds: float = Field(
        0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description=("Spread the start of pipelines that share a schedule over this many seconds, at most a day."),
    )
    target_connection: str | None = Field(None, description="Name of the connection of the target.")
    route: Literal["auto", "copy", "arrow"] = Field(
        "auto", description="`copy`, `arrow`: rows pass through the runner, as lines of COPY or as Arrow."
    )
    max_attempts: int | None = Field(None, ge=1, le=20, description="Overrides VITRINA_MAX_ATTEMPTS for this pipeline.")
    statement_timeout_seconds: float | None = Field(
        None,
        ge=0.001,
        le=2_000_000,
        allow_inf_nan=False,
        description="Limit of a single statement of this pipeline, at most VITRINA_STATEMENT_TIMEOUT_SECONDS.",
    )
    max_cost: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Refuse a query whose estimated cost (EXPLAIN) is higher."
    )
    max_lag_seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Monitoring alerts when the data of the mart is older than this.",
    )
    notify: list[Literal["failed", "recovered", "drift", "warned"]] | None = Field(
        None, description="Events of this pipeline that are sent to the operator's webhooks. Default: all."
    )
    params: BoundedObject = Field(default_factory=dict, description="Parameters of `python_task`.")
    parallel: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        1,
        description=(
            "Number of processes that load ranges of the key in parallel in a full load: each reads, applies the"
            " steps and writes. If the load is not split (the plan says why): number of worker processes for its"
            " Python steps, one batch each. `auto`: one per processor. Also the number of sessions in which `vitrina"
            " reconcile` counts and hashes the rows of each side."
        ),
    )
    engine: str = Field(
        "local",
        pattern=r"[a-z][a-z0-9_]{0,30}",
        description=(
            "What loads the ranges of the key: `local`, processes of the runner, or `spark`, executors of a cluster."
            " With `spark`, `parallel` is the number of ranges per job; `auto` or 1 means all of them."
        ),
    )
    step_timeout_seconds: float = Field(
        600,
        gt=0,
        le=86_400,
        description=("Time limit of the Python steps for one batch, and of a Python source for producing one."),
    )
    step_memory_mb: int = Field(2_048, ge=128, description="Resident memory of a worker process, in MB.")
    reconcile: ReconcileSchedule | None = Field(None, description="Compare mart and source regularly.")
    profile: bool = Field(
        False,
        description=(
            "Profile the target after each full or incremental run: rows, size and contents of columns. `vitrina"
            " profile` does so on request."
        ),
    )
    live: LiveOptions = Field(default_factory=LiveOptions, description="How a live pipeline follows its source.")
    history: History | None = Field(
        None, description="Keep every state of a row in the mart, with the time during which it was valid; see below."
    )
    deletes: DeletesOption | None = Field(
        None,
        description=(
            "What happens to rows that left the source, and how they are found: `none`, `hard`, or an object; see"
            " below."
        ),
    )
    table: TableOptions | None = Field(
        None, description="How a new table in Postgres is created: partitions, indexes, comments, grants; see below."
    )
    delete_when: ColumnName | None = Field(
        None,
        description=("Boolean result column: true removes the row from the target. The column itself is not written."),
    )
    # search targets
    action: Literal["update", "index"] = Field(
        "update",
        description=("`update` merges into a document, `index` replaces it unless the index has a newer version."),
    )
    index: BoundedObject = Field(default_factory=dict, description="`settings` and `mappings` of a new index.")
    keep_generations: int = Field(1, ge=0, le=100, description="Number of replaced generations of an index to keep.")
    max_dead_letters: int | None = Field(
        None,
        ge=0,
        le=10**9,
        description=(
            "Rejected documents that a run may have before it stops. Default: 0 for full, 100 for incremental and live."
        ),
    )
    on_concrete_index: Literal["take_over", "refuse"] = Field(
        "take_over", description="Whether a full load may replace an index with the target's name by an alias."
    )

    # Set by the definition, whose checks may set another limit.
    _shrink_limit: float = PrivateAttr(data_checks.SHRINK_LIMIT)

    @property
    def shrink_limit(self) -> float:
        """Return the share of its rows that the target may lose at once."""
        return 1.0 if self.allow_shrink else self._shrink_limit

    @property
    def only_adds(self) -> bool:
        """Return whether loads keep rows that the source lacks: they stay, or belong to another pipeline."""
        return self.shared_target or (self.deletes is not None and self.deletes.keep)

    @property
    def keeps_one_snapshot(self) -> bool:
        """Return whether a run must read one state of the source: a history cannot hold a mixture of two."""
        return self.consistency == "snapshot" or self.history is not None

    @field_validator("index")
    @classmethod
    def _index_has_parts(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Check the parts that this platform reads; the search server checks the rest."""
        unknown = sorted(value.keys() - {"settings", "mappings"})
        if unknown:
            raise ValueError(say("definition.index_parts", unknown=", ".join(unknown)))
        for name, part in _parts_of_index(value):
            if not isinstance(part, dict):
                raise ValueError(say("definition.index_part", name=name, part=repr(part)[:80]))
        return value


class Options(OwnOptions):
    """Hold the options of one pipeline; those of a connector are under its name."""

    # Options of connectors are extra fields. The installed connectors are looked up when a definition is validated.
    model_config = ConfigDict(extra="allow")

    @field_validator("engine")
    @classmethod
    def _engine_is_installed(cls, name: str) -> str:
        found = {each.name for each in registry.installed().connectors.values() if each.is_engine}
        if name != LOCAL and name not in found:
            raise ValueError(say("definition.engine", name=name, engines=", ".join([LOCAL, *sorted(found)])))
        return name

    @property
    def may_be_cut(self) -> bool:
        """Return whether the author requests that ranges of the key are loaded in parallel."""
        return self.parallel != 1 or self.engine != LOCAL

    def of(self, connector: str) -> BaseModel | None:
        """Return what the author set under a connector's name, as that connector's model, or None if it has none."""
        model = _models_of_connectors().get(connector)
        return model.model_validate((self.model_extra or {}).get(connector, {})) if model else None

    @model_validator(mode="wrap")
    @classmethod
    def _others_are_of_connectors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate extra fields with the connectors of these names; all errors are reported together."""
        if isinstance(data, Mapping) and data.keys() - cls.model_fields.keys():
            _with_connectors().model_validate(data)
        return handler(data)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the options of the connectors that are installed here."""
        made = dict(handler(schema))
        whole = handler.resolve_ref_schema(made)
        whole["additionalProperties"] = False
        for name, model in _models_of_connectors().items():
            whole["properties"][name] = _inlined(model)
        return made


def _models_of_connectors() -> dict[str, type[BaseModel]]:
    """List the options of installed connectors, by name. A connector with the name of a platform option is left out."""
    found = registry.installed().connectors.values()
    return {each.name: each.options for each in found if each.options and each.name not in OwnOptions.model_fields}


_ANY_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(BoundedObject, config=ConfigDict(strict=True))


def _with_connectors() -> type[OwnOptions]:
    """Build one model of the platform's options and those of connectors, which accepts no others."""
    bounded = BeforeValidator(_ANY_OBJECT.validate_python)
    fields: dict[str, Any] = {
        name: (Annotated[model, bounded], None) for name, model in _models_of_connectors().items()
    }
    made: type[OwnOptions] = create_model("Options", __base__=OwnOptions, **fields)
    return made


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """Build a JSON Schema without external references, because it is embedded in others."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, dict):
            named = str(part.get("$ref", "")).removeprefix("#/$defs/")
            inner = (
                definitions[named] | {k: v for k, v in part.items() if k != "$ref"} if named in definitions else part
            )
            return {key: resolved(value) for key, value in inner.items()}
        return [resolved(each) for each in part] if isinstance(part, list) else part

    return dict(resolved(schema))


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
    """Represent one step of a task plan."""

    order_index: int = Field(ge=0, le=10_000, description="Position in the plan: unique, without gaps.")
    task_type: Literal["SQL", "PYTHON"] = Field(
        description="The first task is SQL, unless `python_task` names a source; the others are PYTHON."
    )
    body: str = Field(
        min_length=1, max_length=MAX_QUERY_LENGTH, description="The query, or the name of a registered step."
    )
    params: BoundedObject = Field(
        default_factory=dict, description=("Parameters of the step, checked against its model.")
    )
    source_table: str | None = Field(None, max_length=200, description="Where the task reads. For information only.")
    target_table: str | None = Field(
        None, max_length=200, description="The last task may override the pipeline's target."
    )


class RunAfter(Strict):
    """Represent a pipeline that this one runs after."""

    pipeline: Name = Field(description="Its name.")
    only_if_changed: bool = Field(False, description="Only successes that wrote or deleted rows count.")


def _by_name(value: object) -> object:
    """Accept a name alone, which is all that most definitions need."""
    return {"pipeline": value} if isinstance(value, str) else value


RunAfterEdge = Annotated[RunAfter, BeforeValidator(_by_name, json_schema_input_type=Name | RunAfter)]


class ErrorRule(Strict):
    """Configure what happens to rows on which a Python step fails. It is one of the step's params."""

    on_error: Literal["fail", "dead_letter"] = "fail"
    max_dead_letters: int = Field(StepRule.max_dead_letters, ge=1, le=10**9)


class Definition(Strict):
    """Represent a pipeline as its author writes it; everything else in `etl_pipelines` belongs to the platform."""

    name: Name = Field(description="Unique; letters, digits, `_`, `.` and `-`. Used in addresses and metrics.")
    description: str = Field("", max_length=10_000, description="For people.")
    type: Literal["SQL", "PYTHON"] = Field(
        "SQL", description=("`PYTHON`: rows come from, or pass through, `python_task`.")
    )
    source_type: str = Field(
        registry.POSTGRES,
        pattern=r"^[a-z][a-z0-9_]{0,30}$",
        description="Kind of the source: a connector that opens sources (`vitrina connectors list`).",
    )
    source_connection: str = Field(
        "default", pattern=r"^[a-z0-9_]{1,63}$", description="Named source database (`VITRINA_CONN_<NAME>`)."
    )
    source_query: str | None = Field(None, max_length=MAX_QUERY_LENGTH, description="One SELECT over allowed schemas.")
    source_table: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description=(
            "Instead of a query: `schema.table`, read as a whole. For another `source_type`, what that connector"
            " calls a table."
        ),
    )
    python_task: str | None = Field(None, max_length=200, description="Name of a registered step or source.")
    target_table: str = Field(
        min_length=1, max_length=200, description="`schema.table` or `es:index`; must be on the allow-list."
    )
    target_key: list[ColumnName] | None = Field(
        None, min_length=1, max_length=32, description="Key of the target. Default: its existing primary key."
    )
    mode: Literal["full", "incremental", "live"] = Field(
        "full",
        description=(
            "`full`: everything on each run. `incremental`: what is new. `live`: what changed, within a second."
        ),
    )
    incremental_key: ColumnName | None = Field(None, description="Result column that shows which rows are new.")
    incremental_id_key: ColumnName | None = Field(
        None, description=("Result column that orders rows with equal cursor values.")
    )
    batch_size: int = Field(
        DEFAULT_BATCH_SIZE, ge=1, le=MAX_BATCH_SIZE, description=("Maximum number of rows per batch.")
    )
    enabled: bool = Field(True, description="A disabled pipeline never runs, even on request.")
    schedule_interval: str | None = Field(
        None, max_length=200, description="`15m`, `1h`, `PT15M`, or cron such as `0 3 * * * Europe/Moscow`."
    )
    run_after: list[RunAfterEdge] = Field(
        default_factory=list,
        max_length=MAX_RUN_AFTER,
        description="Pipelines, by name or as below: when all of them have succeeded again, this one runs.",
    )
    options: Options = Field(default_factory=Options, description="Rarely needed options, see below.")
    checks: list[Check] = Field(
        default_factory=list,
        max_length=data_checks.MAX_CHECKS,
        description="Conditions that rows and loads must meet before they are published, see below.",
    )
    tasks: list[Task] = Field(
        default_factory=list,
        max_length=MAX_TASKS,
        description=("The task plan; it takes precedence over `source_query`."),
    )

    @field_validator("name")
    @classmethod
    def _name_is_not_an_id(cls, name: str) -> str:
        try:
            UUID(name)
        except ValueError:
            return name
        raise ValueError(say("definition.name_is_uuid"))

    @field_validator("source_type")
    @classmethod
    def _source_type_is_installed(cls, name: str) -> str:
        found = registry.installed().connectors
        if name != registry.POSTGRES and (name not in found or not found[name].is_source or name == registry.PYTHON):
            sources = sorted(each.name for each in found.values() if each.is_source and each.name != registry.PYTHON)
            raise ValueError(say("definition.source_type", name=name, sources=", ".join(sources)))
        return name

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
            raise Unfit("incremental_key", say("definition.needs_incremental_key"))
        if self.type == "SQL" and not self.tasks and not self._says_what_to_read:
            raise Unfit("source_query", say("definition.needs_query"))
        if self.type == "PYTHON" and not self.tasks and not self.python_task:
            raise Unfit("python_task", say("definition.needs_step"))
        if self.source_table and ((self.source_query or "").strip() or self.tasks):
            other = "tasks" if self.tasks else "source_query"
            raise Unfit("source_table", say("definition.table_and_query", other=other))
        if self.source_table and self.reads_postgres and not is_table(self.source_table):
            raise Unfit("source_table", say("definition.not_a_table", table=self.source_table[:80]))
        return self

    @model_validator(mode="after")
    def _can_be_followed(self) -> Self:
        if self.mode != "live":
            return self
        if self.python_source or not self.reads_postgres:
            raise Unfit("mode", say("definition.live_needs_query"))
        if self.options.shared_target:
            raise Unfit("options.shared_target", say("definition.live_shared"))
        if self.options.delete_when:
            raise Unfit("options.delete_when", say("definition.live_delete_when"))
        return self

    @model_validator(mode="after")
    def _mart_options_fit(self) -> Self:
        deletes = self.options.deletes
        if self.options.table and ":" in self.final_target:
            raise Unfit("options.table", say("definition.table_target", target=self.final_target))
        if deletes is None:
            return self
        if deletes.soft and (":" in self.final_target or self.options.history):
            raise Unfit("options.deletes.soft", say("definition.soft_target", target=self.final_target))
        if deletes.scan and self.mode == "full":
            raise Unfit("options.deletes", say("definition.deletes_of_full"))
        if self.options.shared_target:
            raise Unfit("options.deletes", say("definition.deletes_of_others"))
        if deletes.keep and self.mode == "live":
            raise Unfit("options.deletes", say("definition.deletes_none_live"))
        if deletes.keep and self.options.delete_when:
            raise Unfit("options.deletes", say("definition.deletes_none_and", option="delete_when"))
        return self

    @model_validator(mode="after")
    def _target_can_delete(self) -> Self:
        """Refuse deletes that the target's connector cannot make. If it is not installed here, a runner checks it."""
        options, deletes = self.options, self.options.deletes
        prefix, colon, _ = self.final_target.partition(":")
        connector = registry.installed().of_prefix(prefix) if colon else None
        if connector and options.delete_when and not connector.takes_delete_when:
            raise Unfit("options.delete_when", say("definition.no_delete_when", target=self.final_target))
        if connector and deletes and deletes.scan and not connector.removes_rows:
            raise Unfit("options.deletes.scan", say("definition.no_delete_scan", target=self.final_target))
        if deletes and deletes.scan and self.python_source:
            raise Unfit("options.deletes.scan", say("definition.scan_of_python", source=self.python_source))
        return self

    @model_validator(mode="after")
    def _unique_indexes_fit(self) -> Self:
        """Refuse unique indexes that would include past states, or rows that are marked as deleted."""
        options = self.options
        keeps = "history" if options.history else "deletes.soft" if options.deletes and options.deletes.soft else None
        unique = [place for place, index in enumerate(options.table.indexes) if index.unique] if options.table else []
        if keeps and unique:
            raise Unfit(f"options.table.indexes.{unique[0]}.unique", say("definition.unique_of_kept", option=keeps))
        return self

    @model_validator(mode="after")
    def _keeps_history(self) -> Self:
        history, options = self.options.history, self.options
        if history is None:
            return self
        if ":" in self.final_target:
            raise Unfit("options.history", say("definition.history_target", target=self.final_target))
        for name, given in _AGAINST_HISTORY.items():
            if getattr(options, name) == given:
                raise Unfit(f"options.{name}", say("definition.history_and", option=name, value=str(given).lower()))
        taken = [name for name in self.target_key or () if name in history.columns]
        if taken:
            raise Unfit("target_key", say("definition.history_key", column=taken[0]))
        return self

    @model_validator(mode="after")
    def _checks_fit(self) -> Self:
        if not self.checks:
            return self
        names = [check.called for check in self.checks]
        for place, check in enumerate(self.checks):
            field, name = f"checks.{place}", check.called
            if name in names[:place]:
                raise Unfit(f"{field}.name", say("definition.check_twice", name=name))
            if name in data_checks.GUARDS and check.kind != "shrink":
                raise Unfit(f"{field}.name", say("definition.check_reserved", name=name))
            if isinstance(check, Relationship) and not is_table(check.to):
                raise Unfit(f"{field}.to", say("definition.not_a_table", table=check.to[:80]))
            if check.needs_sql and ":" in self.final_target:
                raise Unfit(
                    field, say("definition.check_needs_sql", name=name, kind=check.kind, target=self.final_target)
                )
            if check.needs_reader and self._target_is_elsewhere:
                where = self.options.target_connection
                raise Unfit(field, say("definition.check_needs_reader", name=name, connection=where))
        self.options._shrink_limit = data_checks.shrink_limit(self.checks)
        return self

    @property
    def _target_is_elsewhere(self) -> bool:
        """Return whether the target is a table in another database, where the reader of queries has no login."""
        return self.options.target_connection not in (None, "default") and ":" not in self.final_target

    @field_serializer("checks")
    def _checks_as_written(self, checks: list[Check]) -> list[dict[str, Any]]:
        return [check.model_dump(exclude_defaults=True) for check in checks]

    @model_validator(mode="after")
    def _runs_after_others(self) -> Self:
        names = [edge.pipeline for edge in self.run_after]
        for place, name in enumerate(names):
            if name == self.name:
                raise Unfit("run_after", say("definition.after_itself", place=place, name=name))
            if name in names[:place]:
                raise Unfit("run_after", say("definition.after_twice", place=place, name=name))
        return self

    @property
    def python_source(self) -> str | None:
        """Return the registered source of the rows when there is no SQL to read; tasks are then steps after it."""
        reads_sql = self.tasks and self.ordered_tasks[0].task_type == "SQL"
        is_source = self.type == "PYTHON" and not reads_sql and not self._says_what_to_read
        return self.python_task if is_source else None

    @property
    def reads_postgres(self) -> bool:
        return self.source_type == registry.POSTGRES

    @property
    def source_connector(self) -> str:
        """Return the connector that rows come from."""
        return registry.PYTHON if self.python_source else self.source_type

    @property
    def _says_what_to_read(self) -> bool:
        return bool((self.source_query or "").strip() or self.source_table)

    @property
    def steps(self) -> list[Task]:
        """List the steps that rows pass after the SQL, in order: the plan's Python tasks, or `python_task` alone."""
        if self.tasks:
            return self.ordered_tasks if self.python_source else self.ordered_tasks[1:]
        if self.type == "PYTHON" and self.python_task and self.python_source is None:
            return [Task(order_index=1, task_type="PYTHON", body=self.python_task, params=self.options.params)]
        return []

    @property
    def query(self) -> str | None:
        """Return the SQL to read: the first task's when there is a task plan, else `source_query` or all of a table.

        For a source other than Postgres it is in the connector's own language, and no SQL is built from a table.
        """
        if self.tasks and not self.python_source:
            return self.ordered_tasks[0].body
        if self.source_table and self.reads_postgres:
            return f"SELECT * FROM {quoted_table(self.source_table)}"  # noqa: S608 - its form is checked, and it is judged
        return self.source_query

    @property
    def ordered_tasks(self) -> list[Task]:
        return sorted(self.tasks, key=lambda task: task.order_index)

    @property
    def final_target(self) -> str:
        """Return the target; the last step may override the pipeline's."""
        if self.tasks and self.ordered_tasks[-1].target_table:
            return self.ordered_tasks[-1].target_table
        return self.target_table

    @property
    def placed_target(self) -> str:
        """Return the target, with its connection unless a database name distinguishes places with other rows."""
        place = self.options.target_connection
        return f"{self.final_target}@{place.lower()}" if place and ":" in self.final_target else self.final_target


# Options that would overwrite a state, or mix two of them.
_AGAINST_HISTORY = {"shared_target": True, "on_missing_columns": "null", "null_cursor": "read"}


def not_a_step_name(where: str, value: str) -> str:
    return say("definition.not_a_step", where=where, name=value[:80])


# May not change during a run. Of the other fields, `batch_size` applies to the current run after `reload-config`, from
# its next batch; all others apply from the next run.
LOCKED_WHILE_RUNNING = frozenset(
    {
        "type",
        "source_type",
        "source_connection",
        "source_query",
        "source_table",
        "python_task",
        "target_table",
        "target_key",
        "mode",
        "incremental_key",
        "incremental_id_key",
        "options",
        "checks",
        "tasks",
    }
)


def fingerprint(definition: Definition, key: list[str], result_types: list[str]) -> str:
    """Compute a digest of query, steps, key, target and types. An interrupted load continues only if it is the same."""
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
    if not definition.reads_postgres or definition.options.model_extra:
        # Options of connectors are left out when there are none, so that loads of earlier versions can be continued.
        parts += [definition.source_type, definition.source_table, definition.options.model_extra]
    if definition.checks:
        # Rows of an unfinished load have passed the checks that the definition had then.
        parts.append([check.model_dump() for check in definition.checks])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
