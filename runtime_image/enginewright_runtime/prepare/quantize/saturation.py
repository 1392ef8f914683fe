"""Whether a model's INT8 products saturate on processors whose kernels sum them in 16 bits.

Without VNNI, ONNX Runtime does so for products of UINT8 and INT8, but not of equal types. OpenVINO
converts INT8 activations to UINT8, so both saturate there (measured with kernels without VNNI).
"""

from pathlib import Path
from typing import Final

import numpy as np
from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.task import Recipe
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.exact_products import make_exact
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.forms import REDUCED_INT8
from enginewright_runtime.session import processor

_UNFUSED: Final = "BASIC"
_MATRIX: Final = 2
_ZERO_POINT: Final = 2  # input of QuantizeLinear


def saturable(model: ModelProto, folder: Path, backend: str) -> bool:
    """Tell whether a quantized model, with weights in `folder`, has products that overflow 16 bits."""
    if not existing(model).quantized:
        return False
    if backend == "cpu" and not any(map(_makes_unsigned, graphs.walk_nodes(model))):
        tensors = graphs.walk_tensors(model)
        if not any(proto.data_type == TensorProto.UINT8 for proto in tensors):
            return False
    return any(
        tensor.data_type == TensorProto.INT8
        and len(tensor.dims) >= _MATRIX
        and _exceeds(tensor, folder)
        for tensor in graphs.walk_tensors(model)
    )


def _makes_unsigned(node: NodeProto) -> bool:
    """Tell whether a node produces UINT8 by default, without a tensor of that type."""
    if node.op_type == "QuantizeLinear":
        return len(node.input) <= _ZERO_POINT or not node.input[_ZERO_POINT]
    return "Dynamic" in node.op_type or node.op_type == "MatMulIntegerToFloat"


def _exceeds(tensor: TensorProto, folder: Path) -> bool:
    array = numpy_helper.to_array(tensor, str(folder))
    least, greatest = array.min(initial=0), array.max(initial=0)
    return bool(greatest > REDUCED_INT8.high or int(least) < np.int64(REDUCED_INT8.low))


def find_reference(model: Path, recipe: Recipe, name: str) -> tuple[Path, str | None]:
    """Return what is a reference of a quantized source for a device, and at which level of graph optimization, or None if at any.

    Devices sum products exactly. Without VNNI this processor does so only where quantized operators run in single
    precision, as QuantizeLinear and DequantizeLinear do at BASIC, or multiply equal types: operators on integers do so
    in a copy, `name` beside the model.
    """
    is_exact = processor.read().exact_products is not False
    if is_exact or recipe.backend not in DEVICE_BACKENDS:
        return model, None
    if not saturable(graphs.parse(model), model.parent, "cpu"):
        return model, None
    return make_exact(model, name), _UNFUSED
