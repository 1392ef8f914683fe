"""The metadata of server and model, as HTTP and gRPC both report it."""

from typing import Any, Final

from enginewright_runtime.session.signature import Tensor

# of the protocol, that the server has
EXTENSIONS: Final = [
    "binary_tensor_data",
    "model_configuration",
    "parameters",
    "schedule_policy",
    "statistics",
]
PLATFORM: Final = "onnx_onnxv1"


def describe(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return names, types and shapes of inputs or outputs."""
    return [
        {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        for tensor in tensors.values()
    ]
