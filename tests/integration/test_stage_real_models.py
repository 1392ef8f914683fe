"""Models that people use, through every stage, into the store and out of it again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from enginewright.contract.keys import prepared_key
from enginewright.contract.manifest import Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import PREPARE_STAGES, ShapeProfile

from tests.support.preparing import Workplace


@dataclass(frozen=True)
class Real:
    """A model of a package, and what is known of it."""

    file: str
    nodes: int
    shapes: Sequence[ShapeProfile] = field(default=())
    samples: int = 3
    backend: str = "cpu"
    told: str = ""  # part of what `convert` says


def sizes(name: str, low: Sequence[int], usual: Sequence[int], high: Sequence[int]) -> ShapeProfile:
    return ShapeProfile(input=name, min=tuple(low), opt=tuple(usual), max=tuple(high))


DETECT = sizes("x", [1, 3, 64, 64], [1, 3, 160, 160], [2, 3, 160, 320])
READ = sizes("x", [1, 3, 48, 64], [2, 3, 48, 160], [2, 3, 48, 320])
LISTEN = sizes("audio", [1, 4096], [1, 8000], [1, 16000])
SPEAK = (sizes("input", [1, 576], [2, 576], [4, 576]),)
MODELS = (
    Real("standard_v3_3/model.onnx", 95),
    Real("standard_v3_3/model.onnx", 95, backend="openvino"),
    Real("ch_PP-OCRv4_det_infer.onnx", 672, [DETECT]),
    Real("ch_PP-OCRv4_det_infer.onnx", 672, [DETECT], backend="openvino"),
    Real("ch_PP-OCRv4_rec_infer.onnx", 860, [READ]),
    Real("ch_ppocr_mobile_v2.0_cls_infer.onnx", 566, [READ]),
    Real("swift_f0/model.onnx", 358, [LISTEN]),
    Real("swift_f0/model.onnx", 358, [LISTEN], backend="openvino",
         told="8 of 207 nodes do not run on backend openvino: unnamed (GreaterOrEqual)"),
    Real("silero_vad_half.onnx", 325, SPEAK),
    Real("silero_vad_16k_sequence.onnx", 63),
    Real("silero_vad_openvino_16k.onnx", 167, samples=1),
)  # fmt: skip


@pytest.mark.parametrize("real", MODELS, ids=lambda real: f"{Path(real.file).stem}-{real.backend}")
def test_from_source_to_artifact(
    real: Real, models: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = (
        Workplace(tmp_path, request.getfixturevalue("openvino_python"))
        if real.backend == "openvino"
        else Workplace(tmp_path, in_process=True)
    )
    source = next(path for path in models.rglob("*.onnx") if str(path).endswith(real.file))
    task = place.task(place.put("m.onnx", source), backend=real.backend, shapes=real.shapes)
    outcomes = {stage: place.stage(stage, task) for stage in PREPARE_STAGES[:-1]}
    for outcome in outcomes.values():
        assert outcome.code == 0, outcome.message
    assert real.told in outcomes["convert"].message
    published = place.stage("publish", task).report.published
    assert published is not None
    assert (published.nodes, published.cached) == (real.nodes, False)
    assert published.key == prepared_key(published.model_digest, task.recipe, {})
    again = place.stage("publish", task).report.published
    assert again == published.model_copy(update={"cached": True})

    outcome = place.fetch_artifact(published.key, real.backend)
    assert outcome.code == 0, outcome.message
    folder = tmp_path / "artifact"
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert (folder / manifest.model).read_bytes() == source.read_bytes()
    with np.load(folder / manifest.golden_outputs) as golden:
        assert len({key.partition("/")[0] for key in golden.files}) == real.samples
    assert sum(cost.share for cost in manifest.node_costs) == pytest.approx(1, abs=1e-3)
    # constants are folded, and nothing is invented but what two nodes are fused into
    assert sum(cost.count for cost in manifest.node_costs) <= real.nodes
    known = {cost.label for cost in manifest.node_costs}
    assert known.issuperset(manifest.shape_nodes)


def test_what_openvino_cannot_load_is_changed_until_it_can(
    models: Path, openvino_python: Path, tmp_path: Path
) -> None:
    """It refuses values of dynamic rank, which come from Ifs that the served sizes decide."""
    place = Workplace(tmp_path, openvino_python)
    source = next(models.rglob("silero_vad_half.onnx"))
    task = place.task(place.put("m.onnx", source), backend="openvino", shapes=SPEAK)
    stage, outcome = place.prepare(task)
    assert stage == "publish"
    assert outcome.report.published is not None
    manifest = place.root / "store/prepared" / outcome.report.published.key / "manifest.json"
    changes = Manifest.model_validate_json(manifest.read_text()).changes
    assert [change.kind for change in changes] == ["simplify"]


def test_sizes_that_are_missing_are_proposed_and_work(models: Path, tmp_path: Path) -> None:
    """What the message proposes can be pasted: it has run, and the batch is that of the state.

    TensorRT 10 needs a device: its build is not tried here, as TensorRT-RTX's is, which takes no such sizes.
    """
    place = Workplace(tmp_path, in_process=True)
    source = next(models.rglob("silero_vad_half.onnx"))
    uri = place.put("m.onnx", source)
    outcome = place.prepare(place.task(uri, backend="tensorrt"))[1]
    assert outcome.report.reason is Reason.SHAPE_PROFILE_MISSING
    proposed = yaml.safe_load(outcome.message.partition("(these ran): ")[2])["shapes"]
    assert [(each["input"], each["min"][-2], each["max"][-2]) for each in proposed] == [
        ("input", 1, 8), ("state", 1, 8),
    ]  # fmt: skip
    assert proposed[0]["min"][1] > 64, "padding by reflection needs a minimal length"
    shapes = [ShapeProfile.model_validate(each) for each in proposed]
    assert place.prepare(place.task(uri, shapes=shapes))[0] == "publish"


# real topologies, with weights that are made when they run: onnx's own test data
LIGHT = {
    "densenet121": 1746,
    "inception_v1": 237,
    "inception_v2": 916,
    "resnet50": 415,
    "shufflenet": 446,
    "squeezenet": 105,
    "zfnet512": 38,
}


@pytest.mark.parametrize("name", LIGHT)
def test_known_architectures_are_prepared_as_they_are(name: str, tmp_path: Path) -> None:
    source = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    place = Workplace(tmp_path, in_process=True)
    stage, outcome = place.prepare(place.task(place.put("m.onnx", source)))
    assert (stage, outcome.code) == ("publish", 0), outcome.message
    assert outcome.report.published is not None
    assert outcome.report.published.nodes == LIGHT[name]
    assert outcome.report.published.changes == ""
