"""The server's metrics: plain counters on the hot path, `prometheus_client` for the exposition.

`prometheus_client`'s own counters lock and look up labels on every increment. These are used by the event loop's
thread only, and need neither.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright_serving.histogram import DurationHistogram, RunCounts, SizeHistogram

CONTENT_TYPE: Final = f"Content-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n".encode()
CLIENT_CLOSED: Final = (
    499  # the client has left before its answer was written; the code that nginx logs for it
)
_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_BATCH_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_USUAL_CODES: Final = (200, 400, 500, 503, 504)
_LABELS: Final = ("model", "revision")
_CLASSES: Final = (2, 4, 5)  # of status codes, by their first digit; each is a set of series


class Metrics(Collector):
    """The metrics of one model."""

    def __init__(self, model: str, revision: str) -> None:
        self._labels = (model, revision)
        # of the parts of a request, waiting for a step's process included
        self.queue = DurationHistogram(_BOUNDS)
        self.compute = DurationHistogram(_BOUNDS)
        self.preprocess = DurationHistogram(_BOUNDS)
        self.postprocess = DurationHistogram(_BOUNDS)
        self._has_steps = False
        # from a request's head to its end, by class of status code: errors are often fast
        self.total = {first: DurationHistogram(_BOUNDS) for first in _CLASSES}
        self.received = SizeHistogram()
        self.sent = SizeHistogram()
        self.runs = RunCounts()
        self.last_answer = 0.0  # when one was written, as `time.monotonic()`
        # inference requests by how they ended; series exist before the first response,
        # since a rate needs that
        self.requests = Counter(dict.fromkeys(_USUAL_CODES, 0))
        self.copies = Counter({200: 0})  # likewise, to copies of other pods' requests
        self.out_of_profile = 0
        self.depth: Callable[[], int] = lambda: 0
        self.runs_in_loop: Callable[[], bool] = lambda: False
        self.in_flight: list[Callable[[], int]] = []  # one of each protocol
        # lines of the access log, and traces
        self.dropped: dict[str, Callable[[], int]] = {"access_log": lambda: 0, "trace": lambda: 0}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Expose the metrics of `collector` too."""
        self._registry.register(collector)

    def count_answer(self, status: int, began: float, received: int, sent: int) -> float:
        """Count a client's inference that ends, whose head arrived at `began` (`time.monotonic()`); return the time."""
        now = time.monotonic()
        if status != CLIENT_CLOSED:
            self.last_answer = now
        self.requests[status] += 1
        self.total[status // 100].observe(now - began)
        self.received.observe(received)
        self.sent.observe(sent)
        return now

    def count_copy(self, status: int) -> None:
        """Count a copy of another pod's request that ends."""
        self.copies[status] += 1

    def has_steps(self) -> None:
        """Expose the steps before and after the model too."""
        self._has_steps = True

    def expose(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterable[Metric]:
        durations = HistogramMetricFamily(
            "enginewright_request_duration_seconds",
            "Time of inference requests from the head to the last byte of the response, by class of the status code: 2xx,"
            " 4xx or 5xx. Its parts are the queue, compute, preprocess and postprocess metrics.",
            labels=(*_LABELS, "code"),
        )
        for first, histogram in self.total.items():
            labels = (*self._labels, f"{first}xx")
            durations.add_metric(labels, histogram.buckets(), histogram.total)
        yield durations
        yield self._histogram(
            "enginewright_request_queue_seconds",
            "Time of inference requests waiting for the model.",
            self.queue,
        )
        yield self._histogram(
            "enginewright_request_compute_seconds",
            "Time of inference requests in the model.",
            self.compute,
        )
        if self._has_steps:
            yield self._histogram(
                "enginewright_request_preprocess_seconds",
                "Time of inference requests in the steps of spec.processing before the model, and waiting for them.",
                self.preprocess,
            )
            yield self._histogram(
                "enginewright_request_postprocess_seconds",
                "Time of inference requests in the steps of spec.processing after the model, and waiting for them.",
                self.postprocess,
            )
        yield self._histogram(
            "enginewright_request_bytes", "Bodies of inference requests.", self.received
        )
        yield self._histogram(
            "enginewright_response_bytes",
            "Bodies of responses to them; 0 where the client left before its answer was written.",
            self.sent,
        )
        yield self._gauge(
            "enginewright_requests_in_flight",
            "Inference requests whose head has arrived and whose response is not written.",
            sum(count() for count in self.in_flight),
        )
        batches = HistogramMetricFamily(
            "enginewright_batch_size",
            "Inference requests per run of the model.",
            labels=_LABELS,
        )
        batches.add_metric(self._labels, self.runs.buckets(_BATCH_BOUNDS), self.runs.requests)
        yield batches
        yield self._counter(
            "enginewright_requests",
            "Inference requests that have ended, by status code; 499: the client left before its answer was written.",
            {(str(code),): count for code, count in sorted(self.requests.items())},
            "code",
        )
        yield self._counter(
            "enginewright_shadow_requests",
            "Copies of requests that pods of another revision answered, which have ended, by status code.",
            {(str(code),): count for code, count in sorted(self.copies.items())},
            "code",
        )
        yield self._gauge(
            "enginewright_queue_depth", "Inference requests waiting for the model.", self.depth()
        )
        yield self._gauge(
            "enginewright_event_loop_runs",
            "Whether short requests run in the event loop, where a small model is several times as fast (1), or all in"
            " the model's threads (0): the model takes longer than 1 ms, is on a device, or runs took long lately.",
            int(self.runs_in_loop()),
        )
        yield self._counter(
            "enginewright_request_records_dropped",
            "Records of requests that were to be written, and were dropped: they were too many, or"
            " standard output or the collector did not accept them. access_log: lines of spec.serving.accessLog; trace:"
            " spans of requests, of spec.serving.tracing.",
            {(kind,): count() for kind, count in self.dropped.items()},
            "kind",
        )
        yield self._counter(
            "enginewright_out_of_profile",
            "Inference requests refused for a shape outside the model's shape profiles.",
            {(): self.out_of_profile},
        )

    def _histogram(
        self, name: str, about: str, observed: DurationHistogram | SizeHistogram
    ) -> Metric:
        family = HistogramMetricFamily(name, about, labels=_LABELS)
        family.add_metric(self._labels, observed.buckets(), observed.total)
        return family

    def _gauge(self, name: str, about: str, value: int) -> Metric:
        family = GaugeMetricFamily(name, about, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(
        self, name: str, about: str, counts: Mapping[tuple[str, ...], int], *labels: str
    ) -> Metric:
        family = CounterMetricFamily(name, about, labels=(*_LABELS, *labels))
        for values, count in counts.items():
            family.add_metric((*self._labels, *values), count)
        return family
