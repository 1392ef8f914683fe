"""A model that returns its inputs, one of every datatype and of any shape, and requests to it in every form."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np
import onnx
from enginewright_runtime.session.datatypes import DATATYPES
from enginewright_serving.server.protocol.grpc.messages import InferRequest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.support.serving import Answer, model

Arrays = Mapping[str, NDArray[Any]]

DTYPES: Final = {entry.name: entry.dtype for entry in DATATYPES}
BINARY_LENGTH: Final = "Inference-Header-Content-Length"
_ONNX: Final = {"tensor(float)": "FLOAT", "tensor(double)": "DOUBLE"}


def mirror_model(names: Iterable[str]) -> onnx.ModelProto:
    """Return NAME -> NAME_out for each datatype; no rank is declared."""
    kinds = {datatype.name: _kind(datatype.onnx) for datatype in DATATYPES}
    names = list(names)
    return model(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names],
        [helper.make_tensor_value_info(name, kinds[name], None) for name in names],
        [helper.make_tensor_value_info(f"{name}_out", kinds[name], None) for name in names],
    )


def _kind(onnx_name: str) -> int:
    name = onnx_name[len("tensor(") : -1]
    datatype = _ONNX.get(onnx_name, name.upper())
    return int(TensorProto.DataType.Value(datatype))


def sample(names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return one input of each datatype."""
    return {
        name: np.array(["a", "b"], object) if name == "BYTES" else np.ones(2, DTYPES[name])
        for name in names
    }


def raw(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array, as both protocols have them."""
    if array.dtype != object:
        return array.tobytes()
    texts = [text.encode() for text in array.flat]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


# HTTP.


def http_document(
    given: Arrays, *, binary: Collection[str], nested: bool
) -> tuple[dict[str, Any], bytes]:
    """Return the JSON of a request, and the tensors that follow it."""
    inputs, tensors = [], b""
    for name, array in given.items():
        item: dict[str, Any] = {"name": name, "datatype": name, "shape": list(array.shape)}
        if name in binary:
            data = raw(array)
            tensors += data
            item["parameters"] = {"binary_data_size": len(data)}
        else:
            item["data"] = array.tolist() if nested and array.ndim else array.ravel().tolist()
        inputs.append(item)
    return {"inputs": inputs}, tensors


def http_outputs(answer: Answer) -> dict[str, tuple[str, list[int], Any]]:
    """Return datatype, shape, and bytes or JSON of each output."""
    length = answer.headers.get(BINARY_LENGTH.lower())
    at = len(answer.body) if length is None else int(length)
    outputs = {}
    for output in json.loads(answer.body[:at])["outputs"]:
        if "data" in output:
            data: Any = output["data"]
        else:
            size = output["parameters"]["binary_data_size"]
            data, at = answer.body[at : at + size], at + size
        outputs[output["name"]] = output["datatype"], output["shape"], data
    assert at == len(answer.body)
    return outputs


# gRPC.


def grpc_request(given: Arrays, **fields: Any) -> Any:
    """Return a ModelInferRequest."""
    inputs = [
        {"name": name, "datatype": name, "shape": list(array.shape)}
        for name, array in given.items()
    ]
    contents = [raw(array) for array in given.values()]
    return InferRequest(model_name="m", inputs=inputs, raw_input_contents=contents, **fields)


def parameter(name: str, value: bool) -> dict[str, Any]:
    """Return an entry of a request's parameters."""
    return {"key": name, "value": {"bool_param": value}}
