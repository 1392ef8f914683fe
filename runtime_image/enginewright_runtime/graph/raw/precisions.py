"""The precision that a model was exported in."""

from collections import Counter
from typing import Final

from onnx import ModelProto, TensorProto

from enginewright_runtime.graph.raw import graphs

_PRECISIONS: Final[dict[int, str]] = {
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP32",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "INT8",
    TensorProto.FLOAT8E4M3FN: "FP8",
    TensorProto.FLOAT8E5M2: "FP8",
}


def own_precision(model: ModelProto) -> str | None:
    """Return the precision of most weights; None: there are none."""
    found: Counter[str] = Counter()
    for tensor in graphs.walk_tensors(model):
        if precision := _PRECISIONS.get(tensor.data_type):
            found[precision] += graphs.elements(tensor)
    return found.most_common(1)[0][0] if found else None
