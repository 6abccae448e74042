"""How far the reader is ahead of whoever writes: a few pieces, and none while a large one is in hand."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.waiting import until
from vitrina.connectors.postgres import prefetch
from vitrina.connectors.postgres.prefetch import BYTES_AHEAD, PIECES_AHEAD, prefetched


class Piece:
    """Something of a size."""

    def __init__(self, size: int) -> None:
        self.size = size


class Source:
    """Pieces, and how many of them are made and still kept by somebody."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = sizes
        self.made = 0
        self.kept: weakref.WeakSet[Piece] = weakref.WeakSet()
        self.most_kept = 0

    def pieces(self) -> Iterator[Piece]:
        for size in self._sizes:
            piece = Piece(size)
            self.made += 1
            self.kept.add(piece)
            self.most_kept = max(self.most_kept, len(self.kept))
            yield piece
            del piece


def size_of(piece: Piece) -> int:
    return piece.size


def test_small_pieces_are_read_ahead() -> None:
    source = Source(*[1000] * 20)
    with closing(prefetched(source.pieces(), size_of)) as pieces:
        next(pieces)
        until(lambda: source.made >= 1 + PIECES_AHEAD)


def test_a_large_piece_is_done_with_before_the_next_is_read() -> None:
    source = Source(*[BYTES_AHEAD] * 4)
    with closing(prefetched(source.pieces(), size_of)) as pieces:
        for number in range(1, 5):
            piece = next(pieces)
            assert source.made == number
            del piece
    assert source.most_kept == 1


def test_a_reader_that_waits_for_room_ends_with_its_consumer() -> None:
    source = Source(*[BYTES_AHEAD] * 4)
    pieces = prefetched(source.pieces(), size_of)
    next(pieces)
    pieces.close()
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
    assert source.made == 1


def test_an_error_comes_where_the_piece_would_have_come() -> None:
    def broken() -> Iterator[Piece]:
        yield Piece(BYTES_AHEAD)
        raise ValueError("no more")

    pieces = prefetched(broken(), size_of)
    next(pieces)
    with pytest.raises(ValueError, match="no more"):
        next(pieces)
    assert prefetch.BYTES_AHEAD > prefetch.PIECES_AHEAD * (2 << 20)  # ordinary pieces never wait for room
