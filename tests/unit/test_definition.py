"""What a definition refuses before it is saved, where the server's own words would come late and help nobody."""

from typing import Any

import pytest
from pydantic import ValidationError

from vitrina.definition import Options
from vitrina.mart_options import History


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ({"mapping": {}}, "mapping: an index has only `settings` and `mappings`"),
        ({"mappings": {}, "aliases": {"films": {}}}, "aliases: an index has only `settings` and `mappings`"),
        ({"settings": None}, "settings is None: write an object"),
        ({"mappings": []}, r"mappings is \[\]: write an object"),
        ({"mappings": {"properties": None}}, "mappings.properties is None: write an object"),
        ({"mappings": {"_meta": "x"}}, "mappings._meta is 'x': write an object"),
        ({"mappings": {"properties": {"title": "keyword"}}}, "title is 'keyword': .* such as {'type': 'keyword'}"),
    ],
)
def test_parts_of_an_index_are_named_when_they_are_wrong(index: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Options(index=index)


def test_the_rest_of_an_index_is_the_servers_to_judge() -> None:
    index = {"settings": {"anything": 1}, "mappings": {"dynamic": False, "properties": {"a": {"type": "no_such"}}}}

    assert Options(index=index).index == index


@pytest.mark.parametrize(
    "option",
    [
        *("schedule_jitter_seconds", "lookback_seconds", "statement_timeout_seconds", "max_lag_seconds", "max_cost"),
        *("max_snapshot_seconds", "max_stage_age_seconds", "checkpoint_rows", "max_dead_letters", "max_attempts"),
    ],
)
@pytest.mark.parametrize("value", [1e400, -1e13, 10**19, float("nan")])
def test_no_number_of_a_definition_is_beyond_what_programs_count_with(option: str, value: float) -> None:
    if option == "max_cost" and value == 10**19:
        return  # EXPLAIN has such costs
    with pytest.raises(ValidationError, match=option):
        Options.model_validate({option: value})


def test_a_history_is_unique_by_the_beginning_or_by_the_end_of_a_state() -> None:
    assert Options.model_validate({"history": {}}).history == History(unique_by="valid_from")
    assert Options.model_validate({"history": {"unique_by": "valid_to"}}).history == History(unique_by="valid_to")
    # The name of the option's field, whatever the column is called.
    assert Options.model_validate({"history": {"unique_by": "valid_to", "valid_to": "until"}}).history is not None
    with pytest.raises(ValidationError, match="unique_by"):
        Options.model_validate({"history": {"unique_by": "until", "valid_to": "until"}})
