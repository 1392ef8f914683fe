"""Golden inputs: what is drawn, what the user gives, and what the outputs are compared with."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import OutputTolerance, PrepareTask, ShapeProfile
from enginewright_runtime.core.handoff import Converted, Golden, Validated
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.shapes import resolve
from enginewright_runtime.prepare.quantize.existing import own_precision
from onnx import numpy_helper

from tests.support import broken_models as broken
from tests.support.preparing import Outcome, Workplace
from tests.support.quantizing import make_calibration
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0


def arrays(place: Workplace, name: str) -> dict[str, Any]:
    with np.load(place.root / f"work/golden/{name}.npz", allow_pickle=False) as file:
        return dict(file)


def with_samples(place: Workplace, samples: dict[str, Any], **options: Any) -> Outcome:
    """Prepare y = relu(x), x [1, 4], with these samples."""
    np.savez(place.root / "samples/golden.npz", **samples)
    task = place.task(
        place.put("model.onnx", broken.relu()), samples_uri="pvc://data/golden.npz", **options
    )
    return place.prepare(task)[1]


X = np.array([[-1, 0, 1, 2]], np.float32)
Y = np.maximum(X, 0)


def test_every_corner_once_and_the_same_values_each_time(place: Workplace) -> None:
    uri = place.put("model.onnx", broken.open_dimensions("batch", 4))
    task = place.task(
        uri, shapes=[ShapeProfile(input="x", min=(1, 4), opt=(1, 4), max=(3, 4), low=-2, high=5)]
    )
    place.complete(task)
    first = arrays(place, "inputs")
    assert [first[name].shape for name in ("min/x", "max/x")] == [(1, 4), (3, 4)]
    assert len(first) == 2
    assert all(array.min() >= -2 and array.max() < 5 for array in first.values())
    assert place.stage("golden", task).code == 0
    again = arrays(place, "inputs")
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert np.array_equal(arrays(place, "outputs")["max/y"], np.maximum(first["max/x"], 0))


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_indices_into_tables_of_any_size(rows: int, place: Workplace) -> None:
    place.complete(place.task(place.put("model.onnx", broken.embedding(rows))))
    assert len(arrays(place, "inputs")) == 3


def test_a_range_that_the_model_refuses(place: Workplace) -> None:
    uri = place.put("model.onnx", broken.embedding(4))
    shapes = [ShapeProfile(input="i", min=(1, 3), opt=(1, 3), max=(1, 3), low=50, high=60)]
    stage, outcome = place.prepare(place.task(uri, shapes=shapes))
    assert (stage, outcome.report.reason) == ("golden", Reason.PARITY_FAILED)
    assert "out of data bounds" in outcome.message
    assert "set a range for the inputs" in outcome.message
    assert "and sizes if the model takes no batch of 1" in outcome.message


@pytest.mark.parametrize(
    "kind",
    ["bool", "string", "float16", "double", "bfloat16", "int8", "uint64", "int32"],
)
def test_every_type_that_can_be_served(kind: str, place: Workplace) -> None:
    model = broken.parse_text(f"({kind}[2, 3] x) => ({kind}[2, 3] y) {{ y = Identity(x) }}")
    place.complete(place.task(place.put("model.onnx", model)))
    given, got = arrays(place, "inputs")["min/x"], arrays(place, "outputs")["min/y"]
    assert np.array_equal(given, got)


def test_samples_with_the_outputs_that_are_expected(place: Workplace) -> None:
    outcome = with_samples(place, {"a/x": X, "a/y": Y, "b/x": X * 2})
    assert outcome.code == 0, outcome.message
    assert set(arrays(place, "inputs")) == {"a/x", "b/x"}
    assert np.array_equal(arrays(place, "outputs")["b/y"], Y * 2)


def test_bare_names_make_one_sample(place: Workplace) -> None:
    assert with_samples(place, {"x": X, "y": Y}).code == 0
    assert set(arrays(place, "inputs")) == {"sample/x"}


def test_other_outputs_than_expected(place: Workplace) -> None:
    outcome = with_samples(place, {"a/x": X, "a/y": Y + 1})
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "output 'y' of golden sample 'a' is outside the tolerance in 100.0%" in outcome.message
    assert "against the expected outputs in spec.parity.samples" in outcome.message


def test_tolerances_of_the_user(place: Workplace) -> None:
    near = {"a/x": X, "a/y": Y + np.float32(0.001)}
    assert with_samples(place, near).code == 0
    assert with_samples(place, near, rtol=0, atol=0.0001).report.reason is Reason.PARITY_FAILED
    assert with_samples(place, near, rtol=0, atol=0.01).code == 0


@pytest.mark.parametrize(
    ("samples", "reported"),
    [
        ({"a/x": X.astype(np.float64)}, "array 'a/x' has type float64, the model expects float32"),
        ({"a/x": X[:, :3]}, "array 'a/x' has shape [1, 3], the model has [1, 4]"),
        ({"a/x": X[0]}, "array 'a/x' has shape [4], the model has [1, 4]"),
        ({"a/z": X}, "the name of array 'a/z' matches no input or output; the model has x, y"),
        ({"a/y": Y}, "sample 'a' lacks input 'x'"),
        ({"a/x": np.array([object()])}, "it contains Python objects"),
        ({}, "the file contains no arrays"),
    ],
)
def test_samples_that_do_not_fit(samples: dict[str, Any], reported: str, place: Workplace) -> None:
    outcome = with_samples(place, samples)
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.PARITY_FAILED)
    assert reported in outcome.message


@pytest.mark.parametrize("content", [b"not an archive", b"PK\x03\x04 cut", b""])
def test_samples_that_are_no_archive(content: bytes, place: Workplace) -> None:
    (place.root / "samples/golden.npz").write_bytes(content)
    uri = place.put("model.onnx", broken.relu())
    task = place.task(uri, samples_uri="pvc://data/golden.npz")
    _, outcome = place.prepare(task)
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "the file is not an .npz file of plain arrays" in outcome.message


def test_outputs_that_are_not_finite_are_reported(place: Workplace) -> None:
    task = place.task(place.put("model.onnx", broken.not_finite()))
    place.complete(task)
    golden = place.stage("golden", task)
    reported = {item["cause"]: item for item in golden.full["findings"]}
    warning = reported["output 'y' of golden sample 'min' has 4 NaN or infinite values of 4"]
    assert (
        warning["remedy"] == "set spec.parity.samples to inputs for which all elements are finite"
    )
    blank = next(item for cause, item in reported.items() if "throughout" in cause)
    assert (blank["severity"], blank["reason"]) == ("warning", Reason.NOTHING_COMPARED)
    assert "output 'y' is NaN or infinite throughout in every golden sample" in blank["cause"]


# fault: Outputs | golden outputs are NaN throughout, which any model of that fault would pass | stage `golden`:
#   NothingCompared | prepare
def test_outputs_that_are_all_nan_prove_nothing(place: Workplace) -> None:
    model = broken.not_finite()
    del model.graph.output[1]
    stage, refused = place.prepare(place.task(place.put("model.onnx", model)))
    assert (stage, refused.report.reason) == ("golden", Reason.NOTHING_COMPARED)
    assert "no output has a finite element in any golden sample (y)" in refused.message


def test_outputs_that_are_all_nan_may_be_accepted_by_name(place: Workplace) -> None:
    model = broken.not_finite()
    del model.graph.output[1]
    accepted = OutputTolerance(name="y", accept_unjudged=True)
    task = place.task(place.put("model.onnx", model), outputs=(accepted,))
    place.complete(task)
    causes = [finding["cause"] for finding in place.stage("golden", task).full["findings"]]
    assert causes[-1] == (
        "output 'y' is NaN or infinite throughout in every golden sample, so only its type and shape can be compared,"
        " which spec.parity.outputs accepts"
    )


def test_a_lower_precision_may_be_asked_for_though_an_accepted_output_is_nan(
    place: Workplace,
) -> None:
    accepted = OutputTolerance(name="y", accept_unjudged=True)
    uri = place.put("model.onnx", broken.not_finite())
    place.complete(place.task(uri, outputs=(accepted,), precision="INT8"))


# fault: Outputs | one output is NaN in all golden samples, and a lower precision is asked for | stage `quantize`:
#   NothingCompared, or the source's precision | prepare
@pytest.mark.parametrize(
    "choice",
    [
        {"precision": "FP16", "backend": "tensorrt-rtx"},
        {"precision": "INT8"},
        {"allowed_precisions": ("INT8",), "quantization": make_calibration()},
    ],
    ids=["FP16", "INT8", "automatic"],
)
def test_no_precision_is_chosen_whose_outputs_cannot_be_compared(
    choice: dict[str, Any], place: Workplace
) -> None:
    (place.root / "calibration").mkdir()
    np.savez(place.root / "calibration/calibration.npz", x=np.ones((4, 4), np.float32))
    task = place.task(place.put("model.onnx", broken.not_finite()), **choice)
    stage, quantized = place.prepare(task, "quantize")
    assert stage == "quantize"
    assert (
        "cannot be compared in output 'y': no golden sample has a finite elem" in quantized.message
    )
    if "precision" in choice:
        assert quantized.report.reason is Reason.NOTHING_COMPARED
        return
    manifest = Manifest.model_validate(place.stage("publish", task).full["facts"]["manifest"])
    assert (manifest.precision, manifest.changes) == (None, ())


def test_an_output_without_elements_in_all_samples_is_reported(place: Workplace) -> None:
    """As a detector's boxes on noise: nothing but their form could be compared."""
    model = broken.parse_text(
        """(float[1, 4] x) => (int64[2, "n"] boxes, float[1, 4] y) <float limit = {1e9}> {
        found = Greater(x, limit) boxes = NonZero(found) y = Relu(x) }"""
    )
    task = place.task(place.put("model.onnx", model))
    place.complete(task)
    golden = place.stage("golden", task)
    assert "output 'boxes' is empty in every golden sample" in golden.message
    assert "'y' is empty" not in golden.message
    (warning,) = golden.full["findings"]
    assert (warning["severity"], warning["reason"]) == ("warning", Reason.NOTHING_COMPARED)
    assert "spec.parity.samples" in warning["remedy"]


# fault: Outputs | golden outputs have no element, so that any model's would pass | stage `golden`:
#   NothingCompared | prepare
def test_outputs_that_are_all_empty_prove_nothing_until_samples_fill_them(place: Workplace) -> None:
    model = broken.parse_text(
        """(float[1, 4] x) => (int64[2, "n"] boxes) <float limit = {1e9}> {
        found = Greater(x, limit) boxes = NonZero(found) }"""
    )
    task = place.task(place.put("model.onnx", model))
    place.complete(task, "convert")
    refused = place.stage("golden", task)
    assert (refused.code, refused.report.reason) == (
        ExitCode.PERMANENT,
        Reason.NOTHING_COMPARED,
    )
    assert "no output has a finite element in any golden sample (boxes)" in refused.message
    assert "set spec.parity.samples" in refused.message
    none, some = (np.full((1, 4), value, np.float32) for value in (0, 2e9))
    samples: dict[str, Any] = {"none/x": none, "some/x": some}
    (place.root / "samples").mkdir(exist_ok=True)
    np.savez(place.root / "samples/golden.npz", **samples)
    given = place.task(task.source_uri, samples_uri="pvc://data/golden.npz")
    place.complete(given)
    assert place.stage("golden", given).code == 0


def test_the_end_of_the_stage_ends_its_child(place: Workplace) -> None:
    task = place.task(place.put("model.onnx", broken.endless()))
    place.complete(task, "convert")
    process = place.start(["stage", "golden"], task.to_json())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child = until(lambda: children.read_text().split())[0]
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in log
    until(lambda: not Path(f"/proc/{child}").exists())
    assert not place.leftovers()


def test_a_backend_that_needs_a_device_is_compared_on_its_device(place: Workplace) -> None:
    task = place.task(place.put("model.onnx", broken.relu()), backend="tensorrt")
    assert "placement_tensorrt" not in place.complete(task, "validate").full["facts"]
    golden = place.complete(task, "golden")
    assert "backend tensorrt is compared with them on its device" in golden.message
    assert np.array_equal(
        arrays(place, "outputs")["min/y"], np.maximum(arrays(place, "inputs")["min/x"], 0)
    )


NUMBERS = np.array([1, -2, 3, -4], np.int64)
POSITIVE = np.maximum(NUMBERS, 0)


@pytest.mark.parametrize("samples", [None, {"a/x": NUMBERS}, {"a/x": NUMBERS, "a/y": POSITIVE}])
def test_a_model_for_the_device_alone(samples: dict[str, Any] | None, place: Workplace) -> None:
    """The reference has no kernel; what the operator means is known all the same."""
    model = broken.parse_text("(int64[4] x) => (int64[4] y) { y = Relu(x) }")
    golden = only_on_device(place, model, samples)
    assert golden.code == 0, golden.message
    given, got = (next(iter(arrays(place, item).values())) for item in ("inputs", "outputs"))
    assert np.array_equal(got, np.maximum(given, 0))
    reported = "spec.parity.samples" if samples and "a/y" in samples else "ONNX's reference impl"
    assert any(
        "Could not find an implementation for Relu" in item["cause"]
        and f"golden outputs are those of {reported}" in item["cause"]
        for item in golden.full["findings"]
    )


X3 = np.ones((1, 2, 4), np.float32)
Y3 = np.ones((1, 2, 2), np.float32)


@pytest.mark.parametrize("samples", [None, {"a/x": X3}, {"a/x": X3, "a/y": Y3}])
def test_an_operator_without_a_definition_needs_outputs(
    samples: dict[str, Any] | None, place: Workplace
) -> None:
    """An operator of ONNX Runtime for CUDA has no definition: outputs must be given."""
    golden = only_on_device(place, split_gelu(), samples)
    if samples is None or "a/y" not in samples:
        assert golden.report.reason is Reason.UNSUPPORTED_OPERATOR
        assert (
            "nothing to compare backend tensorrt with; provide inputs and the exp" in golden.message
        )
        return
    assert golden.code == 0, golden.message
    assert np.array_equal(arrays(place, "outputs")["a/y"], Y3)


def split_gelu() -> onnx.ModelProto:
    """Return an operator that ONNX Runtime has for CUDA alone, x [1, 2, 4] to y [1, 2, 2]."""
    text = "(float[1, 2, 4] x) => (float[1, 2, 2] y) { y = com.microsoft.BiasSplitGelu(x, bias) }"
    return broken.parse_text(
        text, broken.initializer("bias", np.zeros(4)), domains=[("com.microsoft", 1)]
    )


def only_on_device(
    place: Workplace, model: onnx.ModelProto, samples: dict[str, Any] | None
) -> Outcome:
    """Prepare, for a backend with a device, a model that the CPU cannot run; return golden's outcome."""
    uri = place.put("model.onnx", model)
    if samples is not None:
        np.savez(place.root / "samples/golden.npz", **samples)
    task = place.task(
        uri, backend="tensorrt", samples_uri="pvc://data/golden.npz" if samples else None
    )
    place.complete(task, "convert")
    golden = place.stage("golden", task)
    if golden.code == 0:
        for stage in ("quantize", "publish"):
            assert place.stage(stage, task).code == 0
    return golden


def after_convert(
    place: Workplace, source: onnx.ModelProto, converted: onnx.ModelProto | None, **options: Any
) -> tuple[PrepareTask, Outcome]:
    """Run the stage on a source and what is said to have become of it."""
    task = place.task(place.put("model.onnx", source), **options)
    assert place.stage("fetch", task).code == 0
    work = place.root / "work"
    specs = graphs.inputs_of(source), graphs.outputs_of(source)
    folder = "model" if converted is None else "converted"
    common = {"opset": 17, "ir_version": source.ir_version, "nodes": 1}
    Validated(
        **common,
        inputs=specs[0],
        outputs=specs[1],
        profiles=resolve(specs[0], (), frozenset()).profiles,
    ).write(work)
    Converted(**common, inputs=specs[0], outputs=specs[1], folder=folder).write(work)
    if converted is not None:
        (work / folder).mkdir()
        onnx.save(converted, work / folder / "model.onnx")
    return task, place.stage("golden", task)


def another(place: Workplace) -> Workplace:
    """Return an empty one inside."""
    root = place.root / "another"
    root.mkdir()
    return Workplace(root, in_process=True)


def two_steps(scale: float = 1.0, opset: int = 17, ir_version: int = 9) -> onnx.ModelProto:
    """Return y = relu(x * scale + 1)."""
    return broken.parse_text(
        f"""(float["batch", 4] x) => (float["batch", 4] y) <float scale = {{{scale}}}, float one = {{1}}> {{
        [scaling] scaled = Mul(x, scale) [shifting] shifted = Add(scaled, one)
        [cutting] y = Relu(shifted) }}""",
        opset=opset,
        ir_version=ir_version,
    )


def test_the_converted_model_is_compared_with_the_source(place: Workplace) -> None:
    _, outcome = after_convert(place, two_steps(), two_steps(1.0001))
    assert outcome.code == 0, outcome.message
    assert "the converted model agrees with the source, largest absolute error 9.8" in (
        outcome.message
    )
    golden = Golden.read(place.root / "work")
    assert [(parity.name, parity.compared_with) for parity in golden.parity] == [("y", "source")]
    assert golden.parity[0].max_abs_error == pytest.approx(0.0001, rel=0.1)
    given, got = arrays(place, "inputs"), arrays(place, "outputs")
    assert np.array_equal(got["max/y"], given["max/x"] + 1)  # the source's


def test_a_converted_model_that_drifts_is_refused_with_the_first_node(place: Workplace) -> None:
    _, outcome = after_convert(place, two_steps(), two_steps(1.5))
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "the converted model, output 'y' of golden sample" in outcome.message
    assert "against the source; the first node that drifts is scaling (Mul): its output 'scal" in (
        outcome.message
    )
    assert outcome.full["failure"]["nodes"] == ["scaling (Mul)"]
    assert not list(place.root.rglob("golden-*"))
    assert not list(place.root.rglob("drift-*"))


def test_expected_outputs_are_compared_with_the_converted_model_too(place: Workplace) -> None:
    """The source agrees with the expectation by a hair, and the converted model does not."""
    x = np.ones((1, 4), np.float32)
    samples: dict[str, Any] = {"a/x": x, "a/y": x * 1.963}
    np.savez(place.root / "samples/golden.npz", **samples)
    given = {"samples_uri": "pvc://data/golden.npz"}
    _, outcome = after_convert(place, two_steps(), two_steps(0.999), **given)
    assert outcome.code == 0, outcome.message
    golden = Golden.read(place.root / "work")
    assert golden.expected
    errors = {parity.compared_with: parity.max_abs_error for parity in golden.parity}
    assert errors["source"] == pytest.approx(0.001, rel=0.01)
    assert errors["expected"] == pytest.approx(0.036, rel=0.01)
    place = another(place)
    samples["a/y"] = x * 1.962
    np.savez(place.root / "samples/golden.npz", **samples)
    _, outcome = after_convert(place, two_steps(), two_steps(1.0019), **given)
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "against the expected outputs in spec.parity.samples" in outcome.message


def test_expected_outputs_come_along(place: Workplace) -> None:
    outcome = with_samples(place, {"a/x": X, "a/y": Y, "b/x": X * 2})
    manifest = Manifest.model_validate(outcome.full and outcome.full["facts"]["manifest"])
    assert manifest.golden_expected == "golden/expected.npz"
    assert [parity.compared_with for parity in manifest.parity] == ["expected"]
    with np.load(place.root / "store/prepared" / manifest.key / "golden/expected.npz") as expected:
        assert list(expected) == ["a/y"]


def test_a_source_that_is_newer_than_the_runtime(place: Workplace) -> None:
    """ONNX Runtime has the operators, and is configured to load them."""
    _, outcome = after_convert(place, two_steps(opset=27, ir_version=14), two_steps())
    assert outcome.code == 0, outcome.message
    assert "the converted model agrees with the source, largest" in outcome.message
    assert sorted(path.name for path in (place.root / "work/model").iterdir()) == ["model.onnx"]


def test_a_source_that_onnx_alone_knows(place: Workplace) -> None:
    source, converted = build_doubled(2.0)
    _, outcome = after_convert(place, source, converted)
    assert outcome.code == 0, outcome.message
    assert "agrees with the source, by ONNX's reference implementation" in outcome.message
    given, got = arrays(place, "inputs"), arrays(place, "outputs")
    assert got.keys() == {"min/y", "opt/y", "max/y"}
    assert all(np.array_equal(got[f"{item}/y"], given[f"{item}/x"] * 2) for item in ("min", "max"))
    place = another(place)
    _, outcome = after_convert(place, source, build_doubled(3.0)[1])
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "against the source, by ONNX's reference implementation" in outcome.message


def build_doubled(factor: float) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return x << 1, for which the CPU provider has no kernel in 16 bits, and x * factor in its place."""
    source = broken.parse_text(
        """(uint16["batch", 4] x) => (uint16["batch", 4] y) <uint16 one = {1}> {
        [shift] y = BitShift <direction = "LEFT"> (x, one) }"""
    )
    converted = broken.parse_text(
        f"""(uint16["batch", 4] x) => (uint16["batch", 4] y) <float factor = {{{factor}}}> {{
        wide = Cast <to = 1> (x) product = Mul(wide, factor) y = Cast <to = 4> (product) }}"""
    )
    return source, converted


def test_a_source_that_nothing_here_runs(place: Workplace) -> None:
    source = split_gelu()
    converted = broken.parse_text(
        """(float[1, 2, 4] x) => (float[1, 2, 2] y) {
        y, rest = Split <axis = 2, num_outputs = 2> (x) }""",
        opset=18,
    )
    _, outcome = after_convert(place, source, converted)
    assert outcome.code == 0, outcome.message
    assert (
        "so nothing proves that it is equivalent to the source; provide inputs and the expected"
        in (outcome.message)
    )
    golden = Golden.read(place.root / "work")
    assert golden.parity == ()


def test_a_source_that_loads_and_fails(place: Workplace) -> None:
    source = broken.parse_text(
        """(float["batch", "width"] x) => (float["batch"] y) <int64 index = {9}> {
        y = Gather <axis = 1> (x, index) }"""
    )
    converted = onnx.ModelProto.FromString(source.SerializeToString())
    converted.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(3), "index"))
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    _, outcome = after_convert(place, source, converted)
    assert outcome.code == 0, outcome.message
    assert (
        "cannot run the source: Non-zero status code returned while running Gat" in outcome.message
    )
    assert "so nothing proves that it is equivalent to the source" in outcome.message
    assert arrays(place, "outputs").keys() == {"min/y", "opt/y", "max/y"}


def test_the_precision_that_a_model_has() -> None:
    assert own_precision(two_steps()) == "FP32"
    assert own_precision(broken.relu()) is None
    assert own_precision(build_doubled(1.0)[0]) is None
