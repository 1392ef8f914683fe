"""Models with TensorRT's own operators for quantization, as NVIDIA's ModelOpt exports them, on their way to an engine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped import tensorrt_operators
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.reference import load_changed, load_reference
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from tests.support import modelopt_models as models
from tests.support.broken_models import initializer
from tests.support.engines import EnginePlace, recipe
from tests.support.optional import present
from tests.support.preparing import Workplace

Array = NDArray[Any]
# model, what it computes, its precision, and that of an engine's tolerances
CASES: dict[str, tuple[Callable[[], ModelProto], Callable[[Array], Array], str, str]] = {
    "FP8": (models.fp8, models.compute_fp8, "FP8", "FP8"),
    "FP8 weights": (models.fp8_weights, models.compute_fp8_weights, "FP8", "FP8"),
    "INT4": (models.int4, models.compute_int4, "INT4", "FP32"),
    "INT4 by ONNX's name": (
        partial(models.int4, "DequantizeLinear"),
        models.compute_int4,
        "INT4",
        "FP32",
    ),
    "NVFP4": (models.nvfp4, models.compute_nvfp4, "FP4", "FP8"),
    "MXFP8": (models.mxfp8, models.compute_mxfp8, "FP8", "FP8"),
}


def run(model: ModelProto, x: Array, folder: Path) -> Array:
    path = folder / "model.onnx"
    onnx.save(model, path)
    session = load_reference(path, LOWEST, ort.SessionOptions())
    assert list(folder.iterdir()) == [path], "the copy is gone"
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def hard_inputs() -> Array:
    """Return rows that reach every rounding: ties of FP4, zeros, a block beyond FP8, tiny and ordinary values."""
    random = np.random.default_rng(3)
    ties = np.tile(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], np.float32), 8)
    return np.stack(
        [
            ties * models.UNIT,
            -ties * models.UNIT,
            np.zeros(models.ROWS, np.float32),
            random.normal(0, 300, models.ROWS).astype(np.float32),
            random.normal(0, 1e-4, models.ROWS).astype(np.float32),
            *random.normal(0, 1, (8, models.ROWS)).astype(np.float32),
        ]
    ).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_what_tensorrt_defines(name: str, tmp_path: Path) -> None:
    made, compute, _, _ = CASES[name]
    x = hard_inputs()
    np.testing.assert_allclose(run(made(), x, tmp_path), compute(x), rtol=1e-5, atol=1e-6)


# fault: Engines | a model of NVIDIA's ModelOpt, whose operators only TensorRT's parser has | golden outputs by ONNX's
#   operators, tolerances of its precision, and the engine is built of the model as it is | from `validate` to the engine
@pytest.mark.parametrize("name", CASES)
def test_a_model_of_modelopt_becomes_an_engine(name: str, tmp_path: Path) -> None:
    made, compute, precision, tolerance = CASES[name]
    place = EnginePlace(tmp_path, in_process=True)
    source = made()
    assert existing(source).precision == precision
    task = place.task(place.put("m.onnx", source), backend="tensorrt-rtx")
    validated = place.complete(task, "validate")
    assert not [
        finding
        for finding in validated.full["findings"]
        if finding["reason"] in {Reason.CUSTOM_DOMAIN_UNSUPPORTED, Reason.UNSUPPORTED_OPERATOR}
    ]
    golden = place.complete(task, "golden")
    own = any(item.domain == "trt" for item in source.graph.node)
    assert golden.full["facts"]["golden_outputs"] == ("standard" if own else "source")
    folder = place.root / "work/golden"
    outputs = read_arrays(folder / "outputs.npz")
    for sample, inputs in read_arrays(folder / "inputs.npz").items():
        expected = compute(inputs["x"])
        # ONNX Runtime's MatMulNBits rounds activations to 8 bits
        allowed = 2e-2 if precision == "INT4" else 1e-5
        np.testing.assert_allclose(outputs[sample]["y"], expected, rtol=1e-4, atol=allowed)
    published = place.complete(task).published
    folder = place.root / "store/prepared" / published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert manifest.served_precision == tolerance
    assert manifest.node_costs
    prepared = graphs.parse(folder / manifest.model)
    assert [item.op_type for item in prepared.graph.node] == [
        item.op_type for item in source.graph.node
    ]
    place.prepared = published.key
    engine_task = place.engine_task(recipe("12.0"))
    outcomes = place.build_engine(engine_task)
    last = [*outcomes.values()][-1]
    assert last.code == 0, last.message
    engine = present(place.engine_manifest(engine_task).engine)
    assert engine.nodes_accelerated == engine.nodes_total, "of the whole model"


def test_a_backend_without_tensorrt_refuses_and_names_those_with_it(place: Workplace) -> None:
    outcome = place.prepare(place.task(place.put("m.onnx", models.fp8())), "validate")[1]
    assert outcome.report.reason is Reason.CUSTOM_DOMAIN_UNSUPPORTED
    assert "operators of domain 'trt' are not in the runtime image" in outcome.message
    assert "make_q (TRT_FP8QuantizeLinear)" in outcome.message
    assert "name backend tensorrt or tensorrt-rtx in spec.backends" in outcome.message


def test_an_older_opset_is_raised_only_if_nothing_changes_its_meaning(tmp_path: Path) -> None:
    x = hard_inputs()
    computed = run(models.fp8(opset=17), x, tmp_path)
    np.testing.assert_allclose(computed, models.compute_fp8(x), rtol=1e-5, atol=1e-6)
    older = models.fp8(opset=17)
    older.graph.node.append(helper.make_node("ReduceMean", ["y"], ["z"], axes=[1], name="mean"))
    assert not tensorrt_operators.replace(older, tmp_path)
    assert graphs.default_opset(older) == 17


def _make_unknown(made: ModelProto) -> None:
    made.graph.node[0].op_type = "TRT_BlockQuantize"


def _leave_axis(made: ModelProto) -> None:
    del made.graph.node[0].attribute[:]
    made.graph.node[0].op_type = "TRT_FP4DynamicQuantize"


@pytest.mark.parametrize("change", [_make_unknown, _leave_axis])
def test_an_operator_that_onnx_cannot_express_needs_samples(
    change: Callable[[ModelProto], None], place: Workplace
) -> None:
    made = models.fp8()
    change(made)
    task = place.task(place.put("m.onnx", made), backend="tensorrt-rtx")
    name, outcome = place.prepare(task, "golden")
    assert (name, outcome.report.reason) == ("golden", Reason.UNSUPPORTED_OPERATOR)
    assert "provide inputs and the expected values of every output" in outcome.message


def test_a_changed_copy_is_replaced_too(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(models.nvfp4(), path)
    changed = onnx.load(path)
    changed.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT8E4M3FN, None))
    session = load_changed(path, changed, LOWEST)
    assert [item.name for item in session.get_outputs()] == ["y", "s"]


def test_external_weights_in_fp4_are_read(tmp_path: Path) -> None:
    made = models.nvfp4()
    path = tmp_path / "model.onnx"
    onnx.save_model(made, path, save_as_external_data=True, size_threshold=0)
    x = hard_inputs()
    session = load_reference(path, LOWEST, ort.SessionOptions())
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, models.compute_nvfp4(x), rtol=1e-5, atol=1e-6)


def test_a_model_with_its_own_function_of_that_name_is_left_alone(tmp_path: Path) -> None:
    made = models.fp8()
    body = [helper.make_node("Div", ["x", "s"], ["y"])]
    for name in ("TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear"):
        made.functions.append(
            helper.make_function(
                "trt", name, ["x", "s"], ["y"], body, [helper.make_opsetid("", 21)]
            )
        )
    assert not tensorrt_operators.uses(made)
    del made.graph.value_info[:]
    x = np.ones((1, models.ROWS), np.float32)
    expected = x / models.STEP / models.STEP @ models.WEIGHTS
    np.testing.assert_allclose(run(made, x, tmp_path), expected, rtol=1e-4)


def test_the_name_of_the_domain_in_weights_changes_nothing(tmp_path: Path) -> None:
    made = models.model(
        [models.standard("MatMul", ["x", "w"], "y")],
        initializer("w", models.WEIGHTS),
        initializer("unused", np.frombuffer(b"\x03trt", np.uint8), np.uint8),
    )
    del made.opset_import[1:]
    x = hard_inputs()
    np.testing.assert_allclose(run(made, x, tmp_path), x @ models.WEIGHTS, rtol=1e-3, atol=1e-3)
