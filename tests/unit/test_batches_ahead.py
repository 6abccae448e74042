"""How many batches are under way at once: so many as the target takes, and never more than memory has room for."""

from collections.abc import Iterator
from functools import partial

import pytest

from vitrina.loads.flow import UnderWay, arriving
from vitrina.ports.batch import MAX_BATCH_BYTES, Part, Stopwatch, Written


@pytest.mark.parametrize(
    ("ahead", "size", "most"),
    [
        (0, 1_000, 1),
        (3, 1_000, 4),
        (3, MAX_BATCH_BYTES // 2, 3),
        (3, MAX_BATCH_BYTES, 2),
        (3, MAX_BATCH_BYTES + 1, 1),
    ],
)
def test_each_arrives_in_its_turn(ahead: int, size: int, most: int) -> None:
    on_the_way: list[int] = []
    numbers: list[int] = []

    def arrive(number: int) -> Written:
        assert on_the_way.pop(0) == number, "in the order in which they were sent off"
        return Written(number)

    def departures() -> Iterator[UnderWay]:
        for number in range(10):
            on_the_way.append(number)
            numbers.append(len(on_the_way))
            filled = Part(number, 1, ("x",))
            yield UnderWay(filled, (), frozenset(), size, Stopwatch(), "index", partial(arrive, number))

    arrived = list(arriving(departures(), lambda: ahead))

    assert [(filled.number, filled.staged_rows) for filled in arrived] == [(number, number) for number in range(10)]
    assert max(numbers) == most


def test_a_writer_may_let_fewer_go_ahead_than_before() -> None:
    """As one does that collects batches into files, when the source is slow."""
    arrived: list[int] = []
    seen: list[list[int]] = []

    def arrive(number: int) -> Written:
        arrived.append(number)
        return Written(number)

    def departures() -> Iterator[UnderWay]:
        for number in range(6):
            seen.append(list(arrived))
            filled = Part(number, 1, ("x",))
            yield UnderWay(filled, (), frozenset(), 1, Stopwatch(), "index", partial(arrive, number))

    list(arriving(departures(), lambda: 0 if len(seen) == 3 else 100))
    assert seen == [[], [], [], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
