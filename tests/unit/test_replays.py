"""Which row of the source a dead letter is about."""

from typing import Any

import pytest

from vitrina.loads.replay import key_of


@pytest.mark.parametrize(
    ("document_id", "document", "names", "key"),
    [
        ("7", {"doc": {"id": 7, "title": "x"}, "doc_as_upsert": True}, ["id"], ("7",)),
        ("7", {"id": 7, "title": "x"}, ["id"], ("7",)),
        ("a|b", {"doc": "no wrapper", "id": "a|b"}, ["id"], ("a|b",)),
        ("true|1.5", {"on": True, "rating": 1.5}, ["on", "rating"], ("true", "1.5")),
        ("sha256:00", {"id": "long"}, ["id"], ("long",)),
        # A refused delete has no document.
        ("a|b", None, ["id"], ("a|b",)),
        (r"a\\b\|c|d", None, ["left", "right"], (r"a\b|c", "d")),
        ("sha256:00", None, ["id"], None),
        ("|d", None, ["left", "right"], None),
        ("", {"id": None}, ["id"], None),
        ("7", {"id": {"gte": 1}}, ["id"], None),
        ("batch 1, row 2", {"title": "x"}, ["id"], None),
    ],
)
def test_keys_are_told_from_letters(
    document_id: str, document: Any, names: list[str], key: tuple[str, ...] | None
) -> None:
    assert key_of({"document_id": document_id, "document": document}, names) == key
