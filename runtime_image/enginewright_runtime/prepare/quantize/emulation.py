"""A model of BF16 for ONNX Runtime's CPU provider, which has next to no kernels for it.

Every node computes in single precision and each of its results is rounded to BF16, so what comes out
is what a device computes but for the order of sums: `precision/widening`.
"""

import logging
from pathlib import Path
from typing import Final

from onnx import ModelProto, TensorProto

from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.quantizer import write_widened

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 900.0


def is_bfloat16(model: ModelProto) -> bool:
    """Tell whether a model has weights, inputs or outputs of BF16, or casts to it."""
    return (
        any(tensor.data_type == TensorProto.BFLOAT16 for tensor in graphs.walk_tensors(model))
        or any(
            value.type.tensor_type.elem_type == TensorProto.BFLOAT16
            for value in (*model.graph.input, *model.graph.output)
        )
        or any(
            attribute.name == "to" and attribute.i == TensorProto.BFLOAT16
            for node in graphs.walk_nodes(model)
            for attribute in node.attribute
        )
    )


def emulated(model: Path, name: str) -> Path | None:
    """Write the model so that the CPU provider runs it, as `name` beside it; None: it has no BF16.

    Args:
        model: of an IR version that ONNX Runtime loads; its external data is referred to.
        name: of the file, which is the caller's to remove.

    Raises:
        StageFailure: as `Call.run`; ModelTooLarge.
    """
    if not is_bfloat16(graphs.parse(model)):
        return None
    out = model.with_name(name)
    _log.info("widening BF16, which ONNX Runtime's CPU provider has no kernels for")
    limits = Limits(seconds=_SECONDS, memory_bytes=memory_of_child())
    Call(write_widened, "widening the model", limits).run(model, out)
    return out
