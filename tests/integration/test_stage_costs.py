"""What nodes cost, as ONNX Runtime's profiler measures it: by the labels that placements have."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.proof import costs
from enginewright_runtime.session import loading
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support import broken_models as broken
from tests.support.placements import RECIPE
from tests.support.preparing import Workplace

SIZE = 96


def measure(model: Path, feeds: dict[str, Any], folder: Path) -> dict[str, NodeCost]:
    """Profile with one sample; return the costs by label."""
    inputs = folder / "inputs.npz"
    arrays: dict[str, Any] = {f"opt/{name}": array for name, array in feeds.items()}
    np.savez(inputs, **arrays)
    found = costs.measure(model, inputs, RECIPE)
    assert len({each.label for each in found}) == len(found)
    return {each.label: each for each in found}


def save(model: ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


REAL: dict[str, dict[str, Any]] = {
    "ch_PP-OCRv4_det_infer.onnx": {"x": np.zeros((1, 3, 160, 160), np.float32)},
    "data/silero_vad.onnx": {
        "input": np.zeros((1, 576), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    },
    "swift_f0/model.onnx": {
        "audio": np.zeros((1, 8000), np.float32),
        "fmin": np.array(50, np.float32),
        "fmax": np.array(500, np.float32),
    },
    "standard_v3_3/model.onnx": {"bytes": np.zeros((1, 2048), np.int32)},
}


@pytest.mark.parametrize("name", REAL)
def test_labels_are_those_of_the_serving_session(name: str, models: Path, tmp_path: Path) -> None:
    """Of a session with all optimisations, as `backends` makes it: what placements will name."""
    path = next(path for path in models.rglob("*.onnx") if str(path).endswith(name))
    found = measure(path, REAL[name], tmp_path)
    session = loading.create("cpu", path).session
    placed = Counter(
        f"{node.name or 'unnamed'} ({node.op_type})"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )
    assert {label: cost.count for label, cost in found.items() if cost.count} == dict(placed)
    assert sum(cost.share for cost in found.values()) == pytest.approx(1, abs=1e-3)
    assert all(0 <= cost.share <= 1 for cost in found.values())
    gone = [cost for cost in found.values() if not cost.count]
    assert not any(cost.share or cost.label.endswith("(Constant)") for cost in gone)


def test_convolutions_are_few_nodes_and_much_work(models: Path, tmp_path: Path) -> None:
    path = next(path for path in models.rglob("ch_PP-OCRv4_det_infer.onnx"))
    found = measure(path, {"x": np.zeros((1, 3, 320, 320), np.float32)}, tmp_path).values()
    heavy = [cost for cost in found if "(Conv" in cost.label]
    assert sum(cost.count for cost in heavy) < 0.3 * sum(cost.count for cost in found)
    assert sum(cost.share for cost in heavy) > 0.4


def test_the_work_in_a_body_is_counted_once(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", "w"], ["next"], name="product"),
            helper.make_node("Identity", ["go"], ["go_on"], name="condition"),
        ],
        "body",
        [broken.value("turn", kind=TensorProto.INT64), broken.value("go", kind=TensorProto.BOOL),
         broken.value("carried", SIZE, SIZE)],
        [broken.value("go_on", kind=TensorProto.BOOL), broken.value("next", SIZE, SIZE)],
    )  # fmt: skip
    model = broken.build(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], name="loop", body=body)],
        [broken.value("x", SIZE, SIZE)],
        [broken.value("y", SIZE, SIZE)],
        [
            numpy_helper.from_array(np.eye(SIZE, dtype=np.float32), "w"),
            numpy_helper.from_array(np.array(200, np.int64), "turns"),
        ],
    )
    found = measure(save(model, tmp_path), {"x": np.ones((SIZE, SIZE), np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in found.items()} == {
        "loop (Loop)": 1, "product (MatMul)": 1, "condition (Identity)": 1,
    }  # fmt: skip
    assert found["product (MatMul)"].share > 0.5
    assert found["loop (Loop)"].share < 0.3


def test_a_branch_that_is_not_taken_has_its_nodes_and_no_cost(tmp_path: Path) -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["x"], [kind], name=kind)],
            name,
            [],
            [broken.value(kind, SIZE)],
        )
        for name, kind in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    model = broken.build(
        [helper.make_node("If", ["which"], ["y"], name="if", **branches)],
        [broken.value("x", SIZE), broken.value("which", kind=TensorProto.BOOL)],
        [broken.value("y", SIZE)],
    )
    feeds = {"x": np.ones(SIZE, np.float32), "which": np.array(True)}
    found = measure(save(model, tmp_path), feeds, tmp_path)
    assert (found["Neg (Neg)"].count, found["Neg (Neg)"].share) == (1, 0)
    assert found["Exp (Exp)"].share > 0


def test_nodes_without_a_name_share_a_label_and_no_other(tmp_path: Path) -> None:
    """The profiler calls an unnamed node after its place, as exporters call named ones."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["y"], name="Exp_7"),
    ]
    model = broken.build(nodes, [broken.value("x", SIZE)], [broken.value("y", SIZE)])
    found = measure(save(model, tmp_path), {"x": np.zeros(SIZE, np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in found.items()} == {
        "unnamed (Exp)": 2, "Exp_7 (Exp)": 1,
    }  # fmt: skip
    assert all(cost.share > 0 for cost in found.values())


def test_what_is_fused_folded_or_replaced(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "w0"], ["a"], name="bias"),
        helper.make_node("Add", ["w0", "w0"], ["twice"], name="folded"),
        helper.make_node("Mul", ["a", "twice"], ["scaled"], name="scale"),
        helper.make_node("Mish", ["scaled"], ["y"], name="function"),
    ]
    weights = [
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
        numpy_helper.from_array(np.ones(4, np.float32), "w0"),
    ]
    model = broken.build(
        nodes, [broken.value("x", 1, 4)], [broken.value("y", 1, 4)], weights, opset=18
    )
    found = measure(save(model, tmp_path), {"x": np.ones((1, 4), np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in found.items()} == {
        "product/MatMulAddFusion (Gemm)": 1,  # stands for the product too
        "bias (Add)": 0,
        "folded (Add)": 0,
        "scale (Mul)": 1,
        # in the place of Mish, whose own cost is therefore not known
        "unnamed (Softplus)": 1, "unnamed (Tanh)": 1, "unnamed (Mul)": 1,
    }  # fmt: skip


def counting(turns: int) -> ModelProto:
    """Return a model that counts to `turns`, adding x each time."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["carried", "x"], ["next"], name="sum"),
            helper.make_node("Identity", ["go"], ["go_on"], name="condition"),
        ],
        "body",
        [broken.value("turn", kind=TensorProto.INT64), broken.value("go", kind=TensorProto.BOOL),
         broken.value("carried", 1)],
        [broken.value("go_on", kind=TensorProto.BOOL), broken.value("next", 1)],
    )  # fmt: skip
    return broken.build(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], name="loop", body=body)],
        [broken.value("x", 1)],
        [broken.value("y", 1)],
        [numpy_helper.from_array(np.array(turns, np.int64), "turns")],
    )


def test_loops_that_run_long_are_cut_off(tmp_path: Path) -> None:
    path = save(counting(10**8), tmp_path)
    with pytest.raises(StageFailure, match="loops takes more than 1 s") as caught:
        measure(path, {"x": np.ones(1, np.float32)}, tmp_path)
    assert caught.value.reason is Reason.TIMEOUT


def test_a_model_that_cannot_be_profiled_is_prepared_all_the_same(tmp_path: Path) -> None:
    place = Workplace(tmp_path)  # in processes of its own, so that files left behind are seen
    uri = place.put("model.onnx", counting(1_500_000))
    shapes = [ShapeProfile(input="x", min=(1,), opt=(1,), max=(1,))]
    task = place.task(uri, shapes=shapes)
    for stage in ("fetch", "validate", "convert"):
        assert place.stage(stage, task).code == 0
    golden = place.stage("golden", task)
    assert golden.code == 0, golden.message
    assert (
        "the cost of nodes is unknown, so maxComputeShare cannot be enforced: one run of its loops takes"
        " more than 1 s" in golden.message
    )
    assert golden.full is not None
    assert [each["reason"] for each in golden.full["findings"]] == ["Timeout"]
    for stage in ("quantize", "publish"):
        assert place.stage(stage, task).code == 0


def test_files_of_the_profiler_go(tmp_path: Path) -> None:
    place = Workplace(tmp_path, fresh=True)  # the whole pipeline as containers run it
    task = place.task(place.put("model.onnx", broken.relu()))
    stage, outcome = place.prepare(task)  # looks for what is left behind
    assert (stage, outcome.code) == ("publish", 0), outcome.message
    assert outcome.full is not None
    manifest = outcome.full["facts"]["manifest"]
    assert manifest["node_costs"] == [{"label": "relu (Relu)", "count": 1, "share": 1.0}]


def test_a_run_that_lost_the_processor_does_not_count() -> None:
    quiet = {"conv": 90.0, "add": 10.0}
    assert costs._medians([quiet, {"conv": 90.0, "add": 4000.0}, quiet]) == quiet
