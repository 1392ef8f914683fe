"""What cannot be served is refused, with the reason, the culprit and the remedy."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from enginewright_contract.reasons import Reason, exit_code
from enginewright_contract.task import Recipe, ShapeProfile
from enginewright_runtime.core.handoff import Validated
from enginewright_runtime.prepare.validate import stage as validate
from enginewright_runtime.prepare.validate.inspection import inspect_here
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support.cpu import measure_cpu
from tests.support.preparing import Outcome, Workplace

Content = ModelProto | bytes
RELU = broken.relu().SerializeToString()


@dataclass(frozen=True)
class Case:
    """One thing wrong, and how it must be reported."""

    name: str
    files: Callable[[], dict[str, Content]]  # model.onnx and what lies beside it
    stage: str
    reason: Reason
    reported: tuple[str, ...]  # parts of the message
    nodes: int | None = None  # of the first finding


def only(content: Callable[[], Content] | bytes) -> Callable[[], dict[str, Content]]:
    return lambda: {"model.onnx": content if isinstance(content, bytes) else content()}


def write_as(form: str) -> bytes:
    return bytes(onnx.serialization.registry.get(form).serialize_proto(broken.relu()))


CASES = (
    Case("text", only(b"This is a note.\n" * 9), "validate", Reason.INVALID_MODEL,
         ("is not an ONNX model, or is truncated",)),
    Case("empty", only(b""), "fetch", Reason.INVALID_MODEL, ("is not a model: it is empty",)),
    Case("truncated", only(RELU[:-20]), "validate", Reason.INVALID_MODEL, ("or is truncated",)),
    Case("zeros", only(bytes(4096)), "validate", Reason.INVALID_MODEL, ("is not an ONNX model",)),
    Case("HTML", only(b"\n<!DOCTYPE html><html><body>Sign in</body></html>"), "fetch",
         Reason.INVALID_MODEL, ("it is an HTML page", "login")),
    Case("Git LFS pointer", only(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
         "fetch", Reason.INVALID_MODEL, ("Git LFS pointer", "git lfs pull")),
    Case("safetensors", only((68).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[1]'),
         "fetch", Reason.INVALID_MODEL, ("it is a safetensors file", "torch.onnx.export")),
    Case("engine of TensorRT", only(b"ftrt" + bytes(60)), "fetch", Reason.INVALID_MODEL,
         ("it is a serialized TensorRT engine", "give the .onnx file that it was built from")),
    Case("engine of TensorRT-RTX", only(b"vtrt" + bytes(60)), "fetch", Reason.INVALID_MODEL,
         ("it is a serialized TensorRT engine",)),
    Case("ONNX's text", only(lambda: onnx.printer.to_text(broken.relu()).encode()), "fetch",
         Reason.INVALID_MODEL, ("it is an ONNX model in ONNX's text form", "onnx.parser.parse_model")),
    Case("protobuf's text", only(lambda: write_as("textproto")), "fetch", Reason.INVALID_MODEL,
         ("it is an ONNX model in protobuf's text form", "format='textproto'")),
    Case("JSON", only(lambda: write_as("json")), "fetch", Reason.INVALID_MODEL, ("it is an ONNX model in JSON form", "format='json'")),
    Case("other JSON", only(b'{\n "model_type": "bert"}'), "fetch", Reason.INVALID_MODEL,
         ("it is a JSON document",)),
    Case("no nodes", only(lambda: broken.build([], [broken.value("x", 1)], [broken.value("x", 1)])),
         "validate", Reason.INVALID_MODEL, ("it has no nodes",)),
    Case("no inputs", only(broken.no_inputs), "validate", Reason.INVALID_MODEL,
         ("has no inputs",)),
    Case("opset of another domain", only(broken.newer_domain), "validate",
         Reason.OPSET_UNSUPPORTED, ("domain ai.onnx.ml is till opset",)),
    Case("out of memory", only(broken.enormous), "golden", Reason.OUT_OF_MEMORY,
         ("golden sample 'min' does not fit into memory on backend cpu",)),
    Case("opset 99", only(lambda: broken.relu(opset=99)), "validate", Reason.OPSET_UNSUPPORTED,
         ("has opset 99", "1.31.1 loads at most 26", "no released onnx supports opset 99",
          "export with opset 26"), 0),
    Case("unknown operator", only(lambda: broken.one_node("FooBar")), "validate",
         Reason.UNSUPPORTED_OPERATOR, ("has no operator for node-1 (FooBar)",), 1),
    Case("operator of a newer opset", only(lambda: broken.one_node("Gelu")), "validate",
         Reason.UNSUPPORTED_OPERATOR, ("imports opset 17", "export with opset 20 or newer"), 1),
    Case("no such locale", only(broken.lower_case), "validate", Reason.UNSUPPORTED_OPERATOR,
         ("locale xx_XX", "lower (StringNormalizer)", "locale C"), 1),
    Case("custom domain", only(lambda: broken.one_node("FooBar", "my.ops")), "validate",
         Reason.CUSTOM_DOMAIN_UNSUPPORTED, ("domain 'my.ops'", "node-1 (FooBar)"), 1),
    Case("no kernel for the type", only(broken.no_kernel), "validate",
         Reason.UNSUPPORTED_OPERATOR, ("BitShift(11)", "'shift'"), 1),
    Case("wrong dtype", only(broken.wrong_types), "validate", Reason.INVALID_MODEL,
         ("bound to different types", "sum")),
    Case("cyclic", only(broken.cyclic), "validate", Reason.INVALID_MODEL,
         ("second (Relu), first (Add)", "these nodes form a cycle"), 2),
    Case("sequence output", only(broken.sequence_output), "validate", Reason.INVALID_MODEL,
         ("no output is a tensor", "export it with tensors")),
    Case("external data missing", only(lambda: broken.external("w.bin")), "fetch",
         Reason.EXTERNAL_DATA_MISSING, ("'w.bin'", "claim models")),
    Case("external data cut short",
         lambda: {"model.onnx": broken.external("w.bin"), "w.bin": broken.weights()[:60]},
         "validate", Reason.EXTERNAL_DATA_MISSING,
         ("w (w.bin has 60 bytes of 64)", "upload the complete file again")),
    Case("external data escapes", only(lambda: broken.external("../../etc/passwd")), "fetch",
         Reason.EXTERNAL_DATA_MISSING, ("w ('../../etc/passwd')", "outside the model's folder")),
    Case("external data absolute", only(lambda: broken.external("/etc/passwd")), "fetch",
         Reason.EXTERNAL_DATA_MISSING, ("w ('/etc/passwd')",)),
    Case("external data without a name", only(lambda: broken.external("")), "fetch",
         Reason.EXTERNAL_DATA_MISSING, ("w ('')",)),
    Case("external data with a negative offset",
         lambda: {"model.onnx": broken.external("w.bin", offset=-8), "w.bin": broken.weights()},
         "validate", Reason.EXTERNAL_DATA_MISSING, ("w (offset '-8' is not a number of bytes)",)),
)  # fmt: skip


@pytest.fixture
def place(strict_place: Workplace) -> Workplace:
    return strict_place


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refusal(case: Case, place: Workplace) -> None:
    for name, content in case.files().items():
        place.put(name, content)
    stage, outcome = place.prepare(place.task("pvc://models/model.onnx"))
    assert (stage, outcome.report.reason) == (case.stage, case.reason), outcome.message
    assert outcome.code == exit_code(case.reason)
    for part in case.reported:
        assert part in outcome.message
    assert outcome.report.failure is not None
    assert outcome.report.failure.advice
    assert str(place.root) not in outcome.message, "no path of the pod"
    assert outcome.full["failure"]["cause"] == outcome.report.failure.cause
    if case.nodes is not None:
        assert outcome.full["findings"][0].get("node_count", 0) == case.nodes
    assert not (place.root / "store/prepared").exists()


def test_an_engine_needs_sizes_for_open_dimensions(place: Workplace) -> None:
    uri = place.put("m.onnx", broken.open_dimensions("N", 3, "H", None, name="in-1"))
    stage, outcome = place.prepare(place.task(uri, backend="tensorrt-rtx"))
    assert (stage, outcome.report.reason) == ("validate", Reason.SHAPE_PROFILE_MISSING)
    for part in (
        "input in-1 has [N, 3, H, ?]: an engine needs sizes for all but the first dimension",
        '(these ran): shapes: [{input: "in-1", min: [1, 3, 32, 32],',
        "opt: [1, 3, 320, 320], max: [8, 3, 640, 640]}]",
    ):
        assert part in outcome.message


def test_wrong_digest_names_both(place: Workplace) -> None:
    uri = place.put("model.onnx", RELU)
    outcome = place.stage("fetch", place.task(uri, sha256="AB" * 32))
    assert outcome.report.reason is Reason.DIGEST_MISMATCH
    assert "ab" * 32 in outcome.message
    assert hashlib.sha256(RELU).hexdigest() in outcome.message


PROFILES = (
    (
        ShapeProfile(input="z", min=(1, 4), opt=(1, 4), max=(1, 4)),
        "no input of that name; it has x",
    ),
    (ShapeProfile(input="x", min=(1,), opt=(1,), max=(1,)), "need 2 dimensions each"),
    (ShapeProfile(input="x", min=(1, 5), opt=(1, 5), max=(1, 5)), "dimension 1 is fixed to 4"),
    (ShapeProfile(input="x", min=(4, 4), opt=(1, 4), max=(8, 4)), "4, 1, 8: sizes must rise"),
    (ShapeProfile(input="x", min=(0, 4), opt=(0, 4), max=(8, 4)), "opt 0: only min may be 0"),
    (ShapeProfile(input="x", min=(-1, 4), opt=(1, 4), max=(8, 4)), "-1, 1, 8: sizes must rise"),
)


@pytest.mark.parametrize(("profile", "reported"), PROFILES)
def test_bad_profile(profile: ShapeProfile, reported: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.open_dimensions("batch", 4).SerializeToString())
    recipe = Recipe(
        backend="cpu", ort_version="1.31.1", max_opset=26, max_ir_version=13, shapes=(profile,)
    )
    findings = inspect_here(path, recipe).findings
    assert [finding.rule for finding in findings] == ["shapes-contradict"]
    assert reported in findings[0].cause


def test_bad_profiles_are_one_finding_and_the_model_is_loaded_all_the_same(
    place: Workplace,
) -> None:
    outcome = validate_model(
        place, broken.open_dimensions("batch", 4), shapes=tuple(profile for profile, _ in PROFILES)
    )
    assert outcome.report.reason is Reason.SHAPE_PROFILE_INVALID
    assert findings(outcome) == [("error", "shapes-contradict")]
    assert all(reported in outcome.message for _, reported in PROFILES[:4])


def test_every_finding_is_collected_and_the_first_to_mend_is_reported(place: Workplace) -> None:
    model = broken.one_node("FooBar", "my.ops")
    model.opset_import[0].version = 99
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    _, outcome = place.prepare(place.task(place.put("model.onnx", model)))
    assert outcome.report.reason is Reason.OPSET_UNSUPPORTED
    assert "(and 1 more finding in the report)" in outcome.message
    assert [item["reason"] for item in outcome.full["findings"]] == [
        "OpsetUnsupported", "CustomDomainUnsupported",
    ]  # fmt: skip


def test_checker_error_alone_is_a_warning(place: Workplace) -> None:
    outcome = validate_model(place, broken.build_unsorted())
    assert (outcome.code, findings(outcome)) == (0, [("warning", "onnx-checker")])
    assert "topologically sorted" in outcome.message


def test_a_refused_model_has_no_finding_that_it_can_be_served(place: Workplace) -> None:
    model = broken.parse_text(
        """(float["n", 4] x) => (float["n", 4] y) <float16["n", 4] t> {
        [half] h = Cast <to = 10> (x) [cast] t = Cast <to = 1> (h) [add] y = Add(t, x) }"""
    )
    outcome = validate_model(place, model)
    assert outcome.report.reason is Reason.INVALID_MODEL
    assert [severity for severity, _ in findings(outcome)] == ["error"]


def test_an_output_that_keeps_one_row_of_a_batch_is_reported(place: Workplace) -> None:
    model = broken.parse_text(
        """(float["batch", 5, 4] images) => (float["batch", 5, 4] boxes)
        <int64[1] zero = {0}, int64[1] one = {1}> { [first] boxes = Slice(images, zero, one, zero) }"""
    )
    outcome = validate_model(place, model)
    assert (outcome.code, findings(outcome)) == (0, [("warning", "declared-output-shape")])
    assert "has shape [1, 5, 4], for inputs images [2, 5, 4]" in outcome.message
    (finding,) = outcome.full["findings"]
    assert "one row for each row of the inputs" in finding["remedy"]


CONVERTIBLE = (
    broken.relu(opset=27),
    broken.relu(ir_version=14),
    broken.newer_operators(2),
    broken.relu(opset=5),  # Relu(1) has attributes that ONNX Runtime's kernels do not know
)


@pytest.mark.parametrize("model", CONVERTIBLE)
def test_convertible_model_has_no_error(model: ModelProto, place: Workplace) -> None:
    """The source is judged and not loaded: only what `convert` makes of it can be."""
    task = place.task(place.put("model.onnx", model))
    outcome = place.complete(task, "validate")
    assert "placement_cpu" not in outcome.full["facts"]
    validated = Validated.read(place.root / "work")
    assert (validated.opset, validated.ir_version) == (
        model.opset_import[0].version,
        model.ir_version,
    )


def test_target_opset_does_not_prevent_loading_the_source(place: Workplace) -> None:
    uri = place.put("model.onnx", broken.relu(opset=13, ir_version=7))
    outcome = place.complete(place.task(uri, target_opset=17), "validate")
    assert outcome.full["facts"]["placement_cpu"]["nodes"] == {"CPUExecutionProvider": 1}


def findings(outcome: Outcome) -> list[tuple[str, str]]:
    return [(item["severity"], item["rule"]) for item in outcome.full["findings"]]


def validate_model(place: Workplace, content: Content, **recipe: Any) -> Outcome:
    task = place.task(place.put("model.onnx", content), **recipe)
    place.complete(task, "fetch")
    return place.stage("validate", task)


def test_outputs_of_another_shape_than_declared(place: Workplace) -> None:
    outcome = validate_model(place, broken.lying_shape())
    assert outcome.code == 0
    assert ("warning", "declared-output-shape") in findings(outcome)
    assert (
        "output 'y' is declared as [1, 8] and has shape [2, 4], for inputs x [2, 4]"
        in outcome.message
    )


def test_a_dimension_named_as_an_inputs_is_held_to_it(place: Workplace) -> None:
    outcome = validate_model(place, broken.lying_name())
    assert findings(outcome) == [("warning", "declared-output-shape"), ("warning", "one-size")]
    assert "is declared as [batch, 4] and has shape [3, 4], for inputs x [1, 4]" in outcome.message


def test_nan_in_weights_and_in_every_answer(place: Workplace) -> None:
    outcome = validate_model(place, broken.nan_weight(spread=True))
    assert outcome.report.reason is Reason.INVALID_MODEL
    assert findings(outcome) == [("error", "nan-answers"), ("warning", "nan-in-weights")]
    assert "every output has NaN because weights are NaN: w (16 of 16 values)" in outcome.message


def test_nan_in_weights_that_no_answer_shows(place: Workplace) -> None:
    outcome = validate_model(place, broken.nan_weight(spread=False))
    assert outcome.code == 0
    assert findings(outcome) == [("warning", "nan-in-weights")]


def test_a_model_without_an_end_is_left_to_golden(place: Workplace) -> None:
    """The one run is to look at shapes; it gives up soon."""
    before = measure_cpu()
    outcome = validate_model(place, broken.endless())
    assert (outcome.code, findings(outcome)) == (0, [])
    assert measure_cpu() - before < 40


# fault: Security | a model at which the loader hangs | its process ends, and the
#   stage reports why | a limit of time
def test_a_load_that_hangs_is_given_up(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "_SECONDS", 0.001)
    outcome = validate_model(place, broken.relu())
    assert outcome.report.reason is Reason.TIMEOUT
    assert "loading the model on backend cpu took longer" in outcome.message


def test_a_fixed_batch_behind_an_open_one(place: Workplace) -> None:
    """Declared batches must work; the default ones are only our guess, which a run corrects."""
    uri = place.put("model.onnx", broken.fix_batch())
    outcome = place.complete(place.task(uri))
    invalid = validate_model(place, broken.fix_batch())
    assert ("warning", "one-size") in findings(invalid)
    assert "runs with x [1, 4], and with no other size that was tried for 'x[0]'" in invalid.message
    golden = place.stage("golden", place.task(uri))
    assert golden.message.startswith("4 golden samples")
    declared = [ShapeProfile(input="x", min=(1, 4), opt=(2, 4), max=(4, 4))]
    stage, outcome = place.prepare(place.task(uri, shapes=declared))
    assert (stage, outcome.report.reason) == ("golden", Reason.SHAPE_PROFILE_INVALID)
    assert "opt shapes of spec.shapes (x [2, 4])" in outcome.message
