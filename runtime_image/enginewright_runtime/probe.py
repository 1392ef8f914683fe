"""Lists what this image contains; creates sessions to find ONNX Runtime's limits."""

import os
from collections.abc import Callable
from importlib import metadata
from typing import Final

import onnx
import onnxruntime as ort
from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Reason
from onnx import TensorProto, helper

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.pipeline import pipeline_digest
from enginewright_runtime.session import processor
from enginewright_runtime.session.base import distribution, load_small
from enginewright_runtime.session.loading import available, unusable_backends

_ARCHITECTURES: Final = "ENGINEWRIGHT_ARCHITECTURES"  # the image's, if it is built for several
_SUPPORTED_OPSET: Final = 13  # loads in every supported ONNX Runtime
_SUPPORTED_IR: Final = 7
_VARIANTS: Final = {
    "onnxruntime": "cpu",
    "onnxruntime-openvino": "openvino",
    "onnxruntime-gpu": "gpu",
}


def probe() -> ImageFacts:
    """Return the facts about this image.

    Raises StageFailure: ProviderMissing if several distributions own `onnxruntime`, VersionMismatch if engines are built
    by another version than runs them.
    """
    owner = distribution()
    backends = available()
    for name, backend in backends.items():
        if conflict := backend.conflict():
            raise StageFailure(
                Reason.VERSION_MISMATCH,
                f"backend {name} is inconsistent: {conflict}",
                remedy="build the image from its lock, or install the extra rtx, which pins them",
            )
    versions = {name: backend.version() for name, backend in backends.items()}
    origins = {name: backend.origin() for name, backend in backends.items()}
    cuda_major = next(
        filter(None, (session_backend.cuda_major() for session_backend in backends.values())), None
    )
    return ImageFacts(
        # the distribution is not sufficient: a provider may be a separate plug-in
        variant="rtx" if "tensorrt-rtx" in backends else _VARIANTS.get(owner, owner),
        ort_distribution=owner,
        ort_version=str(ort.__version__),
        max_opset=_greatest(_SUPPORTED_OPSET, lambda opset: _loads(opset, _SUPPORTED_IR)),
        max_ir_version=_greatest(_SUPPORTED_IR, lambda version: _loads(_SUPPORTED_OPSET, version)),
        providers=tuple(ort.get_available_providers()),
        backends=versions,
        unusable=unusable_backends() or None,
        origins={name: origin for name, origin in origins.items() if origin} or None,
        cuda_major=cuda_major,
        onnx_version=str(onnx.__version__),
        runtime_version=metadata.version("enginewright"),
        pipeline=pipeline_digest({"backends": versions, "cuda_major": cuda_major}),
        processor=processor.read(),
        architectures=tuple(os.environ.get(_ARCHITECTURES, "").split()),
    )


def _greatest(least: int, works: Callable[[int], bool]) -> int:
    """Return the largest number that works; all between it and `least` do."""
    low, high = least, least * 2
    while works(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _loads(opset: int, ir_version: int) -> bool:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "probe",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    try:
        load_small(model.SerializeToString())
    except Exception:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
        return False
    return True
