"""What follows an error of Spark's client: only what is known to pass is tried again. No server is needed."""

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from vitrina.connectors.spark import cluster
from vitrina.connectors.spark.engine import SparkEngine
from vitrina.errors import CannotConnect, ConfigError, FatalError, TransientError, VitrinaError
from vitrina.observe import logs
from vitrina.ports.ranges import EngineOpening, KeyRange, Task
from vitrina.settings import Settings

grpc = pytest.importorskip("grpc")
client = pytest.importorskip("pyspark.errors.exceptions.connect")
errors = pytest.importorskip("pyspark.errors")


class Call(grpc.RpcError):  # type: ignore[misc, name-defined]
    """A call that ended with a status."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self._status = getattr(grpc.StatusCode, status)

    def code(self) -> Any:
        return self._status


def of_call(status: str, exc: Exception) -> Exception:
    """Make the exception as the client does, while it handles that of a call."""
    try:
        try:
            raise Call(status)
        except Call:
            raise exc from None
    except (VitrinaError, client.PySparkException) as made:
        return made


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (of_call("UNAVAILABLE", client.SparkConnectGrpcException("no server")), CannotConnect),
        (of_call("DEADLINE_EXCEEDED", client.SparkConnectGrpcException("too late")), CannotConnect),
        (of_call("UNAUTHENTICATED", client.SparkConnectGrpcException("who?")), ConfigError),
        # The connection broke, or the job was aborted because executors were lost.
        (of_call("INTERNAL", client.SparkConnectGrpcException("stream removed")), TransientError),
        (of_call("INTERNAL", client.SparkException("Job aborted due to stage failure")), TransientError),
        (of_call("INTERNAL", client.SparkException("[INVALID_HANDLE.SESSION_CHANGED] restarted")), TransientError),
        (of_call("INTERNAL", client.UnknownException("[OPERATION_CANCELED] interrupted")), TransientError),
        (
            errors.PySparkRuntimeError(
                errorClass="RESPONSE_ALREADY_RECEIVED",
                messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"},
            ),
            TransientError,
        ),
        (
            of_call("INTERNAL", client.UnknownException("Cannot call methods on a stopped SparkContext.")),
            TransientError,
        ),
        # These fail each time.
        (of_call("INTERNAL", client.AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] no such table")), FatalError),
        (of_call("INTERNAL", client.AnalysisException("[UNSUPPORTED_SESSION_OPERATION] no")), FatalError),
        (of_call("INTERNAL", client.UnknownException("java.lang.NoSuchMethodError")), FatalError),
        (of_call("INTERNAL", client.PythonException("ModuleNotFoundError: no module named pyarrow")), FatalError),
        (of_call("UNIMPLEMENTED", client.SparkConnectGrpcException("unknown method")), FatalError),
        (of_call("RESOURCE_EXHAUSTED", client.SparkConnectGrpcException("message too large")), FatalError),
        (of_call("INTERNAL", client.SparkRuntimeException("[PYTHON_VERSION_MISMATCH] 3.9")), FatalError),
        (TypeError("a mistake of ours"), FatalError),
    ],
)
def test_an_error_is_tried_again_only_if_it_is_known_to_pass(exc: Exception, kind: type[VitrinaError]) -> None:
    assert type(cluster.error_of(exc)) is kind


class Unsendable:
    """A handle that cannot be pickled."""

    modules = ()

    def open(self, settings: Any) -> Any:
        raise NotImplementedError

    def __reduce__(self) -> Any:
        raise TypeError("it holds a socket")


def test_what_cannot_be_sent_is_no_error_of_the_cluster(tmp_path: Path) -> None:
    opening = EngineOpening(Unsendable(), Settings(), "sc://127.0.0.1:1", lambda count: 0, logs.redactor_of)
    engine = SparkEngine(opening)
    engine.submit(Task(KeyRange(), 1, None, 100, 1000))

    [found] = list(engine.results(lambda: False))

    assert isinstance(found.error, FatalError)
    assert "it holds a socket" in str(found.error)


@pytest.mark.parametrize("url", ["sc://host:15002/;canary", "sc://host:15002/canary", "sc://host:canary"])
def test_a_url_that_the_client_refuses_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError, match="sc://HOST:15002") as found:
        cluster.connect(url)

    assert "canary" not in str(found.value)


def test_a_session_that_is_being_ended_does_not_hold_up_another() -> None:
    """The server accepts connections and never answers, so that releasing the session takes long."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"sc://127.0.0.1:{silent.getsockname()[1]}"
        threading.Thread(target=cluster.stop, args=(cluster.connect(url),), daemon=True).start()
        time.sleep(0.5)
        connecting = threading.Thread(target=cluster.connect, args=(url,), daemon=True)
        connecting.start()
        connecting.join(5)

        assert not connecting.is_alive()


ASKING = """
import sys
from vitrina.connectors.spark import cluster
from vitrina.errors import CannotConnect
for _ in range(3):
    try:
        cluster.differences(sys.argv[1], 2.0)
    except CannotConnect:
        print("silent", flush=True)
"""


def test_a_process_that_asked_a_silent_server_exits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=lambda: [silent.accept() for _ in range(100)], daemon=True).start()
        url = f"sc://127.0.0.1:{silent.getsockname()[1]}"

        done = subprocess.run(
            [sys.executable, "-c", ASKING, url], check=False, capture_output=True, text=True, timeout=40
        )

    assert (done.stdout.split(), done.returncode) == (["silent"] * 3, 0), done.stderr
