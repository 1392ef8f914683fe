"""The HTTP resources other than inference: health, metadata, statistics, metrics, the execution report.

Responses that are always the same are encoded once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from enginewright_contract.measurements import ServerMeasurements
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_routes import ServedResource
from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.management import (
    LOG_SETTINGS,
    describe_configuration,
    list_models,
    read_trace_settings,
)
from enginewright_serving.server.api.metadata import EXTENSIONS, PLATFORM, describe
from enginewright_serving.server.inference.request_failures import report_unexpected
from enginewright_serving.server.observe import memory
from enginewright_serving.server.observe.health import HealthProblem
from enginewright_serving.server.observe.statistics import statistics
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.application import json_response
from enginewright_serving.transport.message import Body, HttpResponse

_OF_SERVER: Final[Mapping[object, Callable[[ServeTask], object]]] = {
    ServedResource.TRACE_SETTINGS: read_trace_settings,
    ServedResource.LOG_SETTINGS: lambda _: LOG_SETTINGS,
    ServedResource.SHARED_MEMORY: lambda _: [],  # regions
    ServedResource.UNREGISTER: lambda _: {},  # as none is registered, nothing is left to do
}
_LARGEST_QUESTION: Final = 64 * 1024  # bytes of a body that is no inference


class HttpResources:
    """The resources of one server and its model."""

    def __init__(
        self,
        task: ServeTask,
        version: str,
        inference: InferenceService,
        metrics: figures.Metrics,
        started: float,
    ) -> None:
        """Create it without a model; `started`: when the server did, as `time.time()`."""
        self._task = task
        self._inference = inference
        self._metrics = metrics
        self._started = started
        self._model_metadata = self._configuration = b""
        self._server_metadata = orjson.dumps(
            {"name": "enginewright", "version": version, "extensions": EXTENSIONS}
        )

    def serve_model(self, model: ServedModel) -> None:
        """Describe `model` from now on."""
        self._model_metadata = orjson.dumps(
            {
                "name": self._task.model,
                "versions": [self._task.revision],
                "platform": PLATFORM,
                "inputs": describe(model.client_signature.inputs),
                "outputs": describe(model.client_signature.outputs),
            }
        )

        self._configuration = orjson.dumps(describe_configuration(self._task, model))

    def get(self, resource: object, body: Body | None) -> HttpResponse:
        """Return the response to a request for a `ServedResource`; raise RequestError, as 503 before the model is ready."""
        inference = self._inference
        if resource is ServedResource.LIVE:
            response = _health("live", inference.why_not_live())
        elif resource is ServedResource.READY:
            response = _health("ready", inference.why_not_ready())
        elif resource is ServedResource.MODEL_READY:
            response = _health("ready", inference.why_not_ready(), name=self._task.model)
        elif resource is ServedResource.SERVER:
            response = json_response(200, self._server_metadata)
        elif resource is ServedResource.INDEX:
            response = json_response(200, self._index(body))
        elif resource in _OF_SERVER:
            response = json_response(200, orjson.dumps(_OF_SERVER[resource](self._task)))
        else:
            response = json_response(200, self._of_model(resource, inference.require_model()))
        return response

    def _index(self, body: Body | None) -> bytes:
        only_ready = body is not None and _wants_ready(body)
        problem = self._inference.why_not_ready()
        models = list_models(self._task, problem, only_ready=only_ready)
        return orjson.dumps(models)

    def _of_model(self, resource: object, model: ServedModel) -> bytes:
        if resource is ServedResource.EXECUTION:
            return model.execution.document()
        if resource is ServedResource.MEASUREMENTS:
            return self._measurements(model)
        if resource is ServedResource.STATISTICS:
            return orjson.dumps({"model_stats": [statistics(self._task, self._metrics)]})
        if resource is ServedResource.CONFIGURATION:
            return self._configuration
        return self._model_metadata

    def _measurements(self, model: ServedModel) -> bytes:
        requests = self._metrics.requests.items()
        measurements = ServerMeasurements(
            started=self._started,
            memory_bytes=memory.resident_bytes(),
            responses={str(code): count for code, count in requests if count},
            latencies=model.buckets.latencies(),
        )
        return measurements.to_json().encode()

    def exposition(self) -> HttpResponse:
        """Return the response to a request for metrics."""
        try:
            text = self._metrics.expose()
        except Exception:  # noqa: BLE001 - an internal error fails requests, not the connections
            return error_response(report_unexpected("writing the metrics"))
        return HttpResponse(200, figures.CONTENT_TYPE, [text], len(text))


def _wants_ready(body: Body) -> bool:
    """Return whether the body of a request for the index asks for ready models only."""
    if body.length > _LARGEST_QUESTION:
        raise RequestError(413, f"the body exceeds {_LARGEST_QUESTION} bytes")
    try:
        document = orjson.loads(body.view())
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the request is not valid JSON: {error}") from None
    ready = document.get("ready", False) if isinstance(document, dict) else None
    if not isinstance(ready, bool):
        raise RequestError(400, "the request must be a JSON object, with 'ready' true or false")
    return ready


def _health(what: str, problem: HealthProblem | None, name: str | None = None) -> HttpResponse:
    document: dict[str, Any] = {} if name is None else {"name": name}
    document[what] = problem is None
    if problem is not None:
        document["error"] = problem.message
        if problem.reason is not None:
            document["reason"] = problem.reason
    return json_response(200 if problem is None else 503, document)
