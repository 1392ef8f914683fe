"""Small tensors in external data: ONNX Runtime loads no model whose shapes depend on one.

ONNX's shape inference reads the values of sizes, axes and scales, but not from external data, and
ONNX Runtime refuses the model ("Cannot parse data from external tensors"). Tools write such models
with size_threshold=0 of onnx.save_model.
"""

from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import load_external_data_for_tensor

from enginewright_runtime.graph.raw import graphs

_SMALL: Final = 1024  # bytes, as the default of size_threshold
# operators whose shape inference reads values of inputs; measured with ONNX Runtime 1.31
_READERS: Final = frozenset(
    {
        *("CenterCropPad", "Col2Im", "ConstantOfShape", "Expand", "OneHot", "Pad", "Range"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Resize"),
        *("Slice", "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"),
    }
)


def needs_inlining(model: ModelProto) -> bool:
    """Return whether the shape of a node depends on a small tensor in external data."""
    small = {
        tensor.name
        for graph in graphs.walk_graphs(model)
        for tensor in graph.initializer
        if _is_small_and_outside(tensor)
    }
    return bool(small) and any(
        name in small
        for node in graphs.walk_nodes(model)
        if node.op_type in _READERS
        for name in node.input
    )


def inline(model: ModelProto, folder: Path) -> int:
    """Move the small tensors of a model, whose external data is in `folder`, into it, in place; return how many."""
    small = [tensor for tensor in graphs.walk_tensors(model) if _is_small_and_outside(tensor)]
    for tensor in small:
        load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return len(small)


def _is_small_and_outside(tensor: TensorProto) -> bool:
    if graphs.external_entries(tensor) is None:
        return False
    size = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return 0 <= graphs.elements(tensor) * size <= _SMALL
