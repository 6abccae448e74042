"""Start and stop database, API and runner together on this machine, for `vitrina dev` and `vitrina demo`."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrina.cli import local, search
from vitrina.cli.processes import Children
from vitrina.errors import CannotConnect, ConfigError, VitrinaError

if TYPE_CHECKING:
    from vitrina.embedded.postgres import EmbeddedPostgres
    from vitrina.settings import Settings

HOST = "127.0.0.1"
PORTS_TRIED = 100
START_SECONDS = 60.0


@dataclass(frozen=True)
class Stack:
    """Hold the running processes and the address of the API."""

    children: Children
    port: int
    search_url: str | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@contextmanager
def migrated_database(settings: "Settings") -> Iterator[tuple["Settings", "EmbeddedPostgres | None"]]:
    """Yield the configured database or the embedded one, migrated."""
    from vitrina.store import database, migrate

    if settings.database_url is not None:
        local.say(f"database: {database.describe(settings.database_url.get_secret_value())}")
        migrate.migrate(settings)
        yield settings, None
        return
    with local.embedded(settings) as (server, found):
        migrate.migrate(found)
        yield found, server


@contextmanager
def running(
    settings: "Settings",
    wanted_port: int,
    on_line: Callable[[str, str], None],
    *,
    with_search: bool = False,
    is_search_vital: bool = True,
    more: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Start an API process and a runner process, without authentication, on loopback only.

    `more` is added to the environment of both. Raise `NotStarted` if an optional search server does not start.
    """
    environment = {**local.database_environment(settings), "VITRINA_AUTH": "off", **(more or {})}
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        environment["FORCE_COLOR"] = "1"
    with Children(on_line) as children:
        if with_search:
            try:
                environment["ELASTICSEARCH_URL"] = search.start_beside(children)
            except VitrinaError as exc:
                if is_search_vital:
                    raise
                told = exc.message.rpartition("\n")[2].strip().removeprefix("error: ")
                raise search.NotStarted(told) from exc
            if (
                "allowed_targets" not in settings.model_fields_set
            ):  # a server started here, without indexes of other users
                allowed = environment.get("VITRINA_ALLOWED_TARGETS", settings.allowed_targets)
                environment["VITRINA_ALLOWED_TARGETS"] = f"{allowed},es:*"
        with listen_on_free_port(wanted_port) as listener:
            port = listener.getsockname()[1]
            # The API inherits the open socket, so that no other process can take the port in between.
            number = listener.fileno()
            without_key = {**environment, "VITRINA_SECRET_KEY": "", "VITRINA_SECRET_KEY_FILE": ""}
            children.start("api", ["api", "--host", HOST, "--socket", str(number)], without_key, sockets=[number])
        children.start("runner", ["runner"], {**environment, **local.key_environment(settings)})
        stack = Stack(children, port, environment.get("ELASTICSEARCH_URL"))
        _await_api(stack)
        yield stack


def listen_on_free_port(wanted: int) -> socket.socket:
    for port in range(wanted, min(wanted + PORTS_TRIED, 65536)):
        try:
            listener = socket.create_server((HOST, port), backlog=2048)
        except OSError:
            continue
        if port != wanted:
            local.say(f"port {wanted} is busy: the API listens on {HOST}:{port} instead")
        return listener
    raise ConfigError(f"no free port from {wanted} to {wanted + PORTS_TRIED - 1}: choose another with --port")


def _await_api(stack: Stack) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        stack.children.raise_if_ended()
        if _answers(stack.port):
            return
    raise CannotConnect(f"the API does not answer on {stack.url} after {START_SECONDS:.0f} s")


def _answers(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection(HOST, port, timeout=1.0)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == http.client.OK
    except OSError:
        time.sleep(0.05)
        return False
    finally:
        connection.close()
