"""The server's check at start and the sidecar's in production keep the tolerances of the artefact."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import Manifest, Spread, TensorSpec, VaryingOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.task import OutputTolerance, Recipe
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import read_signature
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.startup.proofs import StartupProver
from enginewright_serving.sidecar.client import Client, ServerResponse
from enginewright_serving.sidecar.golden import GoldenProbe, ProbeResult
from enginewright_serving.sidecar.inferences import Inferences
from enginewright_serving.sidecar.samples import GoldenSamples
from onnx import ModelProto, numpy_helper

from tests.support import broken_models as broken

Feeds = dict[str, Any]
X = np.linspace(0.1, 1, 8, dtype=np.float32)[None]
SCALE = 1.06  # of what serves beside what is golden: too much for FP32, little for INT8


def manifest(precision: str | None, **recipe: Any) -> Manifest:
    return Manifest(
        key="k",
        model_digest="d",
        recipe=Recipe(backend="cpu", ort_version="1", max_opset=26, max_ir_version=13, **recipe),
        files=(),
        opset=17,
        ir_version=9,
        nodes=1,
        inputs=({"name": "x", "dtype": "float32", "shape": (1, 8)},),
        outputs=({"name": "y", "dtype": "float32", "shape": (1, 8)},),
        golden_source="generated",
        versions={},
        precision=precision,
    )


CASES = pytest.mark.parametrize(
    ("stored", "agrees"),
    [
        (manifest(None), False),
        (manifest("FP16"), False),
        (manifest("INT8"), True),
        (manifest("INT8", rtol=0.01), False),
        (manifest(None, outputs=(OutputTolerance(name="y", rtol=0.1),)), True),
    ],
    ids=["own", "FP16", "INT8", "spec.parity", "spec.parity.outputs"],
)


def prover(model: ModelProto) -> StartupProver:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return StartupProver(Runner(session, signature), signature, ComputeBuckets())


def write_golden(folder: Path, inputs: Feeds, outputs: Feeds) -> None:
    (folder / "golden").mkdir()
    for name, arrays in (("inputs", inputs), ("outputs", outputs)):
        sample: Feeds = {f"a/{tensor}": array for tensor, array in arrays.items()}
        np.savez(folder / f"golden/{name}.npz", **sample)


@CASES
def test_server(stored: Manifest, agrees: bool) -> None:
    model = broken.parse_text(
        "(float[1, 8] x) => (float[1, 8] y) { y = Mul(x, scale) }",
        numpy_helper.from_array(np.array(SCALE, np.float32), "scale"),
    )
    samples = [GoldenSample("a", {"x": X}, {"y": X})]
    if agrees:
        prover(model).prove(samples, stored, lambda _: None)
        return
    with pytest.raises(StageFailure, match="output 'y' of golden sample 'a'") as reported:
        prover(model).prove(samples, stored, lambda _: None)
    assert reported.value.reason is Reason.PARITY_FAILED


@CASES
def test_sidecar(stored: Manifest, agrees: bool, tmp_path: Path) -> None:
    write_golden(tmp_path, {"x": X}, {"y": X})
    probe = GoldenProbe(Inferences(Client(1), "m", 1.0), GoldenSamples(tmp_path, stored), stored)
    differs = probe._differs("y", X, X * np.float32(SCALE))
    assert (differs is None) is agrees


# fault: Outputs | another best class in FP32, every element within tolerance | every comparison,
#   by top-1 agreement | first golden inference
def test_a_flipped_class_is_found(tmp_path: Path) -> None:
    """0.505 and 0.495 in each other's place: every element is within 1% + 1% of the largest."""
    golden = np.array([[0.505, 0.495] + [0.45] * 6], np.float32)
    flip = np.zeros((1, 8), np.float32)
    flip[0, :2] = [-0.01, 0.01]
    model = broken.parse_text(
        "(float[1, 8] x) => (float[1, 8] y) { y = Add(x, flip) }",
        numpy_helper.from_array(flip, "flip"),
    )
    samples = [GoldenSample("a", {"x": golden}, {"y": golden})]
    with pytest.raises(StageFailure, match="same top class"):
        prover(model).prove(samples, manifest(None), lambda _: None)
    write_golden(tmp_path, {"x": golden}, {"y": golden})
    stored = manifest(None)
    probe = GoldenProbe(Inferences(Client(1), "m", 1.0), GoldenSamples(tmp_path, stored), stored)
    assert "same top class" in str(probe._differs("y", golden, golden + flip))


# fault: Outputs | a masked output has another model's values where no mask covers them | every comparison |
#   first golden inference
@pytest.mark.parametrize("precision", [None, "FP16", "INT8"])
def test_other_values_beside_a_mask_are_found(precision: str | None, tmp_path: Path) -> None:
    least = np.float32(np.finfo(np.float32).min)
    golden = np.concatenate((X[:, :4], np.full((1, 4), least)), 1)
    reverse = broken.parse_text(
        "(float[1, 8] x) => (float[1, 8] y) { y = Gather <axis = 1> (x, order) }",
        numpy_helper.from_array(np.array([3, 2, 1, 0, 4, 5, 6, 7]), "order"),
    )
    samples = [GoldenSample("a", {"x": golden}, {"y": golden})]
    stored = manifest(precision)
    with pytest.raises(StageFailure, match="output 'y' of golden sample 'a'"):
        prover(reverse).prove(samples, stored, lambda _: None)
    write_golden(tmp_path, {"x": golden}, {"y": golden})
    client: Any = Answering(y=golden[:, [3, 2, 1, 0, 4, 5, 6, 7]])
    assert probe_once(client, stored, tmp_path).wrong
    client = Answering(y=np.maximum(golden, np.float32(-65504)))  # as FP16 has it
    result = probe_once(client, stored, tmp_path)
    assert not result.wrong
    assert result.error == 0


class Answering:
    """A server that always answers alike."""

    def __init__(self, **outputs: Any) -> None:
        tensors = [
            {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()}
            for name, array in outputs.items()
        ]
        self.response = ServerResponse()
        self.response.status = 200
        self.response.body = json.dumps({"outputs": tensors}).encode()
        self.requests = 0

    async def post(self, *_: object) -> ServerResponse:
        self.requests += 1
        return self.response


# fault: Outputs | another shape from the server where an output varies | check `golden` | one request
# fault: Outputs | another distribution from the server of another model | check `golden`: never
#   admitted | first golden inference
def probe_once(client: Any, stored: Manifest, folder: Path) -> ProbeResult:
    inferences = Inferences(client, "m", 1.0)
    inferences.binary = False
    probe = GoldenProbe(inferences, GoldenSamples(folder, stored), stored)
    return asyncio.run(probe.run("a", 0.0))


def test_a_wrong_form_ends_the_requests_for_a_distribution_and_another_one_is_refused(
    tmp_path: Path,
) -> None:
    write_golden(tmp_path, {"x": X}, {"y": X[0], "z": X[0]})
    shape = (8,)
    spread = Spread(sample="a", runs=32, shape=shape, distinct=True, ranges={"mean": (50.0, 60.0)})
    formed = VaryingOutput(
        name="y", spreads=(Spread(sample="a", runs=32, shape=shape, distinct=True, ranges={}),)
    )
    stored = manifest(None).model_copy(
        update={
            "outputs": tuple(
                TensorSpec(name=name, dtype="float32", shape=("n",)) for name in ("y", "z")
            ),
            "varying": (formed, VaryingOutput(name="z", spreads=(spread,))),
        }
    )
    client: Any = Answering(y=X[0][:3], z=X[0])
    result = probe_once(client, stored, tmp_path)
    assert "output 'y' of golden sample 'a'" in str(result.wrong)
    assert client.requests == 1
    client = Answering(y=X[0], z=X[0])
    wrong = str(probe_once(client, stored, tmp_path).wrong)
    assert "output 'z' of golden sample 'a' has another distribution than the source's" in wrong
    assert client.requests > 1
