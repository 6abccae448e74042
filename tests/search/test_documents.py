"""Rows become bulk actions: ids, duplicates, deletions, and rows that cannot be documents."""

import json
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrina import errors
from vitrina.connectors.search import mapping
from vitrina.connectors.search.documents import LONGEST_ID_BYTES, DocumentEncoder, Prepared


def encode(
    columns: dict[str, pa.Array], types: dict[str, str], key: list[str], version: int | None = None, **options: Any
) -> Prepared:
    batch = pa.record_batch(columns)
    fields = mapping.field_types(mapping.derive(batch.schema, types))
    return DocumentEncoder(types=types, field_types=fields, key=key, **options).encode(batch, version=version)


def lines_of(prepared: Prepared) -> list[list[Any]]:
    return [[json.loads(line) for line in action.splitlines()] for action in prepared.actions.lines]


def test_update_keeps_what_other_pipelines_wrote() -> None:
    prepared = encode({"id": pa.array([7]), "title": pa.array([None], pa.string())}, {}, ["id"])

    action, body = lines_of(prepared)[0]
    assert action == {"update": {"_id": "7"}}
    assert body == {"doc": {"id": 7, "title": None}, "doc_as_upsert": True}, "NULL clears the field"


def test_index_carries_an_external_version() -> None:
    prepared = encode({"id": pa.array([7])}, {}, ["id"], version=99, action="index")

    assert lines_of(prepared) == [[{"index": {"_id": "7", "version": 99, "version_type": "external_gte"}}, {"id": 7}]]


def test_delete_when() -> None:
    columns = {"id": pa.array([1, 2, 3]), "x": pa.array([math.nan, 2.0, 3.0]), "gone": pa.array([True, False, None])}

    prepared = encode(columns, {}, ["id"], delete_when="gone")

    assert lines_of(prepared)[0] == [{"delete": {"_id": "1"}}]
    assert lines_of(prepared)[1][1]["doc"] == {"id": 2, "x": 2.0}, "the column itself is not part of the document"
    assert len(prepared.actions.ids) == 3
    assert not prepared.rejected, "a row that is deleted needs no values"


def test_delete_when_must_be_a_boolean_column() -> None:
    with pytest.raises(errors.FatalError, match="'id', which is int64 and not boolean"):
        encode({"id": pa.array([1])}, {}, ["id"], delete_when="id")
    with pytest.raises(errors.FatalError, match="'no', which the query's result does not have"):
        encode({"id": pa.array([1])}, {}, ["id"], delete_when="no")


def test_a_key_that_the_query_lacks() -> None:
    with pytest.raises(errors.BadKey, match="no column film_id for target_key"):
        encode({"id": pa.array([1])}, {}, ["film_id"])


def test_the_last_row_of_a_key_counts() -> None:
    prepared = encode({"id": pa.array([1, 2, 1]), "v": pa.array(["old", "two", "new"])}, {}, ["id"])

    assert prepared.duplicates == 1
    assert {line[0]["update"]["_id"]: line[1]["doc"]["v"] for line in lines_of(prepared)} == {"1": "new", "2": "two"}


def test_null_in_the_key_is_rejected() -> None:
    prepared = encode({"a": pa.array([1, None]), "b": pa.array([1, 2])}, {}, ["a", "b"])

    assert prepared.actions.ids == ["1|1"]
    (letter,) = prepared.rejected
    assert "NULL in the key (a, b)" in letter.reason
    assert json.loads(letter.document) == {"a": None, "b": 2}


@pytest.mark.parametrize(
    ("column", "pg_type", "expected"),
    [
        (pa.array([uuid.UUID(int=5).bytes], pa.binary(16)), "uuid", "00000000-0000-0000-0000-000000000005"),
        (pa.array(["1.50"]), "numeric", "1.5"),
        (pa.array(["100"]), "numeric", "100"),
        (pa.array(["7.00"]), "numeric", "7"),
        (pa.array([0], pa.timestamp("us", "UTC")), "timestamp with time zone", "1970-01-01T00:00:00Z"),
        (pa.array(["1970-01-01 00:00:00+00"]), "timestamp with time zone", "1970-01-01T00:00:00Z"),
        (pa.array(["1970-01-01 00:00:00.5+00", "infinity"]), "timestamp with time zone", "1970-01-01T00:00:00.5Z"),
        (pa.array([500_000], pa.timestamp("us", "UTC")), "timestamp with time zone", "1970-01-01T00:00:00.5Z"),
        (pa.array(["10.0.0.1/32"]), "inet", "10.0.0.1/32"),
        (pa.array([True]), "boolean", "true"),
        (pa.array(['say "hi"\\']), "text", 'say "hi"\\'),
    ],
)
def test_equal_keys_have_equal_ids_however_they_travel(column: pa.Array, pg_type: str, expected: str) -> None:
    assert encode({"k": column}, {"k": pg_type}, ["k"]).actions.ids[0] == expected


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(texts, texts), min_size=2, max_size=20))
def test_composite_keys_never_collide(keys: list[tuple[str, str]]) -> None:
    columns = {"a": pa.array([a for a, _ in keys], pa.string()), "b": pa.array([b for _, b in keys], pa.string())}

    prepared = encode(columns, {}, ["a", "b"])

    assert len(prepared.actions.ids) == len(set(keys))


@given(st.lists(st.text(st.sampled_from('|\\"a'), max_size=6), min_size=3, max_size=3))
def test_separators_inside_of_keys_do_not_shift_them(parts: list[str]) -> None:
    first = encode({"a": pa.array([parts[0] + "|" + parts[1]]), "b": pa.array([parts[2]])}, {}, ["a", "b"])
    second = encode({"a": pa.array([parts[0]]), "b": pa.array([parts[1] + "|" + parts[2]])}, {}, ["a", "b"])

    same = (parts[0] + "|" + parts[1], parts[2]) == (parts[0], parts[1] + "|" + parts[2])
    assert (first.actions.ids == second.actions.ids) == same


def test_long_ids_are_hashed_and_counted() -> None:
    long = "я" * LONGEST_ID_BYTES
    hashed = encode({"k": pa.array([long])}, {}, ["k"]).actions.ids[0]

    prepared = encode({"k": pa.array(["short", long, hashed])}, {}, ["k"])

    assert prepared.hashed_ids == 2
    assert len(set(prepared.actions.ids)) == 3, "a key that looks like a hash does not pass for the hashed one"
    assert all(len(i.encode()) <= LONGEST_ID_BYTES for i in prepared.actions.ids)


@pytest.mark.parametrize(
    ("column", "pg_type", "reason"),
    [
        (pa.array([math.nan]), "double precision", "x: nan has no form in JSON"),
        (pa.array([-math.inf], pa.float32()), "real", "x: -inf has no form in JSON"),
        (pa.array(["NaN"]), "numeric", "x: NaN has no form in JSON"),
        (pa.array(["-Infinity"]), "numeric(5,2)", "x: -Infinity has no form in JSON"),
        (pa.array(['1},"y":{']), "numeric(5,2)", "x: '1},\"y\":{' is not a number"),
        (pa.array(['1},"y":{']), "bigint", "x: '1},\"y\":{' is not a number"),
        (pa.array([[1.0, math.inf]]), "double precision[]", "x: inf has no form in JSON"),
        (pa.array(["infinity"]), "timestamp with time zone", "x: infinity is not a date"),
        (pa.array(["-infinity"]), "date", "x: -infinity is not a date"),
        (pa.array([2_147_483_647], pa.date32()), "date", "x: infinity is not a date"),
        (pa.array(["empty"]), "int4range", "x: an empty range cannot be indexed"),
        (pa.array(["{1,NaN}"]), "numeric[]", "x: NaN has no form in JSON"),
        (pa.array([{"a": math.nan}]), "", "x: nan has no form in JSON"),
    ],
)
def test_what_has_no_json_form_is_rejected_with_the_reason(column: pa.Array, pg_type: str, reason: str) -> None:
    good = column.take(pa.array([None], pa.int32()))
    columns = {"id": pa.array([1, 2]), "x": pa.concat_arrays([good, column])}

    prepared = encode(columns, {"x": pg_type}, ["id"])

    assert prepared.actions.ids == ["1"]
    (letter,) = prepared.rejected
    assert letter.id == "2"
    assert reason in letter.reason
    assert json.loads(letter.document)["id"] == 2


def test_rows_that_fill_more_than_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrina.connectors.search.documents._SLICE_BYTES", 1000)
    count = 500
    columns = {"id": pa.array(range(count)), "x": pa.array([math.nan if n == 77 else float(n) for n in range(count)])}

    prepared = encode(columns, {}, ["id"])

    assert len(prepared.actions.ids) == count - 1
    assert [letter.id for letter in prepared.rejected] == ["77"]
    assert [line[1]["doc"]["id"] for line in lines_of(prepared)] == [n for n in range(count) if n != 77]


def test_an_empty_batch() -> None:
    assert encode({"id": pa.array([], pa.int64())}, {}, ["id"]).actions.ids == []


def test_every_action_is_whole_lines() -> None:
    """A line break inside of a value would end the line and spoil the request."""
    columns = {"id": pa.array([1]), "t": pa.array(["a\nb\r\u2028c"]), "j": pa.array(['{"a":\n 1,\r\n"b": "x\\ny"}'])}

    prepared = encode(columns, {"t": "text", "j": "json"}, ["id"])

    (line,) = prepared.actions.lines
    assert line.count(b"\n") == 2
    assert json.loads(line.splitlines()[1])["doc"] == {"id": 1, "t": "a\nb\r\u2028c", "j": {"a": 1, "b": "x\ny"}}
