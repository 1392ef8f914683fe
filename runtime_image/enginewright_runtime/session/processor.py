"""This machine's processor, as the kernel reports it, and whether ONNX Runtime measures INT8 products as exact on it."""

import platform
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from enginewright_contract.processors import CPUINFO, Processor, has_exact_products, parse
from onnx import TensorProto, helper, numpy_helper

from enginewright_runtime.session.base import load_small

_DEPTH: Final = 64


@cache
def read() -> Processor:
    """Return this machine's processor; unknown features are omitted."""
    try:
        cpuinfo = Path(CPUINFO).read_text(errors="replace")
    except OSError:  # no Linux
        cpuinfo = ""
    processor = parse(cpuinfo, platform.machine())
    exact = _exact_products()
    # an emulator reports the flags of its host, whose instruction sets the process cannot use
    usable = tuple(
        feature
        for feature in processor.features
        if exact is not False or not has_exact_products({feature})
    )
    return processor.model_copy(update={"features": usable, "exact_products": exact})


def _exact_products() -> bool | None:
    """Multiply the largest UINT8 by the largest INT8 on ONNX Runtime's CPU provider."""
    matrix = numpy_helper.from_array(np.full((_DEPTH, 16), 127, np.int8), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "products",
        [value("x", TensorProto.UINT8, [1, _DEPTH])],
        [value("y", TensorProto.INT32, [1, 16])],
        [matrix],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    try:
        session = load_small(model.SerializeToString())
        products = session.run(None, {"x": np.full((1, _DEPTH), 255, np.uint8)})[0]
    except Exception:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
        return None
    return bool((np.asarray(products) == _DEPTH * 255 * 127).all())
