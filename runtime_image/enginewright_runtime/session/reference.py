"""Sessions that analyse a model, with its extensions, on the reference: ONNX Runtime's CPU provider."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnxruntime as ort
from onnx import ModelProto

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.core.limits import threads
from enginewright_runtime.core.model_files import OF_TENSORRT, may_have
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped import tensorrt_operators
from enginewright_runtime.session.base import CPU_PROVIDER, FATAL_ONLY, SPINNING
from enginewright_runtime.session.extensions.libraries import of_model, register
from enginewright_runtime.session.optimization import LEVELS

_ONLY_RELEASED: Final = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # onnxruntime, core/graph/model.cc


def allow_unreleased() -> None:
    """Let all sessions of this process, a child, load opsets that are not officially supported yet.

    A source with one is never served unconverted, but its outputs verify the converted model.
    """
    os.environ[_ONLY_RELEASED] = "0"


def load_reference(
    model: Path,
    level: str,
    options: ort.SessionOptions,
    *,
    extensions_of: Path | None = None,
) -> ort.InferenceSession:
    """Load a model with the libraries of `extensions_of`, or its own; raises SessionError, or StageFailure: ExtensionFailed."""
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry(SPINNING, "0")
    register(options, of_model(extensions_of or model))
    try:
        with runnable(model) as path:
            return ort.InferenceSession(str(path), options, providers=[CPU_PROVIDER])
    except Exception as error:
        # ONNX Runtime's exceptions have no common base class but Exception
        raise SessionError(str(error)) from error


def load_changed(source: Path, changed: ModelProto, level: str) -> ort.InferenceSession:
    """Load a changed model, parsed without its external data, as `load_reference`, from the writable folder of `source`."""
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False  # which never releases the memory of a run
    with _beside(source, changed) as path:
        return load_reference(path, level, options, extensions_of=source)


@contextmanager
def runnable(model: Path) -> Iterator[Path]:
    """Yield the model; if it has operators of TensorRT alone, a copy with ONNX's, for as long as a session reads it."""
    changed = _parse_for_cpu(model)
    if changed is None:
        yield model
        return
    with _beside(model, changed) as path:
        yield path


def _parse_for_cpu(model: Path) -> ModelProto | None:
    """Return the model with ONNX's operators, or None if it has only those, or cannot have them."""
    if not may_have(model, OF_TENSORRT):
        return None
    try:
        changed = graphs.parse(model)
    except graphs.UnparsableError:
        return None
    return changed if tensorrt_operators.replace(changed, model.parent) else None


@contextmanager
def _beside(source: Path, changed: ModelProto) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(
        prefix=".changed-", suffix=".onnx", dir=source.parent
    ) as beside:
        beside.write(changed.SerializeToString())
        beside.flush()
        yield Path(beside.name)
