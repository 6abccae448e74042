"""Run Python steps and sources for one run in a separate process: `python -m vitrina.transforms.worker`.

It receives messages on one descriptor and answers on another. It has no connection to a database and none of the
runner's settings. Reference queries of a step are sent to the runner.
"""

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from vitrina.ports.batch import DeadLetter
from vitrina.transforms import chain, progress, registry, sources, wire
from vitrina.transforms.chain import Chain, PlannedStep
from vitrina.transforms.child_process import be_modest, end_with_runner
from vitrina.transforms.context import SourceContext, StepContext
from vitrina.transforms.pipeline import OwnSteps
from vitrina.transforms.registry import Registered, Registry
from vitrina.transforms.to_target import Landing
from vitrina.transforms.wire import Message

Handler = Callable[[Message], Message]


class Server:
    """Answer messages until the runner closes its end."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = requests
        self._replies = replies
        self._asking = threading.Lock()
        self._references: dict[str, pa.Table] = {}
        self._planned: list[PlannedStep] = []
        self._steps: OwnSteps | None = None
        self._source: tuple[Registered, Callable[[Any], SourceContext]] | None = None
        self._rest: Iterator[sources.Yielded] = iter(())

    def serve(self) -> int:
        """Serve until the runner closes its end, and return the exit code."""
        try:
            while True:
                question = wire.receive(self._requests)
                wire.send(self._replies, self._answer(question).numbered(question.number))
        except EOFError:
            return 0
        except (OSError, wire.Garbled):
            return wire.PIPES_LOST

    def _answer(self, message: Message) -> Message:
        handlers: dict[str, Handler] = {
            "describe": self._describe,
            "plan": self._plan,
            "open": self._open,
            "discover": self._discover,
            "adopt": self._adopt,
            "land": self._land,
            "take": self._take,
            "trace": self._trace,
            "source": self._open_source,
            "begin": self._begin,
            "next": self._next,
        }
        progress.clear()
        try:
            return handlers[message.fields["op"]](message)
        except SystemExit as exc:
            return Message({"exit": repr(exc.code)[:200]})
        except BaseException as exc:  # noqa: BLE001 - a step is foreign code; the runner decides what follows
            return Message({"error": wire.packed_error(exc)})

    def _describe(self, message: Message) -> Message:
        return Message({"found": registry.load(message.fields["modules"]).describe()})

    def _plan(self, message: Message) -> Message:
        tasks = [_Asked(**task) for task in message.fields["tasks"]]
        known = _load([task.body for task in tasks], message)
        self._planned = chain.plan_steps(tasks, known)
        found = [[step.order_index, step.name, step.digest, step.rule.max_dead_letters] for step in self._planned]
        return Message({"steps": found})

    def _open(self, message: Message) -> Message:
        fields = message.fields
        key = fields["hash_key"]
        context = StepContext(
            pipeline=fields["pipeline"],
            run_id=UUID(fields["run_id"]),
            started_at=datetime.fromisoformat(fields["started_at"]),
            hash_key=key.encode() if key is not None else None,
            reference=self._reference,
        )
        self._steps = OwnSteps(
            wire.unpacked_schema(message.payload[0]),
            Chain(self._planned, context),
            comes_natural=fields["comes_natural"],
            stays_natural=fields["stays_natural"],
        )
        return Message({})

    @property
    def _opened(self) -> OwnSteps:
        assert self._steps is not None
        return self._steps

    def _discover(self, message: Message) -> Message:
        schema = self._opened.discover(wire.unpacked(message.payload[0]))
        expected = [step.expected for step in self._planned]
        payload = [wire.packed_schema(found) for found in (schema, *expected) if found is not None]
        return Message({}, tuple(payload))

    def _adopt(self, message: Message) -> Message:
        """Adopt what another worker of the run learned about the columns after each step."""
        for step, expected in zip(self._planned, message.payload, strict=True):
            step.expected = wire.unpacked_schema(expected)
        return Message({})

    def _land(self, message: Message) -> Message:
        self._opened.landings = {found[0]: Landing(*found) for found in message.fields["landings"]}
        return Message({})

    def _take(self, message: Message) -> Message:
        steps, fields = self._opened, message.fields
        steps.key = tuple(fields["key"])
        steps.notes_filtered = fields["notes_filtered"]
        if fields["watched"] is not None:
            steps.watched = (steps.watched or set()) | set(fields["watched"])
        before = [step.letters for step in self._planned]
        taken = steps.take(wire.unpacked(message.payload[0]), fields["number"])
        left = [step.letters - count for step, count in zip(self._planned, before, strict=True)]
        letters, delivered = wire.packed_letters(taken.letters), wire.packed_names(sorted(taken.delivered))
        told = {"left": left, "filtered": list(taken.filtered)}
        return Message(told, (wire.packed(taken.table), letters, delivered))

    def _trace(self, message: Message) -> Message:
        letters: list[DeadLetter] | None = [] if message.fields["keeps_letters"] else None
        stages = self._opened.trace(wire.unpacked(message.payload[0]), letters)
        return Message({}, (wire.packed_letters(letters or ()), *(wire.packed(stage) for stage in stages)))

    def _reference(self, query: str) -> pa.Table:
        """Ask the runner, which may read the source, once for each worker and query."""
        with self._asking:
            if query not in self._references:
                wire.send(self._replies, Message({"ask": "reference", "query": query}))
                answer = wire.receive(self._requests)
                if "error" in answer.fields:
                    wire.raise_error(answer.fields["error"])
                self._references[query] = wire.unpacked(answer.payload[0])
            return self._references[query]

    def _open_source(self, message: Message) -> Message:
        fields = message.fields
        registered = chain.find_registered(fields["name"], "source", _load([fields["name"]], message))
        params = chain.read_params(registered, fields["params"], f"source {registered.name}")

        def context(checkpoint: Any) -> SourceContext:
            return SourceContext(
                checkpoint=checkpoint,
                pipeline=fields["pipeline"],
                run_id=UUID(fields["run_id"]),
                started_at=datetime.fromisoformat(fields["started_at"]),
                mode=fields["mode"],
                batch_size=fields["batch_size"],
                params=params,
                since=fields["since"],
                until=fields["until"],
            )

        self._source = registered, context
        return Message({"digest": registered.digest})

    def _begin(self, message: Message) -> Message:
        assert self._source is not None
        registered, context = self._source
        self._rest = sources.yielded(registered, context(message.fields["checkpoint"]))
        return Message({})

    def _next(self, _: Message) -> Message:
        for batch, checkpoint in self._rest:
            return Message({"checkpoint": checkpoint}, (wire.packed(batch),))
        return Message({"ended": True})


class _Asked(NamedTuple):
    """Hold a step of a task plan that the runner has validated."""

    order_index: int
    body: str
    params: dict[str, Any]


def _load(names: Sequence[str], message: Message) -> Registry:
    """Load the named steps. Import the shipped ones only if a name belongs to them or is not found."""
    fields = message.fields
    if fields["names_shipped"]:
        registry.load_shipped()
    known = registry.load_others(fields["modules"], fields["announced"])
    return known if all(map(known.find, names)) else registry.load_shipped()


def main(arguments: Sequence[str]) -> None:
    requests, replies, life, place = map(int, arguments[:4])
    for descriptor in (requests, replies, life, place):
        os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=partial(_let_go, requests, replies))
    end_with_runner(life)
    be_modest()
    progress.keep_in(memoryview(mmap.mmap(place, progress.SIZE)))
    sys.path[:] = arguments[4:]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # keep what was printed before a crash
    # Exit without `atexit` handlers and without waiting for threads that a step has started.
    os._exit(Server(requests, replies).serve())


def _let_go(*descriptors: int) -> None:
    """Detach the descriptors, so that a child forked by a step cannot answer in its parent's place."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor, inheritable=False)


if __name__ == "__main__":
    main(sys.argv[1:])
