"""Answers that are read without their models say the same as with them."""

import inspect
import json
import re
import typing
from datetime import UTC, datetime
from types import UnionType
from typing import Any

import pytest

from vitrina import answers, errors, schemas
from vitrina.answers import Models, Plain, is_time, plain

MODELS = [
    model
    for _, model in inspect.getmembers(schemas, inspect.isclass)
    if issubclass(model, schemas.Answer) and model.__module__ == schemas.__name__
]
named: Any = Models()


def holds(annotation: Any, wanted: type) -> bool:
    if typing.get_origin(annotation) in (typing.Union, UnionType, list):
        return any(holds(part, wanted) for part in typing.get_args(annotation))
    return annotation is wanted


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_name_tells_whether_a_field_is_a_time(model: type[schemas.Answer]) -> None:
    for name, field in model.model_fields.items():
        if holds(field.annotation, datetime) and typing.get_origin(field.annotation) is not list:
            assert is_time(name), f"{name} is a time: add it to answers.py"
        if holds(field.annotation, str):
            assert not is_time(name), f"{name} is text: is_time() takes it for a time"


def test_no_field_is_hidden_by_a_method_of_mappings() -> None:
    taken = {name for name in dir(Plain) if not name.startswith("_")}
    paged = {name for model in MODELS for name in model.model_fields if name in taken}
    assert paged <= {"items"}, "plain() has to treat these as it treats `items`"
    with_items = {model.__name__ for model in MODELS if "items" in model.model_fields}
    assert with_items == set(answers.WITH_ITEMS), "plain() has to know which models have items"


def test_every_model_that_the_client_names_is_there() -> None:
    import vitrina.client

    for name in set(re.findall(r"schemas\.(\w+)", inspect.getsource(vitrina.client))):
        assert Models().__getattr__(name).load() is getattr(schemas, name)
    assert named.Page[named.Run].load() is schemas.Page[schemas.Run]


CHECKPOINT = {"pipeline_id": "f3b9", "updated_at": "2025-03-01T12:00:00Z", "last_processed_key": "2025-03-01T12:00:00Z"}


def test_times_are_times_and_texts_are_texts() -> None:
    read = plain(named.Checkpoint, json.dumps(CHECKPOINT).encode())
    assert read.updated_at == datetime(2025, 3, 1, 12, tzinfo=UTC)
    assert read.last_processed_key == "2025-03-01T12:00:00Z"
    assert read.model_dump(exclude={"pipeline_id"}).keys() == {"updated_at", "last_processed_key"}
    assert json.loads(json.dumps(read)) == CHECKPOINT


def test_a_time_that_no_datetime_holds_is_refused() -> None:
    sent = CHECKPOINT | {"updated_at": "infinity"}
    read = plain(named.Checkpoint, json.dumps(sent).encode(), "http://api answered 200")
    with pytest.raises(errors.CannotConnect, match="http://api answered 200, but not as"):
        _ = read.updated_at


def test_what_was_not_sent_is_provided_by_the_model() -> None:
    """An older server does not send a field: it has its default, also in an object of an object."""
    request = {"id": "f" * 32, "kind": "preview", "pipeline_id": None, "status": "DONE", "created_at": "2025-03-01"}
    read = plain(named.Request, json.dumps(request).encode())
    assert read.is_finished
    assert read.finished_at is None
    pages = plain(named.Page[named.Request], json.dumps({"items": [request]}).encode())
    assert pages.items[0].is_finished
    with pytest.raises(AttributeError):
        _ = read.no_such_field


def test_a_page_has_its_items() -> None:
    page = plain(named.Page[named.Checkpoint], json.dumps({"items": [CHECKPOINT], "next_cursor": "n"}).encode())
    assert [item.updated_at.year for item in page.items] == [2025]
    assert page.next_cursor == "n"
    targets = plain(named.Targets, json.dumps({"items": [], "allowed": ["analytics.*"]}).encode())
    assert targets.allowed == ["analytics.*"]
    assert targets.model_dump() == {"items": [], "allowed": ["analytics.*"], "next_cursor": None}


def test_an_answer_that_is_no_object_is_refused() -> None:
    with pytest.raises(errors.CannotConnect, match="the API answered, but not as a Vitrina API does"):
        plain(named.Checkpoint, b"[]")
    assert answers.validated(named.VersionInfo, b'{"version": "1", "api": "v1"}').api == "v1"
