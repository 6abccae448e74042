"""What the Spark engine decides without a cluster: URLs, part numbers, versions, answers, and what is sent."""

import io
import os
import pickle
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from vitrina.connectors.spark import cluster, shipping, unpickling, urls
from vitrina.connectors.spark.executor import NUMBERS, Numbers, proof_of
from vitrina.errors import CannotConnect, ConfigError, FatalError, TransientError
from vitrina.ports.batch import Counts, DeadLetter, Part, Timing
from vitrina.ports.ranges import FilledRange
from vitrina.settings import Settings


@pytest.mark.parametrize("url", ["sc://host:15002", "sc://host", "sc://host:15002/;use_ssl=true;token=abc"])
def test_addresses_of_servers_are_accepted(url: str) -> None:
    assert urls.problem(url) is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sc://", "not the URL"),
        ("sc://host:port", "an address that is wrong"),
        ("sc://host:15002/path", "a slash and a semicolon"),
        ("sc://host:15002?token=canary", "a slash and a semicolon"),
        ("sc://host:15002/;session_id=canary", "must not set session_id"),
        ("sc://host:15002/;token=canary==", "name=value"),
        ("sc://host:15002/;use_ssl=true;canary", "name=value"),
    ],
)
def test_other_addresses_are_refused_without_their_values(url: str, said: str) -> None:
    found = urls.problem(url)
    assert found is not None
    assert said in found
    assert "canary" not in found


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 40), st.lists(st.integers(1, NUMBERS - 1), min_size=1, max_size=20, unique=True))
def test_attempts_of_two_jobs_have_different_numbers_within_what_was_reserved(attempt: int, places: list[int]) -> None:
    # The server was started again between the two, so that it counts from the beginning.
    one, two = Numbers(0, attempt), Numbers(NUMBERS, 0)
    drawn = [one.of(attempt + place) for place in places] + [two.of(place) for place in places]

    assert len(set(drawn)) == len(drawn)
    assert all(0 < number <= NUMBERS for number in drawn[: len(places)])
    assert all(NUMBERS < number <= 2 * NUMBERS for number in drawn[len(places) :])


@pytest.mark.parametrize("place", [-5, 0, NUMBERS, NUMBERS + 1])
def test_an_attempt_beyond_what_was_reserved_is_refused(place: int) -> None:
    with pytest.raises(TransientError):
        Numbers(0, 10).of(10 + place)


def test_another_hash_key_is_noticed_without_being_told() -> None:
    none, one, other = (Settings(hash_key=key) for key in (None, SecretStr("canary"), SecretStr("another")))

    proof = proof_of(one)

    assert proof_of(none) is None
    assert proof == proof_of(one)
    assert proof != proof_of(other)
    assert proof is not None
    assert b"canary" not in proof


def test_an_answer_is_read() -> None:
    letter = DeadLetter("1", "it is odd", "{}")
    part = Part(
        7, 10, None, staged=9, letters=(letter,), timings={"read": Timing(0.0, 1.0)}, delivered=frozenset({"2"})
    )
    answer = ([("info", {"event": "read"})], FilledRange(part, ("10",), {1: 1}), None)

    assert unpickling.read(pickle.dumps(answer)) == answer
    assert answer[1].part.counts == Counts()


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_an_answer_that_would_call_something_is_refused() -> None:
    with pytest.raises(FatalError, match="system"):
        unpickling.read(pickle.dumps(([], Hostile(), None)))


def test_what_differs_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"vitrina": "1.2.0", "pyarrow": "26.0.1", "psycopg": "3.3.8"}
    monkeypatch.setattr("vitrina.connectors.spark.cluster.metadata.version", here.__getitem__)
    monkeypatch.setattr("vitrina.connectors.spark.cluster.platform.python_version", lambda: "3.11.7")
    same: dict[str, str | None] = {**here, "python": "3.11.2", "pyarrow": "26.1.0", "psycopg": "3.3.1"}
    cluster.require_fitting(same)

    with pytest.raises(FatalError, match=r"have vitrina 1\.1\.0, the runner has 1\.2\.0"):
        cluster.require_fitting(same | {"vitrina": "1.1.0"})
    with pytest.raises(FatalError, match="have no vitrina"):
        cluster.require_fitting(same | {"vitrina": None})
    # Others are told, and no reason to refuse the load.
    cluster.require_fitting(same | {"pyarrow": "25.0.0", "psycopg": None})


def test_packages_of_steps_are_packed_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "steps_of_ours" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise SystemExit")
    (package / "title.py").write_text("")
    (tmp_path / "single_step.py").write_text("raise SystemExit")

    packed = shipping.archive("steps_of_ours.deep.title, single_step,not_there", tmp_path)

    assert packed is not None
    with zipfile.ZipFile(io.BytesIO(packed.read_bytes())) as found:
        names = sorted(found.namelist())
    assert names == ["single_step.py", "steps_of_ours/__init__.py", "steps_of_ours/deep/title.py"]
    assert shipping.archive("", tmp_path) is None


class BusyCluster:
    """A session of a cluster whose executors are all busy, so that a job does not begin until it is interrupted."""

    def __init__(self) -> None:
        self.is_interrupted = threading.Event()
        self.is_stopped = threading.Event()
        self.client = self

    def interruptAll(self) -> None:  # noqa: N802 - the client's own name
        self.is_interrupted.set()

    def release_session(self) -> None:
        raise ConnectionError("no answer")

    def close(self) -> None:
        self.is_stopped.set()


def test_a_busy_cluster_is_asked_for_its_versions_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    session = BusyCluster()
    monkeypatch.setattr(cluster, "connect", lambda url: session)
    monkeypatch.setattr(cluster, "ask", lambda session: session.is_interrupted.wait())

    with pytest.raises(CannotConnect, match="has not answered"):
        cluster.differences("sc://host", 0.05)

    assert session.is_interrupted.wait(10)
    assert session.is_stopped.wait(10)


def test_opening_a_session_is_within_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    session, opened = BusyCluster(), threading.Event()

    def connect(url: str) -> BusyCluster:
        opened.wait(10)
        return session

    monkeypatch.setattr(cluster, "connect", connect)
    monkeypatch.setattr(cluster, "ask", lambda session: pytest.fail("nobody waits for the answer"))

    with pytest.raises(CannotConnect, match="no Spark Connect server listens there"):
        cluster.differences("sc://host", 0.05)

    opened.set()
    assert session.is_stopped.wait(10)


def test_errors_of_the_job_that_asks_for_versions_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Any) -> None:
        raise FatalError("no such job")

    monkeypatch.setattr(cluster, "connect", lambda url: BusyCluster())
    monkeypatch.setattr(cluster, "ask", refuse)

    with pytest.raises(FatalError, match="no such job"):
        cluster.differences("sc://host", 10.0)


@pytest.mark.parametrize(
    ("client", "server", "warned"),
    [
        ("4.1.0", "4.1.2", False),
        # A later server understands an earlier client.
        ("4.1.0", "4.3.0", False),
        ("4.3.0", "4.1.0", True),
        ("4.10.0", "4.9.0", True),
        ("4.1.0", "5.0.0", True),
        ("4.1.0", None, False),
    ],
)
def test_a_server_that_may_not_understand_the_client_is_named(client: str, server: str | None, warned: bool) -> None:
    assert bool(list(cluster._older_server(client, server))) is warned


def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith("pyspark.")]:
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=r"pip install 'vitrina\[spark\]'"):
        cluster.differences("sc://host", 10.0)
