"""From the file to the verdict: real models on OpenVINO, which leaves some of their nodes to the CPU."""

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright.contract.execution import PlacementFacts
from enginewright.contract.manifest import Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import PrepareTask, Promise, ShapeProfile
from enginewright_runtime.core.labels import label
from enginewright_runtime.graph.graphs import walk_nodes
from enginewright_runtime.proof.promise import coverage, judge
from onnx import ModelProto, helper, numpy_helper

from tests.support import broken_models as broken
from tests.support.placements import TENSORRT
from tests.support.placements import facts as placed
from tests.support.placements import manifest as engine_of
from tests.support.preparing import Workplace

OPENVINO = "OpenVINOExecutionProvider"
CHANNELS = 16
SIZE = 64
PROGRAM = """
    import json, sys
    from pathlib import Path
    from enginewright_runtime.session import loading
    placement = loading.create("openvino", Path(sys.argv[1])).placement
    print(json.dumps({"nodes": placement.nodes, "elsewhere": placement.elsewhere}))
"""


def serve(python: Path, model: Path) -> PlacementFacts:
    """Load on OpenVINO as a server does; return where the nodes run."""
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(PROGRAM), str(model)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return PlacementFacts.model_validate(json.loads(done.stdout.splitlines()[-1]))


def prepare(place: Workplace, task: PrepareTask) -> tuple[Manifest, Path]:
    """Run the prepare Job's stages; return the artefact."""
    stage, outcome = place.prepare(task)
    assert (stage, outcome.code) == ("publish", 0), outcome.message
    assert outcome.report.published is not None
    folder = place.root / "store/prepared" / outcome.report.published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    return manifest, folder / manifest.model


def conv_and_determinant() -> ModelProto:
    """Return heavy convolutions, the sizes of a Reshape, and a determinant of 3 x 3 numbers."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.1, name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["pooled"], name="pool"),
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"], name="batch"),
        helper.make_node("Concat", ["batch", "three"], ["target"], name="target", axis=0),
        helper.make_node("Reshape", ["pooled", "target"], ["matrix"], name="matrix"),
        helper.make_node("Det", ["matrix"], ["y"], name="determinant"),
    ]
    integers = {"zero": [0], "one": [1], "three": [3, 3]}
    weights = [
        weight("w1", CHANNELS, 3, 3, 3),
        weight("w2", 9, CHANNELS, 3, 3),
        *(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in integers.items()),
    ]
    return broken.build(
        nodes, [broken.value("x", "n", 3, SIZE, SIZE)], [broken.value("y", "n")], weights
    )


def test_one_cheap_node_elsewhere(openvino_python: Path, tmp_path: Path) -> None:
    """A sixth of the nodes and next to nothing of the time: what a budget is there to tell apart."""
    place = Workplace(tmp_path, openvino_python)
    uri = place.put("model.onnx", conv_and_determinant())
    manifest, model = prepare(place, place.task(uri, backend="openvino"))
    assert manifest.shape_nodes == ("shape (Shape)", "batch (Slice)", "target (Concat)")
    facts = serve(openvino_python, model)
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


def test_a_real_model_in_part(models: Path, openvino_python: Path, tmp_path: Path) -> None:
    """All of its nodes are unnamed: they share labels, and each of them is counted."""
    place = Workplace(tmp_path, openvino_python)
    source = next(path for path in models.rglob("model.onnx") if "swift_f0" in str(path))
    shapes = [ShapeProfile(input="audio", min=(1, 4096), opt=(1, 8000), max=(1, 16000))]
    task = place.task(place.put("m.onnx", source), backend="openvino", shapes=shapes)
    manifest, model = prepare(place, task)
    facts = serve(openvino_python, model)
    assert len(facts.elsewhere) == 8
    verdict = judge(facts, OPENVINO, manifest, Promise(policy="Allow"))
    assert (verdict.active, verdict.broken, verdict.kind) == (True, False, "NodeFallback")
    shape = sum(c.count for c in manifest.node_costs if c.label in manifest.shape_nodes)
    assert verdict.nodes_total == sum(facts.nodes.values()) - shape
    assert verdict.nodes_elsewhere == 8
    assert verdict.compute_share is not None
    assert 0 < verdict.compute_share < 0.2


@pytest.mark.parametrize("name", ["ch_PP-OCRv4_det_infer.onnx", "standard_v3_3/model.onnx"])
def test_a_real_model_as_a_whole(
    name: str, models: Path, openvino_python: Path, tmp_path: Path
) -> None:
    place = Workplace(tmp_path, openvino_python)
    source = next(path for path in models.rglob("*.onnx") if str(path).endswith(name))
    detect = ShapeProfile(input="x", min=(1, 3, 64, 64), opt=(1, 3, 96, 96), max=(1, 3, 96, 96))
    shapes = [detect] if "det" in name else []
    task = place.task(place.put("m.onnx", source), backend="openvino", shapes=shapes)
    manifest, model = prepare(place, task)
    verdict = judge(serve(openvino_python, model), OPENVINO, manifest, Promise())
    assert not verdict.active
    assert (verdict.nodes_elsewhere, verdict.compute_share) == (0, 0.0)


READ = ShapeProfile(input="x", min=(1, 3, 48, 64), opt=(1, 3, 48, 96), max=(1, 3, 48, 96))
SPEAK = ShapeProfile(input="input", min=(1, 576), opt=(1, 576), max=(1, 576))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ch_PP-OCRv4_rec_infer.onnx", [READ]),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", [READ]),
        ("standard_v3_3/model.onnx", []),
        ("silero_vad_half.onnx", [SPEAK]),
    ],
)
def test_an_engine_of_all_nodes_of_the_file_is_all_of_the_model(
    name: str, shapes: list[ShapeProfile], models: Path, tmp_path: Path
) -> None:
    """Partitions name nodes of the file, with constants and nodes that are folded or fused later."""
    place = Workplace(tmp_path, in_process=True)
    source = next(path for path in models.rglob("*.onnx") if str(path).endswith(name))
    manifest, _ = prepare(place, place.task(place.put("m.onnx", source), shapes=shapes))
    labels = [label(node.name, node.op_type) for node in walk_nodes(onnx.load(source))]
    convolution = next(each for each in labels if each.endswith("(Conv)"))
    shape = set(manifest.shape_nodes)
    compute = sum(cost.count for cost in manifest.node_costs if cost.label not in shape)

    assert coverage(labels, manifest)[:2] == (compute, compute)
    inside = [each for each in labels if each != convolution]
    engine = engine_of(
        [(cost.label, cost.count, cost.share) for cost in manifest.node_costs],
        manifest.shape_nodes,
        {"engine_0": inside},
    )
    whole = judge(placed(1, contexts=["engine_0"]), TENSORRT, engine, Promise())
    assert (whole.nodes_total, whole.nodes_elsewhere) == (compute - 1, 0)
    left = judge(placed(1, convolution, contexts=["engine_0"]), TENSORRT, engine, Promise())
    assert (left.nodes_total, left.nodes_elsewhere) == (compute, 1)
    assert left.compute_share is not None
    assert 0 < left.compute_share < 1
