"""Play many clients of the API in a process that costs little: `bench.control_plane` starts `python -m bench.crowd`.

Each client is a socket that stays open and has one request in flight. Requests are bytes that were prepared before, and
of an answer only the status and its length are read, so that nearly all CPU of the machine is left to the API.
"""

import json
import random
import re
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support.crowd import PIPELINES

HERE = Path(__file__).resolve().parent.parent
VERBS = ("get", "status", "list", "run", "pause", "patch")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_VERSION = re.compile(rb'"version": ?(\d+)')
_BATCH_SIZE = re.compile(rb'"batch_size": ?(\d+)')


class Answer(NamedTuple):
    """Hold what a client needs of an answer."""

    status: int
    body: bytes


# A client yields requests and receives the answer to each.
Client = Generator[bytes, Answer, None]


@dataclass
class Heard:
    """Hold the answers to all clients: status codes, seconds, accepted changes by pipeline, and CPU of the clients."""

    statuses: dict[int, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    patched: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.seconds)

    def quantile(self, part: float) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * part)]


def play(port: int, secret: str, *, clients: int, seconds: float, only: str | None = None) -> Heard:
    """Let clients send requests from another process until the time is up. `only` names the one path that they read."""
    wish = {"port": port, "secret": secret, "clients": clients, "seconds": seconds, "only": only}
    played = subprocess.run(
        [sys.executable, "-m", "bench.crowd"],
        check=False,
        cwd=HERE,
        input=json.dumps(wish),
        stdout=subprocess.PIPE,
        text=True,
    )
    if played.returncode:
        raise RuntimeError("the clients failed, see above")
    heard = json.loads(played.stdout)
    heard["statuses"] = {int(status): count for status, count in heard["statuses"].items()}
    return Heard(**heard | {"patched": Counter(heard["patched"])})


def main() -> None:
    wish = json.load(sys.stdin)
    heard = Heard()
    deadline = time.monotonic() + wish["seconds"]
    requests = Requests(wish["secret"])
    clients = [
        reader(requests, wish["only"], deadline) if wish["only"] else actor(requests, number, deadline, heard)
        for number in range(wish["clients"])
    ]
    before = time.process_time()
    converse(wish["port"], clients, heard)
    heard.cpu_seconds = time.process_time() - before
    json.dump(vars(heard), sys.stdout)


class Requests:
    """Prepare requests."""

    def __init__(self, secret: str) -> None:
        self._head = f"HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        self._made = {(name, verb): self._make(name, verb) for name in names() for verb in VERBS if verb != "patch"}

    def of(self, name: str, verb: str) -> bytes:
        return self._made[name, verb]

    def get(self, path: str) -> bytes:
        return f"GET {path} {self._head}\r\n".encode()

    def patch(self, name: str, seen: bytes) -> bytes:
        """Raise the number that was seen by one, if the pipeline is still at the version that was seen."""
        version, batch_size = (int(_found(pattern, seen)) for pattern in (_VERSION, _BATCH_SIZE))
        body = f'{{"batch_size": {batch_size + 1}}}'
        return (
            f'PATCH /api/v1/pipelines/{name} {self._head}If-Match: "{version}"\r\n'
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    def _make(self, name: str, verb: str) -> bytes:
        path = f"/api/v1/pipelines/{name}"
        match verb:
            case "get":
                return self.get(path)
            case "status":
                return self.get(f"{path}/status")
            case "list":
                return self.get("/api/v1/pipelines?limit=20")
            case _:
                return f"POST {path}/{verb} {self._head}Content-Length: 0\r\n\r\n".encode()


def names() -> list[str]:
    return [f"p{number}" for number in range(PIPELINES)]


def actor(requests: Requests, number: int, deadline: float, heard: Heard) -> Client:
    """Pick a pipeline and a verb again and again, as `tests.support.crowd` does."""
    chance, pipelines = random.Random(number), names()
    while time.monotonic() < deadline:
        name, verb = chance.choice(pipelines), chance.choice(VERBS)
        if verb != "patch":
            yield requests.of(name, verb)
            continue
        seen = yield requests.of(name, "get")
        changed = yield requests.patch(name, seen.body)
        heard.patched[name] += changed.status == 200


def reader(requests: Requests, path: str, deadline: float) -> Client:
    request = requests.get(path)
    while time.monotonic() < deadline:
        yield request


def converse(port: int, clients: list[Client], heard: Heard) -> None:
    """Send the first request of each client, and the next one when an answer is complete, until all have ended."""
    statuses: Counter[int] = Counter()
    poll = select.epoll()
    with ExitStack() as opened:
        opened.callback(poll.close)
        open_ones: dict[int, _Conversation] = {}
        for client in clients:
            each = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(each, select.EPOLLIN)
            open_ones[each.fileno()] = _Conversation(each, client)
        for conversation in list(open_ones.values()):
            conversation.begin()
        while open_ones:
            for number, _ in poll.poll():
                conversation = open_ones[number]
                answer = conversation.receive()
                if answer is None:
                    continue
                statuses[answer.status] += 1
                heard.seconds.append(time.monotonic() - conversation.sent_at)
                if not conversation.go_on(answer):
                    poll.unregister(number)
                    del open_ones[number]
    heard.statuses = dict(statuses)


class _Conversation:
    """Hold a socket and the client that talks through it."""

    def __init__(self, connection: socket.socket, client: Client) -> None:
        self.sent_at = 0.0
        self._socket = connection
        self._client = client
        self._received = bytearray()

    def begin(self) -> None:
        self._send(next(self._client))

    def receive(self) -> Answer | None:
        """Return the answer if it is complete."""
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the API closed a connection")
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return None
        body = head + 4
        if len(self._received) < body + int(_found(_LENGTH, self._received[: head + 2])):
            return None
        answer = Answer(int(self._received[9:12]), bytes(self._received[body:]))
        self._received.clear()
        return answer

    def go_on(self, answer: Answer) -> bool:
        """Send the client's next request; return whether it has one."""
        try:
            self._send(self._client.send(answer))
        except StopIteration:
            return False
        return True

    def _send(self, request: bytes) -> None:
        self.sent_at = time.monotonic()
        self._socket.sendall(request)


def _found(pattern: re.Pattern[bytes], text: bytes | bytearray) -> bytes:
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"no {pattern.pattern!r} in {bytes(text[:500])!r}")
    return found[1]


if __name__ == "__main__":
    main()
