"""What each shipped step does to rows, and what it refuses."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from vitrina.errors import FatalError, Invalid, RunError, StepFailed
from vitrina.testing import StepContext, run_step
from vitrina.transforms import registry

FILM = UUID("11111111-1111-1111-1111-111111111111")
FILMS: list[dict[str, Any]] = [
    {"id": 1, "title": "Alien", "rating": Decimal("8.5"), "genres": ["horror", "sci-fi"]},
    {"id": 2, "title": None, "rating": None, "genres": []},
    {"id": 3, "title": "Brazil", "rating": Decimal("7.9"), "genres": None},
]
TYPES = {"id": "integer", "title": "text", "rating": "numeric(3,1)", "genres": "text[]"}


def ids(step: str, params: dict[str, Any], rows: list[dict[str, Any]] = FILMS) -> list[Any]:
    return [row["id"] for row in run_step(step, rows, params=params, types=TYPES).rows]


def test_select_drop_and_rename_columns() -> None:
    assert run_step("select_columns", FILMS, params={"columns": ["title", "id"]}, types=TYPES).rows[0] == {
        "title": "Alien",
        "id": 1,
    }
    assert list(run_step("drop_columns", FILMS, params={"columns": ["genres"]}).rows[0]) == ["id", "title", "rating"]
    renamed = run_step("rename_columns", FILMS, params={"names": {"id": "film_id"}}, types=TYPES).rows[0]
    assert list(renamed) == ["film_id", "title", "rating", "genres"]


@pytest.mark.parametrize(
    ("step", "params"),
    [
        ("select_columns", {"columns": ["nope"]}),
        ("drop_columns", {"columns": ["nope"]}),
        ("rename_columns", {"names": {"nope": "x"}}),
        ("fill_nulls", {"values": {"nope": 1}}),
        ("normalise_text", {"columns": ["nope"]}),
        ("explode", {"column": "nope"}),
        ("deduplicate", {"by": ["nope"]}),
        ("keep_rows", {"where": {"column": "nope", "op": "is_null"}}),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(step: str, params: dict[str, Any]) -> None:
    with pytest.raises(FatalError, match=r"no column 'nope'; there are: id, title, rating, genres"):
        run_step(step, FILMS, params=params)


def test_renaming_keeps_the_postgres_type() -> None:
    renamed = run_step("rename_columns", FILMS, params={"names": {"rating": "score"}}, types=TYPES).batch
    assert renamed.schema.field("score").metadata[b"vitrina:type"] == b"numeric(3,1)"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("12", "integer", 12),
        ("12", "int8", 12),
        ("1.50", "numeric(4,2)", Decimal("1.50")),
        ("1.5", "numeric", Decimal("1.5")),
        ("2020-02-29", "date", date(2020, 2, 29)),
        ("2020-02-29T10:00:00Z", "timestamptz", datetime(2020, 2, 29, 10, tzinfo=UTC)),
        (str(FILM), "uuid", FILM),
        (FILM, "text", str(FILM)),
        (7, "text", "7"),
        (7, "double precision", 7.0),
        (Decimal("0.3"), "double precision", 0.3),
        ('{"a": 1.10}', "jsonb", {"a": Decimal("1.10")}),
        (["a", "b"], "text", '["a", "b"]'),
    ],
)
def test_casts(value: Any, kind: str, expected: Any) -> None:
    made = run_step("cast_columns", [{"x": value}, {"x": None}], params={"types": {"x": kind}})
    assert made.rows == [{"x": expected}, {"x": None}]


def test_a_decimal_becomes_the_nearest_double() -> None:
    made = run_step(
        "cast_columns", [{"x": Decimal("0.3")}], params={"types": {"x": "float8"}}, types={"x": "numeric(3,1)"}
    )
    assert made.rows == [{"x": 0.3}]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("twelve", "integer"), ("1.555", "numeric(4,2)"), (1.5, "integer"), (70_000, "smallint"), ("x", "uuid")],
)
def test_a_cast_neither_rounds_nor_cuts(value: Any, kind: str) -> None:
    with pytest.raises(StepFailed, match=r"step 1 \(cast_columns\) failed in batch 1"):
        run_step("cast_columns", [{"x": value}], params={"types": {"x": kind}})


def test_fills_nulls_in_the_columns_own_type() -> None:
    rows = [{"n": None, "d": None, "u": None, "m": Decimal("1.5")}, {"n": 1, "d": None, "u": FILM, "m": None}]
    types = {"n": "smallint", "d": "date", "u": "uuid", "m": "numeric(4,2)"}
    values = {"n": 0, "d": "1900-01-01", "u": str(FILM), "m": 0.25}
    assert run_step("fill_nulls", rows, params={"values": values}, types=types).rows == [
        {"n": 0, "d": date(1900, 1, 1), "u": FILM, "m": Decimal("1.50")},
        {"n": 1, "d": date(1900, 1, 1), "u": FILM, "m": Decimal("0.25")},
    ]


@pytest.mark.parametrize(("column", "value"), [("id", "one"), ("rating", 1.25), ("title", 5), ("id", 1.5)])
def test_a_filling_of_another_type_is_refused(column: str, value: Any) -> None:
    with pytest.raises(FatalError, match=f"for column '{column}'"):
        run_step("fill_nulls", FILMS, params={"values": {column: value}}, types=TYPES)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"column": "id", "op": "eq", "value": 2}, [2]),
        ({"column": "id", "op": "ne", "value": 2}, [1, 3]),
        ({"column": "rating", "op": "ge", "value": 7.9}, [1, 3]),
        ({"column": "rating", "op": "lt", "value": "8.5"}, [3]),
        ({"column": "rating", "op": "ne", "value": 8.5}, [3]),
        ({"column": "title", "op": "is_null"}, [2]),
        ({"column": "title", "op": "not_null"}, [1, 3]),
        ({"column": "title", "op": "in", "value": ["Alien", "Aliens"]}, [1]),
        ({"column": "title", "op": "not_in", "value": ["Alien"]}, [3]),
        ({"column": "title", "op": "in", "value": []}, []),
        ({"column": "title", "op": "contains", "value": "lie"}, [1]),
        ({"column": "title", "op": "starts_with", "value": "Br"}, [3]),
        ({"column": "title", "op": "ends_with", "value": "zil"}, [3]),
        ({"column": "title", "op": "matches", "value": "^A.*n$"}, [1]),
        ([{"column": "id", "op": "gt", "value": 1}, {"column": "id", "op": "lt", "value": 3}], [2]),
        ({"any": [{"column": "id", "op": "eq", "value": 1}, {"column": "title", "op": "is_null"}]}, [1, 2]),
        ({"not": {"column": "id", "op": "eq", "value": 1}}, [2, 3]),
        ({"not": {"column": "rating", "op": "ge", "value": 8}}, [3]),
        ({"all": [{"not": {"column": "id", "op": "eq", "value": 1}}, {"column": "id", "op": "le", "value": 2}]}, [2]),
    ],
)
def test_conditions(where: Any, kept: list[int]) -> None:
    assert ids("keep_rows", {"where": where}) == kept


@pytest.mark.parametrize(
    ("where", "dropped"),
    [
        ({"column": "rating", "op": "ge", "value": 8}, [1]),
        ({"column": "title", "op": "is_null"}, [2]),
    ],
)
def test_rows_of_which_a_condition_cannot_be_told_are_not_dropped(where: Any, dropped: list[int]) -> None:
    assert ids("drop_rows", {"where": where}) == [number for number in (1, 2, 3) if number not in dropped]


def test_numbers_that_travel_as_text_are_compared_as_numbers() -> None:
    rows = [{"id": 1, "n": Decimal("9")}, {"id": 2, "n": Decimal("10")}, {"id": 3, "n": Decimal("10.0")}]
    kept = run_step("keep_rows", rows, params={"where": {"column": "n", "op": "ge", "value": 10}})
    assert [row["id"] for row in kept.rows] == [2, 3]
    same = run_step("keep_rows", rows, params={"where": {"column": "n", "op": "eq", "value": "10.00"}})
    assert [row["id"] for row in same.rows] == [2, 3]


def test_uuids_are_compared_with_their_text() -> None:
    rows = [{"id": 1, "u": FILM}, {"id": 2, "u": UUID(int=5)}]
    for where in ({"column": "u", "op": "eq", "value": str(FILM)}, {"column": "u", "op": "in", "value": [str(FILM)]}):
        assert [row["id"] for row in run_step("keep_rows", rows, params={"where": where}).rows] == [1]


@pytest.mark.parametrize(
    "where",
    [
        {"column": "id", "op": "like", "value": "x"},
        {"column": "id", "op": "eq", "value": 1, "else": 2},
        {"sql": "1 = 1"},
        "id = 1",
        {"all": []},
        {"column": "id"},
    ],
)
def test_a_condition_is_data_not_code(where: Any) -> None:
    with pytest.raises(Invalid, match=r"step 1 \(keep_rows\): params.where"):
        run_step("keep_rows", FILMS, params={"where": where})


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"column": "id", "op": "eq", "value": "x"}, "for column 'id'"),
        ({"column": "id", "op": "contains", "value": "x"}, "text with text"),
        ({"column": "id", "op": "in", "value": 1}, "list of values"),
        ({"column": "id", "op": "eq"}, "one value"),
        ({"column": "net", "op": "lt", "value": "10.0.0.0/8"}, "cannot order"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(where: Any, words: str) -> None:
    with pytest.raises(FatalError, match=words):
        run_step("keep_rows", [{"id": 1, "net": "10.1.0.0"}], params={"where": where}, types={"net": "inet"})


def test_normalises_text() -> None:
    rows = [{"t": "  the \t GODFATHER\n"}, {"t": "Cafe\u0301"}, {"t": " \u00a0 "}, {"t": None}]
    made = run_step("normalise_text", rows, params={"columns": ["t"], "case": "title", "empty_to_null": True})
    assert [row["t"] for row in made.rows] == ["The Godfather", "Café", None, None]
    kept = run_step("normalise_text", rows, params={"columns": ["t"], "trim": False, "collapse_spaces": False})
    assert kept.rows[0]["t"] == "  the \t GODFATHER\n"


def test_hashes_are_keyed_stable_and_of_the_value() -> None:
    rows = [{"email": "a@b.c", "n": 5}, {"email": None, "n": 5}]
    params = {"columns": ["email", "n"]}
    one = run_step("hash_columns", rows, params=params, context=StepContext(hash_key=b"k" * 16)).rows
    again = run_step("hash_columns", rows, params=params, context=StepContext(hash_key=b"k" * 16)).rows
    other = run_step("hash_columns", rows, params=params, context=StepContext(hash_key=b"x" * 16)).rows
    assert one == again
    assert re.fullmatch(r"[0-9a-f]{64}", one[0]["email"])
    assert one[0]["email"] != other[0]["email"]
    assert one[1]["email"] is None
    assert one[0]["n"] == one[1]["n"]


@pytest.mark.parametrize("key", [None, b"short"])
def test_hashing_without_a_good_key_is_refused(key: bytes | None) -> None:
    with pytest.raises(FatalError, match="VITRINA_HASH_KEY"):
        run_step("hash_columns", [{"x": "a"}], params={"columns": ["x"]}, context=StepContext(hash_key=key))


def test_masks_all_but_some_characters() -> None:
    rows = [{"phone": "+31612345678"}, {"phone": "1234"}, {"phone": None}]
    made = run_step("mask_columns", rows, params={"columns": ["phone"], "keep_first": 1, "keep_last": 3})
    assert [row["phone"] for row in made.rows] == ["+********678", "****", None]


def test_parses_json_into_columns() -> None:
    rows = [
        {"id": 1, "payload": {"home": {"city": "Riga"}, "age": 41, "tags": ["a", "b"], "score": Decimal("1.10")}},
        {"id": 2, "payload": {"home": {"city": 7}, "age": None}},
        {"id": 3, "payload": None},
    ]
    fields = {
        "city": {"path": "home.city"},
        "age": {"path": "age", "type": "smallint"},
        "tag": {"path": "tags.1"},
        "tags": {"path": "tags", "type": "text[]"},
        "score": {"path": "score", "type": "numeric"},
        "home": {"path": "home", "type": "jsonb"},
    }
    made = run_step("parse_json", rows, params={"column": "payload", "fields": fields}, types={"payload": "jsonb"})
    assert made.rows[0] == {
        "id": 1,
        "city": "Riga",
        "age": 41,
        "tag": "b",
        "tags": ["a", "b"],
        "score": Decimal("1.10"),
        "home": {"city": "Riga"},
    }
    assert made.rows[1]["city"] == "7"
    assert made.rows[2] == {"id": 3} | dict.fromkeys(fields)
    assert made.batch.schema.field("age").type == pa.int16()


def test_a_json_value_of_another_type_is_refused() -> None:
    params = {"column": "payload", "fields": {"age": {"path": "age", "type": "integer"}}}
    with pytest.raises(StepFailed, match="age is not integer"):
        run_step("parse_json", [{"payload": '{"age": "old"}'}], params=params)


def test_explodes_lists() -> None:
    params = {"column": "genres", "into": "genre", "position": "place"}
    made = run_step("explode", FILMS, params=params, types=TYPES)
    assert [(row["id"], row["genre"], row["place"]) for row in made.rows] == [(1, "horror", 1), (1, "sci-fi", 2)]
    assert made.batch.schema.field("genre").metadata[b"vitrina:type"] == b"text"
    kept = run_step("explode", FILMS, params={"column": "genres", "keep_empty": True}, types=TYPES)
    assert [(row["id"], row["genres"]) for row in kept.rows] == [(1, "horror"), (1, "sci-fi"), (2, None), (3, None)]


def test_deduplicates_within_a_batch() -> None:
    rows = [
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b"},
        {"id": 1, "v": "c"},
        {"id": None, "v": "d"},
        {"id": None, "v": "e"},
    ]
    assert [r["v"] for r in run_step("deduplicate", rows, params={"by": ["id"]}).rows] == ["b", "c", "e"]
    assert [r["v"] for r in run_step("deduplicate", rows, params={"by": ["id"], "keep": "first"}).rows] == [
        "a",
        "b",
        "d",
    ]


def reference(table: pa.Table) -> StepContext:
    return StepContext(reference=lambda query: table)


GENRES = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["horror", "drama"]})


@pytest.mark.parametrize(
    ("missing", "expected"), [("null", [(1, "horror"), (9, None), (None, None)]), ("drop", [(1, "horror")])]
)
def test_looks_values_up(missing: str, expected: list[tuple[Any, Any]]) -> None:
    params = {"query": "SELECT", "on": {"genre": "id"}, "columns": {"name": "genre_name"}, "missing": missing}
    rows = [{"genre": 1}, {"genre": 9}, {"genre": None}]
    made = run_step("lookup", rows, params=params, context=reference(GENRES)).rows
    assert [(row["genre"], row["genre_name"]) for row in made] == expected


def test_looks_values_up_by_several_columns() -> None:
    table = pa.table({"a": pa.array([1, 1], pa.int64()), "b": ["x", "y"], "v": ["one", "two"]})
    params = {"query": "SELECT", "on": {"k": "a", "l": "b"}}
    made = run_step("lookup", [{"k": 1, "l": "y"}, {"k": 2, "l": "y"}], params=params, context=reference(table))
    assert [row["v"] for row in made.rows] == ["two", None]


@pytest.mark.parametrize(
    ("table", "params", "words"),
    [
        (GENRES, {"missing": "fail"}, "no match"),
        (pa.concat_tables([GENRES, GENRES]), {}, "more than once"),
        (GENRES.set_column(0, "id", pa.array(["1", "2"])), {}, "cast one of them"),
        (GENRES, {"columns": {"name": "genre"}}, "already"),
    ],
)
def test_a_lookup_that_is_not_sure_is_refused(table: pa.Table, params: dict[str, Any], words: str) -> None:
    params = {"query": "SELECT", "on": {"genre": "id"}, **params}
    with pytest.raises(RunError, match=words):
        run_step("lookup", [{"genre": 1}, {"genre": 9}], params=params, context=reference(table))


def test_adds_constants_and_stamps() -> None:
    started = datetime(2026, 1, 1, tzinfo=UTC)
    context = StepContext(pipeline="films", run_id=FILM, started_at=started)
    params = {"constants": {"country": "NL", "version": 3}, "now": "loaded_at", "run_id": "run", "pipeline": "made_by"}
    made = run_step("add_columns", [{"id": 1}, {"id": 2}], params=params, context=context)
    assert made.rows[1] == {
        "id": 2,
        "country": "NL",
        "version": 3,
        "made_by": "films",
        "loaded_at": started,
        "run": FILM,
    }
    assert b"vitrina:stamp" in made.batch.schema.field("loaded_at").metadata
    with pytest.raises(FatalError, match="already"):
        run_step("add_columns", [{"id": 1}], params={"now": "id"})


def test_the_demo_step_tidies_films() -> None:
    rows = [
        {"title": " Star  Wars ", "rating": Decimal("8.65"), "genres": ["sci-fi", None, "adventure", "sci-fi "]},
        {"title": " ", "rating": None, "genres": None},
    ]
    types = {"rating": "numeric", "genres": "text[]"}
    assert run_step("demo_film_dim", rows, types=types).rows == [
        {"title": "Star Wars", "rating": Decimal("8.7"), "genres": ["adventure", "sci-fi"]}
    ]


@pytest.mark.parametrize(
    "step", [found for found in registry.load() if found.origin.startswith("vitrina.")], ids=lambda s: s.name
)
def test_every_shipped_step_is_documented_with_an_example_that_its_model_accepts(step: registry.Registered) -> None:
    assert step.doc
    if step.params is not None:
        found = re.search(r"Example: `(.*)`", step.doc)
        assert found, f"{step.name} has no example"
        step.params.model_validate(json.loads(found[1]))
