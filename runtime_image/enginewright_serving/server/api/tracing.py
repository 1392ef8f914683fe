"""OpenTelemetry spans of sampled requests, sent over OTLP/HTTP.

The event loop puts answered requests into a queue; a thread makes their spans, from times that are measured anyway,
and sends them, so that a collector that is slow, hangs or is gone costs only spans, which are counted. OpenTelemetry
is imported when the first instance is made, since it takes megabytes that servers without tracing do not need.

Sources: OpenTelemetry's semantic conventions for HTTP and RPC servers.
"""

import logging
import random
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from enginewright_contract.serving_options import TracingTask
from enginewright_contract.task import ServeTask

from enginewright_serving.server.api.grpc.methods import SERVICE
from enginewright_serving.transport.answered import Answered
from enginewright_serving.transport.grpc.status import Code

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

_log: Final = logging.getLogger(__name__)
_WAITING_REQUESTS: Final = 2000  # about a megabyte
_BATCH: Final = 200  # requests whose spans are sent at once
_BATCH_SECONDS: Final = 1.0  # that one waits for others
_LOG_SECONDS: Final = 60.0  # between lines about spans that were not sent
_FIRST_ERROR: Final = 500  # status that is the server's error, also of gRPC as it is mapped


class RequestTracer:
    """Chooses requests, and sends their spans in its thread."""

    def __init__(self, task: ServeTask, options: TracingTask) -> None:
        """Start the thread; raise ImportError without OpenTelemetry."""
        self._share = options.share
        self._dropped = 0  # by the event loop
        self._unsent = 0  # by the thread
        self._requests: SimpleQueue[Answered | None] = SimpleQueue()
        self._spans = _Spans(task)
        self._exporter = _exporter(options)
        self._log_after = 0.0
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Sampled requests without a trace: they were too many, or no collector took them."""
        return self._dropped + self._unsent

    def add(self, answered: Answered) -> None:
        """Trace a request if its client traces it, or, if the client does not say, by chance."""
        parent = answered.context.parent
        if not (random.random() < self._share if parent is None else parent.sampled):  # noqa: S311 - a sample
            return
        if self._requests.qsize() >= _WAITING_REQUESTS:
            self._dropped += 1
        else:
            self._requests.put(answered)

    def close(self, seconds: float) -> None:
        """Send waiting spans, for up to `seconds`."""
        self._requests.put(None)
        self._thread.join(seconds)

    # In the thread.

    def _run(self) -> None:
        ends = False
        while not ends and (first := self._requests.get()) is not None:
            batch = [first]
            until = time.monotonic() + _BATCH_SECONDS
            while len(batch) < _BATCH:
                try:
                    another = self._requests.get(timeout=max(0.0, until - time.monotonic()))
                except Empty:
                    break
                if another is None:
                    ends = True
                    break
                batch.append(another)
            self._send(batch)

    def _send(self, batch: list[Answered]) -> None:
        try:
            spans = self._spans.of(batch)
            sent = not spans or self._exporter.export(spans).name == "SUCCESS"
        except Exception:  # noqa: BLE001 - no error of tracing may end the thread
            _log.debug("cannot send spans", exc_info=True)
            sent = False
        if sent:
            return
        self._unsent += len(batch)
        now = time.monotonic()
        if now >= self._log_after:
            self._log_after = now + _LOG_SECONDS
            _log.warning(
                "no collector took the spans of %d requests (%d so far); see spec.serving.tracing.endpoint",
                len(batch),
                self.dropped,
            )


class _Spans:
    def __init__(self, task: ServeTask) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - large
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - likewise
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - likewise
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415 - likewise
            InMemorySpanExporter,
        )
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415 - likewise

        about = {"service.name": task.model, "service.version": task.revision}
        resource = Resource.create(about).merge(OTELResourceDetector().detect())
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._ended = InMemorySpanExporter()  # until the batch is complete
        provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._tracer: Tracer = provider.get_tracer("enginewright")
        self._path = f"/v2/models/{task.model}/infer"

    def of(self, batch: list[Answered]) -> "list[ReadableSpan]":
        self._ended.clear()
        shift = time.time_ns() - time.monotonic_ns()
        for answered in batch:
            self._trace(answered, shift)
        return list(self._ended.get_finished_spans())

    def _trace(self, answered: Answered, shift: int) -> None:
        """Make the span of a request, and its children; `shift` converts to nanoseconds of the epoch."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context  # noqa: PLC0415 - large

        def moment(seconds: float) -> int:
            return round(seconds * 1e9) + shift

        span = self._tracer.start_span(
            f"{SERVICE}/{answered.method}"
            if answered.grpc_status
            else f"{answered.method} {self._path}",
            _remote(answered),
            SpanKind.SERVER,
            self._attributes(answered),
            start_time=moment(answered.began),
        )
        context = answered.context
        inside = set_span_in_context(span)
        if context.started:
            for name, begin, end in (
                ("queue", context.queued, context.started),
                ("compute", context.started, context.finished),
            ):
                child = self._tracer.start_span(name, inside, start_time=moment(begin))
                child.end(moment(end))
        if answered.status >= _FIRST_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(moment(answered.ended))

    def _attributes(self, answered: Answered) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "client.address": answered.client,
            "enginewright.request.id": answered.context.request_id.decode(),
        }
        if answered.grpc_status:
            attributes |= {
                "rpc.system": "grpc",
                "rpc.service": SERVICE,
                "rpc.method": answered.method,
                "rpc.grpc.status_code": int(Code[answered.grpc_status]),
                "rpc.request.size": answered.received,
                "rpc.response.size": answered.sent,
            }
        else:
            attributes |= {
                "http.request.method": answered.method,
                "http.route": self._path,
                "url.path": self._path,
                "url.scheme": "http",
                "http.response.status_code": answered.status,
                "http.request.body.size": answered.received,
                "http.response.body.size": answered.sent,
            }
        if answered.status >= _FIRST_ERROR:
            attributes["error.type"] = answered.grpc_status or str(answered.status)
        return attributes


def _remote(answered: Answered) -> Any:  # noqa: ANN401 - of OpenTelemetry
    from opentelemetry import trace  # noqa: PLC0415 - large
    from opentelemetry.context import Context  # noqa: PLC0415 - likewise

    parent = answered.context.parent
    if parent is None:
        return Context()
    remote = trace.SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        trace_state=trace.TraceState.from_header([answered.context.tracestate.decode()]),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def _exporter(options: TracingTask) -> Any:  # noqa: ANN401 - of OpenTelemetry
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - large

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a line per attempt otherwise
    endpoint = options.endpoint and f"{options.endpoint.rstrip('/')}/v1/traces"
    return OTLPSpanExporter(endpoint=endpoint)
