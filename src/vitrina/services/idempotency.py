"""`Idempotency-Key`: the second copy of a request gets the first one's answer and changes nothing."""

from collections.abc import Callable
from typing import Any

from vitrina.errors import Conflict
from vitrina.services.callers import Caller
from vitrina.store import requests
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Longer than any client keeps trying.
KEPT_HOURS = 24
MAX_KEY_LENGTH = 200


def once(
    connection: Connection, caller: Caller, row: Row, key: str, perform: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """The answer, and whether it is a replay. The key, the change and the answer are one transaction."""
    # Two callers may think of the same key.
    scoped = f"{caller.name}\n{key}"
    with connection.transaction():
        requests.forget_keys(connection, older_than_hours=KEPT_HOURS)
        known = requests.reserve_key(connection, scoped, row["id"])
        if known is None:
            answer = perform()
            requests.remember_response(connection, scoped, answer)
            return answer, False
    if known["pipeline_id"] != row["id"]:
        raise Conflict(f"Idempotency-Key {key!r} was used for another pipeline; use a new key for each request")
    return known["response"], True
