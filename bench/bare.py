"""The bare tools as a reference for benchmarks, and the measurement of a process's cost."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CHECK: Final = """
import sys, numpy, onnx, onnxruntime
path = sys.argv[1]
onnx.checker.check_model(path, full_check=True)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
for batch in (1, 8, 32):
    session.run(None, {
        each.name: numpy.random.default_rng(0).random(
            [batch if not isinstance(size, int) else size for size in each.shape], numpy.float32)
        for each in session.get_inputs()})
"""
BUILD: Final = """
import sys, tensorrt_rtx_bindings as trt
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
profile = builder.create_optimization_profile()
for index in range(network.num_inputs):
    tensor = network.get_input(index)
    shapes = [[batch if size < 0 else size for size in tensor.shape] for batch in (1, 8, 32)]
    profile.set_shape(tensor.name, *shapes)
config.add_optimization_profile(profile)
plan = builder.build_serialized_network(network, config)
open(sys.argv[2], "wb").write(plan)
"""


@dataclass(frozen=True)
class Cost:
    """Wall time (s) of a process, and the highest peak memory (bytes) of it and its children."""

    seconds: float
    peak: int


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to completion. Raises RuntimeError, with the end of its output, if it fails."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(
                f"{' '.join(command)[:200]} ended with {process.returncode}:\n{text}"
            )
    return Cost(seconds, usage.ru_maxrss * 1024)
