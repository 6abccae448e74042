"""Export traces with OpenTelemetry, if it is installed and configured; otherwise nothing of it is loaded."""

import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, SpanContext

# A stopping process waits no longer than this for a collector that does not answer.
STOP_SECONDS = 5.0

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attributes = Mapping[str, str | int | float | bool]

log = structlog.get_logger("vitrina.observe.tracing")


def start(service: str, environ: Mapping[str, str] = os.environ) -> "Tracing | None":
    """Start as the standard OTEL_* variables say; return None if they request nothing or it is impossible."""
    if not is_wanted(environ):
        return None
    asked = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if asked != _PROTOCOL:
        log.warning("tracing.unavailable", error=f"traces are sent by {_PROTOCOL}, not by {asked}")
        return None
    try:
        return Tracing(*_provider(service, environ))
    except ImportError:
        log.warning(
            "tracing.unavailable", error="an OTLP endpoint is set, but OpenTelemetry is not here: install vitrina[otel]"
        )
        return None


def is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    return "otlp" in exporters.split(",") and any(environ.get(name) for name in _ENDPOINTS)


def acceptable(traceparent: str | None) -> str | None:
    """Return a W3C traceparent from outside if it is valid, else None, because it is stored in the metastore."""
    return traceparent if traceparent and _TRACEPARENT.fullmatch(traceparent) else None


def trace_id_of(traceparent: str | None) -> str | None:
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return found[1] if found else None


class Tracing:
    """Send the spans of one process to a collector; they are queued and sent by a separate thread."""

    def __init__(self, provider: "TracerProvider", processor: "SpanProcessor") -> None:
        from vitrina import __version__

        self._provider = provider
        self._processor = processor
        self._tracer = provider.get_tracer("vitrina", __version__)

    def begin(self, name: str, attributes: Attributes, *, traceparent: str | None = None) -> "OpenSpan":
        """Begin a span in the caller's trace if one is given, else in a new trace."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carried = {"traceparent": traceparent} if traceparent else {}
        parent = TraceContextTextMapPropagator().extract(carried, context=_nowhere())
        span = self._tracer.start_span(name, context=parent, attributes=dict(attributes))
        return OpenSpan(span, self._provider, self._processor)

    def begin_request(self, method: str, path: str, traceparent: str | None) -> "OpenSpan":
        """Begin a span for a request of the API, named by OpenTelemetry's conventions."""
        return self.begin(method, {"http.request.method": method, "url.path": path}, traceparent=traceparent)

    def stop(self) -> None:
        """Send what is queued, for at most `STOP_SECONDS`."""
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(STOP_SECONDS)


class OpenSpan:
    """Hold a span that has begun."""

    def __init__(self, span: "Span", provider: "TracerProvider", processor: "SpanProcessor") -> None:
        self._span = span
        self._provider = provider
        self._processor = processor

    @property
    def traceparent(self) -> str:
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def part(
        self,
        name: str,
        *,
        began: float,
        ended: float,
        attributes: Attributes | None = None,
        of: "SpanContext | None" = None,
    ) -> "SpanContext":
        """Record a completed part of the span, or of its part `of`, with Unix times.

        It is created as a finished span. Beginning and ending one takes a run's thread ten times as long, and a run has
        a handful of them for each batch.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext

        parent = of or self._span.get_span_context()
        if not isinstance(self._span, ReadableSpan):
            return parent  # this trace is not sampled
        ids = self._provider.id_generator
        context = SpanContext(parent.trace_id, ids.generate_span_id(), is_remote=False, trace_flags=parent.trace_flags)
        self._processor.on_end(
            ReadableSpan(
                name,
                context=context,
                parent=parent,
                resource=self._span.resource,
                attributes=attributes,
                start_time=_nanoseconds(began),
                end_time=_nanoseconds(ended),
                instrumentation_scope=self._span.instrumentation_scope,
            )
        )
        return context

    def event(self, name: str, attributes: Attributes) -> None:
        self._span.add_event(name, attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def end(
        self, *, at: float | None = None, attributes: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        if attributes:
            self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, error)
        self._span.end(_nanoseconds(at) if at is not None else None)


def _provider(service: str, environ: Mapping[str, str]) -> "tuple[TracerProvider, SpanProcessor]":
    """Create a separate provider, not the process's global one, because a user's Python step may set its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    processor = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(processor)
    return provider, processor


def _nowhere() -> "Context":
    """Return an empty context, because the trace of the surrounding code is not ours."""
    from opentelemetry.context import Context

    return Context()


def _nanoseconds(moment: float) -> int:
    return int(moment * 1e9)
