"""The signature of a prepared model: what `publish` reports is what its server tells clients."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.manifest import MANIFEST_NAME
from enginewright_contract.report import Published
from enginewright_contract.signature import ANY_SIZE, PublishedSignature, TensorText
from enginewright_contract.task import PrepareTask, ServeTask, ShapeProfile
from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.core.handoff import Validated
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.signature import load, signature_of
from onnx import ModelProto, TensorProto, helper

from tests.support import broken_models as broken
from tests.support.converting import LISTEN, READ
from tests.support.optional import present
from tests.support.preparing import Workplace
from tests.support.serving import Server, linear_model, model, tensor


def publish(
    place: Workplace, source: ModelProto | Path, **recipe: Any
) -> tuple[PrepareTask, Published, PublishedSignature]:
    """Prepare the model; return what is reported at once, and the signature of the full report."""
    task = place.task(place.put("m.onnx", source), **recipe)
    outcome = place.complete(task)
    full = present(Published.model_validate(outcome.full["published"]).signature)
    assert full.model_dump(mode="json") == outcome.full["facts"]["manifest"]["signature"]
    return task, outcome.published, full


def read_served(place: Workplace, key: str, backend: str) -> dict[str, Any]:
    """Return the metadata that a server reports for the artefact."""
    assert place.fetch_artifact(key, backend).code == 0
    (place.root / "dev/termination-log").write_text("")
    task = ServeTask(model="m", revision="r", prepared_key=key, backend=backend)
    with Server(place.root, task, python=place.python) as server:
        metadata: dict[str, Any] = server.get("/v2/models/m").json()
    return metadata


def describe_tensors(tensors: Sequence[str]) -> list[dict[str, Any]]:
    """Return tensors as metadata has them, where sizes that profiles limit are -1."""
    return [
        {
            "name": text.name,
            "datatype": text.dtype,
            "shape": [-1 if ".." in size else int(size) for size in text.shape],
        }
        for text in map(TensorText.read, tensors)
    ]


@pytest.mark.parametrize(
    ("file", "shapes", "backend"),
    [
        ("standard_v3_3/model.onnx", (), "cpu"),
        ("standard_v3_3/model.onnx", (), "openvino"),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (READ,), "cpu"),
        ("swift_f0/model.onnx", (LISTEN,), "cpu"),
        # whose sizes of outputs are only known after optimization
        ("silero_vad_16k_sequence.onnx", (), "cpu"),
    ],
)
def test_a_server_reports_the_signature(
    file: str,
    shapes: Sequence[ShapeProfile],
    backend: str,
    models: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    place = (
        Workplace(tmp_path, request.getfixturevalue("openvino_python"))
        if backend == "openvino"
        else Workplace(tmp_path)
    )
    source = next(path for path in models.rglob("*.onnx") if str(path).endswith(file))
    _, published, signature = publish(place, source, shapes=shapes, backend=backend)
    assert published.signature == signature, "it fits into the termination message"
    metadata = read_served(place, published.key, backend)
    assert metadata["outputs"] == describe_tensors(signature.outputs)
    inputs = {item["name"]: item for item in metadata["inputs"]}
    for one, text in zip(describe_tensors(signature.inputs), signature.inputs, strict=True):
        ours, theirs = one.pop("shape"), inputs[one["name"]].pop("shape")
        assert one == inputs[one["name"]]
        profile = next((shape for shape in shapes if shape.input == one["name"]), None)
        for index, size in enumerate(TensorText.read(text).shape):
            if theirs[index] >= 0 or profile is None:
                assert ours[index] == theirs[index]
            else:
                low, high = profile.min[index], profile.max[index]
                assert size == (f"{low}..{high}" if low < high else str(low))
    assert len(inputs) == len(signature.inputs)


def test_types_and_sizes_that_only_the_runtime_infers_are_in_it(tmp_path: Path) -> None:
    source = linear_model()
    del source.graph.output[0].type.tensor_type.shape.dim[:]
    source.graph.output[0].type.tensor_type.ClearField("shape")
    _, _, signature = publish(Workplace(tmp_path), source)
    assert signature.inputs == ("x:FP32[-1,8]",)
    assert signature.outputs == ("y:FP32[-1,4]", "total:FP32[]")


@pytest.mark.parametrize(("backend", "batch"), [("cpu", ANY_SIZE), ("tensorrt-rtx", "1..32")])
def test_the_signature_has_the_sizes_of_the_engine(
    backend: str, batch: str, tmp_path: Path
) -> None:
    _, published, _ = publish(Workplace(tmp_path), linear_model(), backend=backend)
    assert published.signature is not None
    assert published.signature.inputs == (f"x:FP32[{batch},8]",)


def test_without_a_session_it_has_the_declared_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for source, refused in ((broken.no_kernel(), True), (linear_model(), False)):
        path.write_bytes(source.SerializeToString())
        recipe = Workplace(tmp_path).task("", backend="cuda").recipe
        declared = Validated(
            opset=17,
            ir_version=8,
            nodes=1,
            inputs=graphs.inputs_of(source),
            outputs=graphs.outputs_of(source),
            profiles=(),
        )
        if refused:
            with pytest.raises(SessionError):
                load(path)
        signature = present(signature_of(path, declared, recipe))
        for texts, specs in (
            (signature.inputs, declared.inputs),
            (signature.outputs, declared.outputs),
        ):
            read = [TensorText.read(text) for text in texts]
            assert [spec.name for spec in read] == [spec.name for spec in specs]
            assert {tensor_text.dtype for tensor_text in read} == {"UINT16" if refused else "FP32"}
            sizes = [
                [str(d) if isinstance(d, int) else ANY_SIZE for d in spec.shape] for spec in specs
            ]
            assert [list(tensor_text.shape) for tensor_text in read] == sizes


def test_too_many_tensors_are_reported_by_digest(tmp_path: Path) -> None:
    names = [f"output_number_{index}" for index in range(300)]
    source = model(
        [helper.make_node("Identity", ["x"], [name]) for name in names],
        [tensor("x", TensorProto.FLOAT, "n", 3)],
        [tensor(name, TensorProto.FLOAT, "n", 3) for name in names],
    )
    place = Workplace(tmp_path)
    _, published, signature = publish(place, source)
    assert len(signature.outputs) == 300
    assert published.signature == signature.drop_lists()
    metadata = read_served(place, published.key, "cpu")
    assert metadata["outputs"] == describe_tensors(signature.outputs)


def test_an_artefact_in_the_store_has_its_signature(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    task, published, signature = publish(place, linear_model())
    cached = published.model_copy(update={"cached": True})
    assert place.stage("publish", task).report.published == cached
    path = tmp_path / "store/prepared" / published.key / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    assert manifest.pop("signature") == signature.model_dump(mode="json")
    path.write_text(json.dumps(manifest))  # as an earlier version wrote it
    assert place.stage("publish", task).report.published == cached
