"""Record which rows a step is processing, in memory that outlives the process which runs the step."""

from typing import NamedTuple

FIELDS = 3
SIZE = FIELDS * 8


class Place(NamedTuple):
    """Hold the order index of a step and the rows of its batch that it received last, counted from 1; 0 is none."""

    order_index: int
    first_row: int
    last_row: int


_place = memoryview(bytearray(SIZE)).cast("q")


def keep_in(memory: memoryview) -> None:
    """Write progress to this memory from now on. Another process reads it."""
    global _place  # noqa: PLW0603 - one per process, which runs one step at a time
    _place = memory.cast("q")


def note(order_index: int, rows: int) -> None:
    """Record that a step receives a batch of this many rows."""
    _place[0], _place[1], _place[2] = order_index, min(1, rows), rows


def narrow(first_row: int, last_row: int) -> None:
    """Record that the running step receives these rows of its batch."""
    _place[1], _place[2] = first_row, last_row


def clear() -> None:
    note(0, 0)


def read(memory: memoryview) -> Place:
    return Place(*memory.cast("q")[:FIELDS])
