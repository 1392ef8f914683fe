"""The precision of a model before any change, and whether it can be changed. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from enginewright_contract.report import name_nodes
from enginewright_contract.task import Precision
from onnx import ModelProto, TensorProto

from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.model_files import TENSORRT
from enginewright_runtime.graph.raw import graphs

# Of ai.onnx and com.microsoft; com.microsoft also has operators with the prefixes below.
_QUANTIZED: Final = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
        *("MatMulNBits", "GatherBlockQuantized", "QuantizeBFP", "DequantizeBFP"),
    }
)
_OF_TENSORRT: Final = "TRT_"  # prefix of its operators for quantization, in the domain trt
_MICROSOFT: Final = frozenset({"com.microsoft"})
_FP8: Final = frozenset(
    {
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ),
        *(TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
    }
)
_INT4: Final = frozenset({TensorProto.INT4, TensorProto.UINT4})
_INT8: Final = frozenset({TensorProto.INT8, TensorProto.UINT8})
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


_TOLERANCES: Final[Mapping[str, str]] = {"FP4": "FP8", "INT4": "FP32"}


@dataclass(frozen=True)
class Existing:
    """A model's current precision."""

    precision: str  # FP32 | FP16 | BF16 | FP8 | FP4 | INT8 | INT4
    quantized: tuple[str, ...] = ()  # labels of nodes that quantize or compute in integers

    @property
    def tolerance(self) -> str:
        """The precision whose tolerance it has, a key of `tolerances.DEFAULTS`.

        Blocks of FP4 have scales of FP8, and a rounding error before them moves a value by a whole step; INT4 is of
        weights alone.
        """
        return _TOLERANCES.get(self.precision, self.precision)

    def refuses(self, requested: Precision) -> str | None:
        """Return why the model cannot be converted to a precision, if it cannot."""
        if requested == self.precision:
            return None
        if self.quantized:
            return (
                f"the model is already {self.precision}, by {format_count(len(self.quantized), 'node')}:"
                f" {name_nodes(list(self.quantized))}"
            )
        if self.precision != "FP32":
            # rounded weights do not regain precision, and would be rounded a second time
            return f"most weights of the model are already {self.precision}"
        return None


def existing(model: ModelProto) -> Existing:
    """Return the precision of a model that is parsed without its external data."""
    quantized = [
        graphs.label(node)
        for node in graphs.walk_nodes(model)
        if node.op_type in _QUANTIZED
        or (node.domain == TENSORRT and node.op_type.startswith(_OF_TENSORRT))
        or (
            node.domain in _MICROSOFT
            and node.op_type.startswith(("QLinear", "QAttention", "QGemm"))
        )
    ]
    if quantized:
        return Existing(_find_precision(model), tuple(quantized))
    return Existing(own_precision(model) or "FP32")


def _find_precision(model: ModelProto) -> str:
    """Return the precision of constants, zero points among them, and of the operators that name theirs."""
    kinds = {tensor.data_type for tensor in graphs.walk_tensors(model)}
    operators = {node.op_type for node in graphs.walk_nodes(model) if node.domain == TENSORRT}
    if TensorProto.FLOAT4E2M1 in kinds or any("FP4" in operator for operator in operators):
        return "FP4"
    if kinds & _FP8 or any("FP8" in operator for operator in operators):
        return "FP8"
    return "INT4" if kinds & _INT4 and not kinds & _INT8 else "INT8"


def own_precision(model: ModelProto) -> str | None:
    """Return the precision of most weights, or None if there are no weights."""
    counts: Counter[str] = Counter()
    for tensor in graphs.walk_tensors(model):
        if precision := _PRECISIONS.get(tensor.data_type):
            counts[precision] += graphs.elements(tensor)
    return counts.most_common(1)[0][0] if counts else None
