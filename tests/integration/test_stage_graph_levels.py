"""The level of graph optimizations, from what golden samples say of it to the session that serves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import OutputTolerance, PrepareTask, ServeTask
from enginewright_runtime.proof import golden_run
from enginewright_runtime.proof.golden_run import Disagreement, GoldenRun
from enginewright_runtime.session import loading
from enginewright_serving.server.startup.prepare import prepare

from tests.integration.test_tensorrt_precisions import model
from tests.support.broken_models import parse_text
from tests.support.preparing import Outcome, Workplace

# Q/DQ in INT8: without ONNX Runtime's fusions single precision simulates it, with them integers round
STRICT = OutputTolerance(name="y", rtol=0.0, atol=1e-6)
LOOSE = OutputTolerance(name="y", rtol=0.0, atol=0.1)


def save_expected(folder: Path) -> bytes:
    """Return samples whose outputs are those of the model as it is written."""
    path = folder / "model.onnx"
    onnx.save(model("INT8"), path)
    loaded = loading.create("cpu", path, level="DISABLE")
    given = np.random.default_rng(0).random((1, 8, 8, 8), dtype=np.float32)
    (output,) = loaded.session.run(None, {"x": given})
    (higher,) = loading.create("cpu", path, level="ALL").session.run(None, {"x": given})
    assert np.abs(output - higher).max() > 1e-3, "there is something to lower the level for"
    np.savez(folder / "samples.npz", **{"a/x": given, "a/y": output})
    return (folder / "samples.npz").read_bytes()


def task(place: Workplace, *tolerances: OutputTolerance) -> PrepareTask:
    samples = place.put("samples.npz", save_expected(place.root / "tmp"))
    (place.root / "samples/samples.npz").write_bytes(
        (place.root / "source/samples.npz").read_bytes()
    )
    for path in (place.root / "tmp").iterdir():
        path.unlink()
    return place.task(place.put("m.onnx", model("INT8")), samples_uri=samples, outputs=tolerances)


def manifest_of(place: Workplace, outcome: Outcome) -> Manifest:
    assert outcome.code == 0, outcome.message
    folder = place.root / "store/prepared" / outcome.published.key
    return Manifest.model_validate_json((folder / "manifest.json").read_text())


def test_the_level_goes_down_until_the_outputs_are_right(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, outcome = place.prepare(task(place, STRICT))
    manifest = manifest_of(place, outcome)
    assert (stage, manifest.graph_optimization) == ("publish", "BASIC")
    report = (tmp_path / "store/reports/job-1/golden.json").read_text()
    assert "graph optimizations are lowered to BASIC: at ALL, " in report
    key = manifest.key
    assert place.fetch_artifact(key).code == 0
    levels: list[str] = []
    original = loading._session

    def session(*given: Any) -> Any:
        levels.append(given[1].level)
        return original(*given)

    monkeypatch.setattr(loading, "_session", session)
    serve = ServeTask(model="m", revision="r", prepared_key=key, backend="cpu")
    prepare(serve, tmp_path / "artifact", lambda _: None)
    assert levels == ["BASIC"]


def test_right_outputs_serve_at_level_all(place: Workplace) -> None:
    _, outcome = place.prepare(task(place, LOOSE))
    assert manifest_of(place, outcome).graph_optimization == "ALL"


def test_wrong_outputs_at_every_level_are_refused(place: Workplace, tmp_path: Path) -> None:
    made = task(place, STRICT)
    path = tmp_path / "samples/samples.npz"
    with np.load(path) as held:
        wrong = {name: held[name] * (1.5 if name.endswith("y") else 1) for name in held.files}
    np.savez(path, **wrong)
    (tmp_path / "source/samples.npz").write_bytes(path.read_bytes())
    stage, outcome = place.prepare(made)
    assert (stage, outcome.report.reason) == ("golden", Reason.PARITY_FAILED)
    assert "against the expected outputs in spec.parity.samples" in outcome.message


def test_levels_are_tried_in_order_until_one_is_right() -> None:
    tried: list[str | None] = []

    def judge(level: str | None) -> GoldenRun:
        tried.append(level)
        wording = f"is wrong at {level or 'ALL'}"
        failed = None if level == "BASIC" else Disagreement("y", "opt", wording, "expected")
        refused = {"min": "wording"} if level is None else {}
        return GoldenRun(refused, level=level or "ALL", failed=failed, warnings=("w",))

    result = golden_run._at_the_right_level("cpu", judge)
    assert tried == [None, "EXTENDED", "BASIC"]
    assert result == GoldenRun(
        {"min": "wording"},
        level="BASIC",
        warnings=("w", "graph optimizations are lowered to BASIC: at ALL, is wrong at ALL"),
    )


def test_levels_that_onnx_runtime_refuses_are_a_finding(place: Workplace) -> None:
    """ONNX Runtime 1.31 folds the Div, removes the Mul and then lacks the Cast's output."""
    refused = parse_text(
        """(float["n", 4] x) => (float["n", 4] y) <float one = {1}> {
        [to_float] mid = Cast <to = 1> (x) [div] q = Div(one, one)
        [scale] z = Mul(mid, q) [relu] y = Relu(z) }"""
    )
    _, outcome = place.prepare(place.task(place.put("m.onnx", refused)))
    manifest = manifest_of(place, outcome)
    assert manifest.graph_optimization == "DISABLE"
    assert {cost.label for cost in manifest.node_costs} >= {"scale (Mul)", "relu (Relu)"}
    report = json.loads((place.root / "store/reports/job-1/golden.json").read_text())
    (finding,) = report["findings"]
    assert finding["reason"] == "ProviderRefused"
    assert "at graph optimization ALL, EXTENDED, BASIC; backend cpu runs it at DISABLE" in str(
        finding["cause"]
    )
