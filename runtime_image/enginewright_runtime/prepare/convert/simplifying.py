"""Folds constants with ONNX Runtime's own optimizer, in a child process: docs/measurements.md says why."""

from pathlib import Path
from typing import Final

import onnxruntime as ort
from onnx import ModelProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.raw.storage import locations
from enginewright_runtime.session.reference import load_reference

_EXTERNAL: Final = "session.optimized_model_external_initializers_file_name"
_WEIGHTS: Final = "weights.bin"


def simplify(source: Path, out: Path) -> ModelProto:
    """Return the model after ONNX Runtime's basic optimizations, written to `out` in an empty folder; raises SessionError."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(out)
    if locations(graphs.parse(source)):
        options.add_session_config_entry(_EXTERNAL, _WEIGHTS)
    load_reference(source, "BASIC", options)
    model = graphs.parse(out)
    _remove_unused_imports(model)
    return model


def _remove_unused_imports(model: ModelProto) -> None:
    """Remove imports of unused domains: ONNX Runtime writes all domains that it knows."""
    used = {node.domain for node in graphs.walk_nodes(model)} | STANDARD
    used |= {function.domain for function in model.functions}
    kept = [item for item in model.opset_import if item.domain in used]
    imports = [(item.domain, item.version) for item in kept]
    del model.opset_import[:]
    for domain, version in imports:
        model.opset_import.add(domain=domain, version=version)
