"""The cheap clients of the benchmark of the API, against the real API and a plain application."""

from pathlib import Path

from bench import control_plane
from vitrina.settings import Settings


def test_cheap_clients_mix_all_requests_and_follow_the_rules(database: Settings, tmp_path: Path) -> None:
    exercised = control_plane.exercise(database, tmp_path, clients=8, seconds=2)

    heard = exercised.heard
    assert heard.requests > 8
    assert {200, 202} <= set(heard.statuses)
    assert sum(heard.patched.values()) > 0
    assert exercised.cpu_ms_per_request > 0


def test_the_ceiling_is_a_plain_application() -> None:
    exercised = control_plane.exercise_plain(clients=4, seconds=1)

    assert set(exercised.heard.statuses) == {200}
    assert exercised.cpu_ms_per_request > 0
