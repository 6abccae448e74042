"""Implement `Idempotency-Key`: a repeated request gets the first answer and changes nothing."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from vitrina.errors import Conflict
from vitrina.sentences import say
from vitrina.services.callers import Caller
from vitrina.store import requests
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Longer than any client retries.
KEPT_HOURS = 24
MAX_KEY_LENGTH = 200


# Stored beside the answer and not part of it.
_ASKED = "asked_digest"


def once(
    connection: Connection,
    caller: Caller,
    row: Row,
    key: str,
    perform: Callable[[], dict[str, Any]],
    *,
    asked: Mapping[str, Any],
) -> tuple[dict[str, Any], bool]:
    """Return the answer and whether it is a replay. The key, the change and the answer are one transaction.

    `asked` is the content of the request: a key that is sent again with another content is a mistake of the caller.
    """
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    # Two callers may choose the same key.
    scoped = f"{caller.name}\n{key}"
    with connection.transaction():
        requests.forget_keys(connection, older_than_hours=KEPT_HOURS)
        known = requests.reserve_key(connection, scoped, row["id"])
        if known is None:
            answer = perform()
            requests.remember_response(connection, scoped, answer | {_ASKED: digest})
            return answer, False
    if known["pipeline_id"] != row["id"]:
        raise Conflict(say("request.key_of_other_pipeline", key=key))
    answer = dict(known["response"])
    # A record of an earlier version of the platform does not contain the request.
    if answer.pop(_ASKED, digest) != digest:
        raise Conflict(say("request.key_of_other_body", key=key))
    return answer, True
