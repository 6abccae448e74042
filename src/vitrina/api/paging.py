"""Paginate by key: an opaque cursor marks where the last page ended, so that pages neither overlap nor skip rows."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Query
from pydantic import AwareDatetime, BeforeValidator, Field

from vitrina.errors import InvalidField
from vitrina.schemas import Page
from vitrina.sentences import say

DEFAULT_LIMIT = 50
MAX_LIMIT = 500

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Items in one answer.")]
Cursor = Annotated[
    str | None, Query(max_length=1000, description="`next_cursor` of the previous answer, with the same filters.")
]


def _not_a_number(value: Any) -> Any:
    """Refuse a number: Pydantic would take `0.5` for half a second after 1970."""
    if isinstance(value, str) and value.replace(".", "", 1).lstrip("+-").isdigit():
        raise ValueError(say("request.moment"))
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_not_a_number)]

Labels = Annotated[
    list[Annotated[str, Field(max_length=301, pattern=r"^[^\x00]+$")]],
    Query(max_length=20, description="`key=value`, or `key` with any value. A pipeline must match all of them."),
]

Row = dict[str, Any]
Item = TypeVar("Item")


def page(
    rows: Sequence[Row], limit: int, build: Callable[[Row], Item], position: Callable[[Row], list[Any]]
) -> Page[Item]:
    """Build a page. `rows` has one more than `limit` when there is more, and the next page starts after `position`."""
    shown = rows[:limit]
    more = len(rows) > limit
    return Page(items=[build(row) for row in shown], next_cursor=encode(position(shown[-1])) if more else None)


def encode(position: list[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def decode(cursor: str | None, *kinds: Callable[[Any], Any]) -> list[Any] | None:
    """Decode a position, each part by its kind. Raise `InvalidField` for a cursor that this API did not issue."""
    if cursor is None:
        return None
    try:
        parts = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(parts, list) or len(parts) != len(kinds):
            raise ValueError
        return [kind(part) for kind, part in zip(kinds, parts, strict=True)]
    # `UUID` takes a number for a text, and asks it for a method that it lacks.
    except (ValueError, TypeError, AttributeError, OverflowError, binascii.Error) as exc:
        raise InvalidField("query.cursor", say("request.foreign_cursor")) from exc
