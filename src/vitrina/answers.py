"""Read answers of the API: as models of `vitrina.schemas`, or plainly, without importing them.

To import the models takes longer than most commands take.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from vitrina import errors

# Models with a field `items`.
WITH_ITEMS = ("ApplyReport", "Page", "Targets", "TaskPlan")
# Fields that hold a time, besides `..._at` and `..._since`.
_TIMES = frozenset(("answers_request", "as_of", "at", "data_as_of", "lease_until", "since"))


@dataclass(frozen=True)
class Named:
    """Name a model, such as `Page[Run]`, until it is needed."""

    name: str
    of: "Named | None" = None

    def __getitem__(self, of: "Named") -> "Named":
        return Named(self.name, of)

    def load(self) -> Any:
        from vitrina import schemas

        model = getattr(schemas, self.name)
        return model[self.of.load()] if self.of else model


class Models:
    """Stand for `vitrina.schemas`."""

    def __getattr__(self, name: str) -> Named:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name)


def unlike_ours(name: str) -> errors.CannotConnect:
    """Return the error for what something else than an API sent: `name` says who answered, and with what."""
    return errors.CannotConnect(f"{name}, but not as a Vitrina API does: check VITRINA_API_URL")


def validated(model: Any, content: bytes, name: str = "the API answered") -> Any:
    try:
        return model.load().model_validate_json(content)
    except ValueError as exc:
        raise unlike_ours(name) from exc


def plain(model: Any, content: bytes, name: str = "the API answered") -> Any:
    """Read an answer as it was sent. What it does not have, such as a field of a newer version, the model provides."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise unlike_ours(name) from exc
    if not isinstance(data, dict) or not data:
        return validated(model, content, name)
    answer = Plain(data, lambda: validated(model, content, name))
    # A dict has a method `items`, which would hide the field.
    if "items" not in data and model.name not in WITH_ITEMS:
        return answer
    if model.name == "Page" and _is_page(data):
        return SimpleNamespace(**{"next_cursor": None} | answer.model_dump())
    return validated(model, content, name)


def _is_page(data: dict[str, Any]) -> bool:
    items, cursor = data.get("items"), data.get("next_cursor")
    is_list = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    return is_list and (cursor is None or isinstance(cursor, str))


class Plain(dict[str, Any]):
    """Represent an answer, or an object in it, as the mapping that was sent, with its fields as attributes."""

    __slots__ = ("_provide",)

    def __init__(self, data: dict[str, Any], provide: Callable[[], Any]) -> None:
        super().__init__(data)
        self._provide = provide

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.field(name) if name in self else getattr(self._provide(), name)

    def field(self, name: str) -> Any:
        value = self[name]
        if isinstance(value, dict):
            return Plain(value, lambda: getattr(self._provide(), name))
        if isinstance(value, list):
            return [self._item(name, place, item) for place, item in enumerate(value)]
        return self._time(name, value) if isinstance(value, str) and is_time(name) else value

    def _time(self, name: str, value: str) -> Any:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return getattr(self._provide(), name)

    def _item(self, name: str, place: int, item: Any) -> Any:
        return Plain(item, lambda: getattr(self._provide(), name)[place]) if isinstance(item, dict) else item

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        return {name: self.field(name) for name in self if name not in exclude}


def is_time(name: str) -> bool:
    """Return whether a field holds a time, in any model."""
    return name in _TIMES or name.endswith(("_at", "_since"))
