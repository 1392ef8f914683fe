"""What a runtime image holds, as the image itself says: never a table kept beside it."""

from enginewright.contract.base import Message


class ImageFacts(Message):
    """Answer of `enginewright-runtime probe`, at most 1 KiB as JSON in the termination message."""

    variant: str  # cpu | openvino
    ort_distribution: str  # the one wheel that owns the folder `onnxruntime`
    ort_version: str
    max_opset: int  # of the domain ai.onnx, found by making sessions
    max_ir_version: int
    providers: tuple[str, ...]
    backends: dict[str, str]  # backend name -> version of its library
    onnx_version: str
    runtime_version: str  # version of this package
