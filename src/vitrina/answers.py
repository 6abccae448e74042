"""Read answers of the API: as models of `vitrina.schemas`, or plainly, without importing them.

To import the models takes longer than most commands take.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

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


def validated(model: Any, content: bytes) -> Any:
    return model.load().model_validate_json(content)


def plain(model: Any, content: bytes) -> Any:
    """Read an answer as it was sent. What it does not have, such as a field of a newer version, the model provides."""
    data = json.loads(content)
    if not isinstance(data, dict):
        return validated(model, content)
    answer = Plain(data, lambda: validated(model, content))
    if "items" not in data:
        return answer
    # A dict has a method of this name.
    return SimpleNamespace(**answer.model_dump()) if model.name == "Page" else validated(model, content)


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
        return datetime.fromisoformat(value) if isinstance(value, str) and is_time(name) else value

    def _item(self, name: str, place: int, item: Any) -> Any:
        return Plain(item, lambda: getattr(self._provide(), name)[place]) if isinstance(item, dict) else item

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        return {name: self.field(name) for name in self if name not in exclude}


def is_time(name: str) -> bool:
    """Return whether a field holds a time, in any model."""
    return name in _TIMES or name.endswith(("_at", "_since"))
