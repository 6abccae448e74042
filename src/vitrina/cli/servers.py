"""`vitrina api`, `vitrina runner`, `vitrina migrate`: the long-running processes and their database."""

import gc
import signal
import socket
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina import __version__
from vitrina.cli import local, processes
from vitrina.cli.exits import ExitCode
from vitrina.errors import ConfigError

if TYPE_CHECKING:
    from vitrina.settings import Settings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
# A variable of prometheus_client: if it is set, processes count in files of that directory.
METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def api(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = DEFAULT_PORT,
    workers: Annotated[
        int,
        typer.Option(help="Processes that share the port, about one for each core.", min=1, max=64),
    ] = 1,
    socket_number: Annotated[int | None, typer.Option("--socket", hidden=True)] = None,
    end_with_stdin: processes.EndWithStdin = False,
) -> None:
    """Serve the REST API, its documentation and the console."""
    from vitrina.api import security

    settings = _begin(end_with_stdin)
    security.require_auth_or_loopback(settings, host)
    listener = listen(host, port) if socket_number is None else socket.socket(fileno=socket_number)
    with listener, processes.ending_like_ctrl_c(), local.database(settings) as settings:
        _require_migrated(settings)
        if workers == 1:
            _serve(settings, host, listener)
        else:
            _serve_with_workers(settings, host, listener, workers)


def runner(
    concurrency: Annotated[
        int | None, typer.Option(help="Pipelines to run at a time. [default: VITRINA_CONCURRENCY or 4]", min=1)
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Take one pipeline, run it to its end, and exit with its outcome.")
    ] = False,
    pipeline: Annotated[
        str | None,
        typer.Option(help="With --once: run this pipeline, by name or id; a run is requested unless one is waiting."),
    ] = None,
    end_with_stdin: processes.EndWithStdin = False,
) -> None:
    """Run pipelines until stopped. Any number of runners may share one database.

    With --once, for cron and Kubernetes Jobs: exits with 0 when the run succeeded or nothing waits, 1 when it failed
    or was stopped, 5 when the pipeline is paused or another runner runs it.
    """
    if pipeline is not None and not once:
        raise typer.BadParameter("name a pipeline together with --once", param_hint="--pipeline")
    settings = _begin(end_with_stdin, **({"concurrency": concurrency} if concurrency else {}))
    with processes.ending_like_ctrl_c(), local.database(settings) as settings:
        _require_migrated(settings)
        from vitrina.runner.manager import PipelineManager

        _collect_garbage_rarely()
        processes.close_to_others()
        if once:
            _run_once(settings, pipeline)
        else:
            PipelineManager(settings).run_forever()


def _run_once(settings: "Settings", pipeline: str | None) -> None:
    from vitrina.runner.once import Ending, OnceRunner

    runner = OnceRunner(settings, pipeline)
    ending = runner.run_once()
    local.say(runner.message)
    codes = {Ending.FAILED: ExitCode.FAILED, Ending.STOPPED: ExitCode.FAILED, Ending.PAUSED: ExitCode.CONFLICT}
    if ending in codes:
        raise typer.Exit(codes[ending])


def _collect_garbage_rarely() -> None:
    """Collect garbage rarely: a batch has tens of thousands of containers, none of them in a cycle.

    With Python's default threshold of 700, the collector took a fifth of the CPU of a search load.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20)


def migrate() -> None:
    """Create or update roles, schemas and tables in the database. Safe to run at any time."""
    from vitrina.store import database, migrate

    settings = _begin(False)
    with (
        processes.ending_like_ctrl_c(),
        local.database(settings, migrated=False) as settings,
        database.translated("migrating"),
    ):
        print(migrate.migrate(settings))
        local.say(f"{database.describe(settings.require_database_url())} is up to date")


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror}; choose another address with --host and --port"
        ) from exc


def _begin(end_with_stdin: bool, **overrides: int) -> "Settings":
    from vitrina.observe import logs

    if end_with_stdin:
        processes.end_with_stdin()
    settings = local.load_settings(**overrides)
    logs.configure(settings)
    return settings


def _require_migrated(settings: "Settings") -> None:
    """Report in one line, before anything starts, that the database is missing or has another version."""
    from vitrina.store import database, migrate

    with (
        database.connect(settings.require_database_url(), "vitrina:start") as connection,
        database.translated("looking at the metastore"),
    ):
        migrate.require_current(connection)


def _serve(settings: "Settings", host: str, listener: socket.socket) -> None:
    import structlog

    from vitrina.api.app import create_app
    from vitrina.api.server import make_server

    server = make_server(create_app(settings, bind_host=host), listener, settings=settings)
    structlog.get_logger().info("api.started", url=_url_of(listener), auth=settings.auth, version=__version__)
    # uvicorn handles both signals, and raises them once more when it is done.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)
    server.run(sockets=[listener])
    if not server.started:
        raise typer.Exit(1)


def _serve_with_workers(settings: "Settings", host: str, listener: socket.socket, workers: int) -> None:
    """Serve with workers that accept from the same socket. When one ends they all do, and are restarted together."""
    arguments = ["api", "--host", host, "--socket", str(listener.fileno())]
    with tempfile.TemporaryDirectory(prefix="vitrina-api-") as counted, processes.Children(_pass_on) as children:
        # One worker answers /metrics with the counts of all workers.
        environment = local.database_environment(settings) | {METRICS_DIRECTORY: counted}
        for number in range(1, workers + 1):
            children.start(f"API worker {number}", arguments, environment, sockets=[listener.fileno()])
        with suppress(KeyboardInterrupt):
            children.wait_for_an_end()


def _pass_on(name: str, line: str) -> None:
    """Print lines of workers to the output of this process."""
    print(line, flush=True)


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ignore(number: int, frame: object) -> None:
    """Do nothing. SIG_IGN instead would be inherited by child processes."""
