"""A step of the proof: a function that returns figures, run in a separate process with a deadline."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx

from hack.gpu_proof.pod import Pod, StepError

Figures = dict[str, Any]
MODEL: Final = "m"
REVISION: Final = "r1"
_PRECISION_REASONS: Final = frozenset({"PrecisionUnsupported", "QuantizationFailed"})


@dataclass(frozen=True)
class Context:
    """Where a step runs."""

    work: Path  # of this step alone
    shared: Path  # of all steps: results that later steps read
    models: Path
    device: bool  # or a rehearsal, on the CPU
    environment: Mapping[str, str] = field(default_factory=dict)  # of the product's processes

    @property
    def backend(self) -> str:
        """Return the backend of the CUDA group."""
        return "cuda" if self.device else "cpu"

    @property
    def engine_backend(self) -> str:
        """Return the backend of the TensorRT group: in a rehearsal one that builds without a device."""
        return "tensorrt" if self.device else "tensorrt-rtx"

    def pod(self, name: str = "pod") -> Pod:
        """Return a pod with empty folders."""
        return Pod(self.work / name, self.environment)

    def probe(self) -> dict[str, Any]:
        """Return what the image contains, from one probe."""
        path = self.shared / "probe.json"
        if not path.exists():
            facts = self.pod("probe").probe()
            path.with_suffix(f".{os.getpid()}").write_text(json.dumps(facts))
            path.with_suffix(f".{os.getpid()}").rename(path)
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def recipe(self, backend: str | None = None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return the recipe of a prepared model."""
        facts = self.probe()
        return {
            "backend": backend or self.backend,
            "ort_version": facts["ort_version"],
            "max_opset": facts["max_opset"],
            "max_ir_version": facts["max_ir_version"],
            **fields,
        }

    def model(self, name: str) -> Path:
        """Return a real model; the text encoder, shipped with INT8 weights, with FP32 weights again."""
        if name != "text":
            return self.models / f"{name}.onnx"
        path = self.shared / "text.onnx"
        if not path.exists():
            import onnxruntime as ort  # noqa: PLC0415 - a native library, of few steps

            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
            written = self.shared / f"text-{os.getpid()}.onnx"
            options.optimized_model_filepath = str(written)
            options.log_severity_level = 3
            ort.InferenceSession(
                str(self.models / "text.onnx"), options, providers=["CPUExecutionProvider"]
            )
            written.rename(path)
        return path

    def prepare(self, pod: Pod, model: Path, **fields: Any) -> str:  # noqa: ANN401 - JSON
        """Prepare a model by the stages; return its key."""
        if (
            "precision" in fields
        ):  # the samples are generated: what they do not show is not the question
            graph = onnx.load(model, load_external_data=False).graph
            names = [value.name for value in graph.output]
            fields["outputs"] = [{"name": name, "accept_unjudged": True} for name in names]
        ended = pod.prepare(pod.put(model), self.recipe(**fields))
        if ended.code and "precision" in fields and ended.reason in _PRECISION_REASONS:
            raise RefusedError(f"{ended.reason}: {ended.message}")
        if ended.code:
            raise StepError(f"prepare: {ended.reason}: {ended.message}")
        key: str = ended.report["published"]["key"]
        return key

    def serve_task(self, prepared: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Return the task of a serving pod."""
        task = {
            "model": MODEL,
            "revision": REVISION,
            "prepared_key": prepared,
            "backend": self.backend,
            **fields,
        }
        if self.device:
            task.setdefault("compute_capability", compute_capability())
        return task

    def require_device(self) -> None:
        """Raise NeedsDeviceError in a rehearsal."""
        if not self.device:
            raise NeedsDeviceError


class RefusedError(Exception):
    """The product refuses to prepare a model, by name, where it may: a result, not a failure."""


class NeedsDeviceError(Exception):
    """A step shows something only on a device."""


Step = Callable[[Context], Figures]


@dataclass(frozen=True)
class Registered:
    """One step and how it is run."""

    name: str
    group: str
    run: Step
    seconds: float
    alone: bool  # whether no other step may run meanwhile
    about: str
    module: str  # that defines it


STEPS: Final[dict[str, Registered]] = {}


def step(group: str, *, seconds: float = 90, alone: bool = False) -> Callable[[Step], Step]:
    """Register a step; the first line of its docstring says what it shows."""

    def register(run: Step) -> Step:
        name = run.__name__.replace("_", "-")
        about = (run.__doc__ or "").partition("\n")[0]
        STEPS[name] = Registered(name, group, run, seconds, alone, about, run.__module__)
        return run

    return register


def register_each(
    module: str, group: str, names: Mapping[str, Step], about: str, *, seconds: float = 120
) -> None:
    """Register steps of a module that differ by what they run on."""
    for name, run in names.items():
        STEPS[name] = Registered(name, group, run, seconds, False, about, module)


@cache
def compute_capability() -> str:
    """Return the compute capability of the device, such as "9.0", as the driver tells it."""
    import ctypes  # noqa: PLC0415 - the driver's library exists on a device only

    cuda = ctypes.CDLL("libcuda.so.1")
    major, minor = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0):
        raise StepError("cuInit fails: there is no device")
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return f"{major.value}.{minor.value}"


def expect(condition: bool, saw: str) -> None:
    """Fail the step unless what it must show is so."""
    if not condition:
        raise StepError(saw)
