"""What each stage costs, in seconds and peak memory, beside the bare tools doing that alone.

Absolute figures belong to one machine. What is to hold everywhere: preparing stays within a small
multiple of one check, one load and one run; an engine's build within 10% of the bare builder's; and
a model of 2.7 GB within 12 GiB.
"""

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import graphs  # noqa: E402 - beside this script
from enginewright.contract.keys import engine_key  # noqa: E402 - needs the path above
from enginewright.contract.report import read_herald  # noqa: E402
from enginewright.contract.task import (  # noqa: E402
    ENGINE_STAGES,
    PREPARE_STAGES,
    EngineRecipe,
    EngineTask,
)
from onnx import ModelProto  # noqa: E402

from tests.support.preparing import Workplace  # noqa: E402

MEMORY_LIMIT: Final = 12 * 2**30  # bytes, of every stage
BUILD_LIMIT: Final = 1.10  # times the bare builder
CAPABILITY: Final = "8.9"
ROUNDS: Final = 3  # of builds, the bare one and ours by turns

_CHECK: Final = """
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
_BUILD: Final = """
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
    """Of one process and all that it waited for: wall seconds, and the largest one's peak bytes."""

    seconds: float
    peak: int


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end. Raises RuntimeError, with its last words, when it fails."""
    with tempfile.TemporaryFile() as words:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=words, stderr=words, env={**os.environ, **(environment or {})}
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            words.seek(0)
            told = words.read().decode(errors="replace")[-2000:]
            raise RuntimeError(
                f"{' '.join(command)[:200]} ended with {process.returncode}:\n{told}"
            )
    return Cost(seconds, usage.ru_maxrss * 1024)


def stage(place: Workplace, name: str, task: str) -> Cost:
    """Run one stage as its container does."""
    environment = {
        "ENGINEWRIGHT_ROOT": str(place.root),
        "ENGINEWRIGHT_TASK": task,
        "TMPDIR": str(place.root / "tmp"),
    }
    return run([sys.executable, "-m", "enginewright_runtime", "stage", name], environment)


def write(model: ModelProto | None, folder: Path) -> Path:
    """Write the model, or where there is none the large one, into the folder of the source."""
    if model is None:
        return graphs.write_large(folder)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def measure(name: str, model: ModelProto | None, *, engines: bool) -> bool:
    """Print what every stage costs; tell whether all is within its limits."""
    with tempfile.TemporaryDirectory(prefix="enginewright-bench-") as folder:
        place = Workplace(Path(folder))
        path = write(model, place.root / "source")
        size = sum(each.stat().st_size for each in path.parent.iterdir())
        print(f"\n{name}, {size / 1e6:.0f} MB")
        bare = run([sys.executable, "-c", _CHECK, str(path)])
        task = place.task("pvc://models/model.onnx")
        costs = {each: stage(place, each, task.to_json()) for each in PREPARE_STAGES}
        for each, cost in {"bare check, load and runs": bare, **costs}.items():
            print(f"  {each:28} {cost.seconds:7.2f} s  {cost.peak / 2**20:8.0f} MiB")
        total = sum(cost.seconds for cost in costs.values())
        print(f"  {'all stages':28} {total:7.2f} s  = {total / bare.seconds:.1f} x bare")
        well = all(cost.peak <= MEMORY_LIMIT for cost in costs.values())
        if engines:
            well &= build(place, path)
    return well


def build(place: Workplace, path: Path) -> bool:
    """Build an engine ahead of time by the bare builder and by ours, by turns."""
    herald = read_herald((place.root / "dev/termination-log").read_text())
    if herald is None or herald.published is None:
        raise RuntimeError("publish has not told the key of the prepared model")
    recipe = EngineRecipe(
        backend="tensorrt-rtx",
        backend_version=importlib.import_module("tensorrt_rtx_bindings").__version__,
        ort_version="1.31.1",
        accelerator_class="l4",
        compute_capability=CAPABILITY,
        ahead_of_time=True,
    )
    key = engine_key(herald.published.key, recipe)
    task = EngineTask(
        job="bench", engine_key=key, prepared_key=herald.published.key, recipe=recipe
    ).to_json()
    bare, ours = [], []
    for _ in range(ROUNDS):
        bare.append(run([sys.executable, "-c", _BUILD, str(path), str(place.root / "plan")]))
        ours.append(stage(place, ENGINE_STAGES[0], task))
    least_bare, least = min(each.seconds for each in bare), min(each.seconds for each in ours)
    peak_bare, peak = max(each.peak for each in bare), max(each.peak for each in ours)
    print(f"  {'bare builder':28} {least_bare:7.2f} s  {peak_bare / 2**20:8.0f} MiB")
    print(
        f"  {'build (whole stage)':28} {least:7.2f} s  {peak / 2**20:8.0f} MiB"
        f"  = {least / least_bare:.2f} x bare, {least - least_bare:+.2f} s"
    )
    return peak <= MEMORY_LIMIT


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="a part of a case's name")
    chosen = parser.parse_args().only or ""
    engines = importlib.util.find_spec("tensorrt_rtx_bindings") is not None
    cases = {
        "small": graphs.small,
        "ResNet-50": graphs.resnet50,
        "transformer": graphs.transformer,
        "large": None,
    }
    well = [
        measure(name, make() if make else None, engines=engines)
        for name, make in cases.items()
        if chosen in name
    ]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
