"""Deliver notifications to a signed webhook and to Slack, with retries, and each by one runner only."""

import base64
import binascii
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx
import psycopg
import structlog

from vitrina.errors import CannotConnect
from vitrina.observe.monitoring import Connect
from vitrina.observe.prometheus import Instruments
from vitrina.settings import Settings
from vitrina.store import notifications

MAX_ATTEMPTS = 10
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 900.0
TIMEOUT_SECONDS = 10.0
# Limit of a whole delivery: the timeout above is that of one read, and a receiver may answer byte by byte.
DELIVERY_SECONDS = 10.0
# Messages that a channel claims at once. It sends them one by one, in less time than the lease, so that no other runner
# sends them meanwhile. If a runner dies, the next one takes them over.
PORTION = 4
LEASE_SECONDS = 60.0
# How long a slow receiver gets no further messages.
LEAVE_ALONE_SECONDS = 60.0
LOOK_SECONDS = 2.0
# How long to wait for a channel before the others go on with the next messages.
PATIENCE_SECONDS = 1.0

# The kind of a message that a user sends to test the receivers.
TEST = "test"

Row = dict[str, Any]


class Undelivered(Exception):
    """Signal that the receiver did not accept the message."""


class TooSlow(Undelivered):
    """Signal that the message may have arrived; a receiver that gets it twice recognises it by its id."""


class Channel:
    """Send to one receiver, in a separate thread, so that a slow receiver does not delay the others."""

    def __init__(self, name: str, send: Callable[[Row], None]) -> None:
        self.name = name
        self._send = send
        self._thread: threading.Thread | None = None
        self._left_alone_until = 0.0

    @property
    def is_free(self) -> bool:
        return not (self._thread and self._thread.is_alive()) and time.monotonic() >= self._left_alone_until

    def begin(self, work: Callable[["Channel"], None]) -> None:
        self._thread = threading.Thread(target=work, args=[self], name=f"notifications:{self.name}", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        if self._thread:
            self._thread.join(seconds)

    def send(self, message: Row) -> bool:
        """Send the message. Return False if it was not tried, because the receiver was too slow just now."""
        if time.monotonic() < self._left_alone_until:
            return False
        try:
            self._send(message)
        except TooSlow:
            self._left_alone_until = time.monotonic() + LEAVE_ALONE_SECONDS
            raise
        return True


class Notifier:
    """Look for messages to send, in a thread. Several runners may each have one."""

    def __init__(
        self,
        settings: Settings,
        instruments: Instruments,
        metastore: Connect,
        *,
        first_wait_seconds: float = FIRST_WAIT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._settings = settings
        # Acquired for each statement, so that a slow receiver does not keep other users of the session waiting.
        self._metastore = metastore
        self._instruments = instruments
        self._first_wait = first_wait_seconds
        self._patience = patience_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="notifications", daemon=True)
        self._channels = self._make_channels()
        self._log = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=2)

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            with self._surviving():
                while self.deliver_due() and not self._stopping.is_set():
                    pass

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Survive an error; a message that was not recorded is claimed again when its lease is over."""
        try:
            yield
        except (CannotConnect, psycopg.Error) as exc:
            self._log.warning("notifications.waiting", error=" ".join(str(exc).split()))
        except Exception:  # noqa: BLE001 - tried again in the next round; runs do not depend on it
            self._log.exception("notifications.crashed")

    def deliver_due(self) -> int:
        """Deliver one round and count the messages claimed or closed. Each free channel claims what it can send."""
        free = [channel for channel in self._channels if channel.is_free]
        taken = {message for channel in free for message in self._take_up(channel)}
        end = time.monotonic() + self._patience
        for channel in free:
            channel.join(max(0.0, end - time.monotonic()))
        with self._metastore() as metastore:
            closed = notifications.conclude(metastore, [channel.name for channel in self._channels])
        return len(taken) or closed

    def _take_up(self, channel: Channel) -> list[UUID]:
        with self._metastore() as metastore:
            messages = notifications.claim_due(metastore, channel.name, lease_seconds=LEASE_SECONDS, limit=PORTION)
        if messages:
            channel.begin(lambda channel: self._deliver_all(channel, messages))
        return [message["id"] for message in messages]

    def _deliver_all(self, channel: Channel, messages: list[Row]) -> None:
        for message in messages:
            with self._surviving():
                self._deliver(channel, message)

    def _deliver(self, channel: Channel, message: Row) -> None:
        try:
            tried = channel.send(message)
        except Undelivered as exc:
            self._instruments.notifications.labels(channel.name, "failed").inc()
            self._try_later(channel, message, str(exc))
            return
        with self._metastore() as metastore:
            if not tried:
                # Claimed again as soon as the channel is free; nothing was tried, so nothing is counted.
                notifications.put_back(metastore, message["id"], channel.name)
                return
            notifications.mark_delivered(metastore, message["id"], channel.name)
        self._instruments.notifications.labels(channel.name, "delivered").inc()
        self._log.info("notification.sent", **_names(message), channel=channel.name)

    def _try_later(self, channel: Channel, message: Row, problem: str) -> None:
        """Postpone by this channel's own count, because failures of another channel say nothing about it."""
        names = {**_names(message), "channel": channel.name}
        with self._metastore() as metastore:
            if message["tries"] < MAX_ATTEMPTS:
                wait = min(self._first_wait * 2 ** (message["tries"] - 1), LONGEST_WAIT_SECONDS)
                notifications.postpone(metastore, message["id"], channel.name, seconds=wait, error=problem)
                self._log.warning("notification.retrying", **names, wait_seconds=wait, error=problem)
                return
            notifications.give_up(metastore, message["id"], channel.name, error=problem)
        self._instruments.notifications.labels(channel.name, "given_up").inc()
        self._log.error("notification.given_up", **names, error=problem)

    def _make_channels(self) -> list[Channel]:
        return [Channel(name, partial(send, self._settings)) for name, send in senders(self._settings).items()]


Send = Callable[[Settings, Row], None]

# The setting of each receiver.
SETTINGS = {"webhook": "VITRINA_WEBHOOK_URL", "slack": "VITRINA_SLACK_WEBHOOK_URL"}


def senders(settings: Settings) -> dict[str, Send]:
    """Return how to send to each receiver that has an address."""
    addresses = {"webhook": settings.webhook_url, "slack": settings.slack_webhook_url}
    functions: dict[str, Send] = {"webhook": _send_webhook, "slack": _send_slack}
    return {name: functions[name] for name, address in addresses.items() if address}


def try_receivers(settings: Settings, message: Row) -> list[dict[str, Any]]:
    """Send a message at once to every receiver, and return the results."""
    found = senders(settings)
    outcomes: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        outcome: dict[str, Any] = {"name": name, "is_set": name in found, "setting": setting, "error": None}
        if name in found:
            try:
                found[name](settings, message)
            except Undelivered as exc:
                outcome["error"] = str(exc)
        outcomes.append(outcome)
    return outcomes


def _send_webhook(settings: Settings, message: Row) -> None:
    assert settings.webhook_url is not None
    body = json.dumps(webhook_body(message)).encode()
    headers = {"Content-Type": "application/json", "webhook-id": str(message["id"])}
    # By the database's clock, because receivers refuse messages with a wrong time.
    headers["webhook-timestamp"] = str(int(message["taken_at"].timestamp()))
    if settings.webhook_secret:
        secret = settings.webhook_secret.get_secret_value()
        headers["webhook-signature"] = signature(secret, headers["webhook-id"], headers["webhook-timestamp"], body)
    post_in_time(settings.webhook_url.get_secret_value(), body, headers)


def _send_slack(settings: Settings, message: Row) -> None:
    assert settings.slack_webhook_url is not None
    body = json.dumps({"text": slack_text(message)}).encode()
    url = settings.slack_webhook_url.get_secret_value()
    post_in_time(url, body, {"Content-Type": "application/json"})


def test_message(moment: datetime, asked_by: str) -> Row:
    """Return a message for a test of the receivers."""
    return {"id": uuid4(), "kind": TEST, "created_at": moment, "taken_at": moment, "asked_by": asked_by}


def webhook_body(message: Row) -> dict[str, Any]:
    if message["kind"] == TEST:
        return {"type": TEST, "timestamp": _iso(message["created_at"]), "data": {"asked_by": message["asked_by"]}}
    details = {name: value for name, value in message["payload"].items() if name != "error"}
    return {
        "type": f"pipeline.{message['kind']}",
        "timestamp": _iso(message["created_at"]),
        "data": {
            "pipeline": message["pipeline"],
            "pipeline_id": str(message["pipeline_id"]),
            "run_id": str(message["run_id"]) if message["run_id"] else None,
            "labels": message["labels"],
            "error_code": message["error_code"] if message["kind"] == "failed" else None,
            "error": message["error"] if message["kind"] == "failed" else None,
            **details,
        },
    }


def slack_text(message: Row) -> str:
    if message["kind"] == TEST:
        return f":white_circle: A test of Vitrina's notifications, asked for by {_slack_escaped(message['asked_by'])}"
    name, details = _slack_escaped(message["pipeline"]), message["payload"]
    if message["kind"] == "failed":
        code = f" ({message['error_code']})" if message["error_code"] else ""
        return (
            f":red_circle: Pipeline *{name}* failed{code}: {_slack_escaped(message['error'] or 'no message was kept')}"
        )
    if message["kind"] == "recovered":
        return (
            f":large_green_circle: Pipeline *{name}* works again; it was failing since {details.get('failing_since')}"
        )
    if message["kind"] == "warned":
        checks = _slack_escaped(", ".join(map(str, details.get("checks", []))))
        return f":large_yellow_circle: Pipeline *{name}* published rows that break checks which only warn: {checks}"
    rows = details.get("differences")
    return f":large_yellow_circle: The mart of pipeline *{name}* differs from its source in {rows} rows"


def signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Sign as standardwebhooks.com specifies, so that its libraries verify it: `v1,` and base64 of an HMAC-SHA256."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def _key(secret: str) -> bytes:
    """Decode `whsec_...` as base64; use anything else as it is."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def post_in_time(url: str, body: bytes, headers: dict[str, str], *, seconds: float | None = None) -> None:
    """Post in a separate thread. If it takes too long in total, close the connection and abandon the thread."""
    limit = DELIVERY_SECONDS if seconds is None else seconds
    outcome: list[Exception | None] = []

    def work(client: httpx.Client) -> None:
        try:
            post(url, body, headers, client)
        except Exception as exc:  # noqa: BLE001 - raised by the caller, which waits for this thread
            outcome.append(exc)
        else:
            outcome.append(None)

    try:
        opened = open_client(url)
    except ValueError as exc:
        raise Undelivered("the configured URL is not valid") from exc
    with opened as client:
        thread = threading.Thread(target=work, args=[client], name="delivery", daemon=True)
        thread.start()
        thread.join(limit)
    if not outcome:
        raise TooSlow(f"the receiver did not answer within {limit:g} s")
    if outcome[0] is not None:
        raise outcome[0]


def post(url: str, body: bytes, headers: dict[str, str], client: httpx.Client | None = None) -> None:
    """Post without following redirects: the operator chose the receiver. The URL is a secret, so no error names it."""
    try:
        with nullcontext(client) if client else open_client(url) as http:
            answer = http.post(url, content=body, headers=headers)
    except httpx.HTTPError as exc:
        raise Undelivered(f"the receiver cannot be reached ({type(exc).__name__})") from exc
    except (httpx.InvalidURL, ValueError) as exc:
        raise Undelivered("the configured URL is not valid") from exc
    if not answer.is_success:
        raise Undelivered(f"the receiver answered {answer.status_code}")


def open_client(url: str) -> httpx.Client:
    """Open a client for a caller that posts often to the same receiver."""
    where = urlsplit(url)
    # The environment's proxies are for receivers elsewhere, not on this machine.
    local = (where.hostname or "") in ("localhost", "127.0.0.1", "::1")
    # Loading the system's certificates takes longer than all the rest, and plain HTTP does not need them.
    return httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=not local, verify=where.scheme != "http")


def _names(message: Row) -> dict[str, Any]:
    return {"pipeline": message["pipeline"], "pipeline_id": str(message["pipeline_id"]), "kind": message["kind"]}


def _iso(moment: datetime) -> str:
    return moment.isoformat()


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
