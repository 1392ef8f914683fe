"""What a runtime image contains, as the image itself reports."""

from typing import Final

from enginewright_contract.base import Message
from enginewright_contract.processors import Processor

# Which variant of the runtime image runs a backend.
VARIANTS: Final = {
    "tensorrt": "gpu",
    "cuda": "gpu",
    "tensorrt-rtx": "rtx",
    "openvino": "openvino",
    "cpu": "cpu",
}
# Which execution provider of ONNX Runtime runs a backend, by the name that ONNX Runtime reports.
PROVIDERS: Final = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
# Version of OpenVINO in the wheel onnxruntime-openvino, by its own version. Not to be extended: other versions are
# named in keys.
OPENVINO_IN_WHEEL: Final = {"1.24.1": "2025.4.1"}
COMPILED_BACKENDS: Final = frozenset({"tensorrt", "tensorrt-rtx"})  # those that need an engine
DEVICE_BACKENDS: Final = COMPILED_BACKENDS | {"cuda"}  # those that need a GPU
CPU_BACKENDS: Final = ("openvino", "cpu")  # in the order of the class that the chart creates

# for the backends in `ImageFacts.unusable`
UNUSABLE_REMEDY: Final = "build the image with the required version (docs/images.md)"


class ImageFacts(Message):
    """Answer of `enginewright-runtime probe`, at most 1 KiB as JSON in the termination message."""

    variant: str  # cpu | openvino | gpu | rtx
    ort_distribution: str  # the one wheel that owns the folder `onnxruntime`
    ort_version: str
    max_opset: int  # of the domain ai.onnx, determined by creating sessions
    max_ir_version: int
    providers: tuple[str, ...]
    backends: dict[str, str]  # backend name -> version of its library
    unusable: dict[str, str] | None = None  # backend name -> why its library does not work
    # backend name -> package URL (purl) of its library, if that is no Python package
    origins: dict[str, str] | None = None
    cuda_major: str | None = None  # that the image's libraries are built for
    onnx_version: str
    runtime_version: str  # version of this package
    # Digest of all code and versions that decide the Jobs' results: images with the same digest produce
    # the same artefacts. Earlier releases have none
    pipeline: str | None = None
    processor: Processor | None = None  # of the machine that ran the probe, not of the image
    # That the image is built for, as Kubernetes names them; (): only that of the machine that ran the probe
    architectures: tuple[str, ...] = ()

    def version_beside_ort(self, backend: str) -> str | None:
        """Return the version of a backend's library, or None if ONNX Runtime's version identifies it."""
        version = self.backends.get(backend) if backend == "openvino" else None
        is_known = version != "unknown" and version != OPENVINO_IN_WHEEL.get(self.ort_version)
        return version if is_known else None
