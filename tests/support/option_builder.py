"""TensorRT-RTX with one option that the product does not set, in a process of its own; prints JSON.

usage: option_builder.py MODEL.onnx CAPABILITY[,...] [FLAG | LEVEL]. All inputs get four rows. FLAG: of
BuilderFlag; LEVEL: of HardwareCompatibilityLevel.
"""

import hashlib
import json
import sys
from typing import Any

import tensorrt_rtx_bindings as trt  # type: ignore[import-untyped]  # NVIDIA ships no types

ROWS = 4


class Log(trt.ILogger):  # type: ignore[misc]  # as above
    """Keeps errors and warnings."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity <= trt.ILogger.WARNING:
            self.messages.append(message)


def build(path: str, capabilities: list[str], option: str) -> dict[str, Any]:
    """Return size and digest of the engine, both None if it is not built, and the library's messages."""
    log = Log()
    builder = trt.Builder(log)
    network: Any = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(path)
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        config.set_compute_capability(trt.ComputeCapability.__members__[name], index)
    if option in trt.BuilderFlag.__members__:
        config.set_flag(trt.BuilderFlag.__members__[option])
    elif option:
        level = trt.HardwareCompatibilityLevel.__members__[option]
        config.hardware_compatibility_level = level
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        sizes = [ROWS if size < 0 else size for size in tensor.shape]
        profile.set_shape(tensor.name, sizes, sizes, sizes)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    content = None if plan is None else bytes(memoryview(plan))
    return {
        "bytes": None if content is None else len(content),
        "sha256": None if content is None else hashlib.sha256(content).hexdigest(),
        "messages": log.messages,
    }


if __name__ == "__main__":
    model, targets, *options = sys.argv[1:]
    print(json.dumps(build(model, targets.split(","), options[0] if options else "")))
