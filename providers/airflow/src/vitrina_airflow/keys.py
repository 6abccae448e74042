"""Build the idempotency key of a task: the same for its retries, another one after a Clear."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def key_of(context: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Name the work of this task instance without the try number, so that a retry finds the run of the try before.

    Clearing a task raises `max_tries` to the tries so far plus `retries`, so the pair of both is new after every
    Clear, also when the DAG's `retries` were edited in between. The start of the DAG run distinguishes two of the same
    name: in two installations of Airflow that share a token, or one that was deleted and created again. The body of the
    request is part of the key, because the same key with another body is refused.
    """
    instance, run = context["ti"], context["dag_run"]
    started = getattr(run, "start_date", None)
    parts = [
        instance.dag_id,
        instance.run_id,
        started.isoformat() if started else None,
        instance.task_id,
        getattr(instance, "map_index", -1),
        instance.max_tries,
        context["task"].retries,
        dict(asked),
    ]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"airflow-{digest}"


def numbered(key: str, ended_badly: int) -> str:
    """Return the key to use after this many runs ended FAILED or CANCELLED. The same count gives the same key."""
    return f"{key}-{ended_badly}"
