"""The resources of the Open Inference Protocol, and of this server, by the target of a request."""

import enum
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from enginewright_contract.task import LIVE_PATH, READY_PATH, ServeTask
from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.exchanges import RESOURCE
from enginewright_serving.server.api import management

_LONGEST_PATH: Final = 2048  # bytes of an encoded path, since each escape is costly to decode
_UNREGISTER: Final = re.compile(rb"/v2/(?:system|cuda)sharedmemory/(?:region/[^/]+/)?unregister")
_NEVER_DONE: Final[tuple[tuple[re.Pattern[str], Callable[[str], RequestError]], ...]] = (
    (re.compile("/v2/repository/models/([^/]+)/load"), management.refuse_load),
    (re.compile("/v2/repository/models/([^/]+)/unload"), management.refuse_unload),
    (
        re.compile("/v2/(?:system|cuda)sharedmemory/region/([^/]+)/register"),
        lambda _: management.refuse_shared_memory(),
    ),
    (
        re.compile("/v2/(?:system|cuda)sharedmemory/region/([^/]+)/status"),
        management.refuse_region,
    ),
)


NO_EMBEDDINGS: Final = (
    "this model has no embeddings: set spec.serving.embeddings of its InferenceModel, which needs a"
    " tokenizer in spec.processing.before"
)


class ServedResource(enum.IntEnum):  # not Enum, which hashes in Python: each request looks it up
    """What a path names."""

    SERVER = enum.auto()
    LIVE = enum.auto()
    READY = enum.auto()
    MODEL = enum.auto()
    MODEL_READY = enum.auto()
    INFER = enum.auto()
    EMBEDDINGS = enum.auto()
    EXECUTION = enum.auto()
    MEASUREMENTS = enum.auto()
    STATISTICS = enum.auto()
    SHADOW = enum.auto()
    METRICS = enum.auto()
    CONFIGURATION = enum.auto()
    INDEX = enum.auto()
    TRACE_SETTINGS = enum.auto()
    LOG_SETTINGS = enum.auto()
    SHARED_MEMORY = enum.auto()
    UNREGISTER = enum.auto()


INFERENCES: Final = (ServedResource.INFER, ServedResource.EMBEDDINGS)


class Routes:
    """The paths of a server of one model."""

    def __init__(self, task: ServeTask) -> None:
        self._model, self._revision = task.model, task.revision
        self.exact = _resources(task)  # by the target, as most clients write it

    def find(self, target: bytes) -> ServedResource | None:
        """Return the resource of a target that has a query, is percent-encoded or is in absolute form, if any."""
        path = _path(target)
        if _UNREGISTER.fullmatch(path):
            return ServedResource.UNREGISTER
        return self.exact.get(path)

    def refuse(self, target: bytes) -> RequestError:
        """Return the error of a client that asks for something that does not exist, or that this server never does."""
        path = _path(target).decode(errors="replace")
        for pattern, refuse in _NEVER_DONE:
            if named := pattern.fullmatch(path):
                return refuse(named[1])
        return RequestError(404, self.why_unknown(target))

    def why_unknown(self, target: bytes) -> str:
        """Return the message for the client of an unknown target."""
        path = _path(target).decode(errors="replace")
        parts = path.split("/")
        model, revision = self._model, self._revision
        if parts[:3] == ["", "v2", "models"] and len(parts) > 3:
            if parts[3] != model:
                return f"model {parts[3][:100]!r} is not served here; this server has {model!r}"
            if parts[4:5] == ["versions"] and parts[5:6] not in ([revision], ["1"]):
                return f"model {model!r} has no such version here; it has {revision!r}"
        return f"{path[:200]} does not exist; see /v2/models/{model}"


def _resources(task: ServeTask) -> dict[bytes, ServedResource]:
    resources = {
        "/v2": ServedResource.SERVER,
        LIVE_PATH: ServedResource.LIVE,
        READY_PATH: ServedResource.READY,
        "/metrics": ServedResource.METRICS,
        "/v1/embeddings": ServedResource.EMBEDDINGS,
        "/v2/models/stats": ServedResource.STATISTICS,  # of all models
        "/v2/repository/index": ServedResource.INDEX,
        "/v2/trace/setting": ServedResource.TRACE_SETTINGS,
        "/v2/logging": ServedResource.LOG_SETTINGS,
        "/v2/systemsharedmemory/status": ServedResource.SHARED_MEMORY,
        "/v2/cudasharedmemory/status": ServedResource.SHARED_MEMORY,
    }
    model = f"/v2/models/{task.model}"
    for base in (model, f"{model}/versions/{task.revision}", f"{model}/versions/1"):
        resources[base] = ServedResource.MODEL
        resources[f"{base}/ready"] = ServedResource.MODEL_READY
        resources[f"{base}/infer"] = ServedResource.INFER
        resources[f"{base}/embeddings"] = ServedResource.EMBEDDINGS  # which routes by model lead to
        resources[f"{base}/execution"] = ServedResource.EXECUTION
        resources[f"{base}/stats"] = ServedResource.STATISTICS
        resources[f"{base}/config"] = ServedResource.CONFIGURATION
        resources[f"{base}/trace/setting"] = ServedResource.TRACE_SETTINGS
        resources[f"{base}/measurements"] = ServedResource.MEASUREMENTS
        resources[f"{base}/{RESOURCE}"] = ServedResource.SHADOW
    return {path.encode(): resource for path, resource in resources.items()}


def _path(target: bytes) -> bytes:
    """Return the path of a request target in origin or absolute form, decoded unless it is too long."""
    try:
        path = urlsplit(target).path if not target.startswith(b"/") else target.partition(b"?")[0]
    except ValueError:
        return target
    return unquote_to_bytes(path) if len(path) <= _LONGEST_PATH else path
