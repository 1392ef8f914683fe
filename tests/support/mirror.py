"""A model that returns its inputs, one of every datatype and of any shape, and requests to it in every form."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np
import onnx
from enginewright_runtime.session.datatypes import DATATYPES
from enginewright_serving.server.protocol.grpc.messages import InferRequest, InferResponse
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.support.serving import Answer, model

Arrays = Mapping[str, NDArray[Any]]

DTYPES: Final = {entry.name: entry.dtype for entry in DATATYPES}
WITHOUT_TYPED: Final = ("FP16", "BF16")  # have no typed contents
BINARY_LENGTH: Final = "Inference-Header-Content-Length"
_ONNX: Final = {
    "tensor(float)": "FLOAT",
    "tensor(double)": "DOUBLE",
}
_TYPED: Final = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


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


# Arrays.

SHAPES: Final = st.lists(st.integers(0, 4), max_size=4).map(tuple)
_TEXTS: Final = st.text(max_size=12)  # all of Unicode that UTF-8 can encode, NUL too


@st.composite
def arrays(draw: st.DrawFn, name: str, *, finite: bool = False) -> NDArray[Any]:
    """Return an array of any bits: payloads of NaN, infinities, subnormals."""
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    if name == "BYTES":
        texts = draw(st.lists(_TEXTS, min_size=count, max_size=count))
        strings = np.empty(count, object)
        strings[:] = texts
        return strings.reshape(shape)
    bits = np.random.default_rng(draw(st.integers(0, 2**32))).integers
    if name == "BOOL":
        return bits(0, 2, count, np.uint8).view(np.bool_).reshape(shape)
    kind = DTYPES[name]
    array = bits(0, 256, count * kind.itemsize, np.uint8).view(kind)
    if kind.kind == "f":
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(kind).tiny / 2], kind)
        chosen = bits(0, 12, count)
        array = np.where(chosen < 6, special[chosen % 6], array)
        if finite:
            array = np.where(np.isfinite(array), array, kind.type(0.5))
    return array.reshape(shape)


def all_arrays(names: Iterable[str], *, finite: Collection[str] = ()) -> st.SearchStrategy[Any]:
    """Return one array of every datatype, without NaN and infinities in those of `finite`."""
    return st.fixed_dictionaries({name: arrays(name, finite=name in finite) for name in names})


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


def in_json(array: NDArray[Any]) -> list[Any]:
    """Return the elements as JSON has them: NaN and infinities are null."""
    flat = array.ravel()
    if flat.dtype.kind != "f":
        return flat.tolist()
    return [float(item) if np.isfinite(item) else None for item in flat]


# gRPC.


def grpc_request(given: Arrays, *, typed: bool, **fields: Any) -> Any:
    """Return a ModelInferRequest."""
    inputs = []
    for name, array in given.items():
        item: dict[str, Any] = {"name": name, "datatype": name, "shape": list(array.shape)}
        if typed:
            item["contents"] = {_name_typed_contents(name): _elements(array)}
        inputs.append(item)
    contents = [] if typed else [raw(array) for array in given.values()]
    return InferRequest(model_name="m", inputs=inputs, raw_input_contents=contents, **fields)


def parameter(name: str, value: bool) -> dict[str, Any]:
    """Return an entry of a request's parameters."""
    return {"key": name, "value": {"bool_param": value}}


def grpc_outputs(data: bytes) -> dict[str, tuple[str, list[int], Any]]:
    """Return datatype, shape, and bytes or elements of each output of a ModelInferResponse."""
    response: Any = InferResponse()
    response.ParseFromString(data)
    outputs = {}
    for index, output in enumerate(response.outputs):
        contents: Any
        if response.raw_output_contents:
            contents = response.raw_output_contents[index]
        else:
            contents = list(getattr(output.contents, _name_typed_contents(output.datatype)))
        outputs[output.name] = output.datatype, list(output.shape), contents
    return outputs


def _name_typed_contents(name: str) -> str:
    return _TYPED.get(name) or ("uint_contents" if name.startswith("U") else "int_contents")


def _elements(array: NDArray[Any]) -> list[Any]:
    if array.dtype == object:
        return [text.encode() for text in array.flat]
    elements: list[Any] = array.ravel().tolist()
    return elements


def encode_typed(name: str, elements: list[Any]) -> bytes:
    """Return typed contents as the raw bytes of the same tensor."""
    if name == "BYTES":
        return b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    return np.array(elements, DTYPES[name]).tobytes()
