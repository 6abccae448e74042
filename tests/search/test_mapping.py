"""Mappings follow the result types, can be overridden, and are compared with what an index has, field by field."""

from typing import Any

import pyarrow as pa
import pytest

from vitrina.connectors.search import mapping
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations

TEXT = pa.string()
EVERY_TYPE = {
    "smallint": (pa.int16(), "long"),
    "bigint": (pa.int64(), "long"),
    "real": (pa.float32(), "double"),
    "double precision": (pa.float64(), "double"),
    "numeric": (TEXT, "keyword"),
    "numeric(3,1)": (TEXT, "double"),
    "numeric(15,15)": (TEXT, "double"),
    "numeric(16,2)": (TEXT, "keyword"),
    "numeric(18,0)": (TEXT, "long"),
    "numeric(19,0)": (TEXT, "keyword"),
    "numeric(2,20)": (TEXT, "keyword"),
    "boolean": (pa.bool_(), "boolean"),
    "text": (TEXT, "text"),
    "character varying(20)": (TEXT, "text"),
    "uuid": (pa.binary(16), "keyword"),
    "date": (pa.date32(), "date"),
    "timestamp with time zone": (TEXT, "date_nanos"),
    "timestamp(3) without time zone": (pa.timestamp("us"), "date"),
    "timestamp(6) with time zone": (pa.timestamp("us", "UTC"), "date_nanos"),
    "time without time zone": (pa.time64("us"), "keyword"),
    "interval": (pa.month_day_nano_interval(), "keyword"),
    "bytea": (pa.binary(), "binary"),
    "json": (TEXT, "object"),
    "jsonb": (TEXT, "object"),
    "inet": (TEXT, "ip"),
    "cidr": (TEXT, "ip_range"),
    "int4range": (TEXT, "integer_range"),
    "int8multirange": (TEXT, "long_range"),
    "numrange": (TEXT, "double_range"),
    "tstzrange": (TEXT, "date_range"),
    "daterange": (TEXT, "date_range"),
    "content.genre": (TEXT, "keyword"),
    "text[]": (pa.list_(TEXT), "text"),
    "integer[]": (TEXT, "long"),
    "numeric(3,1)[]": (pa.list_(TEXT), "double"),
    "jsonb[]": (TEXT, "object"),
    "macaddr": (TEXT, "keyword"),
}
FROM_TRANSFORMS = {
    pa.int32(): "long",
    pa.float64(): "double",
    TEXT: "text",
    pa.bool_(): "boolean",
    pa.timestamp("us", "UTC"): "date_nanos",
    pa.decimal128(10, 2): "keyword",
    pa.uuid(): "keyword",
    pa.json_(): "object",
    pa.list_(TEXT): "text",
}


@pytest.mark.parametrize("pg_type", list(EVERY_TYPE))
def test_field_type_of_each_postgres_type(pg_type: str) -> None:
    arrow_type, expected = EVERY_TYPE[pg_type]

    derived = mapping.derive(pa.schema([("x", arrow_type)]), {"x": pg_type})

    assert mapping.field_types(derived) == {"x": expected}


@pytest.mark.parametrize("arrow_type", list(FROM_TRANSFORMS), ids=str)
def test_field_type_of_columns_that_a_transform_made(arrow_type: pa.DataType) -> None:
    derived = mapping.derive(pa.schema([("x", arrow_type)]), {})

    assert mapping.field_types(derived) == {"x": FROM_TRANSFORMS[arrow_type]}


def every_field() -> dict[str, Any]:
    """One index with a field of every type there is."""
    names = {f"f{number}": pg_type for number, pg_type in enumerate(EVERY_TYPE)}
    schema = pa.schema([(name, EVERY_TYPE[pg_type][0]) for name, pg_type in names.items()])
    person = pa.struct([("name", TEXT), ("born", pa.struct([("year", pa.int32())]))])
    return mapping.derive(schema.append(pa.field("person", person)).append(pa.field("a.b", TEXT)), names)


def test_the_server_takes_every_field_and_shows_it_unchanged(client: SearchClient, index: str) -> None:
    """Else each run would report differences that are none."""
    wanted = every_field()
    client.create_index(index, {"mappings": wanted})

    found = client.get_mapping(index)

    assert found["dynamic"] == "strict"
    assert mapping.compare(wanted, found) == []


def test_differences_are_named_field_by_field_and_missing_fields_added(client: SearchClient, index: str) -> None:
    existing = {"title": {"type": "keyword"}, "rating": {"type": "double"}, "by_another_pipeline": {"type": "long"}}
    client.create_index(index, {"mappings": {"dynamic": "strict", "properties": existing}})
    schema = pa.schema([("title", TEXT), ("rating", TEXT), ("genres", pa.list_(TEXT))])
    wanted = mapping.derive(schema, {"title": "text", "rating": "numeric(3,1)", "genres": "text[]"})

    found = client.get_mapping(index)
    differences = mapping.compare(wanted, found)

    assert [difference.field for difference in differences] == ["title", "genres"]
    assert str(differences[0]).startswith("title: is keyword, wanted text")
    assert str(differences[1]).startswith("genres: not in the index, wanted text")
    client.put_mapping(index, mapping.additions(wanted, found, differences))
    assert [d.field for d in mapping.compare(wanted, client.get_mapping(index))] == ["title"]


def test_a_different_parameter_is_a_difference() -> None:
    wanted = {"properties": {"t": {"type": "text", "analyzer": "russian"}}}

    assert mapping.compare(wanted, {"properties": {"t": {"type": "text"}}})
    assert not mapping.compare(wanted, {"properties": {"t": {"type": "text", "analyzer": "russian", "index": True}}})


def test_overrides_replace_a_field_as_a_whole() -> None:
    derived = mapping.derive(
        pa.schema([("n", TEXT), ("t", TEXT)]),
        {"n": "numeric", "t": "text"},
        {"properties": {"n": {"type": "double"}}, "dynamic": False, "date_detection": False},
    )

    assert derived["properties"]["n"] == {"type": "double"}
    assert derived["properties"]["t"]["type"] == "text"
    assert derived["dynamic"] is False
    assert derived["date_detection"] is False


def test_fields_that_only_the_index_has_are_no_difference() -> None:
    assert mapping.compare({"properties": {}}, {"properties": {"x": {"type": "long"}}}) == []


# What servers show in another form, or leave out because it is their default.
IN_OTHER_WORDS: dict[str, Any] = {
    "copied": {"type": "text", "copy_to": "everything"},
    "everything": {"type": "text", "norms": True, "analyzer": "standard", "search_analyzer": "standard"},
    "short": {"type": "keyword", "ignore_above": "256", "eager_global_ordinals": False},
    "moment": {"type": "date", "format": "strict_date_optional_time||epoch_millis"},
    "open": {"type": "object", "dynamic": True},
    "person": {"type": "object", "properties": {"name": {"type": "keyword", "norms": False}}},
}


def test_fields_are_as_they_were_asked_for_whatever_the_server_makes_of_the_words(
    client: SearchClient, generations: Generations, index: str
) -> None:
    """Else a pass would refuse the index that it has just made."""
    wanted = {"dynamic": "strict", "properties": IN_OTHER_WORDS}
    first = {"dynamic": "strict", "properties": {"short": IN_OTHER_WORDS["short"]}}
    generations.ensure_current("pipeline", first)
    found = client.get_mapping(index)
    client.put_mapping(index, mapping.additions(wanted, found, mapping.compare(wanted, found)))
    client.request("PUT", f"/{index}/_doc/1", {"refresh": "true"}, body={"open": {"by": {"others": 1}}})

    found = client.get_mapping(index)

    assert found["properties"]["copied"] != IN_OTHER_WORDS["copied"]
    assert mapping.compare(wanted, found) == []
    assert generations.was_written_by("pipeline"), "the other notes stay"
    changed = {**IN_OTHER_WORDS, "short": {"type": "keyword", "ignore_above": 100}, "open": {"type": "nested"}}
    assert [d.field for d in mapping.compare({"properties": changed}, found)] == ["short", "open"]


def test_nested_is_told_from_object_and_members_are_added_to_it(client: SearchClient, index: str) -> None:
    def cast(kind: str, *members: str) -> dict[str, Any]:
        return {"properties": {"cast": {"type": kind, "properties": {name: {"type": "keyword"} for name in members}}}}

    client.create_index(index, {"mappings": {"dynamic": "strict"}})
    for members in (["actor"], ["actor", "role"]):
        wanted, found = cast("nested", *members), client.get_mapping(index)
        client.put_mapping(index, mapping.additions(wanted, found, mapping.compare(wanted, found)))
        assert mapping.compare(wanted, client.get_mapping(index)) == []

    assert client.get_mapping(index)["properties"] == cast("nested", "actor", "role")["properties"]
    assert list(map(str, mapping.compare(cast("object", "actor"), client.get_mapping(index)))) == [
        "cast: is nested, wanted object"
    ]
