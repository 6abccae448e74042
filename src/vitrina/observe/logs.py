"""Write log lines to standard error with structlog, for people or as JSON, without the settings' secrets."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import orjson
import structlog
from pydantic import SecretStr

from vitrina.ports import registry
from vitrina.settings import Settings

MASK = "***"
# Characters of one field of a line, and of a line that a library wrote.
MAX_TEXT = 10_000

# A short secret is often an ordinary word ("postgres"). It is masked only as a whole word, or logs would be unreadable.
_SHORT_SECRET_LENGTH = 12
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]*@")
_PASSWORD_IN_CONNINFO = re.compile(r"\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))")
# These log every statement or connection; our own lines report every run.
_CHATTY_LIBRARIES = ("alembic", "asyncio", "elastic_transport", "httpcore", "httpx", "urllib3", "uvicorn")


# Receives the level and the fields of a line, on the thread that writes it.
Listener = Callable[[str, dict[str, Any]], None]
_listeners: tuple[Listener, ...] = ()
# Levels below that of the settings.
_dropped: frozenset[str] = frozenset()


def configure(settings: Settings, *, stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's loggers to one stream, as the settings say. May be called again."""
    global _dropped  # noqa: PLW0603
    output = stream or sys.stderr
    renderer, redact = _renderer(settings, output), Redactor(secrets_of(settings))
    handler = logging.StreamHandler(output)
    handler.setFormatter(_RedactingFormatter(settings, renderer, redact))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    logging.captureWarnings(True)
    for library in _CHATTY_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    lines = _Lines(handler, redact)
    levels = logging.getLevelNamesMapping() | {"EXCEPTION": logging.ERROR}
    _dropped = frozenset(name.lower() for name, number in levels.items() if number < root.level)
    structlog.configure(
        processors=[_Enrichment(settings, _dropped), *_rendering(renderer)],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *names: lines,
        # Not cached, so that loggers created at import time follow a later `configure` too.
        cache_logger_on_first_use=False,
    )


def is_heard(level: str) -> bool:
    """Return whether lines of a level are written or listened to, for lines that every request would write."""
    return bool(_listeners) or level not in _dropped


class _Lines:
    """Write our own lines straight to the handler's stream.

    Through the standard library each takes six times as long, and a run writes one for every batch.
    """

    def __init__(self, handler: "logging.StreamHandler[TextIO]", redact: "Redactor") -> None:
        self._handler = handler
        self._redact = redact

    def _write(self, line: str) -> None:
        # Like the standard library: a closed stream must not end a run.
        with suppress(OSError, ValueError), self._handler.lock or nullcontext():
            self._handler.stream.write(self._redact(line) + "\n")
            self._handler.stream.flush()

    debug = info = warning = error = exception = critical = _write


def add_listener(listener: Listener) -> None:
    """Pass every line to `listener` as well, whatever the log level; it redacts what it keeps (`Redactor`)."""
    global _listeners  # noqa: PLW0603 - one for the process, like structlog's configuration
    _listeners = (*_listeners, listener)


def remove_listener(listener: Listener) -> None:
    global _listeners  # noqa: PLW0603
    _listeners = tuple(other for other in _listeners if other != listener)


class _Enrichment:
    """Add the context, level and time to a line in one step. Listeners receive it before it is filtered or rendered."""

    def __init__(self, settings: Settings, dropped: frozenset[str]) -> None:
        self._dropped = dropped
        self._precise = settings.log_format == "json"

    def __call__(
        self, logger: structlog.typing.WrappedLogger, method: str, fields: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if not _listeners and method in self._dropped:
            raise structlog.DropEvent
        said = {**structlog.contextvars.get_contextvars(), **{name: shortened(fields[name]) for name in fields}}
        level = "error" if method == "exception" else method
        if _listeners:
            _tell_listeners(level, said)
        if method in self._dropped:
            raise structlog.DropEvent
        said["level"] = level
        said["timestamp"] = _timestamp(precise=self._precise)
        return said


def shortened(value: Any) -> Any:
    """Cut a text to a bounded length, so that one line stays readable whatever a server or a step says."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}... ({len(value) - MAX_TEXT} more characters)"
    return value


def _tell_listeners(level: str, said: dict[str, Any]) -> None:
    told = dict(said)
    if told.get("exc_info"):
        told = dict(structlog.processors.format_exc_info(None, level, told))
    for listener in _listeners:
        listener(level, told)


def _timestamp(*, precise: bool) -> str:
    """Format the time precisely for programs, which sort by it, and briefly for people."""
    now = datetime.now(UTC).replace(tzinfo=None)
    return now.isoformat(timespec="microseconds" if precise else "seconds") + "Z"


def secrets_of(settings: Settings) -> frozenset[str]:
    """Return every secret value in the settings: passwords inside URLs, tokens, keys."""
    receivers = [url.get_secret_value() for url in (settings.webhook_url, settings.slack_webhook_url) if url]
    parts = [part for value in _secret_values(settings) for part in _secret_parts(value)]
    # The address of a receiver is a secret too, because anyone who knows it can post to it.
    return frozenset(part for part in (*parts, *receivers) if part)


# Passwords of connections in the metastore, which the settings of a starting process do not have.
_learned: frozenset[str] = frozenset()


def learn(url: str) -> None:
    """Mask the password of this URL from now on, in everything that is logged."""
    global _learned  # noqa: PLW0603 - one for the process, like the listeners
    found = frozenset(part for part in _secret_parts(url) if part)
    if not found <= _learned:
        _learned |= found


class Redactor:
    """Mask secret values anywhere in a text: in a message, a field or a traceback."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._given = frozenset(secrets)
        self._prepare(_learned)

    def _prepare(self, learned: frozenset[str]) -> None:
        forms = {form for secret in self._given | learned for form in _written_forms(secret)}
        # Longest first, so that masking a secret inside another does not leave the rest of it visible.
        self._forms = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(_pattern, self._forms)))
        self._knows = learned

    def __call__(self, text: str) -> str:
        if self._knows is not _learned:
            self._prepare(_learned)
        # Nearly every line has no secret, and this check is cheaper than the substitution.
        if "://" in text:
            text = _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", text)
        return self._secrets.sub(MASK, text) if any(form in text for form in self._forms) else text


def redactor_of(settings: Settings) -> Redactor:
    """Return what masks the secrets of these settings; a named function, so that it can be pickled."""
    return Redactor(secrets_of(settings))


def masked(text: str, settings: Settings) -> str:
    """Mask the settings' secrets in a text for people. A text without any is returned unchanged, even a Sentence."""
    found = Redactor(secrets_of(settings))(text)
    return text if found == text else found


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Redact the finished lines of libraries, so that no later step can bring a secret back in."""

    def __init__(self, settings: Settings, renderer: structlog.typing.Processor, redact: Redactor) -> None:
        processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(renderer)]
        super().__init__(foreign_pre_chain=_foreign_enrichment(settings), processors=processors)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(str(shortened(super().format(record))))


def _rendering(renderer: structlog.typing.Processor) -> list[structlog.typing.Processor]:
    if isinstance(renderer, structlog.dev.ConsoleRenderer):
        return [renderer]
    return [structlog.processors.format_exc_info, renderer]


def _foreign_enrichment(settings: Settings) -> list[structlog.typing.Processor]:
    form = "iso" if settings.log_format == "json" else "%Y-%m-%dT%H:%M:%SZ"
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt=form, utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _renderer(settings: Settings, stream: TextIO) -> structlog.typing.Processor:
    if settings.log_format == "json":
        return structlog.processors.JSONRenderer(serializer=lambda fields, **_: as_json(fields))
    return structlog.dev.ConsoleRenderer(
        colors=wants_colours(stream),
        pad_event_to=28,
        # The pretty formatters print local variables, which may hold secrets.
        exception_formatter=structlog.dev.plain_traceback,
    )


def as_json(fields: Any) -> str:
    try:
        return orjson.dumps(fields, default=str).decode()
    except TypeError:  # a number out of range, a lone surrogate, a key that is not text
        return json.dumps(fields, default=str, skipkeys=True)


def wants_colours(stream: TextIO) -> bool:
    """Follow https://no-color.org, then FORCE_COLOR.

    `vitrina dev` sets the latter for the processes whose lines it passes on.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _secret_values(settings: Settings) -> Iterator[str]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for secret in value.values() if isinstance(value, dict) else [value]:
            if isinstance(secret, SecretStr):
                yield from secret.get_secret_value().split(",") if name == "secret_key" else [secret.get_secret_value()]


def _secret_parts(value: str) -> Iterator[str]:
    """Yield the password of a URL or of a `host=... password=...` string, else the value itself."""
    urls = [part.strip() for part in value.split(",") if "://" in part]
    if urls:
        # A password may contain the comma that separates search servers.
        for url in {value, *urls}:
            yield from _passwords_in_url(url)
    elif found := _PASSWORD_IN_CONNINFO.search(value):
        yield (found[1] if found[1] is not None else found[2]).replace("\\'", "'")
    elif "host=" not in value and "dbname=" not in value:
        yield value


def _passwords_in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield url
        return
    if parts.password:
        yield unquote(parts.password)
    connector = registry.installed().of_scheme(parts.scheme) if parts.query else None
    for name, value in parse_qsl(parts.query):
        if "password" in name or "key" in name or "token" in name or (connector and name in connector.secrets):
            yield value


def _written_forms(secret: str) -> set[str]:
    """Return a secret as it is, as in a URL, JSON or a Python repr, and as one of these inside another."""
    return {outer for inner in _escaped(secret) for outer in _escaped(inner)}


def _escaped(text: str) -> set[str]:
    in_json = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return {text, quote(text, safe=""), quote(text), quote_plus(text), repr(text)[1:-1], *in_json}


def _pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _SHORT_SECRET_LENGTH else rf"(?<![^\W_]){escaped}(?![^\W_])"
