"""Counts what was answered over HTTP, and reports it to the access log and to traces."""

import time

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.transport.answered import Answered, Observer
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.request_context import RequestContext


class HttpReports:
    """What happens once a response is written; `HttpApplication`, called by `Connection`."""

    def __init__(self, metrics: figures.Metrics, inference: InferenceService) -> None:
        self.observers: list[Observer] = []  # of the inferences of all protocols
        self._of_refused: list[Observer] = []  # those that want requests that are no inference
        self._metrics = metrics
        self._inference = inference

    def observe(self, observer: Observer, *, refused: bool = False) -> None:
        """Report the inferences of all protocols to `observer`, with `refused` other refusals, too."""
        self.observers.append(observer)
        if refused:
            self._of_refused.append(observer)
        self._inference.names_requests = True

    def answered(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        """Count an inference, whose answer is written, and report it where that is wanted."""
        status, received, sent = response.status, request.length, response.length
        ended = self._metrics.answered(status, began, received, sent)
        if self.observers and request.context is not None:
            times = began, ended
            _report(self.observers, connection, request, request.context, status, times, sent)

    def left(self, connection: Connection, request: HttpRequest, began: float) -> None:
        """Report an inference over HTTP whose client has left before its answer was written."""
        if self.observers and request.context is not None:
            context, times = request.context.without_times(), (began, time.monotonic())
            _report(self.observers, connection, request, context, figures.CLIENT_CLOSED, times, 0)

    def refused(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        """Report a request for what does not exist, or by a method that it does not have."""
        status, context = response.status, request.context
        if self._of_refused and context is not None and status in (404, 405):
            times, sent = (began, time.monotonic()), response.length
            _report(self._of_refused, connection, request, context, status, times, sent)


def _report(
    observers: list[Observer],
    connection: Connection,
    request: HttpRequest,
    context: RequestContext,
    status: int,
    times: tuple[float, float],
    sent: int,
) -> None:
    """Report a request that began and ended at these times, with so many bytes of a response."""
    began, ended = times
    answered = Answered(
        context=context,
        protocol="http",
        method=request.method.decode(),
        status=status,
        grpc_status="",
        began=began,
        ended=ended,
        received=request.length,
        sent=sent,
        client=connection.address,
    )
    for observer in observers:
        observer.add(answered)
