"""Change films as an application while `bench.live` polls a mart or a search index.

Every title that a measurement writes begins with a unique word, by which it is found.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from vitrina.connectors.search.client import Missing, SearchClient
from vitrina.connectors.search.connection import ConnectionOptions

PATIENCE_SECONDS = 300.0
# A change that is not visible this long after any other became visible is lost.
LOST_SECONDS = 20.0
# Intervals between polls. A search takes longer than a SELECT, and should not take CPU from what is measured.
MART_SECONDS, INDEX_SECONDS = 0.002, 0.02


class View(Protocol):
    """Define where changed films become visible."""

    between_looks_seconds: float

    def shown(self, word: str, films: Collection[str]) -> Sequence[str]:
        """Return which of these films have a title that begins with the word."""
        ...

    def count(self, word: str) -> int: ...

    def total(self) -> int: ...


class MartView:
    """Poll a mart, as its readers see it."""

    between_looks_seconds = MART_SECONDS

    def __init__(self, url: str, table: str) -> None:
        self._session = psycopg.connect(url, autocommit=True)
        self._table = table

    def shown(self, word: str, films: Collection[str]) -> Sequence[str]:
        rows = self._session.execute(
            f"SELECT film_id::text FROM {self._table} WHERE film_id = ANY(%s::uuid[]) AND title LIKE %s".encode(),
            [list(films), f"{word} %"],
        )
        return [row[0] for row in rows]

    def count(self, word: str) -> int:
        return self._one(f"SELECT count(*) FROM {self._table} WHERE title LIKE '{word} %'")

    def total(self) -> int:
        return self._one(f"SELECT count(*) FROM {self._table}")

    def _one(self, statement: str) -> int:
        row = self._session.execute(statement.encode()).fetchone()
        return int(row[0]) if row else 0


class IndexView:
    """Poll a search index, as searches find its documents. A prefix works alike in text and keyword fields."""

    between_looks_seconds = INDEX_SECONDS

    def __init__(self, url: str, index: str) -> None:
        self._client = SearchClient(ConnectionOptions.from_url(url))
        self._index = index

    def shown(self, word: str, films: Collection[str]) -> Sequence[str]:
        if not films:
            return []
        wanted = {"bool": {"filter": [{"ids": {"values": list(films)}}, {"prefix": {"title": word}}]}}
        found = self._client.search(self._index, {"size": 10_000, "_source": False, "query": wanted})
        return [hit["_id"] for hit in found["hits"]["hits"]]

    def count(self, word: str) -> int:
        return self._count({"prefix": {"title": word}})

    def total(self) -> int:
        return self._count({"match_all": {}})

    def _count(self, query: dict[str, Any]) -> int:
        try:
            found = self._client.search(self._index, {"size": 0, "track_total_hits": True, "query": query})
        except Missing:
            return 0  # it is created with the first document
        return int(found["hits"]["total"]["value"])


@dataclass(frozen=True)
class Looked:
    """Hold how long each film took to become visible, and how many never did."""

    seconds: list[float]
    lost: int


@dataclass(frozen=True)
class Many:
    """Hold one transaction of many rows: the time of the UPDATE, and the time until the last row was visible."""

    update_seconds: float
    visible_seconds: float
    lost: int


def latencies(url: str, view: View, word: str, *, transactions: int, per_second: int) -> Looked:
    """Rename a film in each transaction, and poll until all of them are visible, or no other becomes so."""
    with psycopg.connect(url, autocommit=True) as session:
        rows = session.execute("SELECT id::text FROM content.film_work ORDER BY id LIMIT %s", [transactions]).fetchall()
    pending: dict[str, float] = {}
    taken: list[float] = []
    writer = threading.Thread(target=_rename_each, args=[url, word, [row[0] for row in rows], pending, per_second])
    writer.start()
    latest = time.monotonic()
    while writer.is_alive() or (pending and time.monotonic() < latest + LOST_SECONDS):
        found = view.shown(word, list(pending))
        now = time.monotonic()
        taken += [now - pending.pop(film) for film in found]
        latest = now if found else latest
        time.sleep(view.between_looks_seconds)
    writer.join()
    return Looked(sorted(taken), len(pending))


def _rename_each(url: str, word: str, films: list[str], pending: dict[str, float], per_second: int) -> None:
    started = time.monotonic()
    with psycopg.connect(url, autocommit=True) as session:
        for number, film in enumerate(films):
            session.execute("UPDATE content.film_work SET title = %s WHERE id = %s", [f"{word} {number}", film])
            pending[film] = time.monotonic()
            time.sleep(max(0.0, started + (number + 1) / per_second - time.monotonic()))


def many(url: str, view: View, word: str, *, films: int) -> Many:
    """Rename many films in one transaction, and wait until all of them are visible."""
    with psycopg.connect(url, autocommit=True) as session:
        started = time.monotonic()
        session.execute(
            "UPDATE content.film_work SET title = %s || id WHERE id IN"
            " (SELECT id FROM content.film_work ORDER BY id DESC LIMIT %s)",
            [f"{word} ", films],
        )
        committed = time.monotonic()
    shown, latest = 0, committed
    while shown < films and time.monotonic() < latest + LOST_SECONDS:
        now_shown = view.count(word)
        if now_shown > shown:
            shown, latest = now_shown, time.monotonic()
        time.sleep(view.between_looks_seconds)
    if not shown:
        raise SystemExit(f"no film with {word} was ever shown")
    return Many(committed - started, latest - committed, films - shown)


def await_true(what: str, true: Callable[[], bool], between_looks_seconds: float = 0.05) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: it did not come to that")
        time.sleep(between_looks_seconds)
