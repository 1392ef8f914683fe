"""The bare tools, each called by hand in a process of its own: what preflight's verdicts are held against.

Nothing of Enginewright is imported. usage: by_hand.py TOOL MODEL.onnx SIZES
SIZES is JSON, {"INPUT": [MINIMUM, USUAL, MAXIMUM]}, for the tool that builds. The last line of the output is JSON: why
the tool refuses the model, or null.
"""

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Sizes = Mapping[str, Sequence[Sequence[int]]]

FOLDER_VARIABLE: Final = "TENSORRT_FOLDER"  # of TensorRT's libraries and bindings
_LIBRARIES: Final = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")
_BATCHES: Final = (1, 8, 32)  # minimum, usual and maximum of a dynamic size where none are given


class RefusalError(Exception):
    """A tool that raises nothing itself refuses the model."""


def check(path: str, _: Sizes) -> None:
    """Check the model, with types and shapes."""
    importlib.import_module("onnx").checker.check_model(path, full_check=True)


def open_session(path: str, _: Sizes) -> None:
    """Open a session of ONNX Runtime on the CPU."""
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compile_model(path: str, _: Sizes) -> None:
    """Read and compile the model with OpenVINO, for the CPU."""
    core = importlib.import_module("openvino").Core()
    core.compile_model(core.read_model(path), "CPU")


def build(path: str, sizes: Sizes) -> None:
    """Build an engine with TensorRT-RTX for compute capability 8.9."""
    trt = importlib.import_module("tensorrt_rtx_bindings")
    parsed = _parse(trt, path)
    config = parsed.builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = parsed.builder.create_optimization_profile()
    for index in range(parsed.network.num_inputs):
        tensor = parsed.network.get_input(index)
        if -1 in tuple(tensor.shape):
            batches = [[batch if size < 0 else size for size in tensor.shape] for batch in _BATCHES]
            profile.set_shape(tensor.name, *sizes.get(tensor.name, batches))
    config.add_optimization_profile(profile)
    if parsed.builder.build_serialized_network(parsed.network, config) is None:
        raise RefusalError(parsed.explain())


def parse(path: str, _: Sizes) -> None:
    """Parse the model with TensorRT, whose libraries work without a GPU by an undocumented option."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    os.environ["TRT_INTERNAL_OPTIONS"] = "--cpu_only=1"
    for library in _LIBRARIES:
        (file,) = folder.glob(f"{library}.so.*")
        ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    sys.path.insert(0, str(folder))
    _parse(importlib.import_module("tensorrt_bindings"), path)


class _Parsed:
    """A network of NVIDIA's library, and what has to live as long as it."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401 - NVIDIA's module
        class Log(trt.ILogger):  # type: ignore[misc]  # the module is injected: its classes are Any
            """Keeps errors."""

            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.errors: list[str] = []

            def log(self, severity: Any, message: str) -> None:  # noqa: ANN401 - NVIDIA's
                if severity <= trt.ILogger.ERROR:
                    self.errors.append(message)

        self.logger = Log()
        self.builder: Any = trt.Builder(self.logger)
        flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        self.network: Any = self.builder.create_network(0 if flag is None else 1 << int(flag))
        self.parser: Any = trt.OnnxParser(self.network, self.logger)

    def explain(self) -> str:
        """Return the library's first error."""
        return next(iter(self.logger.errors), "no reason is given")


def _parse(trt: Any, path: str) -> _Parsed:  # noqa: ANN401 - NVIDIA's module
    parsed = _Parsed(trt)
    if not parsed.parser.parse_from_file(path):
        first = parsed.parser.get_error(0) if parsed.parser.num_errors else None
        named = first and f"{first.node_operator()} {first.node_name()}: {first.desc()}"
        raise RefusalError(named or parsed.explain())
    return parsed


TOOLS: Final[dict[str, Callable[[str, Sizes], None]]] = {
    "checker": check,
    "session": open_session,
    "openvino": compile_model,
    "builder": build,
    "parser": parse,
}


def main() -> int:
    """Ask one tool about one model."""
    tool, path, sizes = sys.argv[1:]
    refusal = None
    try:
        TOOLS[tool](path, json.loads(sizes))
    except ImportError:  # of the tool itself, which says nothing about the model
        raise
    except Exception as error:  # noqa: BLE001 - what a tool raises is its refusal
        refusal = str(error) or type(error).__name__
    print(f"\n{json.dumps(refusal)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
