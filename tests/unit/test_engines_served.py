"""What engines can be built for, and which of them can be served: each table against its library."""

import importlib
from pathlib import Path

import pytest
from enginewright_contract.engines import (
    LIBRARIES,
    PROVIDERS,
    Capabilities,
    builds,
    find_unserved_tensors,
    serves,
    why_unusable,
)
from enginewright_contract.execution import Driver
from enginewright_contract.images import COMPILED_BACKENDS, DEVICE_BACKENDS
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw.schemas import is_function
from enginewright_runtime.probe import probe
from enginewright_runtime.rules.compiled import UNKNOWN_TO_TENSORRT
from enginewright_runtime.session import tensorrt_rtx
from enginewright_runtime.session.cuda import CudaBackend
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.loading import create
from onnx import defs, helper

from tests.support import rtx_devices

RTX = "tensorrt-rtx"


def test_every_backend_with_engines_is_in_both_tables() -> None:
    assert set(LIBRARIES) == COMPILED_BACKENDS
    assert set(PROVIDERS) == DEVICE_BACKENDS


def test_library_reports_its_architectures() -> None:
    library = importlib.import_module("tensorrt_rtx_bindings.tensorrt_rtx")
    members = library.ComputeCapability.__members__
    digits = [name.removeprefix("SM") for name in members if name.startswith("SM")]
    capabilities = LIBRARIES[RTX].capabilities
    assert capabilities == Capabilities(frozenset(f"{digit[:-1]}.{digit[-1]}" for digit in digits))


# fault: Engines | a GPU for which ONNX Runtime's CUDA provider has no code (V100, B200)
@pytest.mark.parametrize("capability", ["7.0", "10.0"])
def test_unsupported_device_says_why(
    capability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaBackend, "is_offered", lambda _: True)
    monkeypatch.setattr(CudaBackend, "missing_libraries", lambda _: ())
    device = Device(Driver(needed=True, present=True), capability)
    with pytest.raises(
        StageFailure, match=f"no code for compute capability {capability}"
    ) as caught:
        create("cuda", tmp_path / "model.onnx", device=device)
    assert caught.value.reason is Reason.PROVIDER_REFUSED


def test_operators_that_no_engine_holds() -> None:
    """TensorRT-RTX's parser has none of them either, and none has a body that could be built."""
    trt = importlib.import_module("tensorrt_rtx_bindings.tensorrt_rtx")
    network = trt.Builder(trt.Logger()).create_network(0)
    parser = trt.OnnxParser(network, trt.Logger())
    assert [item for item in UNKNOWN_TO_TENSORRT if parser.supports_operator(item)] == []
    assert parser.supports_operator("Relu")
    newest = defs.onnx_opset_version()
    nodes = [helper.make_node(item, [], []) for item in UNKNOWN_TO_TENSORRT]
    assert [node.op_type for node in nodes if is_function(node.op_type, "", newest)] == []
    assert is_function("DynamicQuantizeLinear", "", newest)


@pytest.mark.parametrize(
    ("backend", "capability", "wording"),
    [
        (RTX, "8.9", None),
        (RTX, None, None),
        (RTX, "7.5", "builds engines for compute capability 7.5, but they cannot be served"),
        (RTX, "8.0", "supports only 8.6, 8.9, 12.0 and newer"),
        (
            RTX,
            "9.0",
            "does not build for compute capability 9.0, only for 7.5, 8.0, 8.6, 8.9, 12.0,",
        ),
        (
            RTX,
            "9.0",
            "and ONNX Runtime's TensorRT-RTX provider supports only 8.6, 8.9, 12.0 and newer",
        ),
        (RTX, "12.2", "does not build for compute capability 12.2, only for 7.5, 8.0"),
        ("tensorrt", "7.5", None),
        ("tensorrt", "7.0", "TensorRT does not build for compute capability 7.0, only for 7.5 and"),
        ("tensorrt", "10.0", None),
        ("cuda", "8.0", None),
        ("cuda", "8.7", None),  # runs machine code for 8.6
        ("cuda", "12.1", None),
        ("cuda", "7.0", "CUDA provider has no code for compute capability 7.0, only for 7.5, 8.0"),
        ("cuda", "10.0", "CUDA provider has no code for compute capability 10.0"),
        ("cpu", "10.0", None),
    ],
)
def test_use_of_a_backend(backend: str, capability: str | None, wording: str | None) -> None:
    why = why_unusable(backend, capability)
    assert (why is None) == (wording is None)
    assert wording is None or wording in str(why)
    if capability:
        assert (why is None) == (builds(backend, capability) and serves(backend, capability))


def test_a_double_is_built_and_not_served() -> None:
    outputs = (TensorSpec(name="y", dtype="float64", shape=(1,)),)
    assert find_unserved_tensors(RTX, outputs) == ("y (float64)",)
    assert find_unserved_tensors("tensorrt", outputs) == find_unserved_tensors("cpu", outputs) == ()


def test_pod_on_an_unsupported_device_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt_rtx.TensorRtRtxBackend, "missing_libraries", lambda _: ())
    device = Device(Driver(needed=True, present=True), "7.5")
    with pytest.raises(StageFailure) as caught:
        create(RTX, tmp_path / "model.onnx", device=device)
    assert caught.value.reason is Reason.ENGINE_INCOMPATIBLE
    assert "supports only 8.6, 8.9, 12.0 and newer" in caught.value.message


# fault: Engines | builder and provider of different TensorRT-RTX versions | `probe` of the image
#   | before the image is used
def test_image_of_two_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in's own library, but for the name of its version."""
    real = next(rtx_devices.folder().glob("libtensorrt_rtx.so.*"))
    names = real.read_bytes()[: 1 << 20]
    newer = tmp_path / "libtensorrt_rtx.so.1.8.0"
    newer.write_bytes(
        names.replace(b"tensorrt_version_1_7_1_116\0", b"tensorrt_version_1_8_0_117\0")
    )
    assert tensorrt_rtx.library_version(real) == "1.7.1.116"
    assert tensorrt_rtx.library_version(newer) == "1.8.0.117"
    find = tensorrt_rtx._engine_library
    plugin = "onnxruntime_ep_nv_tensorrt_rtx"
    monkeypatch.setattr(
        tensorrt_rtx, "_engine_library", lambda name: newer if name == plugin else find(name)
    )
    with pytest.raises(StageFailure) as caught:
        probe()
    assert caught.value.reason is Reason.VERSION_MISMATCH
    assert "onnxruntime-ep-nv-tensorrt-rtx-cu13 carries 1.8.0.117" in caught.value.message
    assert "tensorrt-rtx-cu13-libs has 1.7.1.116" in caught.value.message
