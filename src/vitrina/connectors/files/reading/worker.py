"""Run DuckDB in a separate process without secrets in its environment, which ends with its runner."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from vitrina.connectors.files.reading.engine import Engine, Limits
from vitrina.connectors.files.reading.types import Result
from vitrina.transforms import wire
from vitrina.transforms.wire import Message

# A query that still spills may write a file into a folder that is being removed.
_REMOVALS = 20


def main(requests: int, replies: int, life: int, folder: str) -> None:
    """Answer requests until the runner has ended."""
    ending = threading.Thread(target=_end_with_runner, args=[life, folder], daemon=True)
    ending.start()
    _be_ended_first()
    with suppress(EOFError, BrokenPipeError):
        _serve(requests, replies)
    ending.join()  # it ends this process, once the folder is removed


def _serve(requests: int, replies: int) -> None:
    about = wire.receive(requests).fields
    engine = Engine(about["query"], Limits(**about["limits"]))
    while True:
        asked = wire.receive(requests)
        for answer in answers(engine, asked.fields):
            wire.send(replies, answer)


def _end_with_runner(life: int, folder: str) -> None:
    """Wait until the runner has ended or was killed, then remove what it left on disk."""
    with suppress(OSError):
        os.read(life, 1)
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):  # noqa: PTH110 - nothing else here needs a Path
            break
    os._exit(0)


def _be_ended_first() -> None:
    """Make the kernel kill this process before others when memory is short."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("1000")


def answers(engine: Engine, asked: dict[str, Any]) -> Iterator[Message]:
    """Yield the messages that answer one request."""
    try:
        yield from _ANSWERS[asked["op"]](engine, asked)
    except RecursionError:
        yield Message({"error": {"class": "SourceQueryFailed", "message": "the query is nested too deeply"}})
    except Exception as exc:  # noqa: BLE001 - the main loop of a process; errors are sent to the runner
        yield Message({"error": wire.packed_error(exc)})


def _check(engine: Engine, asked: dict[str, Any]) -> Iterator[Message]:
    checked = engine.query
    readings = [
        {"patterns": list(one.patterns), "by_name": one.by_name, "is_text": one.is_text} for one in checked.readings
    ]
    yield Message({"readings": readings, "rowwise": checked.is_rowwise, "stable": checked.is_stable})


def _describe(engine: Engine, asked: dict[str, Any]) -> Iterator[Message]:
    given = engine.given_types(asked["files"])
    columns, schema = engine.describe(asked["files"], given)
    yield Message({"columns": columns, "given": given}, (wire.packed_schema(schema),))


def _read(engine: Engine, asked: dict[str, Any]) -> Iterator[Message]:
    expected = [Result(*column) for column in asked["columns"]]
    for batch in engine.batches(asked["files"], asked["given"], expected, asked["rows"], asked["skip"]):
        yield Message({}, (wire.packed(pa.Table.from_batches([batch])),))
    yield Message({"end": True})


_ANSWERS = {"check": _check, "describe": _describe, "read": _read}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
