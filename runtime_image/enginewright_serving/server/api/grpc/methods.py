"""The methods that are answered at once: health, readiness and metadata."""

from collections.abc import Callable
from typing import Any, Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import show
from google.protobuf.message import DecodeError

from enginewright_serving.server.api.inference import InferenceService
from enginewright_serving.server.api.metadata import EXTENSIONS, PLATFORM, describe
from enginewright_serving.server.observe.metrics import Metrics
from enginewright_serving.server.observe.statistics import statistics
from enginewright_serving.server.protocol.grpc import messages

SERVICE: Final = "inference.GRPCInferenceService"
MODEL_INFER: Final = f"/{SERVICE}/ModelInfer".encode()
_HEALTH: Final = "grpc.health.v1.Health"
# what a kubelet or a balancer asks for
OPEN_METHODS: Final = frozenset(
    {
        f"/{SERVICE}/ServerLive".encode(),
        f"/{SERVICE}/ServerReady".encode(),
        f"/{_HEALTH}/Check".encode(),
    }
)
_SERVING: Final = 1  # of grpc.health.v1.HealthCheckResponse.ServingStatus
_NOT_SERVING: Final = 2
MODEL_STATISTICS: Final = f"/{SERVICE}/ModelStatistics".encode()
_STATISTICS: Final = tuple(messages.ModelStatistics.DESCRIPTOR.fields_by_name)

_Answer = Callable[[Any], Any]


class Methods:
    """The methods of one server, except ModelInfer."""

    def __init__(
        self, task: ServeTask, version: str, inference: InferenceService, metrics: Metrics
    ) -> None:
        self._task = task
        self._metrics = metrics
        self._inference = inference
        self._server = messages.ServerMetadata(
            name="enginewright", version=version, extensions=EXTENSIONS
        )
        self._answers: dict[bytes, tuple[Any, _Answer]] = {
            f"/{SERVICE}/ServerLive".encode(): (messages.Empty, self._server_live),
            f"/{SERVICE}/ServerReady".encode(): (messages.Empty, self._server_ready),
            f"/{SERVICE}/ModelReady".encode(): (messages.Model, self._model_ready),
            f"/{SERVICE}/ServerMetadata".encode(): (messages.Empty, lambda _: self._server),
            f"/{SERVICE}/ModelMetadata".encode(): (messages.Model, self._model_metadata),
            MODEL_STATISTICS: (messages.Model, self._statistics),
            f"/{_HEALTH}/Check".encode(): (messages.HealthRequest, self._health),
        }

    def __contains__(self, path: bytes) -> bool:
        return path in self._answers

    def answer(self, path: bytes, message: bytes) -> bytes:
        """Return the serialized response of the method at `path`, which must be one of these; may raise RequestError."""
        kind, answer = self._answers[path]
        request = kind()
        try:
            request.ParseFromString(message)
        except DecodeError:
            raise RequestError(400, "the message is not valid") from None
        serialized: bytes = answer(request).SerializeToString()
        return serialized

    def check_model(self, name: str, version: str) -> None:
        """Refuse another model or version than the served one: RequestError 404."""
        model, revision = self._task.model, self._task.revision
        if name != model:
            raise RequestError(
                404, f"model {show(name)} is not served here; this server has {model!r}"
            )
        if version not in {"", "1", revision}:
            raise RequestError(
                404, f"model {model!r} has no such version here; it has {revision!r}"
            )

    def _server_live(self, _: object) -> object:
        return messages.Live(live=self._inference.why_not_live() is None)

    def _server_ready(self, _: object) -> object:
        return messages.Ready(ready=self._inference.why_not_ready() is None)

    def _model_ready(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        self.check_model(request.name, request.version)
        return self._server_ready(request)

    def _model_metadata(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        self.check_model(request.name, request.version)
        signature = self._inference.require_model().client_signature
        return messages.ModelMetadata(
            name=self._task.model,
            versions=[self._task.revision],
            platform=PLATFORM,
            inputs=describe(signature.inputs),
            outputs=describe(signature.outputs),
        )

    def _statistics(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        """Return the model's statistics, also if no model is named, which means all."""
        if request.name:
            self.check_model(request.name, request.version)
        self._inference.require_model()
        values = statistics(self._task, self._metrics)
        return messages.Statistics(model_stats=[{name: values[name] for name in _STATISTICS}])

    def _health(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        if request.service not in {"", SERVICE}:
            raise RequestError(404, f"service {show(request.service)} is unknown; use {SERVICE!r}")
        ready = self._inference.why_not_ready() is None
        return messages.HealthResponse(status=_SERVING if ready else _NOT_SERVING)
