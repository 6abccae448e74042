"""Params of Python steps, judged by the JSON Schema that runners report: never stricter than the model itself."""

from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitrina.services import params
from vitrina.transforms import registry

STEPS = {found.name: found for found in registry.load() if found.params}


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    depth: int = Field(ge=1, le=3)
    tags: list[str] = Field(default_factory=list, max_length=2)


class Lax(BaseModel):
    """A model as people write it: it converts, and says nothing of other fields."""

    number: int
    share: float = Field(0.5, gt=0, lt=1)
    flag: bool = False
    colour: Colour = Colour.RED
    inner: Inner | None = None
    by_name: dict[str, Inner] = {}
    kind: Literal["a"] = "a"


class Picky(Lax):
    model_config = ConfigDict(strict=True, extra="forbid")


def found(model: type[BaseModel], given: dict[str, Any]) -> list[str]:
    strict = bool(model.model_config.get("strict"))
    errors = params.problems(given, model.model_json_schema(), "tasks.1.params", strict=strict)
    return [f"{error.path}: {error.message}" for error in errors]


# --- what people get to read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "given", "message"),
    [
        ("mask_columns", {}, "tasks.1.params.columns: params.columns is missing"),
        (
            "mask_columns",
            {"columns": ["a"], "keep": 1},
            "tasks.1.params.keep: there is no params.keep; available: character, columns, keep_first, keep_last",
        ),
        ("mask_columns", {"columns": "a"}, "tasks.1.params.columns: params.columns must be a list, not text"),
        ("mask_columns", {"columns": []}, "tasks.1.params.columns: params.columns needs at least 1 items"),
        (
            "mask_columns",
            {"columns": ["a"], "keep_first": "2"},
            "tasks.1.params.keep_first: params.keep_first must be a whole number, not text",
        ),
        (
            "mask_columns",
            {"columns": ["a"], "keep_first": -1},
            "tasks.1.params.keep_first: params.keep_first must be at least 0",
        ),
        (
            "mask_columns",
            {"columns": ["a"], "character": "**"},
            "tasks.1.params.character: params.character has 2 characters; at most 1 are allowed",
        ),
        (
            "deduplicate",
            {"by": ["a"], "keep": "any"},
            "tasks.1.params.keep: params.keep must be one of 'first', 'last'",
        ),
        (
            "rename_columns",
            {"names": {"a": 5}},
            "tasks.1.params.names.a: params.names.a must be text, not a whole number",
        ),
        (
            "parse_json",
            {"column": "c", "fields": {"x": {"type": "int"}}},
            "tasks.1.params.fields.x.path: params.fields.x.path is missing",
        ),
        (
            "normalise_text",
            {"columns": ["a"], "case": 5},
            "tasks.1.params.case: params.case must be one of 'lower', 'upper', 'title' or null, not a whole number",
        ),
        ("keep_rows", {"where": {"column": "a"}}, "tasks.1.params.where.op: params.where.op is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(step: str, given: dict[str, Any], message: str) -> None:
    model = STEPS[step].params
    assert model is not None
    assert message in found(model, given)


def test_no_value_is_repeated() -> None:
    """Params may hold what nobody else should read."""
    told = str(found(Picky, {"number": "hunter2", "colour": "hunter2", "inner": "hunter2", "hunter": {}}))
    assert "hunter2" not in told


def test_a_model_that_converts_may_be_given_what_it_converts() -> None:
    assert found(Lax, {"number": "5", "flag": "yes", "share": "0.3", "whatever": []}) == []
    assert found(Lax, {"number": []}) == ["tasks.1.params.number: params.number must be a whole number, not a list"]
    assert len(found(Picky, {"number": "5", "flag": "yes", "share": "0.3", "whatever": []})) == 4


def test_words_that_are_not_understood_allow_everything() -> None:
    strange = {"properties": {"a": {"$ref": "#/elsewhere"}, "b": {"not": {}}, "c": {"type": ["string", "null"]}}}
    assert params.problems({"a": 1, "b": 2, "c": 3}, strange, "params", strict=True) == []


# --- whatever is given ---------------------------------------------------------------------------------------------


def names_in(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = set(schema.get("properties", {})) | {value for value in schema.get("enum", ()) if isinstance(value, str)}
        return own.union(*(names_in(value) for value in schema.values()))
    return set().union(*(names_in(value) for value in schema)) if isinstance(schema, list) else set()


MODELS: dict[str, type[BaseModel]] = {
    **{name: step.params for name, step in STEPS.items() if step.params},
    "lax": Lax,
    "picky": Picky,
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[type[BaseModel], dict[str, Any]]:
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    words = st.sampled_from([*sorted(names_in(model.model_json_schema())), "bogus", "", "5"])
    scalars = st.one_of(words, st.integers(-1, 4), st.sampled_from([0.5, 1.5]), st.booleans(), st.none())
    values = st.recursive(
        scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(words, v, max_size=3), max_leaves=6
    )
    own = st.sampled_from([*sorted(model.model_fields), "bogus"])
    return model, draw(st.dictionaries(own, values, max_size=4))


# What the schema alone can tell; the rest is for validators that only the runner has.
CERTAIN = {"missing", "extra_forbidden", "literal_error", "too_short", "greater_than_equal", "string_type", "list_type"}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_nothing_is_refused_that_the_step_would_take(case: tuple[type[BaseModel], dict[str, Any]]) -> None:
    model, given = case
    told = found(model, given)
    try:
        model.model_validate(given)
    except ValidationError as exc:
        if {error["type"] for error in exc.errors()} & CERTAIN:
            assert told
    else:
        assert told == []
