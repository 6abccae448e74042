"""How soon a live mart shows a commit: `python -m bench.live` writes `results/live.md`.

A cinema in one embedded server, which is source, metastore and target; one runner process. Two hundred transactions a
second each rename another film, and a reader looks at the mart all the time: the time from the end of a COMMIT to the
first look that shows it. Then one transaction renames many films, and the time of its batch gives the stale keys that
are asked for and merged in a second. `SECONDS`, `RATE`, `FILMS` and `KEYS` in the environment change the sizes.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench import report, servers
from vitrina.definition import Definition
from vitrina.embedded import cinema
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines, runs

SECONDS = float(os.environ.get("SECONDS", "20"))
RATE = int(os.environ.get("RATE", "200"))
FILMS = int(os.environ.get("FILMS", "70000"))
KEYS = int(os.environ.get("KEYS", "20000"))
PATIENCE_SECONDS = 120.0

ONE_TABLE = "SELECT id AS film_id, title, rating, type, creation_date FROM content.film_work"
MARTS = {"film_dim_live": "film_dim", "film_copy_live": "one table"}


def main() -> None:
    with servers.prepared() as (settings, _):
        assert settings.admin_url
        admin_url = settings.admin_url.get_secret_value()
        with (
            database.connect(admin_url, "vitrina:bench") as admin,
            database.connect(settings.require_database_url(), "vitrina:bench") as metastore,
        ):
            cinema.generate(admin, FILMS, 1000, 1)
            figures: dict[str, Any] = {"films": FILMS}
            for name, title in MARTS.items():
                _define(metastore, name)
                with _runner(settings):
                    _await_following(metastore, name)
                    found = _measured(admin_url, metastore, name)
                    figures |= {f"{title}: {what}": value for what, value in found.items()}
                _disable(metastore, name)
    intro = f"{RATE} transactions a second for {SECONDS:.0f} s, then one of {KEYS} rows; one runner, one server."
    report.write_figures("live", "Commit to visible", intro, figures)


def _define(metastore: database.Connection, name: str) -> None:
    found = pipelines.find(metastore, "film_dim_full")
    query = found["source_query"] if found and name == "film_dim_live" else ONE_TABLE
    definition = Definition.model_validate(
        {
            "name": name,
            "source_query": query,
            "target_table": f"analytics.{name}",
            "target_key": ["film_id"],
            "mode": "live",
        }
    )
    made = pipelines.insert(metastore, definition, pipeline_id=None, managed_by=None)
    pipelines.request_run(metastore, made, trigger=Trigger.API)


def _disable(metastore: database.Connection, name: str) -> None:
    """Let nothing follow it while the next one is measured."""
    found = pipelines.find(metastore, name)
    if found:
        pipelines.set_enabled(metastore, found["id"], False)


@contextmanager
def _runner(settings: Settings) -> Iterator[None]:
    urls = {
        "VITRINA_DATABASE_URL": settings.database_url,
        "VITRINA_READER_URL": settings.reader_url,
        "VITRINA_FEED_URL": settings.admin_url,
    }
    environment = os.environ | {name: url.get_secret_value() for name, url in urls.items() if url}
    program = Path(sys.executable).with_name("vitrina")
    process = subprocess.Popen(
        [program, "runner"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)


def _await(what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: it did not come to that")
        time.sleep(0.05)


def _run(metastore: database.Connection, name: str) -> dict[str, Any]:
    found = pipelines.find(metastore, name)
    if found is None or found["status"] == "FAILED":
        raise SystemExit(f"{name}: {found and found['last_error']}")
    return runs.find_current(metastore, found["id"]) or {"metrics": {}}


def _await_following(metastore: database.Connection, name: str) -> None:
    _await(f"{name} follows", lambda: bool(_run(metastore, name)["metrics"].get("following")))


def _measured(url: str, metastore: database.Connection, name: str) -> dict[str, Any]:
    latencies = sorted(_latencies(url, name))
    seconds, batch_ms = _keys(url, metastore, name)
    return {
        "transactions": len(latencies),
        "p50_ms": _ms(latencies, 0.5),
        "p99_ms": _ms(latencies, 0.99),
        "max_ms": _ms(latencies, 1.0),
        "keys": KEYS,
        "commit_to_visible_s": round(seconds, 2),
        "keys_per_second_of_the_batch": round(KEYS / (batch_ms / 1000)) if batch_ms else None,
    }


def _ms(ordered: list[float], quantile: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] * 1000, 1)


# --- single transactions ---------------------------------------------------------------------------------------------


def _latencies(url: str, name: str) -> list[float]:
    """Rename a film in each transaction, and look at the mart until all of them are there."""
    pending: dict[Any, float] = {}
    taken: list[float] = []
    wanted = int(SECONDS * RATE)
    with psycopg.connect(url, autocommit=True) as session:
        rows = session.execute("SELECT id FROM content.film_work ORDER BY id LIMIT %s", [wanted]).fetchall()
    writer = threading.Thread(target=_rename_each, args=[url, name, [row[0] for row in rows], pending])
    writer.start()
    with psycopg.connect(url, autocommit=True) as session:
        while writer.is_alive() or pending:
            waiting = list(pending)
            found = session.execute(
                f"SELECT film_id FROM analytics.{name} WHERE film_id = ANY(%s) AND title LIKE '{name} %%'".encode(),
                [waiting],
            ).fetchall()
            now = time.monotonic()
            taken += [now - pending.pop(row[0]) for row in found]
            time.sleep(0.002)
    writer.join()
    return taken


def _rename_each(url: str, name: str, films: list[Any], pending: dict[Any, float]) -> None:
    started = time.monotonic()
    with psycopg.connect(url, autocommit=True) as session:
        for number, film in enumerate(films):
            session.execute("UPDATE content.film_work SET title = %s WHERE id = %s", [f"{name} {number}", film])
            pending[film] = time.monotonic()
            time.sleep(max(0.0, started + (number + 1) / RATE - time.monotonic()))


# --- many keys at once -----------------------------------------------------------------------------------------------


def _keys(url: str, metastore: database.Connection, name: str) -> tuple[float, float]:
    """Rename many films in one transaction: the time until the mart shows them, and that of the batch alone."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(
            "UPDATE content.film_work SET title = %s || id WHERE id IN"
            " (SELECT id FROM content.film_work ORDER BY id DESC LIMIT %s)",
            [f"many {name} ", KEYS],
        )
        started = time.monotonic()
        count = f"SELECT count(*) FROM analytics.{name} WHERE title LIKE 'many {name} %'"
        _await("all of them are shown", lambda: _one(session, count) == KEYS)
        return time.monotonic() - started, float(_run(metastore, name)["metrics"]["batch_ms"]["max"] or 0)


def _one(session: psycopg.Connection[Any], statement: str) -> Any:
    row = session.execute(statement.encode()).fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    main()
