"""What a worker sends is data: it is refused where it is damaged, and never executed."""

import os

import pyarrow as pa
import pytest

from vitrina.adapters.transforms import wire
from vitrina.adapters.transforms.process import environment_of
from vitrina.errors import FatalError, LeaseLost, RunError, StepFailed, TransientError


class Upstream(TransientError):
    """A step's own kind of error."""


def test_damaged_arrow_data_is_refused() -> None:
    offsets, data = pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")
    damaged = pa.table({"title": pa.StringArray.from_buffers(1, offsets, data)})
    with pytest.raises(StepFailed, match="damaged"):
        wire.checked(pa.py_buffer(b"".join(wire.packed(damaged).take_pieces())))
    with pytest.raises(StepFailed, match="damaged"):
        wire.checked(pa.py_buffer(b"nonsense"))


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x02\x00\x00\x00{}", b"\x08\x00\x00\x00[{},[-1]]"[:12], b""])
def test_what_is_no_message_is_refused(sent: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, sent)
    os.close(writing)
    with pytest.raises((wire.Garbled, EOFError)):
        wire.receive(reading)
    os.close(reading)


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
