"""Send documents with the bulk API until each one is acknowledged or rejected, or the attempt is abandoned."""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vitrina import errors
from vitrina.connectors.search import objects, versions
from vitrina.connectors.search.batch import Actions, BulkOutcome, Rejected
from vitrina.connectors.search.circuit import Circuit
from vitrina.connectors.search.client import Reply, ReplyLost, translate
from vitrina.connectors.search.verdicts import Item, ItemVerdict, all_results, judge_item, judge_request

BEATEN = "the index holds a version of this document that a later claim than this run's wrote"


class BulkInterrupted(errors.RunError):
    """Signal that the run was asked to stop before all documents of a batch were settled."""

    code = "interrupted"


class BulkTransport(Protocol):
    """Define the part of `SearchClient` that the engine needs."""

    def bulk(self, target: str, body: bytes, returned: Sequence[str] = ()) -> Reply: ...


@dataclass(frozen=True)
class Limits:
    """Set the size of requests, how many are in flight at once, and how long to retry."""

    request_bytes: int = 5 * 1024 * 1024
    request_documents: int = 10_000
    in_flight: int = 3
    # A request smaller than this is not split just to keep all connections busy.
    small_request_bytes: int = 256 * 1024
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 5.0
    # The attempt is abandoned if no document is settled for this long.
    patience_seconds: float = 600.0
    # This many failed requests in a row open the circuit: one request at a time until one succeeds.
    circuit_threshold: int = 3
    # A refused request is sent again in halves if it holds at least this many documents.
    worth_halving: int = 200
    # Attempts after internal errors of the server (500) about one document, which may or may not be temporary.
    few_attempts: int = 5
    # A request that was in flight when its alias was removed has ended after this time.
    fence_grace_seconds: float = 2.0

    def circuit(self) -> Circuit:
        """Create a closed circuit with these limits."""
        return Circuit(
            first_delay_seconds=self.first_delay_seconds,
            longest_delay_seconds=self.longest_delay_seconds,
            patience_seconds=self.patience_seconds,
            threshold=self.circuit_threshold,
        )


@dataclass(frozen=True)
class _Chunk:
    """Hold the positions of the documents of one request."""

    positions: Sequence[int]
    attempt: int = 0


_Answer = Reply | Exception


@dataclass(frozen=True)
class _Request:
    chunk: _Chunk
    target: str
    actions: Actions
    # What to send before the actions at some positions.
    clearings: Mapping[int, bytes]
    answers: "queue.SimpleQueue[tuple[_Request, _Answer]]"


class BulkEngine:
    """Keep several requests in flight and account for every document.

    `target` is the write alias. `renew_target` replaces it: after a reply was lost, the server may still apply that
    request, and an `update` carries no version, so the old alias must be removed before newer documents are sent.
    `on_wait` receives the reason while nothing progresses, and None once it does. `should_stop` is called several
    times a second.
    """

    def __init__(
        self,
        transport: BulkTransport,
        target: str,
        *,
        limits: Limits | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        on_wait: Callable[[str | None], None] = lambda reason: None,
        renew_target: Callable[[], str] | None = None,
        judge_item: Callable[[Item], ItemVerdict] = judge_item,
        judge_request: Callable[[Reply], ItemVerdict] = judge_request,
    ) -> None:
        self.target = target
        self.transport = transport
        self.limits = limits or Limits()
        self.should_stop = should_stop
        self.on_wait = on_wait
        self.renew_target = renew_target
        self.judge_item = judge_item
        self.judge_request = judge_request
        self.request_bytes = self.limits.request_bytes  # lowered when the server refuses a request as too large
        self.jobs: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self.closed = False
        self._unfinished: list[Delivery] = []
        # Daemon threads: a request that hangs until its timeout must not keep a stopping process alive.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.limits.in_flight)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close the engine, from any thread. Running deliveries raise `BulkInterrupted`."""
        self.closed = True
        for _ in self._threads:
            self.jobs.put(None)

    def drain(self) -> None:
        """Wait after `close` for requests in flight, for at most `fence_grace_seconds`."""
        deadline = time.monotonic() + self.limits.fence_grace_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def send(self, actions: Actions) -> BulkOutcome:
        """Send a batch and return when every document is acknowledged or rejected. Raise `RunError` if that fails."""
        return self.start(actions).finish()

    def start(self, actions: Actions) -> "Delivery":
        """Send the first requests and return, so that the caller can prepare the next batch meanwhile.

        Several deliveries may run at once; finish them in the order in which they were started. A batch that writes a
        document which an earlier one is still writing waits for it here: `update` carries no version, so requests for
        one document must not overtake each other.
        """
        for earlier in list(self._unfinished):
            if not earlier.actions.id_set.isdisjoint(actions.id_set):
                earlier.finish()
        delivery = Delivery(self, actions)
        self._unfinished.append(delivery)
        delivery.launch()
        return delivery

    def forget(self, delivery: "Delivery") -> None:
        self._unfinished.remove(delivery)

    def _work(self) -> None:
        while (request := self.jobs.get()) is not None:
            request.answers.put((request, self._ask(request)))

    def _ask(self, request: _Request) -> _Answer:
        if self.closed:
            return BulkInterrupted("closed before the request was sent")
        lines, clearings = request.actions.lines, request.clearings
        parts = [clearings.get(i, b"") + lines[i] if clearings else lines[i] for i in request.chunk.positions]
        try:
            return self.transport.bulk(request.target, b"".join(parts), request.actions.objects)
        except Exception as exc:  # noqa: BLE001  passed to the delivery, which raises it
            return exc


class Delivery:
    """Deliver one batch to the server."""

    def __init__(self, engine: BulkEngine, actions: Actions) -> None:
        self._engine = engine
        self._limits = engine.limits
        self.actions = actions
        self._outcome = BulkOutcome()
        self._ready = deque(_Chunk(positions) for positions in self._cut(range(len(actions.lines))))
        self._in_flight = 0
        self._answers: queue.SimpleQueue[tuple[_Request, _Answer]] = queue.SimpleQueue()
        self._circuit = engine.limits.circuit()
        # Updates that left members in an object. From then on each is sent as a pair of actions, a clearing and the
        # update, which are judged and sent again together.
        self._clearings: dict[int, bytes] = {}
        self._internal_errors: Counter[int] = Counter()
        self._refused_alone = 0
        self._reply_lost = False
        self._grace_until = 0.0
        self._wait_reported = False
        self._finished = False
        self._failure: errors.RunError | None = None

    def finish(self) -> BulkOutcome:
        """Wait until every document is acknowledged or rejected, or raise `RunError`.

        A second call returns or raises the same.
        """
        if self._failure:
            raise self._failure
        if not self._finished:
            self._finish_or_fail()
        return self._outcome

    def _finish_or_fail(self) -> None:
        try:
            self._finish()
        except errors.RunError as exc:
            self._failure = exc  # a second call must not report success
            raise
        finally:
            self._finished = True
            self._engine.forget(self)

    def _finish(self) -> None:
        while self._ready or self._in_flight:
            self._check_patience()
            self._move_target_after_lost_reply()
            self.launch()
            self._settle_answers()
        self._wait_out_grace()

    def launch(self) -> None:
        allowed = 1 if self._circuit.is_open else self._limits.in_flight
        while self._ready and self._in_flight < allowed and not (self._circuit.must_wait or self._reply_lost):
            chunk = self._ready.popleft()
            self._in_flight += 1
            self._outcome.requests += 1
            self._engine.jobs.put(_Request(chunk, self._engine.target, self.actions, self._clearings, self._answers))

    def _cut(self, positions: Sequence[int]) -> list[Sequence[int]]:
        """Split into pieces of about equal size within the limits, enough to use all connections if possible."""
        sizes = [len(self.actions.lines[position]) for position in positions]
        total = sum(sizes)
        busy = total // self._limits.in_flight + 1
        limit = min(self._engine.request_bytes, max(busy, self._limits.small_request_bytes))
        share = total / max(-(-total // limit), 1)
        pieces: list[Sequence[int]] = []
        start = piece_bytes = done_bytes = 0
        for end, size in enumerate(sizes):
            full = piece_bytes + size > self._engine.request_bytes or end - start >= self._limits.request_documents
            if end > start and (full or done_bytes + size / 2 > share * (len(pieces) + 1)):
                pieces.append(positions[start:end])
                start, piece_bytes = end, 0
            piece_bytes += size
            done_bytes += size
        return [*pieces, positions[start:]] if sizes else []

    def _send_again(self, positions: Sequence[int], attempt: int, *, halves: bool) -> None:
        self._outcome.sent_again += len(positions)
        halves = halves and len(positions) >= self._limits.worth_halving
        middle = (len(positions) + 1) // 2 if halves else len(positions)
        for part in (positions[:middle], positions[middle:]):
            if part:
                self._ready.append(_Chunk(part, attempt))

    def _settle_answers(self) -> None:
        """Wait briefly for an answer and handle it."""
        if not self._in_flight:
            time.sleep(min(0.05, self._circuit.seconds_to_wait))
            return
        try:
            request, answer = self._answers.get(timeout=0.2)
        except queue.Empty:
            return
        self._in_flight -= 1
        self._settle(request, answer)

    def _settle(self, request: _Request, answer: _Answer) -> None:
        if isinstance(answer, errors.Disconnected):
            self._settle_disconnected(request, answer)
        elif isinstance(answer, Exception):
            raise answer
        else:
            self._settle_reply(request, answer)

    def _settle_disconnected(self, request: _Request, problem: errors.Disconnected) -> None:
        self._reply_lost |= isinstance(problem, ReplyLost)
        self._wait_for_server(problem)
        self._send_again(request.chunk.positions, request.chunk.attempt + 1, halves=isinstance(problem, ReplyLost))

    def _settle_reply(self, request: _Request, reply: Reply) -> None:
        positions = request.chunk.positions
        verdict = self._engine.judge_request(reply)
        if verdict is ItemVerdict.DONE:
            self._settle_items(request, reply)
        elif verdict is ItemVerdict.SPLIT:
            self._split(request.chunk, reply)
        elif verdict is ItemVerdict.FENCED:
            self._fenced(request, positions)
        elif verdict in (ItemVerdict.RETRY, ItemVerdict.RETRY_FEW, ItemVerdict.BLOCKED):
            # A gateway that timed out (502, 504) does not know what happened to the request either.
            self._reply_lost |= reply.status in (502, 504)
            self._wait_for_server(translate("bulk request not accepted", reply))
            self._send_again(positions, request.chunk.attempt + 1, halves=True)
        else:
            raise translate(f"cannot write to {request.target}", reply)

    def _settle_items(self, request: _Request, reply: Reply) -> None:
        positions = request.chunk.positions
        entries = reply.body.get("items", [])
        sent = len(positions) + sum(position in self._clearings for position in positions)
        if len(entries) != sent:
            problem = f"{sent} actions were sent and the reply has results for {len(entries)}"
            self._settle_disconnected(request, ReplyLost(problem))
            return
        results = None if self.actions.objects else all_results(entries)
        if results is not None:
            self._outcome.add(results)
            self._report_progress()
            return
        self._settle_each(request, self._item_per_document(positions, [Item.parse(entry) for entry in entries]))

    def _item_per_document(self, positions: Sequence[int], items: Sequence[Item]) -> list[Item]:
        """Return one answer for each document: for a pair the second answer, unless the first action failed."""
        if len(items) == len(positions):
            return list(items)
        words, rest = [], iter(items)
        for position in positions:
            item = next(rest)
            if position in self._clearings:
                second = next(rest)
                item = second if self._engine.judge_item(item) is ItemVerdict.DONE else item
            words.append(item)
        return words

    def _settle_each(self, request: _Request, items: Sequence[Item]) -> None:
        settled_before = self._outcome.settled
        again: list[int] = []
        fenced: list[int] = []
        unclear: list[int] = []
        problem_item: Item | None = None
        for position, item in zip(request.chunk.positions, items, strict=True):
            verdict = self._engine.judge_item(item)
            if verdict is ItemVerdict.DONE and self._has_leftovers(position, item):
                unclear.append(position)
            elif verdict is ItemVerdict.DONE:
                self._outcome.add({item.result: 1})
            elif verdict is ItemVerdict.SUPERSEDED and self._is_from_later_claim(position):
                self._reject(position, f"{BEATEN}: {item.reason}", item.status)
            elif verdict is ItemVerdict.FENCED:
                fenced.append(position)
            elif self._is_worth_another_try(verdict, position):
                again.append(position)
                problem_item = item
            elif verdict is ItemVerdict.REJECT or verdict is ItemVerdict.RETRY_FEW:
                self._reject(position, item.reason, item.status)
            else:
                raise _refusal(item, request.target)
        if self._outcome.settled > settled_before or unclear:
            self._report_progress()
        if unclear:
            self._outcome.cleared += len(unclear)
            self._ready.extendleft(_Chunk(part, request.chunk.attempt) for part in reversed(self._cut(unclear)))
        if problem_item:
            self._delay_items(request.chunk, again, problem_item)
        if fenced:
            self._fenced(request, fenced)

    def _has_leftovers(self, position: int, item: Item) -> bool:
        """Return whether the document holds more than was sent, because objects were merged into existing ones."""
        if not self.actions.objects or item.action != "update" or item.result == "created":
            return False
        if position in self._clearings:
            return False
        names = objects.leftovers(self.actions.document(position), item.returned)
        if names:
            self._clearings[position] = objects.clearing(self.actions.ids[position], names)
        return bool(names)

    def _is_worth_another_try(self, verdict: ItemVerdict, position: int) -> bool:
        if verdict is ItemVerdict.RETRY_FEW:
            self._internal_errors[position] += 1
            return self._internal_errors[position] < self._limits.few_attempts
        return verdict in (ItemVerdict.RETRY, ItemVerdict.BLOCKED, ItemVerdict.SUPERSEDED)

    def _is_from_later_claim(self, position: int) -> bool:
        """Return whether a later claim has written the document.

        An update of another writer may have raised the version past our batch, which does not say which document is
        newer. So the document is sent again with the highest version of our claim. If it is refused again, a later
        claim wrote it.
        """
        line = self.actions.lines[position]
        higher = versions.raised(line)
        if higher is None:
            return versions.is_versioned(line)
        lines = list(self.actions.lines)
        lines[position] = higher
        self.actions = replace(self.actions, lines=lines)
        return False

    def _delay_items(self, chunk: _Chunk, positions: list[int], item: Item) -> None:
        error = _refusal(item, self._engine.target)
        none_taken = len(positions) == len(chunk.positions)
        self._wait_for_server(error, attempt=None if none_taken else chunk.attempt)
        self._send_again(positions, chunk.attempt + 1, halves=none_taken)

    def _split(self, chunk: _Chunk, reply: Reply) -> None:
        """Split a request that is too large or that one document spoils, until that document is alone."""
        if len(chunk.positions) > 1:
            if reply.status == 413:
                size = sum(len(self.actions.lines[i]) for i in chunk.positions)
                self._engine.request_bytes = min(self._engine.request_bytes, max(size // 2, 1))
            middle = (len(chunk.positions) + 1) // 2
            # At the front, so that the bad document is found before anything else is sent.
            self._ready.appendleft(_Chunk(chunk.positions[middle:], chunk.attempt))
            self._ready.appendleft(_Chunk(chunk.positions[:middle], chunk.attempt))
            return
        (position,) = chunk.positions
        self._refused_alone += 1
        if self._refused_alone > 100 and not self._outcome.acknowledged:
            raise translate("the server accepts none of the documents", reply)
        self._reject(position, self._why_refused_alone(position, reply), reply.status)

    def _why_refused_alone(self, position: int, reply: Reply) -> str:
        too_large = f"the server accepts no document of {len(self.actions.lines[position]):,} bytes"
        if reply.status == 413:
            return f"{too_large} (http.max_content_length, or a proxy's limit)"
        if reply.status == 429:
            return f"{too_large} (indexing_pressure.memory.limit, or its heap): {reply.reason}"
        return reply.reason

    def _fenced(self, request: _Request, positions: Sequence[int]) -> None:
        if request.target == self._engine.target:
            raise errors.LeaseLost(
                f"the write alias {request.target} was removed: another runner took the pipeline over, "
                "or the index was deleted or replaced by hand"
            )
        self._send_again(positions, request.chunk.attempt, halves=False)  # this engine has replaced the alias since

    def _reject(self, position: int, reason: str, status: int) -> None:
        document = self.actions.document(position)
        self._outcome.rejected.append(Rejected(self.actions.ids[position], reason, document, status))

    def _wait_for_server(self, problem: errors.RunError, attempt: int | None = None) -> None:
        """Wait before the next request. `attempt` is set if the server accepted other documents of the request."""
        self._circuit.fail(problem, attempt)
        if attempt is None or self._circuit.is_open:
            self._wait_reported = True
            self._engine.on_wait(problem.message)

    def _report_progress(self) -> None:
        self._circuit.close()
        if self._wait_reported:
            self._wait_reported = False
            self._engine.on_wait(None)

    def _check_patience(self) -> None:
        if self._engine.closed or self._engine.should_stop():
            raise BulkInterrupted(f"stopped with {len(self.actions.ids) - self._outcome.settled} documents not settled")
        self._circuit.check_patience()

    def _move_target_after_lost_reply(self) -> None:
        """Replace the alias after a lost reply.

        The lost request may still be queued in the server, which refuses it without the alias.
        """
        if not self._reply_lost or self._circuit.must_wait:
            return
        if self._engine.renew_target is None:
            self._reply_lost = False
            return
        try:
            self._engine.target = self._engine.renew_target()
        except errors.TransientError as exc:
            self._wait_for_server(exc)
            return
        self._reply_lost = False
        self._grace_until = time.monotonic() + self._limits.fence_grace_seconds

    def _wait_out_grace(self) -> None:
        """Wait before newer documents are sent, so that the lost request cannot overwrite them.

        Sending the same documents again is harmless.
        """
        while time.monotonic() < self._grace_until:
            self._check_patience()
            time.sleep(0.05)


def _refusal(item: Item, target: str) -> errors.RunError:
    return translate(f"cannot write to {target}", Reply(item.status, {"error": item.error or {}}))
