"""The stages of a prepare Job on a model with steps of spec.processing."""

from pathlib import Path

import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Extension, PrepareTask, Processing
from enginewright_runtime.session.extensions import bundled
from enginewright_runtime.session.processing.steps import LoadedSteps

from tests.support import processing
from tests.support.broken_models import extend, parse_text
from tests.support.engines import EnginePlace
from tests.support.preparing import Workplace

EXTENSIONS = (Extension(type="ONNXRuntimeExtensions"),)


def task_of(
    space: Workplace,
    before: list[onnx.ModelProto],
    model: onnx.ModelProto,
    after: list[onnx.ModelProto],
    *,
    extensions: tuple[Extension, ...] = EXTENSIONS,
) -> PrepareTask:
    claim = space.root / "processing/models"
    claim.mkdir(parents=True, exist_ok=True)
    uris = []
    for number, proto in enumerate((*before, *after)):
        (claim / f"{number}.onnx").write_bytes(proto.SerializeToString())
        uris.append(f"pvc://models/{number}.onnx")
    steps = Processing(before=tuple(uris[: len(before)]), after=tuple(uris[len(before) :]))
    uri = space.put("model.onnx", model)
    return space.task(uri, processing=steps, extensions=extensions)


@pytest.fixture
def space(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_the_artefact_has_the_steps_and_the_signature_of_the_chain(space: Workplace) -> None:
    task = task_of(space, [processing.decoder()], processing.classifier(), [processing.labeller()])

    stage, outcome = space.prepare(task)

    assert (stage, outcome.code) == ("publish", 0), outcome.log
    published = outcome.published
    assert published.signature is not None
    assert published.signature.inputs == ("image:UINT8[-1]",)
    assert published.signature.outputs == ("brightness:FP32[-1,1]", "label:BYTES[-1]")
    assert published.data.keys() == {"before-0", "after-0"}
    folder = space.root / "store/prepared" / published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert [step.name for step in manifest.steps] == ["before-0", "after-0"]
    assert (folder / "processing/before-0/model.onnx").read_bytes() == (
        processing.decoder().SerializeToString()
    )
    assert manifest.versions["onnxruntime-extensions"]


def test_the_key_changes_with_the_content_of_a_step_and_only_with_it(space: Workplace) -> None:
    def key(labels: list[onnx.ModelProto]) -> str:
        task = task_of(space, [processing.decoder()], processing.classifier(), labels)
        _, outcome = space.prepare(task)
        return outcome.published.key

    first = key([processing.labeller()])
    assert key([processing.labeller()]) == first
    other = processing.labeller()
    other.doc_string = "the same labels, other bytes"
    assert key([other]) != first
    assert key([]) != first


def refusal(space: Workplace, task: PrepareTask) -> tuple[Reason | None, str]:
    stage, outcome = space.prepare(task)
    assert outcome.code == 65, (stage, outcome.log)
    return outcome.report.reason, outcome.message


def rename_tensors(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    for item in (*model.graph.input, *model.graph.output):
        item.name = new if item.name == old else item.name
    for node in model.graph.node:
        node.input[:] = [new if item == old else item for item in node.input]
        node.output[:] = [new if item == old else item for item in node.output]
    return model


def test_steps_must_connect(space: Workplace) -> None:
    wrong = processing.decoder()
    wrong.graph.node[-1].output[0] = "wide"
    wrong.graph.node.append(onnx.helper.make_node("Cast", ["wide"], ["pixels"], to=10))
    wrong.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    cases = [
        (
            wrong,
            "the model takes 'pixels' as FP32[-1,3,8,8], and spec.processing.before[0] has 'pixels' as",
        ),
        (
            rename_tensors(processing.decoder(), "pixels", "picture"),
            "nothing takes an output of spec.processing.before[0] ('picture')",
        ),
        (
            rename_tensors(processing.decoder(), "image", "scores"),
            "the model produces 'scores', which is already a value of spec.processing.before[0]",
        ),
    ]
    for before, message in cases:
        task = task_of(space, [before], processing.classifier(), [])
        reason, reported = refusal(space, task)
        assert reason is Reason.INVALID_MODEL
        assert message in reported
        assert "values are passed by name" in reported


def test_a_step_needs_its_operators(space: Workplace) -> None:
    task = task_of(space, [processing.decoder()], processing.classifier(), [], extensions=())
    reason, message = refusal(space, task)
    assert reason is Reason.CUSTOM_DOMAIN_UNSUPPORTED
    assert "step spec.processing.before[0]: operators of domain" in message


def test_a_step_is_not_converted(space: Workplace) -> None:
    newer = processing.labeller()
    newer.ir_version = 99
    task = task_of(space, [], processing.classifier(), [newer])
    reason, message = refusal(space, task)
    assert reason is Reason.OPSET_UNSUPPORTED
    assert "step spec.processing.after[0], of opset 17 and IR version 99, has a form" in message
    assert "steps are not converted" in message


def test_a_step_is_fetched_as_a_model_is(space: Workplace) -> None:
    task = task_of(space, [processing.decoder()], processing.classifier(), [])
    wrong = task.model_copy(update={"steps_sha256": {"before-0": "0" * 64}})
    reason, message = refusal(space, wrong)
    assert reason is Reason.DIGEST_MISMATCH
    assert "spec.processing.before[0].sha256 is 000" in message

    changed = task.model_copy(update={"pinned": {"before-0": "1" * 64}})
    reason, message = refusal(space, changed)
    assert reason is Reason.SOURCE_CHANGED
    assert "the content of spec.processing.before[0] has changed" in message

    (space.root / "processing/models/0.onnx").write_bytes(b"<html>not found</html>")
    reason, message = refusal(space, task)
    assert reason is Reason.INVALID_MODEL
    assert "step spec.processing.before[0]: the source is not a model" in message


def test_an_engine_has_the_steps_of_its_prepared_model(tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    _, outcome = place.prepare(
        task_of(place, [processing.decoder()], processing.classifier(), [processing.labeller()])
    )
    place.prepared = outcome.published.key
    task = place.engine_task()

    outcomes = place.build_engine(task)

    assert [item.code for item in outcomes.values()] == [0] * 5
    names = {file.path for file in place.engine_manifest(task).files}
    assert {
        "extensions/onnxruntime-extensions",
        "processing/before-0/model.onnx",
        "processing/after-0/model.onnx",
    } <= names
    assert [step.name for step in place.engine_manifest(task).steps] == ["before-0", "after-0"]


def test_steps_feed_one_another(space: Workplace) -> None:
    def pass_on(number: int) -> onnx.ModelProto:
        before, after = f"value_{number}", f"value_{number + 1}"
        return parse_text(
            f'(float["n"] {before}) => (float["n"] {after}) {{ {after} = Identity({before}) }}'
        )

    before, after = [pass_on(0), pass_on(1)], [pass_on(3), pass_on(4)]
    _, outcome = space.prepare(task_of(space, before, pass_on(2), after))
    assert outcome.published.data.keys() == {"before-0", "before-1", "after-0", "after-1"}
    assert outcome.published.signature is not None
    assert outcome.published.signature.inputs == ("value_0:FP32[-1]",)
    assert outcome.published.signature.outputs == ("value_5:FP32[-1]",)


def test_an_input_only_of_a_decoder_is_an_image(tmp_path: Path) -> None:
    """An image is decoded and encoded again before its step, which other operators would see."""
    also_counted = processing.decoder()
    extend(also_counted, "() => (int64 count) { count = Size(image) }")
    (tmp_path / "extensions").mkdir()
    bundled.declare(tmp_path / "extensions")
    kinds = {}
    for name, model in (("only", processing.decoder()), ("counted", also_counted)):
        onnx.save(model, tmp_path / f"{name}.onnx")
        steps = LoadedSteps({name: tmp_path / f"{name}.onnx"}, tmp_path / "model/model.onnx")
        kinds[name] = steps.facts[name].images
    assert kinds == {"only": ("image",), "counted": ()}
