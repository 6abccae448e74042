"""The parts of a load that count: a set, whatever the order in which they were accepted."""

from hypothesis import given
from hypothesis import strategies as st

from vitrina.ports.batch import PartId
from vitrina.ports.checkpoint import Accepted, Checkpoint

PARTS = st.lists(st.builds(PartId, st.integers(1, 3), st.integers(1, 12)), max_size=30)


def accepted(*parts: PartId) -> Accepted:
    found = Accepted()
    for part in parts:
        found = found.including(part)
    return found


@given(PARTS)
def test_it_holds_what_was_accepted_and_nothing_else(parts: list[PartId]) -> None:
    found = accepted(*parts)
    every = {PartId(epoch, number) for epoch in range(1, 4) for number in range(13)}
    assert {part for part in every if part in found} == set(parts)
    assert bool(found) == bool(parts)


@given(PARTS)
def test_the_order_does_not_matter_and_json_keeps_it(parts: list[PartId]) -> None:
    shuffled = sorted(parts, key=hash)
    assert accepted(*parts).ranges == accepted(*shuffled).ranges
    assert Accepted.from_json(accepted(*parts).as_json()) == accepted(*parts)


def test_parts_in_a_row_are_one_range() -> None:
    found = accepted(PartId(7, 41), *(PartId(7, number) for number in range(1, 41)), PartId(7, 43), PartId(9, 44))
    assert found.as_json() == {"7": [[1, 41], [43, 43]], "9": [[44, 44]]}


def test_the_form_of_version_0_1_is_read() -> None:
    found = Accepted.from_json({"7": 40, "9": 44})
    counted = [PartId(7, 1), PartId(7, 40), PartId(9, 44)]
    assert [part for part in (*counted, PartId(7, 41), PartId(8, 1)) if part in found] == counted


def test_a_checkpoint_counts_parts_and_never_numbers_backwards() -> None:
    found = Checkpoint(batch_no=3).accepting(PartId(5, 6), 10, "[6]").accepting(PartId(5, 4), 5, "[6]")
    assert (found.batch_no, found.rows, found.accepted.as_json()) == (6, 15, {"5": [[4, 4], [6, 6]]})
