"""Which step is at which rows: kept where it can still be read after the process that ran the step has ended."""

from typing import NamedTuple

FIELDS = 3
SIZE = FIELDS * 8


class Place(NamedTuple):
    """Order index of a step, and the rows of its batch that it was given last; rows count from 1, 0 is none."""

    order_index: int
    first_row: int
    last_row: int


_place = memoryview(bytearray(SIZE)).cast("q")


def keep_in(memory: memoryview) -> None:
    """Write progress from now on into this memory, which another process reads."""
    global _place  # noqa: PLW0603 - one for the process, which runs one step at a time
    _place = memory.cast("q")


def note(order_index: int, rows: int) -> None:
    """Note that a step is given a batch of this many rows."""
    _place[0], _place[1], _place[2] = order_index, min(1, rows), rows


def narrow(first_row: int, last_row: int) -> None:
    """Note that the running step is given these rows of its batch."""
    _place[1], _place[2] = first_row, last_row


def clear() -> None:
    note(0, 0)


def read(memory: memoryview) -> Place:
    return Place(*memory.cast("q")[:FIELDS])
