"""The stage `convert`: what it changes, that outputs stay the same, and what it refuses."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import PrepareTask, Recipe, ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import CONVERTED_FOLDER, MODEL_FOLDER, Converted
from enginewright_runtime.core.isolation import Call
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.parts import TensorProfile
from enginewright_runtime.prepare.convert import stage as convert
from enginewright_runtime.tensorrt import native
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import initializer, parse_text, relu
from tests.support.converting import (
    DETECT,
    LISTEN,
    READ,
    SPEAK,
    STATE,
    attention,
    convert_here,
    copy,
    define,
    feeds,
    one,
    operators,
    place,
    real,
    recipe,
    run,
    same,
    weight,
)
from tests.support.engines import VERSION
from tests.support.programs import run_program


@dataclass(frozen=True)
class Real:
    """A real model and sizes for it."""

    file: str
    shapes: list[ShapeProfile] = field(default_factory=list)


REAL = (
    Real("standard_v3_3/model.onnx"),
    Real("ch_PP-OCRv4_det_infer.onnx", [DETECT]),
    Real("ch_PP-OCRv4_rec_infer.onnx", [READ]),
    Real("ch_ppocr_mobile_v2.0_cls_infer.onnx", [READ]),
    Real("swift_f0/model.onnx", [LISTEN]),
    Real("data/silero_vad.onnx", [SPEAK, STATE]),
    Real("silero_vad_half.onnx", [SPEAK]),
    Real("silero_vad_16k_op15.onnx", [SPEAK, STATE]),
    Real("silero_vad_op18_ifless.onnx", [SPEAK]),
    Real("silero_vad_16k_sequence.onnx"),
)


@pytest.mark.parametrize("case", REAL, ids=lambda case: Path(case.file).stem)
def test_real_models_are_served_as_they_are(case: Real, models: Path, tmp_path: Path) -> None:
    source = real(models, case.file)
    outcome = convert_here(tmp_path, source, recipe(shapes=case.shapes))
    assert outcome.report.message == "the model is served unchanged"
    assert (outcome.converted.folder, outcome.converted.changes) == (MODEL_FOLDER, ())
    assert outcome.path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(("case", "target"), [(REAL[1], 21), (REAL[4], 13)], ids=["up", "down"])
def test_a_target_is_reached_up_and_down(
    case: Real, target: int, models: Path, tmp_path: Path
) -> None:
    source = real(models, case.file)
    asked = recipe(shapes=case.shapes, target_opset=target)
    outcome = convert_here(tmp_path, source, asked)
    left = outcome.converted
    assert (left.folder, left.opset) == (CONVERTED_FOLDER, target)
    assert not left.warnings
    assert {change.kind for change in left.changes} <= {"opset", "ir-version"}
    assert left.changes[0].message in outcome.report.message
    onnx.checker.check_model(str(outcome.path), full_check=True)
    names = [node.name for node in graphs.parse(source).graph.node]
    assert set(names) <= {node.name for node in outcome.model.graph.node}


def test_unnamed_nodes_are_named_for_cuda(models: Path, tmp_path: Path) -> None:
    source = next(path for path in models.rglob("model.onnx") if "swift_f0" in str(path))
    outcome = convert_here(tmp_path, source, recipe(backend="cuda", shapes=[LISTEN]))
    assert [change.kind for change in outcome.converted.changes] == ["name"]
    assert len(outcome.converted.shape_nodes) > 20
    assert not any("unnamed" in shape_node for shape_node in outcome.converted.shape_nodes)


def test_the_incident_an_attention_export_meets_an_older_runtime(tmp_path: Path) -> None:
    source = attention(24)
    outcome = convert_here(tmp_path, source, recipe(max_opset=17, max_ir_version=8))
    left = outcome.converted
    assert (left.opset, left.ir_version) == (17, 8)
    assert "Attention" not in operators(outcome.model)
    assert outcome.report.message.startswith("expanded 1 Attention node into operators of opset 17")
    assert left.changes[0].nodes == ("attention (Attention)",)
    assert [change.kind for change in left.changes] == ["expand", "opset", "ir-version"]
    same(run(source, feeds(source)), run(outcome.path, feeds(source)))
    assert left.inputs == graphs.inputs_of(source) == graphs.inputs_of(outcome.model)


def test_an_unloadable_source_is_compared_with_the_reference(tmp_path: Path) -> None:
    source = one("Mod", 28, weight("w", 4, low=1, high=2), shape=("b", 4), fmod=1, ir_version=14)
    outcome = convert_here(tmp_path, source, recipe())
    assert outcome.report.message == (
        "opset 28 set to 26, in which every node has the same semantics; IR version 14 set to 13: it"
        " uses no newer feature"
    )
    assert not outcome.converted.warnings
    same(define(source, feeds(source)), run(outcome.path, feeds(source)))


@pytest.mark.parametrize(
    ("model", "asked", "reason", "reported"),
    [
        (
            one("SwiGLU", 28, shape=("b", 4), out=("b", 2), ir_version=13),
            recipe(),
            Reason.CONVERSION_FAILED,
            "opset 28 cannot be converted to 26: node (SwiGLU)",
        ),
        (
            one("Softmax", 13, shape=(1, 4), axis=0),
            recipe(target_opset=27),
            Reason.OPSET_UNSUPPORTED,
            "set spec.targetOpset to 26 or less",
        ),
        (
            parse_text(
                """(float["b", 4] x, int64[1] axes) => (float[?, ?] y) {
                [largest] y = ReduceMax(x, axes) }""",
                opset=18,
            ),
            recipe(target_opset=13),
            Reason.CONVERSION_FAILED,
            "of largest (ReduceMax): its input 'axes' is not constant; raise spec.targetOpset",
        ),
    ],
)
def test_an_impossible_conversion_names_the_nodes(
    model: ModelProto, asked: Recipe, reason: Reason, reported: str, tmp_path: Path
) -> None:
    with pytest.raises(StageFailure) as caught:
        convert_here(tmp_path, model, asked)
    assert caught.value.reason is reason
    assert reported in caught.value.message
    assert not (tmp_path / "work/converted.json").exists()


def test_silero_is_built_once_its_branches_are_taken(models: Path, tmp_path: Path) -> None:
    """TensorRT-RTX parses the Ifs and then fails in its own assertions; sizes decide all of them."""
    source = real(models, "silero_vad_half.onnx")
    outcome = convert_here(tmp_path, source, recipe(backend="tensorrt-rtx", shapes=[SPEAK]))
    assert "inlined the constant branch of 6 If nodes" in outcome.report.message
    assert "If" not in operators(outcome.model)
    # the model is smaller, its names and what it declares are not
    before = graphs.parse(source)
    assert graphs.inputs_of(before) == graphs.inputs_of(outcome.model)
    assert graphs.outputs_of(before) == graphs.outputs_of(outcome.model)
    assert not _builds(source, tmp_path)
    assert _builds(outcome.path, tmp_path)


def _builds(model: Path, folder: Path) -> bool:
    """Build with the real library, in a process of its own."""
    result = Call(native.build, "building").run(
        backend="tensorrt-rtx",
        version=VERSION,
        model=model,
        engine=folder / "engine",
        log=folder / "log",
        progress=folder / "p",
        span=(0, 100),
        profiles=[
            TensorProfile("input", (1, 576), (2, 576), (4, 576)),
            TensorProfile("state", (2, 1, 128), (2, 2, 128), (2, 4, 128)),
        ],
        compute_capability="8.9",
        workspace_bytes=None,
        optimization_level=None,
        timing_cache=folder / "t",
        layers=folder / "layers",
        plugins=(),
    )
    return result.built


def test_an_operator_that_the_parser_lacks_is_expanded(tmp_path: Path) -> None:
    size = helper.make_tensor("size", TensorProto.INT64, [4], [1, 4, 3, 2])
    source = one("CenterCropPad", 18, size, out=(1, 4, 3, 2))
    outcome = convert_here(tmp_path, source, recipe(backend="tensorrt-rtx"))
    assert outcome.report.message == "expanded 1 CenterCropPad node into operators of opset 18"
    assert outcome.converted.opset == 18
    same(run(source, feeds(source)), run(outcome.path, feeds(source)))


def build_shifted(more: str = "", *weights: TensorProto) -> ModelProto:
    """Return x [batch, 64] times a constant that is computed by an operator which TensorRT lacks."""
    return parse_text(
        f"""(float["batch", 64] x) => (float["batch", 64] y) {{
        [shift] u2 = BitShift <direction = "LEFT"> (u, one) [cast] f = Cast <to = 1> (u2)
        [times] {"m" if more else "y"} = Mul(x, f) {more} }}""",
        initializer("u", np.arange(64), np.uint8),
        initializer("one", np.ones(64), np.uint8),
        *weights,
    )


def test_constants_are_folded_where_the_parser_refuses_how_they_are_made(tmp_path: Path) -> None:
    outcome = convert_here(tmp_path, build_shifted(), recipe(backend="tensorrt-rtx"))
    assert outcome.report.message == "folded constants: 3 nodes became 1"
    assert operators(outcome.model) == ["Mul"]
    assert {entry.domain for entry in outcome.model.opset_import} == {""}


def test_int8_weights_are_not_folded_back(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(-128, 127, (64, 64)).astype(np.int8)
    source = build_shifted(
        """[float] wc = Cast <to = 1> (w) [scaled] wf = Mul(wc, scale)
        [product] y = MatMul(m, wf)""",
        initializer("w", numbers, np.int8),
        initializer("scale", 0.01),
    )
    outcome = convert_here(tmp_path, source, recipe(backend="tensorrt-rtx"))
    assert outcome.converted.folder == MODEL_FOLDER


def test_batch_normalizations_are_folded_ahead_of_halves(models: Path, tmp_path: Path) -> None:
    source = real(models, "ch_PP-OCRv4_det_infer.onnx")
    outcome = convert_here(tmp_path, source, recipe(precision="FP16", shapes=[DETECT]))
    changes = outcome.converted.changes
    assert [change.kind for change in changes] == ["fold-batch-norm"]
    assert len(changes[0].nodes) == 2
    largest = {
        label: max(
            float(np.abs(numpy_helper.to_array(tensor)).max(initial=0))
            for tensor in graphs.walk_tensors(model)
            if tensor.data_type == TensorProto.FLOAT
        )
        for label, model in (("before", graphs.parse(source)), ("after", outcome.model))
    }
    assert largest["before"] > 9e7
    assert largest["after"] < 65504


def test_weights_become_initializers_ahead_of_int8(models: Path, tmp_path: Path) -> None:
    source = real(models, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    outcome = convert_here(tmp_path, source, recipe(precision="INT8", shapes=[READ]))
    assert [change.kind for change in outcome.converted.changes] == ["fold-batch-norm", "simplify"]
    assert "BatchNormalization" not in operators(outcome.model)


def test_a_change_of_outputs_is_not_kept(tmp_path: Path) -> None:
    """Beside a mean of 1e8 the convolution rounds to multiples of 8; folded it would not."""
    source = parse_text(
        """(float["batch", 1, 4, 4] x) => (float["batch", 1, 4, 4] y)
        <float[1, 1, 1, 1] w = {1}, float[1] bias = {1e8}, float[1] scale = {1}, float[1] shift = {0},
         float[1] mean = {1e8}, float[1] variance = {1}> {
        [conv] c = Conv(x, w, bias) [norm] y = BatchNormalization(c, scale, shift, mean, variance) }"""
    )
    outcome = convert_here(tmp_path, source, recipe(precision="FP16"))
    assert outcome.converted.folder == MODEL_FOLDER
    (warning,) = outcome.converted.warnings
    assert warning.severity == "warning"
    assert "not kept, since output 'y' of sample 'min'" in warning.cause


def test_external_data_comes_along(tmp_path: Path) -> None:
    model = attention(24)
    source = copy(model)
    tensor = model.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", "deep/w.bin"), ("length", str(len(raw)))):
        tensor.external_data.add(key=key, value=entry)
    data = tmp_path / "work/model/deep/w.bin"
    data.parent.mkdir(parents=True)
    data.write_bytes(raw)
    outcome = convert_here(tmp_path, model, recipe(target_opset=18))
    files = [path for path in outcome.path.parent.rglob("*") if path.is_file()]
    assert {str(path.relative_to(outcome.path.parent)) for path in files} == {
        "model.onnx",
        "deep/w.bin",
    }
    # onnx refuses external data with several links
    assert all(path.stat().st_nlink == 1 for path in (*files, data))
    onnx.checker.check_model(str(outcome.path))
    same(run(source, feeds(source)), run(outcome.path, feeds(source)))


def test_leftovers_of_an_earlier_try_are_removed(tmp_path: Path) -> None:
    work = place(tmp_path, relu(), recipe())
    (work / "convert-1").mkdir()
    (work / MODEL_FOLDER / "convert-2.onnx").write_bytes(b"cut")  # publish would take it along
    convert.run(
        PrepareTask(job="j", source_uri="pvc://c/m.onnx", recipe=recipe()), Paths.under(tmp_path)
    )
    assert [path.name for path in (work / MODEL_FOLDER).iterdir()] == ["model.onnx"]
    assert not (work / "convert-1").exists()


def test_a_source_that_takes_no_drawn_inputs_is_converted_with_a_warning(
    models: Path, tmp_path: Path
) -> None:
    """Its sampling rate is 8000 or 16000."""
    source = real(models, "data/silero_vad.onnx")
    outcome = convert_here(tmp_path, source, recipe(shapes=[SPEAK, STATE], target_opset=17))
    assert "its outputs are not compared" in outcome.report.message
    assert outcome.converted.opset == 17


def test_openvino_takes_expanded_operators(openvino_python: Path, tmp_path: Path) -> None:
    """OpenVINO 2025.4 has no Attention of opset 23, and leaves the nodes before it too."""
    _at_openvino(openvino_python, tmp_path, attention(23), [])
    left = Converted.read(tmp_path / "work")
    assert [change.kind for change in left.changes] == ["expand"]


def _at_openvino(
    python: Path, root: Path, model: ModelProto | Path, shapes: list[ShapeProfile]
) -> None:
    asked = recipe(backend="openvino", ort_version="1.24.1", max_opset=25, shapes=shapes)
    place(root, model, asked)
    task = PrepareTask(job="job-1", source_uri="pvc://models/m.onnx", recipe=asked)
    run_program(
        [str(python), "-m", "enginewright_runtime", "stage", "convert"],
        env={"ENGINEWRIGHT_ROOT": str(root), "ENGINEWRIGHT_TASK": task.to_json(), "PATH": "/bin"},
        timeout=100,
    )
