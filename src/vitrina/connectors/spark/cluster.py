"""Open sessions on a Spark Connect server, compare package versions with its executors, and translate its errors."""

import json
import platform
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any, NamedTuple

from vitrina.connectors.spark import probe, urls
from vitrina.errors import CannotConnect, ConfigError, FatalError, TransientError, VitrinaError
from vitrina.sentences import say

# Detect a lost server within about half a minute; the client's default policy would retry for ten minutes.
_RETRIES = {"max_retries": 7, "initial_backoff": 100, "backoff_multiplier": 2.5, "max_backoff": 10_000, "jitter": 200}
# How long a server may take to end a session before the connection is closed.
_END_SECONDS = 5.0
# How many leading components of a version must be equal on both sides.
_COMPARED = {"vitrina": 4, "python": 2, "pyarrow": 1, "psycopg": 2}
# The server does not know the session or the job any more: it was restarted, or it has discarded them.
_FORGOTTEN = frozenset(
    {
        "INVALID_CURSOR.DISCONNECTED",
        "INVALID_CURSOR.POSITION_NOT_AVAILABLE",
        "INVALID_CURSOR.POSITION_NOT_FOUND",
        "INVALID_HANDLE.OPERATION_ABANDONED",
        "INVALID_HANDLE.OPERATION_NOT_FOUND",
        "INVALID_HANDLE.SESSION_CHANGED",
        "INVALID_HANDLE.SESSION_CLOSED",
        "INVALID_HANDLE.SESSION_NOT_FOUND",
        "OPERATION_CANCELED",
        # The client's own name for one of the above, when it had received a part of the results.
        "RESPONSE_ALREADY_RECEIVED",
    }
)
# What a server that is being stopped says to a job.
_STOPPED = "stopped SparkContext"
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
# If these differ, the executor may not be able to unpickle steps and handles.
_NEEDED = ("vitrina", "python")


class Answer(NamedTuple):
    """Hold the result of the one-row probe job."""

    # Spark numbers attempts in increasing order; a restarted server begins again.
    attempt: int
    versions: dict[str, str | None]


def connect(url: str) -> Any:
    """Open a new session. The client does not contact the server until the first job."""
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as exc:
        raise ConfigError("Spark needs its client on every runner: pip install 'vitrina[spark]'") from exc
    try:
        session: Any = SparkSession.builder.remote(url).create()
    except ValueError:
        # Its message may quote the URL, and the URL may hold a token.
        raise ConfigError(say("run.spark_wrong_url", example=urls.EXAMPLE)) from None
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    return session


def stop(session: Any, *, interrupts: bool = False) -> None:
    """End a session on the server, with its jobs if requested, and close its connection.

    A server may never answer: closing the connection ends calls that wait, which would keep the process from exiting.
    The client's own `stop` holds a lock while it tries to reach the server, and every new session needs that lock.
    """
    closing = threading.Timer(_END_SECONDS, _close, [session])
    closing.daemon = True
    closing.start()
    if interrupts:
        with suppress(Exception):
            session.interruptAll()
    with suppress(Exception):
        session.client.release_session()
    closing.cancel()
    _close(session)


def _close(session: Any) -> None:
    with suppress(Exception):
        session.client.close()


def ask(session: Any) -> Answer:
    """Run a job of one row on an executor."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(probe)
    with translated():
        frame = session.range(1, numPartitions=1).mapInArrow(probe.probe, probe.SCHEMA)
        [row] = frame.collect()
    return Answer(row["attempt"], json.loads(row["versions"]))


def differences(url: str, limit_seconds: float) -> Sequence[str]:
    """List the packages whose versions differ between the executors and this process, as messages.

    Raise CannotConnect if there is no answer in time: a job waits without a limit while all executors are busy.
    """
    asking = _Asking(url)
    threading.Thread(target=asking.ask, name="spark-versions", daemon=True).start()
    there = asking.answer(limit_seconds).versions
    import pyspark

    differing = [_sentence(name, *found) for name, found in _differing(there).items()]
    return [*differing, *_older_server(pyspark.__version__, there.get("spark"))]


class _Asking:
    """Run the probe job in a thread, because no call of the client has a limit of time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: Any = None
        self._is_over = threading.Event()
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

    def ask(self) -> None:
        try:
            self._session = connect(self._url)
            if not self._is_over.is_set():
                self._answers.put(ask(self._session))
        except BaseException as exc:  # noqa: BLE001 - raised by the thread that waits
            self._answers.put(exc)
        self._stop()

    def answer(self, limit_seconds: float) -> Answer:
        try:
            found = self._answers.get(timeout=limit_seconds)
        except queue.Empty:
            self._is_over.set()
            # In a thread as well: the server may not answer this either.
            ending = threading.Thread(target=self._stop, kwargs={"interrupts": True}, name="spark-end", daemon=True)
            ending.start()
            raise CannotConnect(say("run.spark_silent", seconds=limit_seconds)) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _stop(self, *, interrupts: bool = False) -> None:
        if self._session is not None:
            stop(self._session, interrupts=interrupts)


def require_fitting(versions: dict[str, str | None]) -> None:
    """Raise FatalError if the executors cannot read what this process sends."""
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


def _older_server(client: str, server: str | None) -> Iterator[str]:
    """Warn if the server may not understand the client: later servers of the same major version do."""
    here, there = ([int(part) for part in re.findall(r"\d+", version)[:2]] for version in (client, server or client))
    if here > there or here[0] != there[0]:
        yield say("run.spark_server_differs", here=client, there=server)


def _sentence(name: str, here: str, there: str | None) -> str:
    if there is None:
        return say("run.spark_package_missing", package=name, here=here)
    return say("run.spark_package_differs", package=name, here=here, there=there)


@contextmanager
def translated() -> Iterator[None]:
    """Translate the client's exceptions into Vitrina's."""
    try:
        yield
    except VitrinaError:
        raise
    except Exception as exc:
        raise error_of(exc) from exc


def error_of(exc: Exception) -> VitrinaError:
    """Translate an exception of the client: the cluster was unreachable, was lost, or refused the job.

    Only what is known to be temporary is tried again. A job that the server does not understand fails each time.
    """
    from grpc import StatusCode

    reason, code = _first_line(exc), _status_of(exc)
    condition = _condition_of(exc, reason)
    if condition == "PYTHON_VERSION_MISMATCH":
        return FatalError(say("run.spark_python_differs", here=platform.python_version()))
    if code in (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED):
        return CannotConnect(say("run.spark_unreachable"))
    if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
        return ConfigError(say("run.spark_refused_login"))
    if condition in _FORGOTTEN or _STOPPED in reason:
        return TransientError(say("run.spark_restarted"))
    if _is_temporary(exc, code):
        return TransientError(say("run.spark_job_failed", reason=reason))
    return FatalError(say("run.spark_job_failed", reason=reason))


def _is_temporary(exc: Exception, code: Any) -> bool:
    """Return whether a job was aborted, as after the loss of executors, or its connection broke."""
    from grpc import RpcError, StatusCode
    from pyspark.errors.exceptions import connect as client

    if type(exc) is client.SparkException:
        return True
    broken = (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.ABORTED, StatusCode.CANCELLED)
    return (type(exc) is client.SparkConnectGrpcException or isinstance(exc, RpcError)) and code in broken


def _status_of(exc: BaseException) -> Any:
    """Find the status of the call that failed, from which the client made the exception."""
    from grpc import RpcError

    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, RpcError):
        cause = cause.__cause__ or cause.__context__
    return cause.code() if isinstance(cause, RpcError) and hasattr(cause, "code") else None


def _condition_of(exc: Exception, reason: str) -> str | None:
    """Return Spark's name for an error, such as INVALID_HANDLE.SESSION_CHANGED. Its messages begin with it."""
    named = getattr(exc, "getCondition", lambda: None)()
    if named:
        return str(named)
    found = _CONDITION.search(reason)
    return found[1] if found else None


def _first_line(exc: Exception) -> str:
    """Return the first non-empty line, which states the reason; the server's stack trace follows it."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[0] if lines else type(exc).__name__)[:500]
