"""Native BF16 that ONNX's reference implementation is too slow or too small for is emulated."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.proof import definition
from enginewright_runtime.session.arrays import read_arrays
from onnx import ModelProto

from tests.support.broken_models import initializer, parse_text
from tests.support.preparing import Workplace


def native() -> ModelProto:
    """Return two layers, a normalization and a softmax, all of BF16: x [batch, time, 32]."""
    random = np.random.default_rng(11)
    sizes = {"w1": (32, 64), "b1": (64,), "g1": (64,), "b2": (64,), "w2": (64, 8)}
    made = parse_text(
        """(bfloat16[batch, time, 32] x) => (bfloat16[batch, time, 8] y) {
        h = MatMul(x, w1) r = Relu(h) s = Add(r, b1) l = LayerNormalization<axis=-1>(s, g1, b2)
        z = MatMul(l, w2) y = Softmax(z) }""",
        *(
            initializer(name, random.normal(0, 0.3, size), ml_dtypes.bfloat16)
            for name, size in sizes.items()
        ),
    )
    for index, node in enumerate(made.graph.node):
        node.name = f"{node.op_type}-{index}"
    onnx.checker.check_model(made)
    return made


def golden(place: Workplace) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Prepare the model for an engine whose sizes only the samples declare."""
    shapes = {"min": [1, 1, 32], "opt": [1, 4, 32], "max": [2, 8, 32]}
    profile = ShapeProfile(input="x", **{key: tuple(shape) for key, shape in shapes.items()})
    task = place.task(place.put("m.onnx", native()), backend="tensorrt-rtx", shapes=[profile])
    outcome = place.complete(task, "golden")
    outputs = read_arrays(place.root / "work/golden/outputs.npz")
    return outcome.full["facts"]["golden_outputs"], {
        name: arrays["y"].view(ml_dtypes.bfloat16).astype(np.float32)
        for name, arrays in outputs.items()
    }


# fault: Shapes | a native BF16 model that the CPU cannot run | an emulation that agrees with
#   ONNX's reference implementation | in `golden`
def test_the_emulation_matches_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    origin, defined = golden(Workplace(tmp_path / "one", in_process=True))
    assert (origin, set(defined)) == ("definition", {"min"})
    # every model is larger: what happens above 512 MiB
    monkeypatch.setattr(definition, "_LARGEST", 0)
    origin, emulated = golden(Workplace(tmp_path / "other", in_process=True))
    assert (origin, set(emulated)) == ("emulation", {"min", "opt", "max"})
    # a softmax of BF16: 8 bits of precision
    np.testing.assert_allclose(emulated["min"], defined["min"], rtol=2**-6, atol=2**-8)
    assert not (tmp_path / "other/work/model/golden-emulated.onnx").exists()
