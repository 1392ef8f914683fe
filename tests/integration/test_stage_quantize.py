"""Stage `quantize`: what serves afterwards is proven, or the reason says why nothing does."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import PrepareTask
from enginewright_runtime.core import isolated
from enginewright_runtime.core.children import name_of
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize import stage as quantize
from enginewright_runtime.prepare.quantize.selection import Selection, Times, is_faster
from onnx import ModelProto, TensorProto

from tests.support import extensions
from tests.support.broken_models import extend, initializer, parse_text
from tests.support.converting import real, recipe, run
from tests.support.preparing import Workplace
from tests.support.programs import run_program
from tests.support.quantizing import (
    Work,
    build_engine,
    collapsing,
    convolutions,
    cosine,
    dense,
    make_calibration,
    operators,
    random,
    text,
    weight,
    work,
)

X = {"x": random(8, 64, seed=9)}
DATA = {"x": random(40, 64)}
RTX = "tensorrt-rtx"


def here(call: Call[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run in this process what the stage runs in one of its own, which takes a second to start."""
    arguments = json.loads(json.dumps(isolated.dump_arguments(call.function, *args, **kwargs)))
    return call.read(json.loads(json.dumps(isolated.call(name_of(call.function), arguments))))


@pytest.fixture(autouse=True)
def _in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "isolated" not in request.node.originalname:
        monkeypatch.setattr(Call, "run", here)


def run_refused(about: Work) -> StageFailure:
    with pytest.raises(StageFailure) as caught:
        about.run()
    assert about.leftovers() == []
    assert not (about.folder / "quantized").exists()
    return caught.value


def run_successfully(about: Work) -> StageReport:
    before = {
        path: path.read_bytes() for path in (about.folder / "model").rglob("*") if path.is_file()
    }
    report = about.run()
    assert report.ok
    assert about.leftovers() == []
    after = {
        path: path.read_bytes() for path in (about.folder / "model").rglob("*") if path.is_file()
    }
    assert before == after  # the source is left as it is
    return report


def test_nothing_asked_nothing_done(tmp_path: Path) -> None:
    about = work(tmp_path, dense(), [X], recipe())
    (about.folder / "quantize-int8").mkdir()  # of a try that was ended
    report = run_successfully(about)
    assert report.message == "the model keeps its own precision"
    assert (about.quantized.folder, about.quantized.precision) == ("model", None)


def test_int8_with_calibration_on_the_cpu_isolated(tmp_path: Path) -> None:
    how = recipe(precision="INT8", quantization=make_calibration())
    about = work(tmp_path, dense(opset=11), [X], how, DATA)
    report = run_successfully(about)
    left = about.quantized
    assert (left.folder, left.precision, left.opset) == ("quantized", "INT8", 13)
    assert [change.kind for change in left.changes] == ["opset", "quantize"]
    assert left.changes[1].message == (
        "quantised 4 nodes to INT8, with ranges of 40 samples (MinMax)"
    )
    assert left.changes[1].nodes[0] == "gemm-0 (Gemm)"
    [parity] = left.parity
    assert parity.cosine is not None
    assert 0.99 < parity.cosine < 1
    assert {cost.label for cost in left.node_costs if cost.count} >= {"gemm-3 (Gemm)"}
    assert left.nodes == len(graphs.parse(about.model).graph.node)
    [warning] = left.warnings
    assert warning.reason is Reason.CALIBRATION_TOO_SMALL
    assert "ranges were calibrated with 40 samples: values of requests" in report.message
    assert cosine(run(dense(), X)[0], run(about.model, X)[0]) > 0.99


def test_as_many_samples_are_used_as_are_asked_for(tmp_path: Path) -> None:
    quantization = make_calibration(method="Entropy", samples=500)
    how = recipe(precision="INT8", quantization=quantization)
    made = work(tmp_path, dense(2), [X], how, {"x": random(1000, 64)}).make("INT8")
    assert made.agrees, made.disagreement
    assert (made.samples, made.given) == (500, 1000)


def test_int8_without_calibration_is_dynamic_on_the_cpu_alone(tmp_path: Path) -> None:
    about = work(tmp_path, dense(opset=10), [X], recipe(precision="INT8"))
    report = run_successfully(about)
    assert "quantised 4 nodes to INT8, with ranges computed at run time" in report.message
    assert "MatMulInteger" in operators(about.model)
    (tmp_path / "rtx").mkdir()
    about = work(tmp_path / "rtx", dense(), [X], recipe(RTX, precision="INT8"))
    failure = run_refused(about)
    assert failure.reason is Reason.CALIBRATION_INVALID
    assert "on backend tensorrt-rtx it needs calibration data" in failure.message


def test_collapsed_outputs_are_repaired_by_excluding_one_node(tmp_path: Path) -> None:
    how = recipe(RTX, precision="INT8", quantization=make_calibration())
    feeds = {"x": random(8, 32, seed=9)}
    about = work(tmp_path, collapsing(), [feeds], how, {"x": random(40, 32)})
    report = run_successfully(about)
    [warning, _] = sorted(
        about.quantized.warnings, key=lambda finding: finding.reason, reverse=True
    )
    assert warning.reason is Reason.QUANTIZATION_FAILED
    assert warning.nodes == ("matmul-5 (MatMul)",)
    made = report.facts["INT8"]
    assert made["left"]["matmul-5 (MatMul)"] == "excluded for accuracy"
    assert made["costs"][0]["nodes"] == ["matmul-5 (MatMul)"]
    assert made["first_error"] > 0.1 > made["error"]
    assert "quantised 7 nodes to INT8" in report.message
    assert "excluded 1 for accuracy" in report.message


def test_collapsed_outputs_are_refused_if_no_node_may_be_excluded(tmp_path: Path) -> None:
    how = recipe(precision="INT8", quantization=make_calibration(share=0.1))
    feeds = {"x": random(8, 32, seed=9)}
    about = work(tmp_path, collapsing(), [feeds], how, {"x": random(40, 32)})
    failure = run_refused(about)
    assert failure.reason is Reason.QUANTIZATION_FAILED
    assert "the INT8 model does not keep parity: output 'y' of golden sample" in failure.message
    assert (
        "excluding as many of its 8 nodes as spec.quantization.maxExcludedShare" in failure.message
    )
    assert "alone these cost most: matmul-5 (MatMul) (1), " in failure.message
    assert failure.nodes[0] == "matmul-5 (MatMul)"
    assert failure.findings[0].nodes[0] == "matmul-5 (MatMul)"


def test_fp16_keeps_nodes_that_overflow(models: Path, tmp_path: Path) -> None:
    source = real(models, "ch_PP-OCRv4_det_infer.onnx")
    samples = [{"x": text(96, 160)}, {"x": text(96, 160)[..., ::-1]}]
    about = work(tmp_path, source, samples, recipe(RTX, precision="FP16"))
    report = run_successfully(about)
    kept = report.facts["FP16"]["left"]
    assert [words for words in kept.values() if "9.79e+07" in words]
    [parity] = about.quantized.parity
    assert parity.cosine is not None
    assert parity.cosine > 0.999
    assert about.quantized.precision == "FP16"
    assert about.model.stat().st_size < source.stat().st_size * 0.6
    built = build_engine(tmp_path, about.model, "8.9", [1, 3, 96, 160])
    assert built.engine.nodes_accelerated == built.engine.nodes_total


def test_bf16_raises_the_opset_isolated(tmp_path: Path) -> None:
    images = {"x": random(2, 3, 16, 16)}
    about = work(tmp_path, convolutions(), [images], recipe(RTX, precision="BF16"))
    report = run_successfully(about)
    assert (about.quantized.opset, about.quantized.precision) == (22, "BF16")
    assert "converted opset 17 to 22, for BF16; 6 nodes in BF16" in report.message
    kinds = {item.data_type for item in graphs.parse(about.model).graph.initializer}
    assert kinds == {TensorProto.BFLOAT16}
    labels = {cost.label for cost in about.quantized.node_costs}
    assert "conv-0 (Conv)" in labels
    assert not [label for label in labels if "rounding" in label]
    assert sum(cost.share for cost in about.quantized.node_costs) == pytest.approx(1)


def test_custom_operators_stay_and_other_nodes_are_lowered(tmp_path: Path) -> None:
    """ONNX's shape inference ends at a custom operator; ONNX Runtime tells the types of its outputs."""
    model = extensions.cube()
    del model.graph.output[:]
    text = '() => (float["n", 4] z) { [product] z = MatMul(y, w) }'
    extend(model, text, weight("w", random(4, 4)))
    (tmp_path / "work").mkdir()
    extensions.compile_library(tmp_path / "work/extensions")
    feeds = {"x": random(2, 4)}
    expected = [np.maximum(feeds["x"] ** 3, 0) @ random(4, 4)]
    about = work(tmp_path, model, [feeds], recipe(RTX, precision="FP16"), outputs=[expected])
    report = run_successfully(about)
    assert "2 nodes in FP16" in report.message
    assert "product (MatMul)" in about.quantized.changes[0].nodes


@pytest.mark.parametrize(
    ("model", "how", "words"),
    [
        (dense(), recipe("cpu", precision="FP16"), "backend cpu supports FP32, INT8"),
        (
            dense(opset=11),
            recipe(RTX, precision="BF16", target_opset=11),
            "BF16 needs opset 13, and spec.targetOpset is 11",
        ),
        (
            dense(),
            recipe(RTX, precision="FP8", target_opset=17, quantization=make_calibration()),
            "FP8 needs opset 19, and spec.targetOpset is 17",
        ),
    ],
    ids=["backend", "bf16", "fp8"],
)
def test_an_unsupported_precision_is_refused(
    model: ModelProto, how: Any, words: str, tmp_path: Path
) -> None:
    failure = run_refused(work(tmp_path, model, [X], how, DATA))
    assert failure.reason is Reason.PRECISION_UNSUPPORTED
    assert words in failure.message


def build_quantized() -> ModelProto:
    return parse_text(
        """(float["n", 64] x) => (float["n", 64] y) {
        [quantize] q = QuantizeLinear(x, s) [dequantize] y = DequantizeLinear(q, s) }""",
        initializer("s", 0.1),
    )


def build_halved() -> ModelProto:
    model = dense(1)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


@pytest.mark.parametrize(
    ("model", "precision", "words"),
    [
        (
            build_quantized(),
            "FP16",
            "the model is already INT8, by 2 nodes: quantize (QuantizeLinear)",
        ),
        (build_halved(), "FP32", "most weights of the model are already FP16"),
        (build_halved(), "INT8", "most weights of the model are already FP16"),
    ],
)
def test_a_model_that_has_another_precision_already_is_refused(
    model: ModelProto, precision: str, words: str, tmp_path: Path
) -> None:
    feeds = {"x": X["x"].astype(np.float16)} if model.graph.initializer[0].data_type != 1 else X
    failure = run_refused(work(tmp_path, model, [feeds], recipe(RTX, precision=precision)))
    assert failure.reason is Reason.PRECISION_UNSUPPORTED
    assert words in failure.message
    assert "export the model in FP32, or omit spec.precision" in failure.message


@pytest.mark.parametrize(
    ("model", "precision"),
    [(build_quantized(), "INT8"), (dense(1), "FP32"), (build_halved(), "FP16")],
)
def test_a_precision_that_the_model_has_is_kept(
    model: ModelProto, precision: str, tmp_path: Path
) -> None:
    feeds = {"x": X["x"].astype(np.float16)} if precision == "FP16" else X
    about = work(tmp_path, model, [feeds], recipe(RTX, precision=precision))
    report = run_successfully(about)
    assert report.message == f"the model is already {precision} and is served unchanged"
    assert (about.quantized.folder, about.quantized.precision) == ("model", precision)


def test_a_model_without_anything_to_quantize_is_refused(tmp_path: Path) -> None:
    model = parse_text('(float["n", 64] x) => (float["n", 64] y) { y = Relu(x) }')
    how = recipe(precision="INT8", quantization=make_calibration())
    failure = run_refused(work(tmp_path, model, [X], how, DATA))
    assert failure.reason is Reason.QUANTIZATION_FAILED
    assert "no node of the model can be INT8" in failure.message


def test_bad_calibration_data_names_the_array_isolated(tmp_path: Path) -> None:
    how = recipe(precision="INT8", quantization=make_calibration())
    about = work(tmp_path, dense(), [X], how, {"images": random(4, 64)})
    failure = run_refused(about)
    assert failure.reason is Reason.CALIBRATION_INVALID
    assert "array 'images' matches no input; the model has x" in failure.message


def test_the_users_tolerances_count(tmp_path: Path) -> None:
    strict = recipe(precision="INT8", quantization=make_calibration(share=0.0), atol=1e-6)
    made = work(tmp_path, dense(2), [X], strict, DATA).make("INT8")
    assert not made.agrees
    assert "allowed" in str(made.disagreement)
    (tmp_path / "loose").mkdir()
    loose = strict.model_copy(
        update={"outputs": recipe(outputs=[{"name": "y", "atol": 10.0}]).outputs}
    )
    assert work(tmp_path / "loose", dense(2), [X], loose, DATA).make("INT8").agrees


# automatic

FAST = {"x": random(64, 768, seed=9)}


def test_measurements_decide_the_precision(tmp_path: Path) -> None:
    """Whether INT8 pays is up to the processor; that the figures decide is not."""
    how = recipe(allowed_precisions=["INT8"], quantization=make_calibration())
    about = work(tmp_path, dense(4, 768), [FAST], how, {"x": random(32, 768)})
    report = run_successfully(about)
    seconds = report.facts["seconds"]
    assert min(len(seconds["INT8"]), len(seconds["own"])) > 1
    int8, own = (Times(tuple(seconds[name])) for name in ("INT8", "own"))
    assert (about.quantized.precision == "INT8") is is_faster(int8, own)
    if about.quantized.precision == "INT8":
        assert "chosen of 2; INT8: " in report.message
    else:
        assert about.quantized.precision is None
        assert "INT8: no faster than the model's own precision" in report.message


def test_the_fastest_is_not_chosen_if_it_breaks_the_outputs(tmp_path: Path) -> None:
    how = recipe(allowed_precisions=["INT8"], quantization=make_calibration(share=0.0))
    feeds = {"x": random(64, 256, seed=9)}
    about = work(tmp_path, collapsing(8, 256), [feeds], how, {"x": random(32, 256)})
    report = run_successfully(about)
    assert about.quantized.precision is None
    assert about.quantized.folder == "model"
    assert (
        "the model keeps its own precision; INT8: rejected: parity fails: output 'y'"
        in report.message
    )
    assert report.facts["chosen"] == "own"


def test_a_precision_that_is_no_faster_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def select(*_: object) -> Selection:
        return Selection(None, {"INT8": "no faster than the model's own precision: 2 ms, 2 ms"})

    monkeypatch.setattr(quantize, "select", select)
    how = recipe(allowed_precisions=["INT8"], quantization=make_calibration())
    about = work(tmp_path, dense(), [X], how, DATA)
    report = run_successfully(about)
    assert "INT8: no faster than the model's own precision" in report.message
    assert about.quantized.precision is None


@pytest.mark.parametrize(
    ("model", "how", "words"),
    [
        (
            dense(1),
            recipe(RTX, allowed_precisions=["FP16", "BF16"]),
            "FP16, BF16 are allowed, but which is fastest can only be measured on a device",
        ),
        (
            build_quantized(),
            recipe(allowed_precisions=["INT8"], quantization=make_calibration()),
            "the model is already INT8 and keeps it",
        ),
        (
            dense(1),
            recipe(allowed_precisions=["INT8"]),
            "INT8: rejected: it needs spec.quantization.calibration",
        ),
    ],
    ids=["device", "quantized", "no data"],
)
def test_a_precision_that_cannot_be_chosen_is_reported(
    model: ModelProto, how: Any, words: str, tmp_path: Path
) -> None:
    about = work(tmp_path, model, [X], how)
    assert words in run_successfully(about).message
    assert about.quantized.precision is None


# other interpreters, and the whole Job


@pytest.mark.parametrize("precision", ["FP16", "INT8"])
def test_openvino_is_proven_on_itself(
    precision: str, openvino_python: Path, tmp_path: Path
) -> None:
    how = recipe("openvino", precision=precision, quantization=make_calibration())
    about = work(tmp_path, dense(2), [X], how, DATA)
    (tmp_path / "dev").mkdir()
    task = PrepareTask(job="job-1", source_uri="pvc://models/m.onnx", recipe=how)
    run_program(
        [str(openvino_python), "-m", "enginewright_runtime", "stage", "quantize"],
        env=os.environ | {"ENGINEWRIGHT_ROOT": str(tmp_path), "ENGINEWRIGHT_TASK": task.to_json()},
        timeout=100,
    )
    assert about.leftovers() == []
    assert about.quantized.precision == precision


def test_the_job_publishes_the_quantized_model_isolated(place: Workplace, tmp_path: Path) -> None:
    (tmp_path / "calibration").mkdir()
    np.savez(tmp_path / "calibration/calibration.npz", x=DATA["x"])
    uri = place.put("m.onnx", dense())
    task = place.task(uri, precision="INT8", quantization=make_calibration())
    published = place.complete(task).published
    assert published.precision == "INT8"
    assert "quantised 4 nodes to INT8" in published.changes
    folder = next((tmp_path / "store/prepared").iterdir())
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert manifest.precision == "INT8"
    assert manifest.parity[0].compared_with == "source"
    assert "QuantizeLinear" in operators(folder / manifest.model)
