"""What a worker sends is data: it is refused where it is damaged, and never executed."""

import json
import os
from typing import Any

import pyarrow as pa
import pytest

from vitrina.errors import FatalError, LeaseLost, RunError, StepFailed, TransientError
from vitrina.ports.batch import DeadLetter
from vitrina.transforms import wire
from vitrina.transforms.forking import environment_of


class Upstream(TransientError):
    """A step's own kind of error."""


def test_damaged_arrow_data_is_refused() -> None:
    offsets, data = pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")
    damaged = pa.table({"title": pa.StringArray.from_buffers(1, offsets, data)})
    with pytest.raises(StepFailed, match="damaged"):
        wire.checked(_sent(wire.packed(damaged)))
    with pytest.raises(StepFailed, match="damaged"):
        wire.checked(pa.py_buffer(b"nonsense"))


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x02\x00\x00\x00{}", b"\x08\x00\x00\x00[{},[-1]]"[:12], b""])
def test_what_is_no_message_is_refused(sent: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    with pytest.raises((wire.Garbled, EOFError)):
        wire.receive(reading, max_payload=1 << 20)
    os.close(reading)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ([{}, [(1 << 20) + 1]], "an answer of 1048577 bytes in 1 part"),
        ([{}, [0] * 101], "an answer of 0 bytes in 101 part"),
        ([{"x": "x" * (8 << 20)}, []], "a header of "),
    ],
)
def test_what_a_worker_sends_has_limits(header: list[Any], words: str) -> None:
    """They are known before anything of that size is read."""
    reading, writing = os.pipe()
    text = json.dumps(header).encode()
    os.write(writing, len(text).to_bytes(4, "little") + text[:1000])
    with pytest.raises(wire.Garbled, match=words):
        wire.receive(reading, max_payload=1 << 20)
    os.close(writing)
    os.close(reading)


def test_letters_arrive_as_they_were_sent() -> None:
    letters = (DeadLetter("1", "no date\n", '{"id": 1}'), DeadLetter("Ж", "half a pair: \ud83d", "{}"))
    arrived = wire.checked_letters(_sent(wire.packed_letters(letters)))
    assert arrived == (letters[0], DeadLetter("Ж", "half a pair: \\ud83d", "{}"))
    with pytest.raises(StepFailed, match="other columns"):
        wire.checked_letters(_sent(wire.packed_names(["a"])))
    with pytest.raises(StepFailed, match="other columns"):
        wire.checked_names(_sent(wire.packed(pa.table({"name": pa.array(["a", None], pa.large_string())}))))


def test_columns_that_are_damaged_are_refused() -> None:
    with pytest.raises(StepFailed, match="damaged"):
        wire.unpacked_schema(pa.py_buffer(b"nonsense"))


def _sent(packed: wire.Packed) -> pa.Buffer:
    return pa.py_buffer(b"".join(packed.take_pieces()))


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [(Upstream("wait"), TransientError), (LeaseLost("mine"), RunError), (KeyError("x"), FatalError)],
)
def test_a_worker_raises_only_what_a_step_may(raised: Exception, arrives: type[Exception]) -> None:
    with pytest.raises(RunError) as caught:
        wire.raise_error(wire.packed_error(raised))
    assert type(caught.value) is arrives


def test_the_environment_of_a_worker_is_a_list_of_names() -> None:
    inherited = {"PATH": "/bin", "LC_ALL": "C", "PGPASSWORD": "x", "VITRINA_DATABASE_URL": "y", "TMDB_KEY": "z"}
    assert environment_of((), inherited) == {"PATH": "/bin", "LC_ALL": "C"}
    assert environment_of(("TMDB_*",), inherited) == {"PATH": "/bin", "LC_ALL": "C", "TMDB_KEY": "z"}
