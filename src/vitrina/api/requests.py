"""Define request bodies other than a whole definition, with the examples that the documentation shows."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BeforeValidator, Field

from vitrina.data_checks import MAX_CHECKS
from vitrina.definition import MAX_TASKS, Definition, Strict, Task
from vitrina.services import labels, manifests, tokens

FILM_DIM = {
    "name": "film_dim_full",
    "description": "One row a film, with its genres.",
    "source_query": (
        "SELECT f.id AS film_id, f.title, f.rating, array_agg(g.name ORDER BY g.name) AS genres"
        " FROM content.film_work f"
        " LEFT JOIN content.genre_film_work gf ON gf.film_work_id = f.id"
        " LEFT JOIN content.genre g ON g.id = gf.genre_id GROUP BY f.id"
    ),
    "target_table": "analytics.film_dim",
    "target_key": ["film_id"],
    "mode": "full",
    "batch_size": 5000,
    "schedule_interval": "1h",
}
RATINGS = {
    "name": "ratings_incremental",
    "source_query": "SELECT id, film_id, user_id, score, updated_at FROM ugc.ratings",
    "target_table": "analytics.ratings",
    "target_key": ["id"],
    "mode": "incremental",
    "incremental_key": "updated_at",
    "incremental_id_key": "id",
    "schedule_interval": "30s",
}
TASKS = [
    {"order_index": 1, "task_type": "SQL", "body": "SELECT id AS film_id, title FROM content.film_work"},
    {"order_index": 2, "task_type": "PYTHON", "body": "title_case", "params": {"column": "title"}},
]
DEFINITION_EXAMPLES: dict[str, Any] = {
    "full": {"summary": "A mart that is loaded as a whole", "value": FILM_DIM},
    "incremental": {"summary": "A mart that follows its source", "value": RATINGS},
}
CHANGE_EXAMPLES: dict[str, Any] = {
    "batch": {"summary": "Smaller batches", "value": {"batch_size": 1000}},
    "schedule": {
        "summary": "Every night at three in Moscow",
        "value": {"schedule_interval": "0 3 * * * Europe/Moscow"},
    },
    "options": {"summary": "One option; null resets it", "value": {"options": {"allow_shrink": True}}},
}


MANIFEST = """apiVersion: vitrina/v1
kind: Pipeline
metadata:
  name: ratings_incremental
spec:
  source_query: SELECT id, film_id, score, updated_at FROM ugc.ratings
  target_table: analytics.ratings
  target_key: [id]
  mode: incremental
  incremental_key: updated_at
"""


def _whole(value: Any) -> Any:
    """Convert a whole float to an integer: JSON has one kind of number, so 20.0 is as whole as 20."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Whole = BeforeValidator(_whole)


LabelKey = Annotated[str, Field(pattern=f"^{labels.KEY.pattern}$")]
LabelValue = Annotated[str, Field(max_length=labels.MAX_VALUE, pattern=r"^[^\x00]*$")]


class NewPipeline(Definition):
    """Represent a definition, and the labels of the pipeline."""

    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        max_length=labels.MAX_LABELS,
        description="For people: to sort and choose pipelines by. No part of the definition, so they make no version.",
        examples=[{"team": "core"}],
    )

    @property
    def definition(self) -> Definition:
        return Definition.model_validate(self.model_dump(exclude={"labels"}, exclude_unset=True))


class TaskPlan(Strict):
    """Represent a whole task plan. Steps that it does not name are removed."""

    items: list[Task] = Field(max_length=MAX_TASKS, examples=[TASKS])


class RunRequest(Strict):
    """Represent the request of a run."""

    trigger: Literal["api", "manual"] = Field("api", description="`manual` if a person requests the run.")
    since: str | None = Field(
        None, max_length=1000, description="Backfill from this value of incremental_key on.", examples=[None]
    )
    until: str | None = Field(
        None, max_length=1000, description="Backfill up to, but not including, this value.", examples=[None]
    )
    accept: list[str] = Field(
        default_factory=list,
        max_length=MAX_CHECKS,
        description="Checks, by name, that may fail in this run: it publishes anyway.",
        examples=[[]],
    )

    @property
    def is_plain(self) -> bool:
        return self.since is None and self.until is None


class CancelRequest(Strict):
    """Represent the request to cancel a run."""

    run_requested_at: AwareDatetime | None = Field(
        None,
        strict=False,  # text in JSON
        description="As `run` answered it: cancel the run of that request, and no other (409). Null: cancel any run.",
        examples=[None],
    )


class NewState(Strict):
    """Represent the position that the next run starts from."""

    cursor: str | None = Field(
        None, max_length=1000, description="A value of incremental_key; null: from the beginning.", examples=[None]
    )


class PreviewRequest(Strict):
    """Represent the request of a preview."""

    limit: Annotated[int, _Whole] = Field(20, ge=1, le=1000)


class ReconcileRequest(Strict):
    """Represent the request of a comparison of source and target."""

    level: Literal["quick", "full", "sample"] = Field(
        "full",
        description="`quick`: counts and ends of key and cursor. `full`: every row and column. `sample`: random keys.",
    )
    repair: bool = Field(False, description="Update the rows that differ; otherwise they are only listed.")
    limit: Annotated[int, _Whole] = Field(100, ge=1, le=10_000, description="How many differing keys to list.")


class ReplayRequest(Strict):
    """Represent the request to replay dead letters."""

    pipeline: str = Field(min_length=1, max_length=100)
    letters: list[Annotated[int, Field(ge=1, le=2**53 - 1), _Whole]] | None = Field(
        None, min_length=1, max_length=10_000, description="Only these, by id; otherwise all open ones."
    )
    reason: str | None = Field(
        None, max_length=10_000, pattern=r"^[^\x00]*$", description="Those in this group of `/dead-letters/groups`."
    )


class TokenRequest(Strict):
    """Represent the request of a token."""

    name: str = Field(pattern=tokens.NAME, examples=["airflow"])
    role: Literal["viewer", "operator", "admin"] = "viewer"
    expires_in_days: Annotated[int, Field(ge=1, le=tokens.MAX_EXPIRY_DAYS), _Whole] | None = Field(None, examples=[90])


class ManifestFile(Strict):
    """Represent one file. Messages name its path."""

    path: str = Field(min_length=1, max_length=1000, examples=["pipelines/films.yaml"])
    text: str


class ApplyRequest(Strict):
    """Represent YAML documents, as files or as one text."""

    files: list[ManifestFile] = Field(default_factory=list, max_length=10_000)
    documents: str | None = Field(None, examples=[MANIFEST])
    dry_run: bool = Field(False, description="Report what would change, and change nothing.")
    prune: bool = Field(False, description="Delete pipelines of the same `managed_by` that no document names.")
    managed_by: str = Field("file", pattern=manifests.OWNER, description="Who owns these pipelines.")
    require_plans: list[Annotated[UUID, Field(strict=False)]] = Field(
        default_factory=list, max_length=1_000, description="Apply only what these plans cover; 409 otherwise."
    )
