"""Every document is acknowledged or rejected with a reason, whatever happens between us and the server."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.search.conftest import Target
from tests.support import fault_proxy
from tests.support.http_fault_proxy import (
    AnswerInstead,
    CutReplyShort,
    FailItems,
    Hold,
    HttpFault,
    HttpFaultProxy,
    LoseReply,
    Stall,
    Together,
    TooLarge,
)
from tests.support.waiting import until
from vitrina import errors
from vitrina.connectors.search.batch import Actions
from vitrina.connectors.search.bulk import BulkEngine, BulkInterrupted, Limits
from vitrina.connectors.search.client import Reply, SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.generations import Generations, WriteAlias
from vitrina.connectors.search.verdicts import Item, ItemVerdict, judge_item

DOCUMENTS = 600
PIPELINE = "11111111-1111-1111-1111-111111111111"
# Impatient, so that the tests are quick; small requests, so that there are many of them.
LIMITS = Limits(
    request_bytes=8 * 1024,
    small_request_bytes=1024,
    first_delay_seconds=0.02,
    longest_delay_seconds=0.3,
    patience_seconds=20,
    fence_grace_seconds=0.2,
    worth_halving=2,
)


class Writing:
    """An index with a write alias, the proxy's client, and what the index should hold."""

    def __init__(self, direct: SearchClient, proxied: SearchClient, index: str) -> None:
        self.direct = direct
        self.proxied = proxied
        self.index = index
        self.generations = Generations(direct, index)
        self.alias = WriteAlias(index, PIPELINE, epoch=1000)
        mapping = {"dynamic": "strict", "properties": {"n": {"type": "long"}, "version": {"type": "long"}}}
        self.concrete = self.generations.ensure_current(PIPELINE, mapping)
        self.generations.claim_writes(self.concrete, self.alias)
        self.waits: list[str | None] = []

    def engine(self, **options: Any) -> BulkEngine:
        options.setdefault("limits", LIMITS)
        return BulkEngine(self.proxied, str(self.alias), on_wait=self.waits.append, **options)

    def renew(self) -> str:
        renewed = WriteAlias(self.index, PIPELINE, self.alias.epoch, self.alias.renewal + 1)
        self.generations.claim_writes(self.concrete, renewed)
        self.alias = renewed
        return str(renewed)

    def stored(self) -> dict[str, int]:
        """The version of every document, by id."""
        self.direct.refresh(self.index)
        found = self.direct.search(self.index, {"size": 10_000, "_source": ["version"]})
        return {hit["_id"]: hit["_source"]["version"] for hit in found["hits"]["hits"]}


@pytest.fixture
def writing(client: SearchClient, index: str, proxy: HttpFaultProxy) -> Iterator[Writing]:
    options = ConnectionOptions(hosts=(proxy.url,), bulk_timeout_seconds=60)
    proxied = SearchClient(options)
    yield Writing(client, proxied, index)
    proxied.close()


def updates(count: int, version: int = 1) -> Actions:
    ids = [f"film-{number}" for number in range(count)]
    documents = [{"doc": {"n": number, "version": version}, "doc_as_upsert": True} for number in range(count)]
    lines = [_lines({"update": {"_id": i}}, document) for i, document in zip(ids, documents, strict=True)]
    return Actions(ids, lines)


def indexings(count: int, version: int) -> Actions:
    ids = [f"film-{number}" for number in range(count)]
    lines = [
        _lines({"index": {"_id": i, "version": version, "version_type": "external_gte"}}, {"n": n, "version": version})
        for n, i in enumerate(ids)
    ]
    return Actions(ids, lines)


def _lines(*parts: Any) -> bytes:
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def faults() -> dict[str, HttpFault]:
    """Fresh ones: they count how often they happened."""
    return {
        "429 storm": AnswerInstead(429, times=8),
        "gateway gave up": AnswerInstead(504, times=3),
        "server restarting": AnswerInstead(503, times=5),
        "reply lost after the server applied": LoseReply(times=4),
        "reply cut short": CutReplyShort(times=3),
        "items refused as busy": FailItems(0.3, 429, "es_rejected_execution_exception", times=20),
        "items without a shard": FailItems(1.0, 503, "unavailable_shards_exception", times=3),
        "request too large": TooLarge(limit_bytes=3_000),
        "replies stalled": Stall(0.5, times=3),
        "internal error for some": FailItems(0.2, 500, "null_pointer_exception", times=3),
    }


@pytest.mark.parametrize("name", list(faults()))
@pytest.mark.parametrize("action", ["update", "index"])
@pytest.mark.one_server
def test_no_document_is_lost(writing: Writing, proxy: HttpFaultProxy, name: str, action: str) -> None:
    fault = faults()[name]
    proxy.fault = fault
    engine = writing.engine(renew_target=writing.renew)

    outcome = engine.send(updates(DOCUMENTS) if action == "update" else indexings(DOCUMENTS, version=1))

    assert fault.happened, "the fault never struck, so this proves nothing"
    assert (outcome.acknowledged, outcome.rejected) == (DOCUMENTS, [])
    assert writing.stored() == {f"film-{number}": 1 for number in range(DOCUMENTS)}
    engine.close()


def careless_about_items(item: Item) -> ItemVerdict:
    return ItemVerdict.DONE


class CarelessClient:
    """Takes a refused request for a taken one: the whole batch counts as done."""

    def __init__(self, client: SearchClient) -> None:
        self._client = client

    def bulk(self, target: str, body: bytes, returned: Sequence[str] = ()) -> Reply:
        reply = self._client.bulk(target, body, returned)
        if reply.status == 200:
            return reply
        actions = body.count(b'{"update"')
        return Reply(200, {"items": [{"update": {"status": 200, "result": "updated"}}] * actions})


@pytest.mark.one_server
def test_mutant_that_does_not_look_at_items_is_caught(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = FailItems(0.3, 429, "es_rejected_execution_exception", times=5)

    outcome = writing.engine(judge_item=careless_about_items).send(updates(DOCUMENTS))

    assert outcome.acknowledged == DOCUMENTS, "the mutant believes that all is well"
    assert len(writing.stored()) < DOCUMENTS, "documents are missing, as test_no_document_is_lost would notice"


@pytest.mark.one_server
def test_mutant_that_takes_a_refused_request_for_done_is_caught(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(503, times=2)
    engine = BulkEngine(CarelessClient(writing.proxied), str(writing.alias), limits=LIMITS)

    outcome = engine.send(updates(DOCUMENTS))

    assert outcome.acknowledged == DOCUMENTS
    assert len(writing.stored()) < DOCUMENTS


@pytest.mark.one_server
def test_an_update_conflict_is_not_taken_for_done(writing: Writing, proxy: HttpFaultProxy) -> None:
    """`update` reads, merges and writes: a 409 means that nothing was written."""
    proxy.fault = FailItems(0.5, 409, "version_conflict_engine_exception", times=2)

    outcome = writing.engine().send(updates(DOCUMENTS))

    assert outcome.created == DOCUMENTS
    assert len(writing.stored()) == DOCUMENTS


@pytest.mark.one_server
def test_mutant_that_takes_an_update_conflict_for_done_is_caught(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = FailItems(0.5, 409, "version_conflict_engine_exception", times=2)

    def careless(item: Item) -> ItemVerdict:
        return ItemVerdict.DONE if item.status == 409 else judge_item(item)

    writing.engine(judge_item=careless).send(updates(DOCUMENTS))

    assert len(writing.stored()) < DOCUMENTS


def test_permanent_errors_come_back_with_reason_and_document(writing: Writing) -> None:
    good = updates(50)
    bad = [_lines({"update": {"_id": "bad"}}, {"doc": {"n": "not a number"}, "doc_as_upsert": True})]
    unknown = [_lines({"index": {"_id": "unknown"}}, {"surprise": 1})]
    outcome = writing.engine().send(Actions([*good.ids, "bad", "unknown"], [*good.lines, *bad, *unknown]))

    assert outcome.created == 50
    rejected = {letter.id: letter for letter in outcome.rejected}
    assert set(rejected) == {"bad", "unknown"}
    assert "not a number" in rejected["bad"].reason
    assert json.loads(rejected["bad"].document)["doc"] == {"n": "not a number"}
    assert "strict" in rejected["unknown"].reason


def test_a_document_that_spoils_its_whole_request_is_found(writing: Writing) -> None:
    """An `update` that the server cannot parse makes it refuse the request: the others must not suffer."""
    good = updates(300)
    spoilt = b'{"update":{"_id":"spoilt"}}\n{"doc":{"n":1,"n":2},"doc_as_upsert":true}\n'
    position = 123
    ids = [*good.ids[:position], "spoilt", *good.ids[position:]]
    lines = [*good.lines[:position], spoilt, *good.lines[position:]]

    outcome = writing.engine().send(Actions(ids, lines))

    assert outcome.created == 300
    assert [letter.id for letter in outcome.rejected] == ["spoilt"]
    assert outcome.rejected[0].document == b'{"doc":{"n":1,"n":2},"doc_as_upsert":true}'


@pytest.mark.one_server
def test_a_server_that_takes_nothing_is_not_asked_for_every_document(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(400, times=1_000_000)

    with pytest.raises(errors.FatalError, match="accepts none of the documents"):
        writing.engine().send(updates(2000))
    assert len(proxy.bulk_requests) < 1000


def test_a_single_document_that_is_too_large_is_rejected(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = TooLarge(limit_bytes=2_000)
    good = updates(40)
    giant = [_lines({"update": {"_id": "giant"}}, {"doc": {"n": 1, "x": "y" * 5000}, "doc_as_upsert": True})]

    outcome = writing.engine().send(Actions([*good.ids, "giant"], [*good.lines, *giant]))

    assert outcome.created == 40
    assert [letter.id for letter in outcome.rejected] == ["giant"]
    assert "bytes" in outcome.rejected[0].reason


@pytest.mark.one_server
def test_an_internal_error_that_stays_is_rejected_in_the_end(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = FailItems(1.0, 500, "null_pointer_exception")

    outcome = writing.engine().send(updates(3))

    assert len(outcome.rejected) == 3
    assert len(proxy.bulk_requests) >= LIMITS.few_attempts


@pytest.mark.one_server
def test_requests_stay_within_the_limits(writing: Writing, proxy: HttpFaultProxy) -> None:
    limits = Limits(request_bytes=4_000, request_documents=25, small_request_bytes=10)
    writing.engine(limits=limits).send(updates(500))

    assert all(len(request.body) <= 4_000 for request in proxy.bulk_requests)
    assert all(request.body.count(b"\n") <= 50 for request in proxy.bulk_requests)
    assert all("require_alias=true" in request.path for request in proxy.bulk_requests)
    assert all(request.headers["content-encoding"] == "gzip" for request in proxy.bulk_requests)


@pytest.mark.one_server
def test_several_requests_are_in_flight(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = together = Together(3)

    writing.engine(limits=Limits(in_flight=3, small_request_bytes=100)).send(updates(300))

    assert len(proxy.bulk_requests) == 3
    assert together.met, "one after the other"


def test_read_only_index_is_named_and_waited_for(writing: Writing) -> None:
    block = "index.blocks.read_only_allow_delete"
    writing.direct.put_settings(writing.concrete, {block: True})

    def unblock() -> None:
        while not writing.waits:
            time.sleep(0.02)
        writing.direct.put_settings(writing.concrete, {block: None})

    helper = threading.Thread(target=unblock)
    helper.start()
    outcome = writing.engine().send(updates(200))
    helper.join()

    assert outcome.acknowledged == 200
    assert "read-only" in (writing.waits[0] or "")
    assert "flood-stage" in (writing.waits[0] or "")
    assert writing.waits[-1] is None, "it says when it moves again"


@pytest.mark.one_server
def test_patience_ends(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(429, times=1_000_000)
    limits = Limits(first_delay_seconds=0.01, longest_delay_seconds=0.05, patience_seconds=1)

    with pytest.raises(errors.TransientError, match="gave up after 1 s without progress"):
        writing.engine(limits=limits).send(updates(10))


@pytest.mark.one_server
def test_an_open_circuit_sends_one_request_at_a_time(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(503, times=1_000_000)
    limits = Limits(
        request_documents=10, first_delay_seconds=0.1, longest_delay_seconds=0.1, patience_seconds=1.5, in_flight=3
    )

    with pytest.raises(errors.TransientError):
        writing.engine(limits=limits).send(updates(1000))
    # Three fail before the circuit opens; after that at most one for each delay of 50 to 100 ms.
    assert len(proxy.bulk_requests) < 3 + 1.5 / 0.05 + 2


@pytest.mark.one_server
def test_stopping_ends_the_wait(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(503, times=1_000_000)
    stop_at = time.monotonic() + 0.5

    with pytest.raises(BulkInterrupted, match="10 documents not settled"):
        writing.engine(should_stop=lambda: time.monotonic() > stop_at).send(updates(10))
    assert time.monotonic() < stop_at + LIMITS.patience_seconds / 2


@pytest.mark.one_server
def test_a_closed_engine_lets_nobody_wait(writing: Writing) -> None:
    engine = writing.engine()
    engine.close()

    with pytest.raises(BulkInterrupted, match="10 documents not settled"):
        engine.send(updates(10))


def test_a_late_bulk_after_a_takeover_changes_nothing(writing: Writing, client: SearchClient) -> None:
    writing.engine().send(updates(10, version=1))
    late = writing.engine()
    writing.generations.claim_writes(writing.concrete, WriteAlias(writing.index, PIPELINE, epoch=2000))

    with pytest.raises(errors.LeaseLost, match="another runner took the pipeline over"):
        late.send(updates(20, version=2))

    assert set(writing.stored().values()) == {1}
    assert set(client.list_indexes(f"{writing.index}*")) == {writing.concrete}, "a refused bulk must not make an index"


def test_mutant_whose_write_alias_is_not_moved_is_caught(writing: Writing) -> None:
    writing.engine().send(updates(10, version=1))
    late = writing.engine()

    late.send(updates(20, version=2))  # nobody took its alias away

    assert set(writing.stored().values()) == {2}


@pytest.mark.parametrize("fenced", [True, False], ids=["alias moved", "mutant: alias not moved"])
def test_a_lost_request_cannot_overtake_a_newer_batch(writing: Writing, proxy: HttpFaultProxy, fenced: bool) -> None:
    """The request is stuck on its way; its documents are sent again, then newer ones; then it arrives after all."""
    hold = Hold()
    proxy.fault = hold
    engine = writing.engine(renew_target=writing.renew if fenced else None)
    engine.send(updates(10, version=1))
    engine.send(updates(10, version=2))

    answers = hold.release()

    assert hold.happened == 1
    stale = sum(version == 1 for version in writing.stored().values())
    if fenced:
        assert stale == 0
        assert b"index_not_found_exception" in answers[0].body
    else:
        assert stale > 0, "without the moved alias the late request wins, and this test must notice"


def test_two_writers_of_one_document_keep_both_halves(writing: Writing) -> None:
    writing.engine().send(Actions(["a"], [_lines({"update": {"_id": "a"}}, {"doc": {"n": 1}, "doc_as_upsert": True})]))
    writing.engine().send(
        Actions(["a"], [_lines({"update": {"_id": "a"}}, {"doc": {"version": 7}, "doc_as_upsert": True})])
    )

    assert writing.direct.request("GET", f"/{writing.index}/_doc/a").body["_source"] == {"n": 1, "version": 7}


def test_deletes_are_counted_and_may_miss(writing: Writing) -> None:
    engine = writing.engine()
    engine.send(updates(3))
    ids = ["film-0", "film-1", "never-there"]

    outcome = engine.send(Actions(ids, [_lines({"delete": {"_id": i}}) for i in ids]))

    assert (outcome.deleted, outcome.noop, outcome.acknowledged) == (2, 1, 3)
    assert set(writing.stored()) == {"film-2"}


def test_unchanged_documents_are_noops(writing: Writing) -> None:
    engine = writing.engine()
    engine.send(updates(5))

    assert engine.send(updates(5)).noop == 5


@pytest.mark.one_server
def test_batches_of_other_documents_travel_together(writing: Writing, proxy: HttpFaultProxy) -> None:
    """No connection waits for the last request of a batch."""
    proxy.fault = together = Together(2)
    engine = writing.engine(limits=Limits(in_flight=2))

    first = engine.start(Actions(["a"], [_lines({"update": {"_id": "a"}}, {"doc": {"n": 1}, "doc_as_upsert": True})]))
    second = engine.start(Actions(["b"], [_lines({"update": {"_id": "b"}}, {"doc": {"n": 2}, "doc_as_upsert": True})]))

    assert [first.finish().created, second.finish().created] == [1, 1]
    assert together.met, "the second waited for the first"
    assert first.finish().created == 1, "asked again, the same answer"


@pytest.mark.one_server
def test_a_newer_version_of_a_document_waits_for_the_older_one(writing: Writing, proxy: HttpFaultProxy) -> None:
    """The older batch is refused at first and sent again: the newer one must still be the last."""
    proxy.fault = AnswerInstead(503, times=2)
    engine = writing.engine()

    first = engine.start(updates(50, version=1))
    second = engine.start(updates(20, version=2))
    first.finish()
    second.finish()

    assert [writing.stored()[f"film-{number}"] for number in (0, 19, 20, 49)] == [2, 2, 1, 1]


@pytest.mark.one_server
def test_a_failed_batch_stays_failed(writing: Writing, proxy: HttpFaultProxy) -> None:
    proxy.fault = AnswerInstead(401, times=1)
    delivery = writing.engine().start(updates(5))

    for _ in range(2):
        with pytest.raises(errors.FatalError, match="did not accept the login"):
            delivery.finish()


@pytest.mark.one_server
def test_nothing_to_send(writing: Writing) -> None:
    assert writing.engine().send(Actions([], [])).acknowledged == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    "fault",
    [
        fault_proxy.ResetAfter(reply_bytes=3_000),
        fault_proxy.Slow(0.05),
        fault_proxy.CutReply(lambda data: b"/_bulk" in data, times=3),
    ],
    ids=["reset after some bytes", "slow", "reply cut"],
)
@pytest.mark.one_server
def test_faults_below_http(search: Target, writing: Writing, fault: fault_proxy.Fault) -> None:
    with fault_proxy.TcpFaultProxy(search.port) as tcp:
        tcp.fault = fault
        client = SearchClient(ConnectionOptions(hosts=(f"http://127.0.0.1:{tcp.port}",), bulk_timeout_seconds=5))
        outcome = BulkEngine(client, str(writing.alias), limits=LIMITS, renew_target=writing.renew).send(
            updates(DOCUMENTS)
        )
        client.close()

    assert outcome.acknowledged == DOCUMENTS
    assert len(writing.stored()) == DOCUMENTS


@pytest.mark.chaos
@pytest.mark.one_server
def test_black_hole_and_refused_connections_are_waited_out(search: Target, writing: Writing) -> None:
    with fault_proxy.TcpFaultProxy(search.port) as tcp:
        client = SearchClient(ConnectionOptions(hosts=(f"http://127.0.0.1:{tcp.port}",), bulk_timeout_seconds=2))
        engine = BulkEngine(
            client, str(writing.alias), limits=LIMITS, renew_target=writing.renew, on_wait=writing.waits.append
        )
        tcp.fault = fault_proxy.BlackHole()
        healing = threading.Thread(target=_heal_when, args=(lambda: bool(writing.waits), tcp))
        healing.start()
        outcome = engine.send(updates(DOCUMENTS))
        healing.join()
        client.close()

    assert outcome.acknowledged == DOCUMENTS
    assert writing.waits[0]
    assert writing.waits[-1] is None
    assert len(writing.stored()) == DOCUMENTS


def _heal_when(noticed: Callable[[], bool], tcp: fault_proxy.TcpFaultProxy) -> None:
    until(noticed)
    tcp.heal()
    tcp.reset_all()
