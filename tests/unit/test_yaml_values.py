"""Scalars of a manifest are those of YAML 1.2; what JSON cannot say is refused at its line and column."""

from typing import Any

import pytest

from vitrina.errors import Invalid
from vitrina.services import manifest_files


def params(written: str) -> Any:
    text = f"apiVersion: vitrina/v1\nkind: Pipeline\nspec:\n  options:\n    params:\n      value: {written}\n"
    [document] = manifest_files.read(text, "films.yaml")
    return document.content["spec"]["options"]["params"]["value"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2024-01-31", "2024-01-31"),
        ("2024-01-31T10:00:00Z", "2024-01-31T10:00:00Z"),
        ("2024-02-30", "2024-02-30"),
        ("12:30:45", "12:30:45"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("~", None),
        ("", None),
        ("<<", "<<"),
        ("'010'", "010"),
        ("1.5", 1.5),
        ("1.2.3", "1.2.3"),
    ],
)
def test_scalars(written: str, value: Any) -> None:
    read = params(written)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("!!set {a, b}", "!!set is not supported"),
        ("!!binary aGVsbG8=", "!!binary is not supported"),
        ("!!timestamp 2024-01-01", "!!timestamp is not supported"),
        ("!!python/object:os.system x", "is not supported"),
        ("!!int abc", "is not a whole number"),
        (".inf", "is not a number in JSON"),
        (".nan", "is not a number in JSON"),
        ("1e999", "is not a number in JSON"),
        ("9" * 5000, "too long"),
    ],
)
def test_everything_else_is_named_with_line_and_column(written: str, said: str) -> None:
    with pytest.raises(Invalid, match=rf"films\.yaml:6:14: .*{said}"):
        params(written)


@pytest.mark.parametrize(
    "text", ["1e3", "0o17", "010", "12:30:45", "2024-01-31", "yes", "~", ".inf", "0x1F", "true", ""]
)
def test_what_is_written_is_read_again_as_the_text_that_it_was(text: str) -> None:
    written = manifest_files.write([{"apiVersion": "vitrina/v1", "value": text}])
    [document] = manifest_files.read(written)
    assert document.content["value"] == text
