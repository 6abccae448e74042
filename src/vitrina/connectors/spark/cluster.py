"""Sessions on a Spark Connect server, what its executors have installed, and what its errors mean for a run."""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple

from vitrina.connectors.spark import probe
from vitrina.errors import CannotConnect, ConfigError, FatalError, TransientError, VitrinaError
from vitrina.sentences import say

# A server that is gone is noticed within about half a minute; the client would try for ten.
_RETRIES = {"max_retries": 7, "initial_backoff": 100, "backoff_multiplier": 2.5, "max_backoff": 10_000, "jitter": 200}
# How many of the numbers of a version must be the same on both sides.
_COMPARED = {"vitrina": 4, "python": 2, "pyarrow": 1, "psycopg": 2}
# Without the same, steps and handles may not even be read.
_NEEDED = ("vitrina", "python")


class Answer(NamedTuple):
    """What a job of one row found out."""

    # Attempts that are begun later have higher numbers, until the server starts again.
    attempt: int
    versions: dict[str, str | None]


def connect(url: str) -> Any:
    """Open a session of our own; the server is asked for the first time by the first job."""
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as exc:
        raise ConfigError("Spark needs its client on every runner: pip install 'vitrina[spark]'") from exc
    session: Any = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    return session


def ask(session: Any) -> Answer:
    """Run a job of one row on an executor."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(probe)
    with translated():
        frame = session.range(1, numPartitions=1).mapInArrow(probe.probe, probe.SCHEMA)
        [row] = frame.collect()
    return Answer(row["attempt"], json.loads(row["versions"]))


def differences(url: str) -> Sequence[str]:
    """Name what executors have in another version than this process, for people."""
    session = connect(url)
    try:
        return [_sentence(name, *found) for name, found in _differing(ask(session).versions).items()]
    finally:
        session.stop()


def require_fitting(versions: dict[str, str | None]) -> None:
    """Refuse a cluster whose executors cannot read what we send."""
    differing = _differing(versions)
    for name in _NEEDED:
        if name in differing:
            raise FatalError(_sentence(name, *differing[name]))


def _differing(there: dict[str, str | None]) -> dict[str, tuple[str, str | None]]:
    here = {"python": platform.python_version()} | {
        name: metadata.version(name) for name in ("vitrina", "pyarrow", "psycopg")
    }
    return {
        name: (here[name], there.get(name))
        for name, places in _COMPARED.items()
        if here[name].split(".")[:places] != (there.get(name) or "").split(".")[:places]
    }


def _sentence(name: str, here: str, there: str | None) -> str:
    if there is None:
        return say("run.spark_package_missing", package=name, here=here)
    return say("run.spark_package_differs", package=name, here=here, there=there)


@contextmanager
def translated() -> Iterator[None]:
    """Say in our words what the client raises."""
    try:
        yield
    except VitrinaError:
        raise
    except Exception as exc:
        raise error_of(exc) from exc


def error_of(exc: Exception) -> VitrinaError:
    """Translate an error of the client: whether the cluster was not reached, was lost, or refused the job."""
    from grpc import RpcError, StatusCode

    reason = _first_line(exc)
    if "PYTHON_VERSION_MISMATCH" in str(exc):
        return FatalError(say("run.spark_python_differs", here=platform.python_version()))
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, RpcError):
        cause = cause.__cause__ or cause.__context__
    code = cause.code() if isinstance(cause, RpcError) and hasattr(cause, "code") else None
    if code in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED):
        return CannotConnect(say("run.spark_unreachable"))
    if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
        return ConfigError(say("run.spark_refused_login"))
    if any(word in reason for word in ("SESSION_", "OPERATION_", "INVALID_HANDLE")):
        return TransientError(say("run.spark_restarted"))
    return TransientError(say("run.spark_job_failed", reason=reason))


def _first_line(exc: Exception) -> str:
    """Take what says why; a whole stack of the server follows it."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[0] if lines else type(exc).__name__)[:500]
