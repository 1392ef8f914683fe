"""What nodes cost, as ONNX Runtime's profiler measures it: by the labels that placements have."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.proof import costs
from enginewright_runtime.session import loading
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support.placements import RECIPE
from tests.support.preparing import Workplace


def measure(model: Path, feeds: dict[str, Any], folder: Path) -> dict[str, NodeCost]:
    """Profile with one sample; return the costs by label."""
    inputs = folder / "inputs.npz"
    arrays: dict[str, Any] = {f"opt/{name}": array for name, array in feeds.items()}
    np.savez(inputs, **arrays)
    by_label = costs.measure(model, inputs, RECIPE)
    assert len({cost.label for cost in by_label}) == len(by_label)
    return {cost.label: cost for cost in by_label}


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
def test_labels_match_the_serving_session(name: str, models: Path, tmp_path: Path) -> None:
    path = next(path for path in models.rglob("*.onnx") if str(path).endswith(name))
    by_label = measure(path, REAL[name], tmp_path)
    session = loading.create("cpu", path).session
    placed = Counter(
        f"{node.name or 'unnamed'} ({node.op_type})"
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )
    assert {label: cost.count for label, cost in by_label.items() if cost.count} == dict(placed)
    assert sum(cost.share for cost in by_label.values()) == pytest.approx(1, abs=1e-3)
    assert all(0 <= cost.share <= 1 for cost in by_label.values())
    gone = [cost for cost in by_label.values() if not cost.count]
    assert not any(cost.share or cost.label.endswith("(Constant)") for cost in gone)


def test_convolutions_are_few_nodes_and_much_work(models: Path, tmp_path: Path) -> None:
    path = next(path for path in models.rglob("ch_PP-OCRv4_det_infer.onnx"))
    shares = measure(path, {"x": np.zeros((1, 3, 320, 320), np.float32)}, tmp_path).values()
    heavy = [cost for cost in shares if "(Conv" in cost.label]
    assert sum(cost.count for cost in heavy) < 0.3 * sum(cost.count for cost in shares)
    assert sum(cost.share for cost in heavy) > 0.4


def test_the_work_in_a_body_is_counted_once(tmp_path: Path) -> None:
    model = broken.parse_text(
        """(float[96, 96] x) => (float[96, 96] y) <int64 turns = {200}> {
        [loop] y = Loop (turns, , x) <body = body
            (int64 turn, bool go, float[96, 96] carried) => (bool go_on, float[96, 96] next) {
            [product] next = MatMul(carried, w) [condition] go_on = Identity(go) }> }""",
        broken.initializer("w", np.eye(96)),
    )
    by_label = measure(broken.save(model, tmp_path), {"x": np.ones((96, 96), np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in by_label.items()} == {
        "loop (Loop)": 1, "product (MatMul)": 1, "condition (Identity)": 1,
    }  # fmt: skip
    assert by_label["product (MatMul)"].share > 0.5
    assert by_label["loop (Loop)"].share < 0.3


def test_a_branch_that_is_not_taken_has_its_nodes_and_no_cost(tmp_path: Path) -> None:
    model = broken.parse_text(
        """(float[96] x, bool which) => (float[96] y) { [if] y = If (which) <
            then_branch = then () => (float[96] exp) { [Exp] exp = Exp(x) },
            else_branch = else () => (float[96] neg) { [Neg] neg = Neg(x) }> }"""
    )
    feeds = {"x": np.ones(96, np.float32), "which": np.array(True)}
    by_label = measure(broken.save(model, tmp_path), feeds, tmp_path)
    assert (by_label["Neg (Neg)"].count, by_label["Neg (Neg)"].share) == (1, 0)
    assert by_label["Exp (Exp)"].share > 0


def test_nodes_without_a_name_share_a_label_and_no_other(tmp_path: Path) -> None:
    """The profiler calls an unnamed node after its place, as exporters call named ones."""
    model = broken.parse_text(
        "(float[96] x) => (float[96] y) { a = Exp(x) b = Exp(a) [Exp_7] y = Exp(b) }"
    )
    by_label = measure(broken.save(model, tmp_path), {"x": np.zeros(96, np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in by_label.items()} == {
        "unnamed (Exp)": 2, "Exp_7 (Exp)": 1,
    }  # fmt: skip
    assert all(cost.share > 0 for cost in by_label.values())


def test_costs_of_fused_folded_and_replaced_nodes(tmp_path: Path) -> None:
    model = broken.parse_text(
        """(float[1, 4] x) => (float[1, 4] y) {
        [product] m = MatMul(x, w) [bias] a = Add(m, w0) [folded] twice = Add(w0, w0)
        [scale] scaled = Mul(a, twice) [function] y = Mish(scaled) }""",
        broken.initializer("w", np.eye(4)),
        broken.initializer("w0", np.ones(4)),
        opset=18,
    )
    by_label = measure(broken.save(model, tmp_path), {"x": np.ones((1, 4), np.float32)}, tmp_path)
    assert {label: cost.count for label, cost in by_label.items()} == {
        "product/MatMulAddFusion (Gemm)": 1,  # stands for the product too
        "bias (Add)": 0,
        "folded (Add)": 0,
        "scale (Mul)": 1,
        # in the place of Mish, whose own cost is therefore not known
        "unnamed (Softplus)": 1, "unnamed (Tanh)": 1, "unnamed (Mul)": 1,
    }  # fmt: skip


def counting(turns: int) -> ModelProto:
    """Return a model that counts to `turns`, adding x each time."""
    text = """(float[1] x) => (float[1] y) { [loop] y = Loop (turns, , x) <body = body
        (int64 turn, bool go, float[1] carried) => (bool go_on, float[1] next) {
        [sum] next = Add(carried, x) [condition] go_on = Identity(go) }> }"""
    return broken.parse_text(text, broken.initializer("turns", turns, np.int64))


def test_loops_that_run_long_are_cut_off(tmp_path: Path) -> None:
    path = broken.save(counting(10**8), tmp_path)
    with pytest.raises(StageFailure, match="loops takes more than 1 s") as caught:
        measure(path, {"x": np.ones(1, np.float32)}, tmp_path)
    assert caught.value.reason is Reason.TIMEOUT


def test_a_model_that_cannot_be_profiled_is_prepared_all_the_same(tmp_path: Path) -> None:
    place = Workplace(tmp_path)  # in processes of its own, so that files left behind are seen
    uri = place.put("model.onnx", counting(900_000))
    shapes = [ShapeProfile(input="x", min=(1,), opt=(1,), max=(1,))]
    task = place.task(uri, shapes=shapes)
    place.complete(task, "convert")
    golden = place.stage("golden", task)
    assert golden.code == 0, golden.message
    assert (
        "the cost of nodes is unknown, so maxComputeShare cannot be enforced: one run of its loops takes"
        " more than 1 s" in golden.message
    )
    assert [item["reason"] for item in golden.full["findings"]] == ["Timeout"]
    for stage in ("quantize", "publish"):
        assert place.stage(stage, task).code == 0


def test_files_of_the_profiler_go(tmp_path: Path) -> None:
    place = Workplace(tmp_path, fresh=True)  # the whole pipeline as containers run it
    task = place.task(place.put("model.onnx", broken.relu()))
    outcome = place.complete(task)  # looks for what is left behind
    manifest = outcome.full["facts"]["manifest"]
    assert manifest["node_costs"] == [{"label": "relu (Relu)", "count": 1, "share": 1.0}]


def test_a_run_that_lost_the_processor_does_not_count() -> None:
    quiet = {"conv": 90.0, "add": 10.0}
    assert costs._medians([quiet, {"conv": 90.0, "add": 4000.0}, quiet]) == quiet
