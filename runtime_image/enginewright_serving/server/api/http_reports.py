"""Counts what was answered over HTTP, and reports it to the access log and to traces."""

import time

from typing_extensions import override

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.transport.answered import Answered, Observer
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.request_context import RequestContext
from enginewright_serving.transport.settings import TransportSettings


class ReportingApplication(HttpApplication[Connection]):
    """Counts inferences once their responses are written, and reports them to observers."""

    def __init__(
        self, settings: TransportSettings, metrics: figures.Metrics, inference: InferenceService
    ) -> None:
        super().__init__(settings)
        self.observers: list[Observer] = []  # of the inferences of all protocols
        self._refusal_observers: list[Observer] = []  # of other refused requests
        self.metrics = metrics
        self.inference = inference

    def observe(self, observer: Observer, *, refused: bool = False) -> None:
        """Report the inferences of all protocols to `observer`, with `refused` other refusals, too."""
        self.observers.append(observer)
        if refused:
            self._refusal_observers.append(observer)
        self.inference.names_requests = True

    @override
    def on_answered(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        self._end(connection, request, request.context, response.status, began, response.length)

    @override
    def on_left(self, connection: Connection, request: HttpRequest, began: float) -> None:
        context = None if request.context is None else request.context.without_times()
        self._end(connection, request, context, figures.CLIENT_CLOSED, began, 0)

    def _end(
        self,
        connection: Connection,
        request: HttpRequest,
        context: RequestContext | None,
        status: int,
        began: float,
        sent: int,
    ) -> None:
        if request.copy:
            self.metrics.count_copy(status)
            return
        ended = self.metrics.count_answer(status, began, request.length, sent)
        if self.observers and context is not None:
            _report(self.observers, connection, request, context, status, (began, ended), sent)

    @override
    def on_refused(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        status, context = response.status, request.context
        if self._refusal_observers and context is not None and status in (404, 405):
            times, sent = (began, time.monotonic()), response.length
            _report(self._refusal_observers, connection, request, context, status, times, sent)


def _report(
    observers: list[Observer],
    connection: Connection,
    request: HttpRequest,
    context: RequestContext,
    status: int,
    times: tuple[float, float],
    sent: int,
) -> None:
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
