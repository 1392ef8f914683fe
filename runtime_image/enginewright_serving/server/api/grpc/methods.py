"""The methods that are answered at once: health, readiness, metadata, and what `management` has."""

from collections.abc import Callable
from typing import Any, Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import show
from google.protobuf.message import DecodeError

from enginewright_serving.server.api import management
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
_STREAM: Final = f"/{SERVICE}/ModelStreamInfer".encode()
_STATISTICS: Final = tuple(messages.ModelStatistics.DESCRIPTOR.fields_by_name)

_LOG_FIELDS: Final = {bool: "bool_param", int: "uint32_param", str: "string_param"}

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
            **{f"/{SERVICE}/{name}".encode(): method for name, method in self._manage().items()},
        }

    def _manage(self) -> dict[str, tuple[Any, _Answer]]:
        """Return the methods that clients of Triton manage a server with, by their names."""
        memory = {
            f"{kind}SharedMemory{what}": (messages.RegionRequest, answer)
            for kind in ("System", "Cuda")
            for what, answer in (
                ("Status", _list_regions),
                ("Register", _refuse_region),
                ("Unregister", lambda _: messages.Empty()),  # as none is registered
            )
        }
        return memory | {
            "ModelConfig": (messages.ConfigurationRequest, self._configuration),
            "RepositoryIndex": (messages.IndexRequest, self._index),
            "RepositoryModelLoad": (messages.RepositoryRequest, _refuse_load),
            "RepositoryModelUnload": (messages.RepositoryRequest, _refuse_unload),
            "TraceSetting": (messages.TraceSettingsRequest, self._trace_settings),
            "LogSettings": (messages.LogSettings, _log_settings),
        }

    def __contains__(self, path: bytes) -> bool:
        return path in self._answers

    def why_unknown(self, path: bytes) -> str:
        """Return the message for the client of an unknown method."""
        if path == _STREAM:
            return "streams of inferences are not supported; call ModelInfer for each"
        return f"method {show(path.decode(errors='replace'))} is not supported"

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

    def _configuration(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        self.check_model(request.name, request.version)
        config = management.describe_configuration(self._task, self._inference.require_model())
        for tensor in (*config["input"], *config["output"]):
            tensor["data_type"] = messages.DATA_TYPES.index(tensor["data_type"])
        return messages.Configuration(config=config)

    def _index(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        problem = self._inference.why_not_ready()
        models = management.list_models(self._task, problem, only_ready=request.ready)
        return messages.Index(models=models)

    def _trace_settings(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        if request.model_name:
            self.check_model(request.model_name, "")
        if request.settings:
            raise management.refuse_trace_settings()
        settings = [
            {"key": key, "value": {"value": [value] if isinstance(value, str) else value}}
            for key, value in management.read_trace_settings(self._task).items()
        ]
        return messages.TraceSettings(settings=settings)

    def _health(self, request: Any) -> object:  # noqa: ANN401 - made at run time
        if request.service not in {"", SERVICE}:
            raise RequestError(404, f"service {show(request.service)} is unknown; use {SERVICE!r}")
        ready = self._inference.why_not_ready() is None
        return messages.HealthResponse(status=_SERVING if ready else _NOT_SERVING)


def _log_settings(request: Any) -> object:  # noqa: ANN401 - made at run time
    if request.settings:
        raise management.refuse_log_settings()
    settings = [
        {"key": key, "value": {_LOG_FIELDS[type(value)]: value}}
        for key, value in management.LOG_SETTINGS.items()
    ]
    return messages.LogSettings(settings=settings)


def _refuse_load(request: Any) -> object:  # noqa: ANN401 - made at run time
    raise management.refuse_load(request.model_name)


def _refuse_unload(request: Any) -> object:  # noqa: ANN401 - made at run time
    raise management.refuse_unload(request.model_name)


def _refuse_region(request: Any) -> object:  # noqa: ANN401 - made at run time
    del request
    raise management.refuse_shared_memory()


def _list_regions(request: Any) -> object:  # noqa: ANN401 - made at run time
    if request.name:
        raise management.refuse_region(request.name)
    return messages.Empty()
