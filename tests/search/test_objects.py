"""Objects in documents are replaced, also by `update`: members that left a value leave the document."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.search.conftest import Target
from tests.search.test_bulk import LIMITS, PIPELINE
from tests.support.http_fault_proxy import (
    AnswerInstead,
    FailItems,
    HttpFault,
    HttpFaultProxy,
    LoseReply,
    TooLarge,
    split_actions,
)
from tests.support.workbench import Workbench
from vitrina import failpoints
from vitrina.connectors.search import mapping, objects
from vitrina.connectors.search.batch import BulkOutcome
from vitrina.connectors.search.bulk import BulkEngine, Delivery
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.documents import DocumentEncoder
from vitrina.connectors.search.generations import Generations, WriteAlias
from vitrina.connectors.search.verdicts import Item

TYPES = {
    "id": "text", "payload": "jsonb", "ages": "int4range", "title": "text",
    "place": "jsonb", "person": "jsonb", "cast": "jsonb",
}  # fmt: skip
FIELDS: dict[str, Any] = {
    "id": {"type": "keyword"},
    "payload": {"type": "object", "enabled": False},
    "ages": {"type": "integer_range"},
    "title": {"type": "text"},
    "rating": {"type": "double"},
    # As somebody may map json by option.
    "place": {"type": "geo_point"},
    "person": {"properties": {"name": {"type": "keyword"}, "born": {"properties": {"year": {"type": "long"}}}}},
    "cast": {"type": "nested", "properties": {"name": {"type": "keyword"}, "role": {"type": "keyword"}}},
}
DOCUMENTS = 200


class Index:
    """An index that rows are written to by `update`, through the proxy, and read from."""

    def __init__(self, client: SearchClient, proxied: SearchClient, name: str) -> None:
        self.client = client
        self.name = name
        generations = Generations(client, name)
        concrete = generations.ensure_current(PIPELINE, {"dynamic": "strict", "properties": FIELDS})
        self._alias = WriteAlias(name, PIPELINE, epoch=1)
        generations.claim_writes(concrete, self._alias)

        def renew() -> str:
            self._alias = WriteAlias(name, PIPELINE, 1, self._alias.renewal + 1)
            generations.claim_writes(concrete, self._alias)
            return str(self._alias)

        self.engine = BulkEngine(proxied, str(self._alias), limits=LIMITS, renew_target=renew)
        self._encoder = DocumentEncoder(
            types=TYPES, field_types=mapping.field_types({"properties": FIELDS}), key=["id"]
        )

    def write(self, rows: list[dict[str, Any]]) -> BulkOutcome:
        """Rows as Postgres would give them, their columns as text."""
        schema = pa.schema([(name, pa.string()) for name in TYPES if name in rows[0]])
        return self.engine.send(self._encoder.encode(pa.RecordBatch.from_pylist(rows, schema=schema)).actions)

    def document(self, key: str) -> Any:
        return self.client.request("GET", f"/{self.name}/_doc/{key}").body["_source"]

    def documents(self) -> dict[str, Any]:
        self.client.refresh(self.name)
        found = self.client.search(self.name, {"size": 10_000})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in found}


@pytest.fixture
def written(client: SearchClient, proxy: HttpFaultProxy, index: str) -> Iterator[Index]:
    proxied = SearchClient(ConnectionOptions(hosts=(proxy.url,), bulk_timeout_seconds=15))
    written = Index(client, proxied, index)
    yield written
    written.engine.close()
    proxied.close()


NAMES = st.sampled_from(["a", "b", "c", "a.b", "é", " "])
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
PAYLOADS = st.none() | st.dictionaries(NAMES, VALUES, max_size=4) | VALUES
AGES: dict[str | None, Any] = {
    None: None,
    "[1,5)": {"gte": 1, "lt": 5},
    "[1,)": {"gte": 1, "lt": None},
    "(,5)": {"gt": None, "lt": 5},
    "(3,)": {"gt": 3, "lt": None},
}


@given(versions=st.lists(st.tuples(PAYLOADS, st.sampled_from(list(AGES))), min_size=2, max_size=4))
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_what_was_written_last_is_what_is_there(written: Index, versions: list[tuple[Any, str | None]]) -> None:
    key = uuid4().hex
    for payload, ages in versions:
        row = {"id": key, "payload": json.dumps(payload), "ages": ages, "title": "same"}

        outcome = written.write([row])

        assert (outcome.acknowledged, outcome.rejected) == (1, [])
        assert written.document(key) == {"id": key, "payload": payload, "ages": AGES[ages], "title": "same"}


MAPPED: dict[str, tuple[list[Any], str]] = {
    "person": (
        [
            {"name": "A", "born": {"year": 1}},
            {"born": {"year": 2}},
            {},
            {"name": "A"},
            None,
            [{"name": "A"}],
            {"born": {}},
        ],
        "person.name",
    ),
    "cast": (
        [[{"name": "A"}, {"name": "B"}], [{"role": "R"}], {"name": "A", "role": "R"}, {"role": "R"}, None, []],
        "cast.name",
    ),
    "place": (
        [{"lat": 1.5, "lon": 2}, {"lat": 3, "lon": 4}, None, [5, 6], {"lat": 7, "lon": 8}, "9,10", None],
        "place",
    ),
}


@pytest.mark.parametrize("column", MAPPED)
def test_fields_that_are_indexed_find_what_was_written_last(written: Index, column: str) -> None:
    versions, searched = MAPPED[column]
    for version in versions:
        outcome = written.write([{"id": "1", column: json.dumps(version), "title": "same"}])

        assert (outcome.acknowledged, outcome.rejected) == (1, [])
        assert written.document("1") == {"id": "1", column: version, "title": "same"}
        written.client.refresh(written.name)
        query: dict[str, Any] = {"exists": {"field": searched}}
        if column == "cast":
            query = {"nested": {"path": "cast", "query": query}}
        found = written.client.search(written.name, {"query": query})["hits"]["hits"]
        assert bool(found) == (version is not None if column == "place" else '"name"' in json.dumps(version))


def rows(payload: Any, count: int = DOCUMENTS) -> list[dict[str, Any]]:
    return [{"id": str(n), "payload": json.dumps(payload), "ages": "[1,5)", "title": "x"} for n in range(count)]


def test_it_costs_actions_only_where_something_is_left(written: Index, proxy: HttpFaultProxy) -> None:
    def actions(payload: Any) -> tuple[int, BulkOutcome]:
        seen = len(proxy.bulk_requests)
        outcome = written.write(rows(payload))
        return sum(len(split_actions(request.body)) for request in proxy.bulk_requests[seen:]), outcome

    assert actions({"a": {"x": 1, "y": 2}, "b": 1})[0] == DOCUMENTS, "new documents"
    sent, outcome = actions({"a": {"x": 1, "y": 2}, "b": 1})
    assert (sent, outcome.noop) == (DOCUMENTS, DOCUMENTS), "unchanged documents are still not written"
    assert actions({"a": {"x": 1, "y": 3}, "b": 2, "c": 3})[0] == DOCUMENTS, "other values, more members"
    sent, outcome = actions({"a": {"x": 1}, "b": 2})
    assert (sent, outcome.updated, outcome.cleared) == (3 * DOCUMENTS, DOCUMENTS, DOCUMENTS), "members are gone"
    assert written.document("7")["payload"] == {"a": {"x": 1}, "b": 2}


def test_the_other_pipelines_half_stays(written: Index) -> None:
    half = {"doc": {"rating": 7.5}, "doc_as_upsert": True}
    written.write(rows({"a": 1, "b": 2}, count=1))
    body = b"".join(json.dumps(line).encode() + b"\n" for line in ({"update": {"_id": "0"}}, half))
    assert written.client.bulk(str(written.engine.target), body).status == 200

    written.write(rows({"b": 3}, count=1))

    assert written.document("0")["rating"] == 7.5
    assert written.document("0")["payload"] == {"b": 3}


def faults() -> dict[str, HttpFault]:
    return {
        "items refused as busy": FailItems(0.3, 429, "es_rejected_execution_exception", times=30),
        "update conflicts": FailItems(0.3, 409, "version_conflict_engine_exception", times=30),
        "replies lost": LoseReply(times=4),
        "429 storm": AnswerInstead(429, times=6),
        "requests too large": TooLarge(limit_bytes=2_000),
    }


@pytest.mark.one_server
@pytest.mark.parametrize("name", list(faults()))
def test_pairs_stay_together_whatever_happens(written: Index, proxy: HttpFaultProxy, name: str) -> None:
    written.write(rows({"a": {"x": 1, "y": 2}, "b": 1}))
    fault = proxy.fault = faults()[name]

    outcome = written.write(rows({"a": {"y": 3}}))

    assert fault.happened
    assert (outcome.acknowledged, outcome.rejected) == (DOCUMENTS, [])
    found = written.documents()
    assert len(found) == DOCUMENTS
    assert [one for one, document in found.items() if document["payload"] != {"a": {"y": 3}}] == []


@pytest.mark.one_server
def test_mutant_that_clears_nothing_is_caught(written: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "leftovers", lambda document, found: [])
    written.write(rows({"a": 1, "b": 2}))

    written.write(rows({"b": 2}))

    assert written.document("7")["payload"] == {"a": 1, "b": 2}, "stale, as the tests above would notice"


@pytest.mark.one_server
def test_mutant_that_counts_the_second_of_a_pair_alone_is_caught(
    written: Index, proxy: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clearing was refused, the update was taken: that is not done."""

    def careless(delivery: Delivery, positions: Sequence[int], items: Sequence[Item]) -> list[Item]:
        return list(items[1::2]) if len(items) > len(positions) else list(items)

    monkeypatch.setattr(Delivery, "_item_per_document", careless)
    written.write(rows({"a": 1, "b": 2}))
    proxy.fault = FailItems(0.3, 429, "es_rejected_execution_exception", times=30)

    written.write(rows({"b": 2}))

    assert {"a": 1, "b": 2} in [document["payload"] for document in written.documents().values()]


@pytest.mark.one_server
def test_an_update_never_asks_for_what_it_does_not_need(written: Index, proxy: HttpFaultProxy) -> None:
    written.write([{"id": "1", "title": "x"}])
    written.write([{"id": "1", "payload": "[1]", "title": "x"}])
    assert not [request for request in proxy.bulk_requests if "_source_includes" in request.path]

    written.write([{"id": "1", "payload": ' {"a":1}', "title": "x"}])

    assert "_source_includes=payload" in proxy.bulk_requests[-1].path


def test_deep_json_is_compared_too(written: Index) -> None:
    def nested(depth: int, innermost: str) -> str:
        return '{"a":' * depth + innermost + "}" * depth

    for innermost in ('{"x":1,"y":2}', '{"x":1}'):
        row = {"id": "1", "payload": nested(450, innermost), "title": "x"}
        assert written.write([row]).acknowledged == 1

    found = written.document("1")["payload"]
    for _ in range(450):
        found = found["a"]
    assert found == {"x": 1}


FILMS = """
CREATE TABLE content.film (id int PRIMARY KEY, payload jsonb, ages int4range,
                           modified timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO content.film SELECT i, '{"a": {"x": 1, "y": 2}, "b": 1}', '[1,5)' FROM generate_series(1, 30) AS i;
"""


def search_at(workbench: Workbench, url: str) -> None:
    workbench.source(FILMS)
    workbench.settings = workbench.settings.model_copy(
        update={"elasticsearch_url": SecretStr(url), "allowed_targets": "es:vitrina-test-*"}
    )


@pytest.mark.one_server
def test_a_rebuild_sends_whole_documents_and_asks_for_nothing(
    workbench: Workbench, proxy: HttpFaultProxy, client: SearchClient, index: str
) -> None:
    """Also behind an interruption, where what was sent before is there already, as the source had it then."""
    search_at(workbench, proxy.url)
    query = "SELECT id, payload FROM content.film"
    options = {"max_attempts": 1}
    workbench.pipeline("films", query, target_table=f"es:{index}", target_key=["id"], options=options)
    failpoints.configure("batch.fenced:error:1")  # everything is sent, and nothing counts yet
    try:
        assert workbench.run("films")["status"] == "FAILED"
    finally:
        failpoints.configure("")
    workbench.sql("""UPDATE content.film SET payload = '{"a": {"y": 3}}'""")

    run = workbench.run("films")

    assert (run["status"], run["metrics"].get("started_over")) == ("SUCCESS", None)
    assert not [request for request in proxy.bulk_requests if "_source_includes" in request.path]
    client.refresh(index)
    hits = client.search(index, {"size": 100, "_source": ["payload"]})["hits"]["hits"]
    assert [hit["_source"]["payload"] for hit in hits] == [{"a": {"y": 3}}] * 30


def test_a_pass_leaves_nothing_in_json_and_ranges(
    workbench: Workbench, search: Target, client: SearchClient, index: str
) -> None:
    search_at(workbench, search.url)
    workbench.pipeline(
        "films",
        "SELECT id, payload, ages, modified FROM content.film",
        target_table=f"es:{index}",
        target_key=["id"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
    )
    workbench.run("films")
    workbench.sql(
        """UPDATE content.film SET payload = '{"a": {"y": 3}}', ages = '(,9)', modified = clock_timestamp()"""
    )

    run = workbench.run("films")

    assert (run["status"], run["rows_written"]) == ("SUCCESS", 30)
    client.refresh(index)
    hits = client.search(index, {"size": 100, "_source": ["payload", "ages"]})["hits"]["hits"]
    wanted = {"payload": {"a": {"y": 3}}, "ages": {"gt": None, "lt": 9}}
    assert [hit["_source"] for hit in hits] == [wanted] * 30
