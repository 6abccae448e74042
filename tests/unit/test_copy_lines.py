"""Lines of COPY: cut into batches between positions, and read where a batch ends."""

from collections.abc import Iterator

import pytest

from vitrina.connectors.postgres import copy
from vitrina.connectors.postgres.copy import Line, Lines


def batches(pieces: list[list[bytes]], places: tuple[int, ...], rows: int) -> Iterator[tuple[int, object]]:
    lines = Lines((list[Line](piece) for piece in pieces), places)
    while lines.waiting:
        yield sum(len(piece) for piece in lines.batch(rows)), lines.position


def line(*fields: str) -> bytes:
    return "\t".join(fields).encode() + b"\n"


def test_a_batch_has_the_wanted_rows_however_they_come() -> None:
    rows = [line(str(i), "x") for i in range(7)]
    expected = [(3, ("2",)), (3, ("5",)), (1, ("6",))]
    assert list(batches([rows], (0,), 3)) == expected
    assert list(batches([[row] for row in rows], (0,), 3)) == expected


def test_lines_of_one_position_stay_together() -> None:
    rows = [line("x", key) for key in "aabbbbc"]
    expected = [(2, ("a",)), (4, ("b",)), (1, ("c",))]
    assert list(batches([rows], (1,), 1)) == expected
    assert list(batches([rows[:3], rows[3:5], rows[5:]], (1,), 1)) == expected


def test_a_position_of_two_columns() -> None:
    rows = [line("1", "a"), line("1", "b"), line("2", "b")]
    assert list(batches([rows], (0, 1), 1)) == [(1, ("1", "a")), (1, ("1", "b")), (1, ("2", "b"))]


def test_wide_lines_end_a_batch_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "MAX_BATCH_BYTES", 100)
    rows = [[line(str(i), "x" * 60)] for i in range(5)]
    assert [count for count, _ in batches(rows, (0,), 1000)] == [2, 2, 1]


def test_without_an_order_everything_is_one_batch() -> None:
    assert list(batches([[line("1")], [line("2")]], (), 1)) == [(2, None)]


def test_no_rows() -> None:
    assert list(batches([], (0,), 10)) == []


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"plain", "plain"),
        (r"a\tb\nc", "a\tb\nc"),
        (r"back\\slash", "back\\slash"),
        (r"\\n", "\\n"),  # a backslash and an n, not a new line
        (r"\\\n", "\\\n"),
        (r"\b\f\r\v", "\b\f\r\v"),
        (r"\N", None),
        (r"\\N", "\\N"),
    ],
)
def test_escapes_of_copy(written: str, value: str | None) -> None:
    assert list(batches([[line(written)]], (0,), 1)) == [(1, (value,))]
