"""Sending refused rows into a search index again."""

from functools import cached_property

from psycopg.sql import Composable

from vitrina.connectors.postgres.source import Bounds
from vitrina.connectors.search.target import DocumentSender
from vitrina.loads.replay import Replaying
from vitrina.loads.search_run import SearchRun
from vitrina.ports.batch import DeadLetter, Part
from vitrina.ports.checkpoint import Checkpoint


class SearchReplay(Replaying, SearchRun):
    """Into the index that the target shows, under a write alias of this claim."""

    @cached_property
    def _open_sender(self) -> DocumentSender:
        self._judge_index()  # the letters' rows alone would make it look like the one of before
        return self._current_sender()

    def send(self, only: Composable) -> list[DeadLetter]:
        sender = self._open_sender
        refused: list[DeadLetter] = []
        for filled in self._batches_of(self._stream_into(sender, Bounds(only=only), self._row_paging())):
            self._count_documents(sender, filled)
            refused += filled.letters
        self._make_visible(sender)
        return refused

    def _after_documents(self, filled: Part) -> Checkpoint:
        return self._after_merge(filled)

    def _too_many_letters(self, more: int) -> None:
        """They were on record before."""
