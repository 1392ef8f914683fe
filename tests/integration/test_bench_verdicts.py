"""The benchmark of verdicts asks real tools: they take what is right, and refuse by name what is not."""

from pathlib import Path

from onnx import ModelProto

from bench.verdicts.asking import ask_preflight, ask_tool, read_verdict
from bench.verdicts.results import COLUMNS
from tests.support import broken_models as broken
from tests.support.engines import build_mixed

SM89, CPU = (next(item for item in COLUMNS if item.name == name) for name in ("sm89", "cpu"))


def save(model: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_tools_take_a_model_or_say_why_not(tmp_path: Path) -> None:
    path = save(build_mixed(), tmp_path)
    assert ask_tool("session", path, ()).takes
    refusal = ask_tool("builder", path, ()).refusal
    assert refusal is not None
    assert refusal.startswith("Det det_bad: ")
    path.write_bytes(b"no model")
    assert not ask_tool("checker", path, ()).takes


def test_sizes_reach_the_builder(tmp_path: Path) -> None:
    text = '(float["n", 4] x) => (float["n", 4] y) { [relu] y = Relu(x) }'
    path = save(broken.parse_text(text), tmp_path)
    assert ask_tool("builder", path, ["--shapes x=1x4:2x4:8x4"]).takes
    assert not ask_tool("builder", path, ["--shapes x=1x5:2x5:8x5"]).takes


def test_preflight_gives_a_verdict_and_the_model_that_would_be_served(tmp_path: Path) -> None:
    path, prepared, scratch = save(broken.relu(), tmp_path), tmp_path / "f.onnx", tmp_path / "tmp"
    scratch.mkdir()
    verdict = read_verdict(ask_preflight(path, CPU, (), prepared, scratch), "cpu")
    assert (verdict.verdict, verdict.message) == ("pass", "")
    assert prepared.exists()
    save(build_mixed(), tmp_path)
    refused = read_verdict(ask_preflight(path, SM89, (), tmp_path / "g.onnx", scratch), "sm89")
    assert (refused.verdict, refused.accepts) == ("fail", False)
    assert "Det" in refused.message
