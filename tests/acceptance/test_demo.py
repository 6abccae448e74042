"""From nothing to marts with one command: `vitrina demo`, once, again, and against a database of one's own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from vitrina.embedded import search_server
from vitrina.settings import Settings

VITRINA = [sys.executable, "-m", "vitrina.cli"]
pytestmark = pytest.mark.timeout(400)

PIPELINES = ["film_dim_full", "film_rating_agg_full", "daily_views", "user_activity", "audience_segments", "film_cards"]


@pytest.fixture
def checkout() -> Iterator[Path]:
    """An empty directory with a space in its name, which the account of root's PostgreSQL may pass through."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "my checkout"
        path.mkdir()
        yield path


def test_the_demo_fills_the_marts_and_running_it_again_changes_nothing(checkout: Path) -> None:
    first = demo(checkout)
    assert first.returncode == 0, first.stderr
    runs, _, marts = first.stdout.partition("\n\n")
    header, *lines = runs.removeprefix("Runs\n").splitlines()
    assert header.split() == "PIPELINE STATUS READ INSERTED UPDATED DELETED UNCHANGED SECONDS ROWS/S".split()
    for line, name in zip(lines, PIPELINES, strict=True):
        pipeline, status, read, inserted, updated, deleted, unchanged, *_ = line.split()
        assert (pipeline, status) == (name, "SUCCESS")
        assert int(read.replace(",", "")) >= 200
        assert (inserted, updated, deleted, unchanged) == (read, "0", "0", "0")
    assert marts.count("Star Trek") >= 3
    assert "analytics.film_dim\n" in marts
    assert "analytics.film_rating_agg\n" in marts
    assert "vitrina dev`" in first.stderr.splitlines()[-1]

    second = json.loads(demo(checkout, "--output", "json").stdout)
    assert [run["pipeline"] for run in second["runs"]] == PIPELINES
    for run in second["runs"]:
        metrics = run["metrics"]
        assert run["status"] == "SUCCESS"
        assert metrics["inserted"] + metrics["updated"] + metrics["deleted"] == run["rows_written"] == 0
        assert metrics["unchanged"] == run["rows_read"]
    assert second["runs"][0]["metrics"]["unchanged"] >= 200
    assert [len(rows) for rows in second["marts"].values()] == [5, 5, 4, 5]


def test_the_demo_works_on_a_database_of_ones_own(checkout: Path, database: Settings) -> None:
    for _ in range(2):
        done = demo(checkout, settings=variables(database))
        assert done.returncode == 0, done.stderr
    assert not (checkout / ".vitrina").exists()
    assert ask(database, "SELECT count(*) FROM analytics.film_dim") == ask(
        database, "SELECT count(*) FROM content.film_work"
    )
    assert ask(database, "SELECT sum(views) FROM analytics.daily_views") == ask(
        database, "SELECT count(*) FROM ugc.views"
    )
    assert ask(database, "SELECT sum(ratings) FROM analytics.user_activity") == ask(
        database, "SELECT count(*) FROM ugc.ratings"
    )
    assert ask(database, "SELECT count(*) FROM analytics.audience_segments") == ask(
        database, "SELECT count(*) FROM auth.users"
    )
    assert ask(database, "SELECT count(DISTINCT segment) FROM analytics.audience_segments") == 4
    assert ask(database, "SELECT array_agg(name ORDER BY name) FROM etl.etl_pipelines") == sorted(PIPELINES)
    assert ask(database, "SELECT count(*) FROM etl.etl_runs WHERE status = 'SUCCESS'") == 12
    assert ask(database, "SELECT count(*) FROM etl.etl_runners") == 0


def test_new_views_reach_the_incremental_marts_and_only_their_groups_are_written(
    checkout: Path, database: Settings
) -> None:
    demo(checkout, settings=variables(database))
    ask(
        database,
        "INSERT INTO ugc.views (user_id, film_id, seconds) SELECT user_id, film_id, 60 FROM ugc.views WHERE id = 1"
        " RETURNING id",
    )
    again = json.loads(demo(checkout, "--output", "json", settings=variables(database)).stdout)
    written = {run["pipeline"]: (run["metrics"]["inserted"], run["metrics"]["updated"]) for run in again["runs"]}
    assert written["daily_views"] == (1, 0)
    assert written["user_activity"] == (0, 1)
    assert ask(database, "SELECT sum(views) FROM analytics.daily_views") == ask(
        database, "SELECT count(*) FROM ugc.views"
    )


def test_a_larger_cinema_is_generated(checkout: Path, database: Settings) -> None:
    done = demo(checkout, "--films", "2000", "--ratings", "30000", "-o", "json", settings=variables(database))
    assert done.returncode == 0, done.stderr
    assert "cinema: 2,000 films" in done.stderr
    assert "30,000 ratings" in done.stderr
    assert json.loads(done.stdout)["runs"][0]["rows_read"] == 2000


@pytest.mark.parametrize("found", ["nothing", "a server", "a server that does not start"])
def test_the_demo_searches_when_a_server_is_at_hand(checkout: Path, database: Settings, found: str) -> None:
    installed = search_server.install(search_server.KINDS[0])
    base = checkout.parent / "cache"
    cache = base / "vitrina" / "search"
    cache.mkdir(parents=True)
    if found == "a server":
        (cache / installed.name).symlink_to(installed)
    elif found == "a server that does not start":
        (cache / installed.name / "config").mkdir(parents=True)
        (cache / installed.name / "config" / "jvm.options").touch()

    done = demo(checkout, settings={**variables(database), "XDG_CACHE_HOME": str(base)})

    assert done.returncode == 0, done.stderr
    assert ("Star Wars" in done.stdout.partition('search for "star wars"')[2]) == (found == "a server")
    assert ("vitrina demo --search`" in done.stderr) == (found != "a server")
    assert ("search: left out" in done.stderr) == (found == "a server that does not start")


@pytest.mark.parametrize("victim", ["api", "runner"])
def test_a_demo_that_loses_a_process_says_what_it_said_last(checkout: Path, database: Settings, victim: str) -> None:
    with subprocess.Popen(
        [*VITRINA, "demo", "--no-search"],
        cwd=checkout,
        env=environment(variables(database)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.kill(await_child(process.pid, victim), signal.SIGKILL)
        said, complaint = process.communicate(timeout=180)
    assert (process.returncode, said) == (1, "")
    assert f"error: the {victim} was killed by SIGKILL" in complaint


def demo(checkout: Path, *arguments: str, settings: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Without search, unless it is asked for: a server may be at hand."""
    chosen = () if "--search" in arguments or "XDG_CACHE_HOME" in (settings or {}) else ("--no-search",)
    return subprocess.run(
        [*VITRINA, "demo", *chosen, *arguments],
        cwd=checkout,
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def environment(settings: dict[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VITRINA_", "ELASTICSEARCH_"))}
    return kept | (settings or {})


def await_child(parent: int, command: str) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                is_child = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
                if is_child and command in (entry / "cmdline").read_text().split("\0"):
                    return int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
        time.sleep(0.05)
    raise AssertionError(f"process {parent} has no child {command!r}")


def variables(settings: Settings) -> dict[str, str]:
    """The settings of a test's database as a person would set them."""
    names = ("database_url", "admin_url", "reader_url", "app_password", "reader_password")
    return {f"VITRINA_{name.upper()}": getattr(settings, name).get_secret_value() for name in names}


def ask(settings: Settings, query: str) -> Any:
    assert settings.admin_url
    with psycopg.connect(settings.admin_url.get_secret_value(), autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]
