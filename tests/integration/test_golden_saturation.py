"""A quantized source for a device has exact golden outputs, also of a processor whose INT8 products saturate."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.processors import Feature, Processor
from enginewright_runtime.core.handoff import Golden
from enginewright_runtime.prepare.quantize import saturation
from enginewright_runtime.prepare.quantize.forms import form_of
from enginewright_runtime.session import processor
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.optimization import LEVELS

from tests.integration.test_tensorrt_precisions import model
from tests.support.converting import run
from tests.support.preparing import Workplace
from tests.support.processors import TIMEOUT, python_without_vnni
from tests.support.quantizing import dense, quantize_by, random


def compare(place: Workplace, source: Path, level: str) -> float:
    """Return how far golden outputs are at most from those with a level of graph optimization."""
    inputs = read_arrays(place.root / "work/golden/inputs.npz")
    outputs = read_arrays(place.root / "work/golden/outputs.npz")
    return max(
        float(np.abs(run(source, feeds, LEVELS[level])[0] - outputs[name]["y"]).max())
        for name, feeds in inputs.items()
    )


# fault: Processors | a quantized source is prepared for a device where INT8 products saturate, and its golden outputs are
#   wrong | the reference computes it in single precision there | prevented
@pytest.mark.parametrize(
    ("backend", "exact", "saturates", "level"),
    [
        ("cuda", False, True, "BASIC"),
        ("cuda", False, False, "ALL"),
        ("cuda", True, True, "ALL"),
        ("cpu", False, True, "ALL"),
    ],
)
def test_the_reference_of_a_device_runs_no_kernels_that_saturate(
    backend: str,
    exact: bool,
    saturates: bool,
    level: str,
    place: Workplace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is one whose outputs tell the level, as integers are rounded from node to node."""
    here = Processor(architecture="x86_64", features=(Feature.AVX2,), exact_products=exact)
    monkeypatch.setattr(processor, "read", lambda: here)
    monkeypatch.setattr(saturation, "saturable", lambda *_: saturates)
    task = place.task(place.put("m.onnx", model("INT8")), backend=backend)
    place.complete(task, until="golden")
    source = place.root / "source/m.onnx"
    other = "BASIC" if level == "ALL" else "ALL"
    assert compare(place, source, level) < 1e-5
    assert compare(place, source, other) > 1e-4, "the levels differ, else nothing is tested"
    golden = Golden.read(place.root / "work")
    assert golden.graph_optimization == (None if level == "BASIC" else "ALL"), (
        "what serves is optimized all the same"
    )


@pytest.mark.timeout(TIMEOUT)
def test_golden_outputs_made_without_vnni_are_those_of_a_device(place: Workplace) -> None:
    """On emulated kernels, which do saturate."""
    form = form_of("INT8", "cpu", "exact")  # 8-bit weights and unsigned activations
    source = quantize_by(form, dense(), {"x": random(4, 64)}, place.root / "quantized")
    task = place.task(place.put("m.onnx", source), backend="cuda")
    place.complete(task, until="convert")
    python = python_without_vnni(place.root / "haswell")
    subprocess.run(
        [python, "-m", "enginewright_runtime", "stage", "golden"],
        env=place._environment(task.to_json()),
        check=True,
        timeout=TIMEOUT,
    )
    assert compare(place, source, "BASIC") < 1e-4
