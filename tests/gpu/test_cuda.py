"""ONNX Runtime's CUDA provider on a device: run with the interpreter of an image variant gpu."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import comparison
from enginewright_runtime.session import loading
from enginewright_runtime.session.cuda import arena_limit
from enginewright_runtime.session.driver import Device
from enginewright_runtime.store import open_store
from onnx import helper

from tests.support import broken_models as broken
from tests.support.engines import EnginePlace, matmul


@pytest.fixture(autouse=True)
def _serves_cuda() -> None:
    try:
        backend = loading.find("cuda")
    except StageFailure as failure:
        pytest.skip(failure.cause)
    if missing := backend.missing_libraries():
        pytest.skip(f"CUDA's libraries are not here: {', '.join(missing)}")


def test_the_options_take_effect(tmp_path: Path, device: Device) -> None:
    assert device.memory
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    path = tmp_path / "relu.onnx"
    onnx.save(broken.build([node], [broken.value("x", "n", 4)], [broken.value("y", "n", 4)]), path)
    session = loading.create("cuda", path, device=device).session
    options = session.get_provider_options()["CUDAExecutionProvider"]
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert options["gpu_mem_limit"] == str(arena_limit(device.memory))


def test_a_request_beyond_the_device_fails_alone(tmp_path: Path, device: Device) -> None:
    """Products need cuBLAS, which allocates outside of the arena, before and after it."""
    assert device.memory
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["large"], name="expand"),
        helper.make_node("MatMul", ["large", "w"], ["y"], name="product"),
    ]
    w = helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 1], np.ones(64, np.float32))
    inputs = [broken.value("x", 1, 64), broken.value("size", 2, kind=onnx.TensorProto.INT64)]
    model = broken.build(nodes, inputs, [broken.value("y", "n", 1)])
    model.graph.initializer.append(w)
    path = tmp_path / "grows.onnx"
    onnx.save(model, path)
    session = loading.create("cuda", path, device=device).session
    x = np.ones((1, 64), np.float32)

    def run(rows: int) -> np.ndarray:
        y: np.ndarray = session.run(None, {"x": x, "size": np.array([rows, 64])})[0]
        return y

    small = run(8)
    with pytest.raises(Exception, match="memory") as caught:
        run(2 * device.memory // (64 * 4))
    assert is_out_of_memory(str(caught.value))
    np.testing.assert_array_equal(run(8), small)


def test_a_prepared_model_is_measured_beside_an_engine(tmp_path: Path) -> None:
    """As the benchmark of an engine's Job does where spec.build.choose is Fastest."""
    place = EnginePlace(tmp_path, in_process=True)
    key = place.prepare_model(matmul())
    manifest = open_store(Paths.under(tmp_path)).read(key, tmp_path / "work/prepared")
    measured = comparison.measure_backend("cuda", tmp_path / "work", manifest)
    assert measured.excluded == ""
    assert measured.latency is not None
    assert (measured.latency.shapes, measured.latency.samples >= 3) == ("opt", True)
    assert measured.latency.peak_device_memory_bytes
