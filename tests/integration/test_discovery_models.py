"""Models that leave sizes open: an address alone serves them, and what is proposed works when pasted."""

import functools
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import yaml
from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.graph import shapes
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.parts import TensorProfile
from enginewright_runtime.prepare.sizes import trial_build
from enginewright_runtime.prepare.sizes.discovery.discover import (
    Discovered,
    DiscoveryRequest,
    discover,
)
from enginewright_runtime.prepare.sizes.trial_build import BuildableSizes, buildable
from enginewright_runtime.prepare.sizes.trial_run import end_after
from enginewright_runtime.proof.golden_inputs import IntegerRange, generate
from enginewright_runtime.tensorrt import native
from enginewright_runtime.tensorrt.results import BuildResult
from onnx import ModelProto, parser

from tests.support.engines import EnginePlace, recipe
from tests.support.open_models import OPEN
from tests.support.preparing import Outcome, Workplace

# what a model takes no other sizes than: dimensions of profiles as (input, axis, sizes)
KNOWN = {
    "voice_activity": [("x", 0, (1, 1, 8)), ("state", 1, (1, 1, 8)), ("x", 1, (200, 512, 1024))],
    "squeezed": [("x", 0, (1, 1, 1))],
    "features": [("x", 2, (77, 77, 77))],
    "decoder": [("past_key", 2, (0, 16, 128)), ("mask", 1, (1, 80, 256))],
    "decoder_with_sum": [("past_value", 2, (0, 16, 128)), ("mask", 1, (1, 80, 256))],
    "nameless_decoder": [("past_key_values.5.value", 2, (0, 16, 128))],
    "flattened": [("x", 2, (28, 28, 28)), ("x", 3, (28, 28, 28))],
    "skipping": [("x", 1, (3, 3, 3))],
    "lengths": [("wave", 0, (1, 1, 8)), ("lengths", 0, (1, 1, 8))],
    "positions": [("input_ids", 1, (1, 64, 100))],
    "masked_audio": [("mask", 1, (1, 16, 32))],
    "recurrent": [("x", 1, (1, 1, 8)), ("h", 1, (1, 1, 8))],
    "unranked": [("x", 1, (64, 64, 64))],
}


def discover_here(
    path: Path,
    model: ModelProto,
    backend: str = "tensorrt-rtx",
    samples: Mapping[str, list[int]] | None = None,
) -> Discovered:
    """Return what discovery finds of a model that nothing is declared of, in this process."""
    path.write_bytes(model.SerializeToString())
    inputs = graphs.inputs_of(model)
    unranked = [input_.name for input_ in inputs if not graphs.has_rank(model, input_.name)]
    profiles = shapes.resolve(inputs, (), frozenset(unranked)).profiles
    guessed = shapes.find_defaulted(inputs, profiles, ())
    request = DiscoveryRequest(
        backend in COMPILED_BACKENDS,
        tuple(inputs),
        tuple(profile for profile in profiles if profile.input not in guessed),
        tuple(unranked),
        samples or {},
    )
    return discover(path, request, path.with_suffix(".jsonl"))


def profiles_of(answer: Discovered) -> tuple[ShapeProfile, ...]:
    assert answer.profiles, answer.cause
    return answer.profiles


# fault: Shapes | proposed sizes fail when pasted | every corner runs first | before the report
@pytest.mark.parametrize("name", OPEN)
def test_every_corner_runs_in_another_session_and_the_sizes_are_the_models(
    name: str, tmp_path: Path
) -> None:
    model = OPEN[name]()
    answer = discover_here(tmp_path / "m.onnx", model)
    profiles = profiles_of(answer)
    session = ort.InferenceSession(model.SerializeToString())
    samples = generate(graphs.inputs_of(model), profiles, IntegerRange(answer.integers or ""))
    assert samples
    for sample in samples:
        session.run(None, dict(sample.inputs))
    by_input = {profile.input: profile for profile in profiles}
    for one, axis, sizes in KNOWN.get(name, []):
        profile = by_input[one]
        assert (profile.min[axis], profile.opt[axis], profile.max[axis]) == sizes, one
    assert answer.runs <= 200
    again = discover_here(tmp_path / "again.onnx", model)
    assert again == answer, "the same on every machine and every run"


@pytest.mark.parametrize("name", ["decoder", "features", "recurrent"])
def test_the_same_is_found_on_a_loaded_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where other processes take the processors, hours pass between two runs."""
    idle = discover_here(tmp_path / "idle.onnx", OPEN[name]())
    passed = count(0.0, 3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(passed))
    assert discover_here(tmp_path / "loaded.onnx", OPEN[name]()) == idle


def test_a_run_is_ended_by_processor_time_and_not_by_the_clock() -> None:
    with end_after(0.2) as options:
        time.sleep(0.6)
        waited = options.terminate
        until = time.process_time() + 0.6
        while time.process_time() < until:
            pass
        assert (waited, options.terminate) == (False, True)


# fault: Shapes | an input accepts two values only, such as a sampling rate | constants that the
#   graph compares it with | before the report
def test_values_come_from_comparisons_in_the_graph(tmp_path: Path) -> None:
    for name in ("sampling_rate", "voice_activity"):
        rate = profiles_of(discover_here(tmp_path / f"{name}.onnx", OPEN[name]()))[-1]
        assert (rate.input, rate.low, rate.high) == ("sr", 16000, 16000)


def build_sized(operator: str) -> ModelProto:
    """Return a model that an input tells the sizes of its output."""
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 16] x, int64[2] sizes) => (float[a, b] y) {{
        same = Identity(sizes) y = {operator}(x, same) }}"""
    )


# fault: Shapes | the values of an input are sizes, and random ones do not fit | values with which the
#   model runs | before the report
@pytest.mark.parametrize(("operator", "value"), [("Reshape", 0), ("Expand", None)])
def test_values_that_are_sizes_fit_the_other_inputs(
    operator: str, value: int | None, place: Workplace
) -> None:
    """Those of Reshape are zeros, which keep its input's sizes; Expand takes what many models do."""
    model = build_sized(operator)
    _, sizes = profiles_of(discover_here(place.root / "m.onnx", model, "cpu"))
    assert (sizes.input, sizes.low, sizes.high) == ("sizes", value, value)
    completed = place.complete(place.task(place.put("model.onnx", model)))
    assert completed.published.golden_output_bytes


def test_an_engine_is_built_for_no_values_that_the_user_has_not_declared(tmp_path: Path) -> None:
    answer = discover_here(tmp_path / "m.onnx", build_sized("Reshape"))
    assert all(profile.low is None for profile in profiles_of(answer))


def test_samples_that_contradict_a_sum_end_no_search(tmp_path: Path) -> None:
    """A state of `past + seq` that is shorter than `seq` would have a negative past."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[k, n] a, float[k, "n + 3"] b) => (float[k, n] y, float[k, m] z)
        { y = Relu(a) z = Relu(b) }"""
    )
    samples = {"a": [1, 5], "b": [1, 2]}
    first, second = profiles_of(discover_here(tmp_path / "m.onnx", model, "cpu", samples))
    assert second.opt[1] == first.opt[1] + 3


# fault: Shapes | a dimension is dynamic in name only | runs at other sizes: rule `one-size` |
#   before the report
def test_a_fixed_size_is_reported(tmp_path: Path) -> None:
    assert discover_here(tmp_path / "m.onnx", OPEN["squeezed"]()).fixed == ("x[0]",)
    assert discover_here(tmp_path / "n.onnx", OPEN["flattened"]()).fixed == ("x[2]", "x[3]")


# fault: Shapes | a limit that the user did not declare | found sizes are not in the recipe | prevented
@pytest.mark.parametrize("name", OPEN)
def test_an_address_alone_serves_a_model_with_open_sizes(
    name: str, place: Workplace, tmp_path: Path
) -> None:
    outcome = place.complete(place.task(place.put("m.onnx", OPEN[name]())))
    folder = tmp_path / "store/prepared" / outcome.published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert not manifest.recipe.shapes, "what was found is no limit"
    assert [profile.input for profile in manifest.profiles] == [
        input_.name for input_ in manifest.inputs
    ]
    with np.load(folder / manifest.golden_outputs) as golden:
        samples = {key.partition("/")[0] for key in golden.files}
    points = shapes.points(manifest.profiles)
    assert samples & {"min", "opt", "max"} == set(points), "equal corners are one sample"
    assert len(points) > 1 or all(profile.min == profile.max for profile in manifest.profiles)


def read_proposal(outcome: Outcome) -> list[ShapeProfile]:
    """Return the sizes that a refusal proposes, as its whole report has them."""
    assert outcome.report.reason is Reason.SHAPE_PROFILE_MISSING, outcome.message
    finding = Finding.model_validate(outcome.full["findings"][0])
    assert finding.proposal is not None
    reported = yaml.safe_load(finding.proposal.yaml)["shapes"]
    shapes = [ShapeProfile.model_validate(item) for item in reported]
    assert shapes == list(finding.proposal.shapes)
    return shapes


@pytest.mark.parametrize("name", OPEN)
def test_proposed_shapes_work_when_pasted(name: str, place: Workplace) -> None:
    uri = place.put("m.onnx", OPEN[name]())
    stage, refused = place.prepare(place.task(uri, backend="tensorrt-rtx"))
    assert stage == "validate"
    pasted = read_proposal(refused)
    place.complete(place.task(uri, backend="tensorrt-rtx", shapes=pasted))
    with np.load(place.root / "work/golden/inputs.npz") as golden:
        ran = {key: golden[key].shape for key in golden.files}
    for profile in pasted:
        assert ran[f"min/{profile.input}"] == profile.min
        # equal corners are one sample
        assert ran.get(f"max/{profile.input}", profile.min) == profile.max


# fault: Shapes | sizes that run, but for which no engine builds | a trial build by TensorRT-RTX |
#   before the report
def test_sizes_without_an_engine_are_not_proposed(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7 builds several layers of an unnamed past for fixed sizes alone."""
    model = OPEN["nameless_decoder"]()
    profiles = profiles_of(discover_here(tmp_path / "m.onnx", model))
    built = buildable(tmp_path / "m.onnx", "tensorrt-rtx", profiles)
    assert built.profiles == tuple(
        profile.model_copy(update={"min": profile.opt, "max": profile.opt}) for profile in profiles
    )
    decoder = OPEN["decoder"]()
    profiles = profiles_of(discover_here(tmp_path / "n.onnx", decoder))
    assert buildable(tmp_path / "n.onnx", "tensorrt-rtx", profiles) == BuildableSizes(profiles)
    assert buildable(tmp_path / "n.onnx", "tensorrt", profiles) == BuildableSizes(profiles), (
        "needs a device"
    )


@functools.wraps(native.build, assigned=("__annotations__",))
def builds_slowly(*, profiles: Sequence[TensorProfile], **_: Any) -> BuildResult:
    """Build for fixed sizes alone, as slowly as where other processes have the processors."""
    time.sleep(1.5)
    return BuildResult(built=all(profile.min == profile.max for profile in profiles), parsed=True)


def test_other_load_ends_no_trial_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_build, "_SECONDS", 1.0)
    monkeypatch.setattr(native, "build", builds_slowly)
    profiles = profiles_of(discover_here(tmp_path / "m.onnx", OPEN["squeezed"]()))
    assert buildable(tmp_path / "m.onnx", "tensorrt-rtx", profiles).profiles == tuple(
        profile.model_copy(update={"min": profile.opt, "max": profile.opt}) for profile in profiles
    )


# fault: Shapes | sizes for which an engine builds once conversion has taken the branches that they decide | the trial
#   build takes them too, so these sizes are proposed | before the report
@pytest.mark.parametrize("file", ["silero_vad_half.onnx", "silero_vad_16k_op15.onnx"])
def test_sizes_that_decide_the_branches_are_proposed(
    file: str, models: Path, tmp_path: Path
) -> None:
    """Both branches would be compiled for a range of lengths, and TensorRT-RTX does not build them."""
    place = EnginePlace(tmp_path)
    uri = place.put("model.onnx", find_silero(models, file))
    stage, refused = place.prepare(place.task(uri, backend="tensorrt-rtx"))
    assert stage == "validate"
    assert "is built" not in refused.message
    pasted = read_proposal(refused)
    assert all(profile.min == profile.opt == profile.max for profile in pasted)
    task = place.task(uri, backend="tensorrt-rtx", shapes=pasted)
    place.prepared = place.complete(task).published.key
    built = place.engine_stage("build", place.engine_task(recipe("8.9")))
    assert built.code == 0, built.message


def find_silero(models: Path, file: str) -> Path:
    return next(path for path in sorted(models.rglob(file)) if "silero_vad/data" in str(path))


# fault: Shapes | sizes that run, but for which no engine builds
def test_sizes_for_which_no_engine_is_built_are_not_proposed(
    models: Path, place: Workplace
) -> None:
    """It runs with them, and TensorRT-RTX builds both branches of its sampling rate, which differ."""
    uri = place.put("model.onnx", find_silero(models, "silero_vad.onnx"))
    stage, refused = place.prepare(place.task(uri, backend="tensorrt-rtx"))
    assert (stage, refused.report.reason) == ("validate", Reason.SHAPE_PROFILE_MISSING)
    assert "with sizes that it runs with none is built: TensorRT-RTX" in refused.message
    assert "these ran" not in refused.message
