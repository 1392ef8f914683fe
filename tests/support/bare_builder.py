"""TensorRT-RTX called by hand, in a process of its own: what preflight's word is held against.

Nothing of Enginewright is imported. usage: bare_builder.py MODEL.onnx '{"INPUT": [MIN, OPT, MAX]}'
"""

import json
import sys
from typing import Any

import onnx
import tensorrt_rtx_bindings as trt  # type: ignore[import-untyped]  # NVIDIA ships no types

BATCHES = (1, 8, 32)  # minimum, usual and maximum where none are given


def build(path: str, sizes: dict[str, list[list[int]]]) -> bool:
    """Return whether the library parses the complete model and builds it for compute capability 8.9."""
    model = onnx.load(path)
    for value in model.graph.input:
        # some exporters name every dynamic dimension "?", and TensorRT assumes equal names have equal sizes
        for dimension in value.type.tensor_type.shape.dim:
            dimension.ClearField("dim_param")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network: Any = builder.create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.SerializeToString()):
        return False
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if -1 in tuple(tensor.shape):
            batches = [[batch if size < 0 else size for size in tensor.shape] for batch in BATCHES]
            profile.set_shape(tensor.name, *sizes.get(tensor.name, batches))
    config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config) is not None


if __name__ == "__main__":
    sys.exit(0 if build(sys.argv[1], json.loads(sys.argv[2])) else 1)
