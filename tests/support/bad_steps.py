"""Define steps and sources that misbehave. Only workers import them."""

import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from vitrina.transforms import SourceContext, StepContext, source, transform, wire
from vitrina.transforms.wire import Message


class Mischief(BaseModel):
    """Describe what a step does, and on which row."""

    how: str
    row: int
    # A file that tells the test that the step has started.
    marker: str = ""


def _loop_in_c() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter's lock for years


def _loop() -> None:
    while True:
        time.sleep(0.001)


def _use_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 10)) * (16 << 10))


def _print_much() -> None:
    sys.stdout.write("x" * 5_000 + "\n")
    for number in range(20_000):
        (sys.stderr if number % 2 else sys.stdout).write(f"line {number} of what a step says\n")


def _fork() -> None:
    """Fork: both processes continue with the batch, and answer."""
    os.fork()


def _answer_twice() -> None:
    """Send something that looks like an answer before the real one."""
    forged = Message({"left": [0]}, (wire.packed(pa.table({})), wire.packed_letters([]), wire.packed_names([])))
    wire.send(int(sys.argv[2]), forged)


def _answer_nonsense() -> None:
    """Send an invalid answer with the right number, so that the runner reads it."""
    frame = sys._getframe()
    while "question" not in frame.f_locals:
        assert frame.f_back
        frame = frame.f_back
    number = frame.f_locals["question"].number
    wire.send(int(sys.argv[2]), Message({"left": "many"}, (pa.py_buffer(b"x"),)).numbered(number))


def _send_many_lists() -> None:
    """Send a header that takes twenty times its size in memory when it is parsed."""
    header = b"[" + b"[]," * (20 << 20) + b"0]"
    _write(len(header).to_bytes(4, "little") + header)


def _promise_much() -> None:
    """Announce more bytes than the worker may have itself."""
    header = json.dumps([{}, [3 << 30]]).encode()
    _write(len(header).to_bytes(4, "little") + header)
    while True:
        _write(bytes(1 << 20))


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(int(sys.argv[2]), rest) :]


def _mumble() -> None:
    """Return text that no database stores, and no encoding has."""
    raise ValueError("a file named \x00 \udcff")


def _complain() -> None:
    raise ValueError("x" * (16 << 20))


WAYS: dict[str, Callable[[], object]] = {
    "os_exit": lambda: os._exit(7),
    "sys_exit": lambda: sys.exit("enough"),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), 9),
    "loop": _loop,
    "loop_in_c": _loop_in_c,
    "memory": _use_memory,
    "print": _print_much,
    "close": lambda: os.closerange(3, 100),
    "fork": _fork,
    "answer_twice": _answer_twice,
    "answer_nonsense": _answer_nonsense,
    "send_many_lists": _send_many_lists,
    "promise_much": _promise_much,
    "complain": _complain,
    "mumble": _mumble,
    "nothing": lambda: None,
}


@transform("bad_row", rows=True, params=Mischief)
def bad_row(row: dict[str, Any], params: Mischief) -> dict[str, Any]:
    """Return rows unchanged until one matches, then misbehave."""
    if row["id"] == params.row:
        if params.marker:
            Path(params.marker).write_text(str(os.getpid()))
        WAYS[params.how]()
    return row


@transform("bad_surroundings")
def bad_surroundings(batch: pa.RecordBatch, context: StepContext) -> pa.RecordBatch:
    """Return what the step's process can see of its environment."""
    descriptors = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists them
            descriptors.append(str(descriptor.readlink()))
    told = {
        "environment": "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items())),
        "descriptors": "\n".join(descriptors),
        "pid": str(os.getpid()),
        "hash_key": str(context.hash_key),
        "arguments": " ".join(sys.argv),
    }
    return pa.RecordBatch.from_pylist([{"name": name, "value": value} for name, value in told.items()])


@transform("bad_pid")
def bad_pid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the process ID."""
    return batch.append_column("pid", pa.array([os.getpid()] * batch.num_rows, pa.int32()))


@transform("bad_reference")
def bad_reference(batch: pa.RecordBatch, context: StepContext) -> pa.RecordBatch:
    """Look up the same reference query twice."""
    query = "SELECT id, title FROM content.film_work WHERE id <= 3 ORDER BY id"
    titles = [context.reference(query).num_rows, context.reference(query).column("title").to_pylist()[0]]
    return batch.append_column("seen", pa.array([str(titles)] * batch.num_rows))


@source("bad_source", params=Mischief)
def bad_source(context: SourceContext) -> Iterator[Any]:
    """Misbehave after some batches of one row."""
    assert isinstance(context.params, Mischief)
    start = (context.checkpoint or {}).get("after", 0)
    for number in range(start + 1, 6):
        context.checkpoint = {"after": number}
        if number == context.params.row:
            if context.params.marker:
                Path(context.params.marker).write_text(str(os.getpid()))
            WAYS[context.params.how]()
        yield [{"n": number, "pid": os.getpid()}]


@source("bad_checkpoint")
def bad_checkpoint(context: SourceContext) -> Iterator[Any]:
    """Store the rows that were read in the checkpoint."""
    context.checkpoint = {"seen": list(range(100_000))}
    yield [{"n": 1}]
