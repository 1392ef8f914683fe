"""What clients of Triton ask about server and model beside inference, and what they cannot change here.

Sources: triton-inference-server/server docs/protocol, extensions model_configuration, model_repository, trace, logging and
shared memory; triton-inference-server/common protobuf/model_config.proto. Nothing is configured through the server:
models, traces and logs are those of the InferenceModel.
"""

from collections.abc import Iterable
from typing import Any, Final

from enginewright_contract.task import ServeTask
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Tensor, show

from enginewright_serving.server.observe.health import HealthProblem
from enginewright_serving.server.observe.statistics import VERSION
from enginewright_serving.server.startup.prepare import ServedModel

_BACKEND: Final = "onnxruntime"
_PLATFORM: Final = "onnxruntime_onnx"
_STRING: Final = "TYPE_STRING"
_MEMORY: Final = "shared memory is not supported; send tensors in the request, in binary"
LOG_SETTINGS: Final[dict[str, bool | int | str]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def describe_configuration(task: ServeTask, model: ServedModel) -> dict[str, Any]:
    """Return the model's configuration in Triton's fields; with batches, `dims` are without the first dimension."""
    signature = model.client_signature
    rows = model.batches.rows if model.batches.rows > 1 and model.steps is None else 0
    return {
        "name": task.model,
        "platform": _PLATFORM,
        "backend": _BACKEND,
        "max_batch_size": rows,
        "input": _describe_tensors(signature.inputs.values(), batched=rows > 0),
        "output": _describe_tensors(signature.outputs.values(), batched=rows > 0),
        **({"dynamic_batching": {}} if rows else {}),
    }


def _describe_tensors(tensors: Iterable[Tensor], *, batched: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "data_type": _STRING if tensor.datatype.is_string else f"TYPE_{tensor.datatype.name}",
            "dims": list(tensor.shape)[batched:],
        }
        for tensor in tensors
    ]


def list_models(
    task: ServeTask, problem: HealthProblem | None, *, only_ready: bool
) -> list[dict[str, str]]:
    """Return the index of the repository, which has the served model alone."""
    model = {"name": task.model, "version": VERSION}
    if problem is None:
        return [model | {"state": "READY", "reason": ""}]
    return [] if only_ready else [model | {"state": "UNAVAILABLE", "reason": problem.message}]


def read_trace_settings(task: ServeTask) -> dict[str, str | list[str]]:
    """Return which requests are traced, in Triton's settings."""
    tracing = task.tracing
    rate = round(1 / tracing.share) if tracing is not None and tracing.share > 0 else 0
    return {
        "trace_level": ["OFF" if tracing is None else "TIMESTAMPS"],
        "trace_rate": str(rate),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def refuse_load(name: str) -> RequestError:
    """Return the error of a client that would load a model."""
    return RequestError(
        501,
        f"model {show(name)} cannot be loaded through the server, which serves one model; apply an"
        " InferenceModel (kubectl apply)",
    )


def refuse_unload(name: str) -> RequestError:
    """Return the error of a client that would unload a model."""
    return RequestError(
        501,
        f"model {show(name)} cannot be unloaded through the server, which serves one model; delete"
        " its InferenceModel (kubectl delete)",
    )


def refuse_trace_settings() -> RequestError:
    """Return the error of a client that would change what is traced."""
    return RequestError(
        501,
        "trace settings cannot be changed through the server; set spec.serving.tracing of the"
        " InferenceModel",
    )


def refuse_log_settings() -> RequestError:
    """Return the error of a client that would change what is logged."""
    return RequestError(
        501,
        "log settings cannot be changed through the server; set spec.serving.accessLog of the"
        " InferenceModel",
    )


def refuse_shared_memory() -> RequestError:
    """Return the error of a client that would register shared memory."""
    return RequestError(501, _MEMORY)


def refuse_region(name: str) -> RequestError:
    """Return the error of a client that asks for a region of shared memory, of which there is none."""
    return RequestError(404, f"region {show(name)} is not registered: {_MEMORY}")
