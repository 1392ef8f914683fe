"""A quantized source for a device has exact golden outputs, also of a processor whose INT8 products saturate."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.processors import Feature, Processor
from enginewright_contract.task import PrepareTask
from enginewright_runtime.core.handoff import Golden
from enginewright_runtime.prepare.quantize import saturation
from enginewright_runtime.prepare.quantize.forms import form_of
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.optimization import LEVELS

from tests.support.converting import run
from tests.support.preparing import Workplace
from tests.support.processors import TIMEOUT, python_without_vnni
from tests.support.quantizing import dense, quantize_by, random

AVX2 = Processor(architecture="x86_64", features=(Feature.AVX2,), exact_products=False)


def put_quantized(place: Workplace, backend: str) -> tuple[Path, PrepareTask]:
    """Put a source with 8-bit weights and unsigned activations; return it and its task."""
    form = form_of("INT8", "cpu", "exact")
    source = quantize_by(form, dense(), {"x": random(4, 64)}, place.root / "quantized")
    return source, place.task(place.put("m.onnx", source), backend=backend)


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
    ("backend", "here", "level", "recorded"),
    [
        ("cuda", AVX2, "BASIC", None),
        ("cuda", AVX2.model_copy(update={"exact_products": True}), "ALL", "ALL"),
        ("cpu", AVX2, "ALL", "ALL"),
    ],
)
def test_the_reference_of_a_device_runs_no_kernels_that_saturate(
    backend: str,
    here: Processor,
    level: str,
    recorded: str | None,
    place: Workplace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saturation.processor, "read", lambda: here)
    source, task = put_quantized(place, backend)
    place.complete(task, until="golden")
    other = "BASIC" if level == "ALL" else "ALL"
    assert compare(place, source, level) < 1e-5
    assert compare(place, source, other) > 1e-4, "the levels differ, else nothing is tested"
    golden = Golden.read(place.root / "work")
    assert golden.graph_optimization == recorded, "what serves is optimized all the same"


@pytest.mark.timeout(TIMEOUT)
def test_golden_outputs_made_without_vnni_are_those_of_a_device(place: Workplace) -> None:
    """On emulated kernels, which do saturate."""
    source, task = put_quantized(place, "cuda")
    place.complete(task, until="convert")
    python = python_without_vnni(place.root / "haswell")
    subprocess.run(
        [python, "-m", "enginewright_runtime", "stage", "golden"],
        env=place._environment(task.to_json()),
        check=True,
        timeout=TIMEOUT,
    )
    assert compare(place, source, "BASIC") < 1e-4
