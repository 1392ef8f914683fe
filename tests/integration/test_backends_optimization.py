"""Graph optimizations: stepped down where ONNX Runtime refuses what is right, and only there."""

import logging
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.session import loading
from enginewright_runtime.session.base import SessionBackend, SessionRequest
from enginewright_runtime.session.optimization import HIGHEST, LEVELS, LOWEST, below

from tests.integration.test_tensorrt_precisions import model
from tests.support import broken_models as broken

WORDS = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: Attempting to get"
    " index by a name which does not exist:InsertedPrecisionFreeCast_scale for node: norm"
)


def test_a_model_that_an_optimization_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime 1.31.1 fuses FP8 into a convolution on integers, which refuses it."""
    path = broken.save(model("FP8"), tmp_path)
    with pytest.raises(SessionError, match="QLinearConv"):
        loading.create("cpu", path, level="EXTENDED")
    loaded = loading.create("cpu", path)
    assert loaded.level == "BASIC"
    assert loaded.session.run(None, {"x": np.ones((1, 8, 8, 8), np.float32)})[0].any()
    assert (
        "graph optimization BASIC, because ONNX Runtime refuses the model with ALL" in caplog.text
    )


def fails_above(level: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let ONNX Runtime refuse models above a level, in words that it has used (its issue 26717).

    Returns the levels that are tried.
    """
    tried: list[str] = []
    original = loading._session

    def session(backend: SessionBackend, request: SessionRequest) -> ort.InferenceSession:
        tried.append(request.level)
        if request.level not in {level, *below(level)}:
            raise SessionError(WORDS)
        return original(backend, request)

    monkeypatch.setattr(loading, "_session", session)
    return tried


@pytest.mark.parametrize(
    ("works", "tried"),
    [
        ("EXTENDED", ["ALL", "DISABLE", "EXTENDED"]),
        ("BASIC", ["ALL", "DISABLE", "EXTENDED", "BASIC"]),
        ("DISABLE", ["ALL", "DISABLE", "EXTENDED", "BASIC"]),
    ],
)
def test_the_highest_level_that_loads(
    works: str,
    tried: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = fails_above(works, monkeypatch)
    loaded = loading.create("cpu", broken.save(broken.relu(), tmp_path))
    assert (loaded.level, seen) == (works, tried)
    assert loaded.session.run(None, {"x": -np.ones((1, 4), np.float32)})[0].tolist() == [[0] * 4]
    assert f"graph optimization {works}, because ONNX Runtime refuses the model" in caplog.text
    assert "Attempting to get index by a name which does not exist" in caplog.text


def test_a_level_that_is_named_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = fails_above("BASIC", monkeypatch)
    path = broken.save(broken.relu(), tmp_path)
    assert loading.create("cpu", path, level="BASIC").level == "BASIC"
    with pytest.raises(SessionError, match="Attempting to get index"):
        loading.create("cpu", path, level="EXTENDED")
    assert seen == ["BASIC", "EXTENDED"]


def test_want_of_memory_is_no_reason_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def session(backend: SessionBackend, request: SessionRequest) -> ort.InferenceSession:
        tried.append(request.level)
        raise SessionError("std::bad_alloc")

    monkeypatch.setattr(loading, "_session", session)
    with pytest.raises(SessionError, match="bad_alloc"):
        loading.create("cpu", broken.save(broken.relu(), tmp_path))
    assert tried == ["ALL"]


def test_right_outputs_have_level_all(tmp_path: Path) -> None:
    assert loading.create("cpu", broken.save(broken.relu(), tmp_path)).level == HIGHEST


def test_wrong_outputs_are_refused_with_the_first_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = broken.save(broken.one_node("NoSuchOperator"), tmp_path)
    with pytest.raises(SessionError, match="NoSuchOperator"):
        loading.create("cpu", path)
    assert not caplog.records


@pytest.mark.parametrize("level", LEVELS)
def test_levels_reach_onnx_runtime(level: str, tmp_path: Path) -> None:
    """Folding shows in the placement: two constants added are a node only without it."""
    model = broken.parse_text(
        """(float[4] x) => (float[4] y) { [constant] four = Add(two, two) [add] y = Add(x, four) }""",
        broken.initializer("two", [2]),
    )
    loaded = loading.create("cpu", broken.save(model, tmp_path), level=level)
    assert loaded.placement.total == (2 if level == LOWEST else 1)
