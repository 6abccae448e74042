"""Documents of two sides are told apart by what they say: by nothing less, and by nothing more."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from vitrina.checks import compare
from vitrina.errors import BadKey
from vitrina.ports.compare import Extent, Kind
from vitrina.ports.documents import Document, DocumentSide


class Listed:
    """Documents that are written down here."""

    def __init__(self, *documents: Document) -> None:
        self._documents = documents

    def opened(self) -> AbstractContextManager[None]:
        return nullcontext()

    def extent(self) -> Extent:
        return Extent(len(self._documents), 0, {}, {})

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        return iter(self._documents)

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        return (document for document in self._documents if document.id in ids)

    def random_ids(self, count: int) -> list[str]:
        return [document.id for document in self._documents[:count]]


def side(*documents: Document, repeats: bool = False, fields: list[str] | None = None) -> DocumentSide:
    return DocumentSide(Listed(*documents), fields, repeats=repeats)


def kinds(source: DocumentSide, target: DocumentSide) -> list[tuple[str, Kind, bool]]:
    look = compare.look_fully(source, target, expected_rows=10)
    return [(difference.key[0], difference.kind, difference.in_flight) for difference in look.differences]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"title": ""}, {"title": None}),
        ({"title": ""}, {}),
        ({"title": "1"}, {"title": 1}),
        ({"genres": ["a", "b"]}, {"genres": ["b", "a"]}),
        ({"genres": []}, {"genres": None}),
        ({"at": "2024-01-01T00:00:00.123456Z"}, {"at": "2024-01-01T00:00:00.123457Z"}),
        ({"a": "x", "b": None}, {"a": None, "b": "x"}),
        ({"payload": {"n": None}}, {"payload": {}}),
    ],
)
def test_what_says_something_else_differs(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert kinds(side(Document("1", here)), side(Document("1", there))) == [("1", Kind.DIFFERING, False)]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1, "b": None}, {"a": 1}),
        ({"payload": {"x": 1, "y": 2}}, {"payload": {"y": 2, "x": 1}}),
    ],
)
def test_what_says_the_same_is_equal(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert kinds(side(Document("1", here)), side(Document("1", there))) == []


def test_only_the_fields_of_the_pipeline_count() -> None:
    here, there = Document("1", {"a": 1}), Document("1", {"a": 1, "others": 2})
    assert kinds(side(here, fields=["a"]), side(there, fields=["a"])) == []
    assert kinds(side(here), side(there)) == [("1", Kind.DIFFERING, False)]


def test_a_document_that_shall_not_be_there_is_extra_and_may_be_on_its_way_out() -> None:
    there = side(Document("1", {"a": 1}), Document("2", {"a": 1}))
    here = side(Document("1", None), Document("2", None, in_flight=True), Document("3", None))
    assert sorted(kinds(here, there)) == [("1", Kind.EXTRA, False), ("2", Kind.EXTRA, True)]


def test_of_several_versions_the_last_one_counts() -> None:
    versions = (Document("1", {"a": 1}), Document("1", {"a": 2}))
    assert kinds(side(*versions, repeats=True), side(Document("1", {"a": 2}))) == []
    with pytest.raises(BadKey, match="the id 1 comes more than once"):
        kinds(side(*versions), side(Document("1", {"a": 2})))


def test_what_cannot_be_a_document_is_equal_to_none() -> None:
    here = side(Document("1", {}, problem="infinity"), Document("2", {}, problem="infinity"))
    there = side(Document("1", {}))
    assert sorted(kinds(here, there)) == [("1", Kind.DIFFERING, False), ("2", Kind.MISSING, False)]
    assert here.texts([("1",)]) == {("1",): {"(cannot be a document)": "infinity"}}


def _null_blind(side: DocumentSide, document: Document) -> dict[str, Any]:
    return {name: value for name, value in (document.content or {}).items() if value not in (None, "", [])}


def _order_blind(side: DocumentSide, document: Document) -> dict[str, Any]:
    said = {name: value for name, value in (document.content or {}).items() if value is not None}
    return {name: sorted(value) if isinstance(value, list) else value for name, value in said.items()}


@pytest.mark.parametrize(
    ("here", "there", "mutant"),
    [
        ({"title": ""}, {"title": None}, _null_blind),
        ({"genres": []}, {"genres": None}, _null_blind),
        ({"genres": ["a", "b"]}, {"genres": ["b", "a"]}, _order_blind),
    ],
)
def test_a_hash_that_is_blind_would_be_noticed(
    here: dict[str, Any], there: dict[str, Any], mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DocumentSide, "_said", mutant)
    with pytest.raises(AssertionError):
        test_what_says_something_else_differs(here, there)


@pytest.mark.parametrize(("gone", "counted"), [(0, 0), (5, 7), (10, 15)])
def test_keys_that_were_not_looked_up_count_in_proportion(
    monkeypatch: pytest.MonkeyPatch, gone: int, counted: int
) -> None:
    """Ten of fifteen extra keys were kept; the other rows are back in the source at the second look."""
    monkeypatch.setattr(compare, "KEPT_KEYS", 10)
    documents = [Document(f"{number:02}", {"a": 1}) for number in range(15)]
    first = compare.look_for_extra(side(), side(*documents), expected_rows=15)
    assert (len(first.kept), first.count) == (10, 15)
    away = {key[0] for key in first.kept[:gone]}

    verdict = compare.confirm_extra(
        first, side(*(document for document in documents if document.id not in away)), side(*documents)
    )

    assert (len(verdict.confirmed), verdict.total) == (gone, counted)
