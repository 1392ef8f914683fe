"""Models that people use, through every stage, into the store and out of it again."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.execution import PlacementFacts
from enginewright_contract.keys import compute_prepared_key
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import PREPARE_STAGES, Promise, ShapeProfile
from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw.graphs import walk_nodes
from enginewright_runtime.proof.promise import coverage, judge
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support.converting import DETECT, LISTEN, READ, SPEAK
from tests.support.optional import present
from tests.support.placements import TENSORRT
from tests.support.placements import facts as placed
from tests.support.placements import manifest as engine_of
from tests.support.preparing import Workplace
from tests.support.serving import run_json

OPENVINO = "OpenVINOExecutionProvider"
CHANNELS = 16
SIZE = 64
PLACEMENT = """
    import json, sys
    from pathlib import Path
    from enginewright_runtime.session import loading
    placement = loading.create("openvino", Path(sys.argv[1])).placement
    print(json.dumps({"nodes": placement.nodes, "elsewhere": placement.elsewhere}))
"""


@dataclass(frozen=True)
class Real:
    """A model of a package, and what is known of it."""

    file: str
    nodes: int
    shapes: Sequence[ShapeProfile] = field(default=())
    samples: int = 8  # with five natural ones
    backend: str = "cpu"
    elsewhere: int = 0  # nodes that the backend leaves to the CPU


MODELS = (
    Real("standard_v3_3/model.onnx", 95, samples=3),
    Real("standard_v3_3/model.onnx", 95, backend="openvino", samples=3),
    Real("ch_PP-OCRv4_det_infer.onnx", 672, [DETECT]),
    Real("ch_PP-OCRv4_det_infer.onnx", 672, [DETECT], backend="openvino"),
    Real("ch_PP-OCRv4_rec_infer.onnx", 860, [READ]),
    Real("ch_ppocr_mobile_v2.0_cls_infer.onnx", 566, [READ]),
    Real("swift_f0/model.onnx", 358, [LISTEN]),
    Real("swift_f0/model.onnx", 358, [LISTEN], backend="openvino", elsewhere=8),
    Real("silero_vad_half.onnx", 325, [SPEAK]),
    Real("silero_vad_16k_sequence.onnx", 63),
    Real("silero_vad_openvino_16k.onnx", 167, samples=6),
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
    if real.elsewhere:
        assert (
            "8 of 207 nodes do not run on backend openvino: unnamed (GreaterOrEqual)"
            in outcomes["convert"].message
        )
    published = present(place.stage("publish", task).report.published)
    assert (published.nodes, published.cached) == (real.nodes, False)
    assert published.key == compute_prepared_key(published.model_digest, task.recipe, {})
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
    labels = {cost.label for cost in manifest.node_costs}
    assert labels.issuperset(manifest.shape_nodes)
    if real.backend == "openvino":
        check_placement(place.python, folder / manifest.model, manifest, real.elsewhere)
    else:
        check_coverage(source, manifest)


def placement(python: Path | str, model: Path) -> PlacementFacts:
    """Load on OpenVINO as a server does; return where the nodes run."""
    return PlacementFacts.model_validate(run_json(python, textwrap.dedent(PLACEMENT), str(model)))


def check_placement(python: str, model: Path, manifest: Manifest, elsewhere: int) -> None:
    """See to it that each node is counted, also of models whose nodes share labels, being unnamed."""
    facts = placement(python, model)
    verdict = judge(facts, OPENVINO, manifest, Promise(policy="Allow"))
    assert (verdict.active, verdict.broken) == (elsewhere > 0, False)
    shape = sum(c.count for c in manifest.node_costs if c.label in manifest.shape_nodes)
    assert verdict.nodes_total == sum(facts.nodes.values()) - shape
    assert len(facts.elsewhere) == verdict.nodes_elsewhere == elsewhere
    assert verdict.compute_share is not None
    assert (0 < verdict.compute_share < 0.2) if elsewhere else verdict.compute_share == 0.0


def check_coverage(source: Path, manifest: Manifest) -> None:
    """See to it that an engine of all nodes of the file is all of the model, and of all but one is not.

    Partitions name nodes of the file, with constants and nodes that are folded or fused later.
    """
    labels = [format_label(node.name, node.op_type) for node in walk_nodes(onnx.load(source))]
    shape = set(manifest.shape_nodes)
    compute = sum(cost.count for cost in manifest.node_costs if cost.label not in shape)
    assert coverage(labels, manifest)[:2] == (compute, compute)
    convolution = next(label for label in labels if label.endswith("(Conv)"))
    engine = engine_of(
        [(cost.label, cost.count, cost.share) for cost in manifest.node_costs],
        manifest.shape_nodes,
        {"engine_0": [label for label in labels if label != convolution]},
    )
    whole = judge(placed(1, contexts=["engine_0"]), TENSORRT, engine, Promise())
    assert whole.nodes_elsewhere == 0
    left = judge(placed(1, convolution, contexts=["engine_0"]), TENSORRT, engine, Promise())
    assert (left.nodes_total, left.nodes_elsewhere) == (whole.nodes_total + 1, 1)
    assert left.compute_share is not None
    assert 0 < left.compute_share < 1


def test_models_are_changed_until_openvino_loads_them(
    models: Path, openvino_python: Path, tmp_path: Path
) -> None:
    """It refuses values of dynamic rank, which come from Ifs that the served sizes decide."""
    place = Workplace(tmp_path, openvino_python)
    source = next(models.rglob("silero_vad_half.onnx"))
    task = place.task(place.put("m.onnx", source), backend="openvino", shapes=[SPEAK])
    stage, outcome = place.prepare(task)
    assert stage == "publish"
    manifest = place.root / "store/prepared" / outcome.published.key / "manifest.json"
    changes = Manifest.model_validate_json(manifest.read_text()).changes
    assert [change.kind for change in changes] == ["simplify"]


def test_sizes_that_are_missing_are_proposed_and_work(models: Path, place: Workplace) -> None:
    """What the message proposes can be pasted: it has run, and the batch is that of the state.

    TensorRT 10 needs a device: its build is not tried here, as TensorRT-RTX's is, which takes no such sizes.
    """
    source = next(models.rglob("silero_vad_half.onnx"))
    uri = place.put("m.onnx", source)
    outcome = place.prepare(place.task(uri, backend="tensorrt"))[1]
    assert outcome.report.reason is Reason.SHAPE_PROFILE_MISSING
    failure = present(outcome.report.failure)
    assert failure.proposal is not None
    proposed = failure.proposal.shapes
    assert [(profile.input, profile.min[-2], profile.max[-2]) for profile in proposed] == [
        ("input", 1, 8), ("state", 1, 8),
    ]  # fmt: skip
    assert proposed[0].min[1] > 64, "padding by reflection needs a minimal length"
    shapes = [ShapeProfile.model_validate(profile) for profile in proposed]
    assert place.prepare(place.task(uri, shapes=shapes))[0] == "publish"


# real topologies, with weights that are made when they run: onnx's own test data
LIGHT = {"densenet121": 1746, "inception_v1": 237, "shufflenet": 446}


@pytest.mark.parametrize("name", LIGHT)
def test_known_architectures_are_prepared_as_they_are(name: str, tmp_path: Path) -> None:
    source = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    place = Workplace(tmp_path, in_process=True)
    outcome = place.complete(place.task(place.put("m.onnx", source)))
    assert outcome.published.nodes == LIGHT[name]
    assert outcome.published.changes == ""


def conv_and_determinant() -> ModelProto:
    """Return heavy convolutions, the sizes of a Reshape, and a determinant of 3 x 3 numbers."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return broken.initializer(name, rng.standard_normal(shape).astype(np.float32) * 0.1)

    return broken.parse_text(
        f"""(float["n", 3, {SIZE}, {SIZE}] x) => (float["n"] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[2] three = {{3, 3}}> {{
        [first] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1) [relu] r1 = Relu(c1)
        [second] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2) [pool] pooled = GlobalAveragePool(c2)
        [shape] shape = Shape(x) [batch] batch = Slice(shape, zero, one)
        [target] target = Concat <axis = 0> (batch, three)
        [matrix] matrix = Reshape(pooled, target) [determinant] y = Det(matrix) }}""",
        weight("w1", CHANNELS, 3, 3, 3),
        weight("w2", 9, CHANNELS, 3, 3),
    )


def test_one_cheap_node_elsewhere(openvino_python: Path, tmp_path: Path) -> None:
    """A sixth of the nodes and next to nothing of the time: what a budget is there to tell apart."""
    place = Workplace(tmp_path, openvino_python)
    uri = place.put("model.onnx", conv_and_determinant())
    outcome = place.complete(place.task(uri, backend="openvino"))
    folder = place.root / "store/prepared" / outcome.published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert manifest.shape_nodes == ("shape (Shape)", "batch (Slice)", "target (Concat)")
    facts = placement(openvino_python, folder / manifest.model)
    assert "determinant (Det)" in facts.elsewhere

    verdict = judge(facts, OPENVINO, manifest, Promise())
    assert (verdict.broken, verdict.reason) == (True, Reason.NODE_FALLBACK)
    assert (verdict.nodes_total, verdict.nodes_elsewhere) == (6, 1)
    assert verdict.compute_share is not None
    assert verdict.compute_share < 0.05
    assert verdict.message.endswith("instead of OpenVINOExecutionProvider: determinant (Det)")

    by_time = Promise(policy="Budget", max_compute_share=0.05)
    assert not judge(facts, OPENVINO, manifest, by_time).active
    by_nodes = judge(facts, OPENVINO, manifest, Promise(policy="Budget", max_node_share=0.05))
    assert (by_nodes.broken, by_nodes.reason) == (True, Reason.FALLBACK_OVER_BUDGET)
