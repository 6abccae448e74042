"""What operators see of feeds and do with them: command line, API, doctor, metrics."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.integration.api import serving, without_auth
from tests.live.platform import Platform, until
from tests.support import promlint
from vitrina.cli import doctor
from vitrina.observe.monitoring import MetastoreCollector
from vitrina.store import database, feed_reports, feeds

FILM = "CREATE TABLE content.film (id int PRIMARY KEY, title text)"


@pytest.fixture
def followed(platform: Platform) -> Platform:
    """One pipeline follows, ten changes behind, and one waits for an identity."""
    platform.sql(f"{FILM}; CREATE TABLE content.log (id int)")
    films = platform.follow("films", film="id")
    platform.follow("logs", log="id")
    platform.start()
    platform.ready(films)
    platform.sql("INSERT INTO content.film SELECT generate_series(1, 10)")
    platform.settled()
    until(lambda: "REPLICA IDENTITY" in str(report(platform)["followers"]))
    until(lambda: report(platform)["retained_bytes"] is not None)
    return platform


def report(platform: Platform) -> dict[str, Any]:
    (found,) = feed_reports.list_all(platform.bench.metastore)
    return found


def test_the_report_says_who_is_how_far_behind(followed: Platform) -> None:
    found = report(followed)
    assert (found["connection"], found["is_owned"], found["problem"]) == ("default", True, None)
    assert found["wal_status"] == "reserved"
    assert found["keep_bytes"] == 4 * 1024**3
    assert found["stored_changes"] == found["kept_changes"] == 10
    until(lambda: report(followed)["lag_seconds"] < 2)
    films, logs = found["followers"]
    assert (films["pipeline"], films["backlog_changes"], films["is_ready"]) == ("films", 10, True)
    assert (logs["is_ready"], logs["backlog_changes"]) == (False, None)
    feeds.passed(followed.bench.metastore, followed.feed.id, films["pipeline_id"], 2**60)
    assert report(followed)["followers"][0]["backlog_changes"] == 0


def test_the_api_shows_it_and_no_login(followed: Platform) -> None:
    with serving(without_auth(followed.settings)) as api:
        answer = api.get("/api/v1/feeds")
    (item,) = answer.json()["items"]
    assert item["slot"] == followed.feed.slot
    assert [each["pipeline"] for each in item["followers"]] == ["films", "logs"]
    assert followed.settings.feed_url
    assert followed.settings.feed_url.get_secret_value() not in answer.text
    assert "postgresql://" not in answer.text


def test_metrics_are_clean_and_name_the_connection(followed: Platform) -> None:
    registry = CollectorRegistry()

    def connect() -> database.Connection:
        return database.connect(followed.settings.require_database_url(), "vitrina:test")

    registry.register(MetastoreCollector(connect, followed.settings))
    text = generate_latest(registry).decode()
    assert promlint.problems(text) == []
    assert 'vitrina_feed_owned{connection="default"} 1.0' in text
    assert 'vitrina_feed_backlog_changes{pipeline="films"} 10.0' in text
    assert 'vitrina_feed_must_reload{pipeline="films"} 0.0' in text


def test_doctor_names_what_the_login_and_the_tables_lack(followed: Platform) -> None:
    found = list(doctor._check_feeds(followed.bench.metastore, followed.settings))
    assert [(each.check, each.status) for each in found] == [
        ("feed login of default", "OK"),
        ("feed default", "OK"),
        ("pipeline logs", "WARNING"),
    ]
    assert "ALTER TABLE" in found[-1].finding
    for keeper in followed.keepers:
        keeper.stop()
    found = list(doctor._check_feeds(followed.bench.metastore, followed.settings))
    assert ("feed default", "PROBLEM") in [(each.check, each.status) for each in found]


def test_feeds_are_listed_and_dropped_on_the_command_line(followed: Platform, tmp_path: Path) -> None:
    listed = vitrina(followed, tmp_path, "feeds", "list", "-o", "json")
    assert json.loads(listed.stdout)[0]["slot"] == followed.feed.slot
    table = vitrina(followed, tmp_path, "feeds", "list").stdout
    assert "films (10 behind)" in table.replace("\n", "")
    unknown = vitrina(followed, tmp_path, "feeds", "drop", "nowhere")
    assert unknown.returncode != 0
    assert "vitrina feeds list" in unknown.stderr
    dropped = vitrina(followed, tmp_path, "feeds", "drop", "default")
    assert dropped.returncode == 0, dropped.stderr
    assert f"slot {followed.feed.slot}" in dropped.stderr
    assert not followed.exists()
    assert feeds.list_all(followed.bench.metastore) == []
    assert followed.bench.sql(r"SELECT 1 AS found FROM pg_class WHERE relname ~ '^feed_segment_\d+$'") == []
    # The runner that owned it does not make it again.
    until(lambda: not any(owner.is_running for keeper in followed.keepers for owner in keeper._owners.values()))
    assert not followed.exists()
    assert followed.bench.sql("SELECT 1 AS found FROM pg_publication") == []


def test_a_feed_is_dropped_without_a_runner_and_given_up_without_its_source(platform: Platform, tmp_path: Path) -> None:
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    platform.keepers[0].stop()
    refused = vitrina(platform, tmp_path, "feeds", "drop", "default", feed_url="")
    assert refused.returncode != 0
    assert "VITRINA_FEED_URL" in refused.stderr
    assert f"pg_drop_replication_slot('{platform.feed.slot}')" in refused.stderr
    assert platform.exists()
    given_up = vitrina(platform, tmp_path, "feeds", "drop", "default", "--forget", feed_url="")
    assert given_up.returncode == 0, given_up.stderr
    assert feeds.list_all(platform.bench.metastore) == []
    assert feeds.must_reload(platform.bench.metastore, platform.feed.id, films) == "the feed was dropped"


def vitrina(
    platform: Platform, directory: Path, *words: str, feed_url: str | None = None
) -> "subprocess.CompletedProcess[str]":
    assert platform.settings.feed_url
    url = platform.settings.feed_url.get_secret_value() if feed_url is None else feed_url
    return subprocess.run(
        [str(Path(sys.executable).with_name("vitrina")), *words],
        env={
            "PATH": os.environ["PATH"],
            "COLUMNS": "250",
            "VITRINA_DATABASE_URL": platform.settings.require_database_url(),
            "VITRINA_FEED_URL": url,
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_follower_that_stands_still_keeps_no_log_at_the_source(platform: Platform) -> None:
    """As a paused pipeline does: what it has not read is kept in the metastore."""
    platform.sql(FILM)
    films = platform.follow("films", film="id")
    platform.start()
    platform.ready(films)
    started = wal_bytes(platform)
    while wal_bytes(platform) < started + 100_000_000:
        platform.sql("INSERT INTO content.film SELECT generate_series(1, 20000), repeat(md5(random()::text), 30)")
        platform.sql("DELETE FROM content.film")
        platform.settled()
    platform.sql("CHECKPOINT")
    until(lambda: (report(platform)["retained_bytes"] or 0) < 64_000_000, 40)
    assert report(platform)["followers"][0]["backlog_changes"] >= 40_000


def wal_bytes(platform: Platform) -> int:
    (row,) = platform.bench.sql("SELECT pg_current_wal_lsn() - '0/0' AS bytes")
    return int(row["bytes"])
