"""The default batch sizes: as large as a run of them fits, and what was promised is reported."""

from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.manifest import Manifest, TensorSpec
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.engine import builder
from enginewright_runtime.graph import shapes
from enginewright_runtime.graph.shapes import DEFAULT_BATCH
from enginewright_runtime.prepare.sizes import batch
from enginewright_runtime.prepare.sizes.batch import RunCost, largest_batch
from enginewright_runtime.rules import table
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support.preparing import Workplace

ROW = 20 << 20  # values that one row of the hungry model becomes: 80 MiB


def hungry(ir_version: int = 9) -> ModelProto:
    """Return a model of some bytes, each row of which wants some 160 MiB."""
    return broken.parse_text(
        """(float["batch", 1] x) => (float["batch", 1] y) {
        [shape] batch = Shape <end = 1> (x) [concat] wide = Concat <axis = 0> (batch, row)
        [expand] e = Expand(x, wide) [neg] s = Neg(e)
        [max] y = ReduceMax <axes = [1], keepdims = 1> (s) }""",
        broken.initializer("row", [ROW], np.int64),
        ir_version=ir_version,
    )


def prepare_model(
    tmp_path: Path, model: ModelProto, backend: str = "cpu"
) -> tuple[Workplace, Manifest]:
    place = Workplace(tmp_path, in_process=True)
    outcome = place.complete(place.task(place.put("m.onnx", model), backend=backend))
    return place, Manifest.model_validate(outcome.full["facts"]["manifest"])


def batches(manifest: Manifest) -> tuple[int, int, int]:
    (profile,) = manifest.profiles
    return profile.min[0], profile.opt[0], profile.max[0]


# fault: Commands | a default batch costs gigabytes or minutes | `validate` measures batch 1; rule
#   `smaller-batch` | before the first larger run
@pytest.mark.parametrize("ir_version", [9, 14], ids=["as it is", "converted"])
def test_a_hungry_model_gets_smaller_batches(tmp_path: Path, ir_version: int) -> None:
    place, manifest = prepare_model(tmp_path, hungry(ir_version))
    least, usual, largest = batches(manifest)
    assert least == 1
    assert usual == min(8, largest)
    # of one or two arrays of 80 MiB a row, and of the time, on a processor however slow
    assert largest in {1, 2, 4, 8}
    (golden,) = (place.root / "store/prepared").glob("*/golden/inputs.npz")
    with np.load(golden) as samples:
        assert max(len(samples[file]) for file in samples.files) == largest


def test_a_light_model_keeps_them(tmp_path: Path) -> None:
    _, manifest = prepare_model(tmp_path, broken.open_dimensions("batch", 4))
    assert batches(manifest) == tuple(DEFAULT_BATCH)


def test_large_inputs_get_smaller_batches_though_runs_are_cheap(tmp_path: Path) -> None:
    """Samples of the default batches would have 1.6 GB, and be thrown away as too large to prove."""
    model = broken.parse_text(
        """(float["batch", 3, 2048, 2048] x) => (float y)
        <int64[4] none = {0, 0, 0, 0}, int64[4] few = {1, 1, 8, 8}> {
        [slice] corner = Slice(x, none, few) [max] y = ReduceMax <keepdims = 0> (corner) }"""
    )
    place, manifest = prepare_model(tmp_path, model)
    least, usual, largest = batches(manifest)
    assert (least, usual, largest) == (1, 4, 4)
    (golden,) = (place.root / "store/prepared").glob("*/golden/inputs.npz")
    with np.load(golden) as samples:
        assert max(len(samples[file]) for file in samples.files) == largest, "the largest is proven"


# fault: Commands | a default batch costs gigabytes or minutes
def test_the_batch_of_an_engine_is_reported_and_kept(place: Workplace) -> None:
    task = place.task(place.put("m.onnx", hungry()), backend="tensorrt-rtx")
    assert place.stage("fetch", task).code == 0
    validated = place.stage("validate", task)
    (finding,) = (
        item for item in validated.full["findings"] if item["rule"] == table.SMALLER_BATCH.name
    )
    assert finding["severity"] == "warning"
    assert ", not 32, unless spec.shapes declares others" in finding["cause"]
    assert "spec.shapes" in finding["remedy"]


def test_an_engine_is_built_for_the_batch_of_the_manifest(tmp_path: Path) -> None:
    _, manifest = prepare_model(tmp_path, hungry())
    assert builder._profiles(manifest, hungry()) == manifest.profiles
    earlier = manifest.model_copy(update={"profiles": ()})
    (usual,) = builder._profiles(earlier, hungry())
    assert (usual.min[0], usual.opt[0], usual.max[0]) == DEFAULT_BATCH


def test_declared_sizes_stay(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(hungry().SerializeToString())
    profile = ShapeProfile(input="x", min=(1, 1), opt=(8, 1), max=(32, 1))
    task = _place(tmp_path).task("pvc://models/m.onnx", shapes=[profile])
    inputs = [TensorSpec(name="x", dtype="float32", shape=("batch", 1))]
    fitted = batch.fit(model, task.recipe, inputs, (profile,))
    assert (fitted.profiles, fitted.findings, fitted.cost) == ((profile,), (), None)


def _place(tmp_path: Path) -> Workplace:
    (tmp_path / "place").mkdir()
    return Workplace(tmp_path / "place", in_process=True)


costs = st.builds(RunCost, st.floats(0, 1e4), st.integers(0, 1 << 40))


@given(costs, st.integers(1 << 20, 1 << 40))
def test_the_largest_power_of_two_that_fits(cost: RunCost, memory: int) -> None:
    batch_size = largest_batch(cost, memory)
    limit = min(batch.MAX_BYTES, memory // 3)

    def fits(size: int) -> bool:
        return size * cost.seconds <= batch.MAX_PROCESSOR_SECONDS and size * cost.bytes <= limit

    assert batch_size in {1, 2, 4, 8, 16, 32}
    assert batch_size == 1 or fits(batch_size)
    assert batch_size == 32 or not fits(2 * batch_size)


def test_batches_that_share_a_declared_name_are_declared() -> None:
    inputs = [
        TensorSpec(name="a", dtype="float32", shape=("n", 4)),
        TensorSpec(name="b", dtype="float32", shape=("n", 8)),
        TensorSpec(name="c", dtype="float32", shape=("m", 8)),
        TensorSpec(name="d", dtype="float32", shape=(1, 8)),
    ]
    declared = [ShapeProfile(input="a", min=(1, 4), opt=(8, 4), max=(32, 4))]
    profiles = shapes.resolve(inputs, declared, frozenset()).profiles
    names = shapes.find_defaulted(inputs, profiles, declared)
    assert names == {"c"}
    by_name = {profile.input: profile for profile in shapes.with_batch(profiles, names, 2)}
    assert (by_name["b"].max, by_name["c"].opt, by_name["c"].max) == ((32, 8), (2, 8), (2, 8))
    assert by_name["d"].max == (1, 8)


# fault: Commands | latency of the largest shapes shown as that of the usual ones | the usual
#   shapes are known by name | prevented
@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ((1, 8, 32), "opt"),
        ((1, 1, 4), "min"),  # not the largest
        ((1, 4, 4), "opt"),
        ((2, 2, 2), "min"),
    ],
)
def test_measurements_use_the_usual_shapes(sizes: tuple[int, int, int], name: str) -> None:
    low, middle, high = sizes
    points = shapes.points([ShapeProfile(input="x", min=(low,), opt=(middle,), max=(high,))])
    assert shapes.opt_sample(list(points)) == name
    assert points[name] == {"x": (middle,)}


def test_of_a_user_s_own_samples_the_middle_one_is_usual() -> None:
    assert shapes.opt_sample(["cat", "dog", "zebra"]) == "dog"
