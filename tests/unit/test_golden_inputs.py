"""Golden inputs that would take gigabytes are refused, or left out, before they are drawn."""

import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.proof.golden_inputs import IntegerRange, generate
from enginewright_runtime.proof.natural.drawing import NO_SAMPLES, add_noise

SMALL = (1, 3, 8, 8)
LARGE = (1, 3, 20_000, 20_000)


def profile(*corners: tuple[int, ...]) -> ShapeProfile:
    least, usual, most = corners
    return ShapeProfile(input="x", min=least, opt=usual, max=most)


@pytest.mark.parametrize(
    ("declared", "remedy"),
    [
        (LARGE, "export the model with smaller or dynamic dimensions"),
        (("batch", *LARGE[1:]), "export the model with smaller or dynamic dimensions"),
        ((1, 3, "height", "width"), "declare smaller min sizes in spec.shapes"),
    ],
)
def test_what_is_too_large_is_refused_with_a_remedy(
    declared: tuple[int | str, ...], remedy: str
) -> None:
    inputs = [TensorSpec(name="x", dtype="float32", shape=declared)]
    with pytest.raises(StageFailure) as refused:
        generate(inputs, [profile(LARGE, LARGE, LARGE)])
    assert refused.value.reason is Reason.PARITY_FAILED
    assert "input 'x' of shape [1, 3, 20000, 20000] is too large to draw" in refused.value.cause
    assert refused.value.finding.advice == f"{remedy}, or provide inputs in spec.parity.samples"


def test_sizes_that_are_not_stored_are_not_drawn() -> None:
    inputs = [TensorSpec(name="x", dtype="float32", shape=(1, 3, "height", "width"))]
    profiles = [profile(SMALL, LARGE, LARGE)]
    assert [sample.name for sample in generate(inputs, profiles)] == ["min"]
    noise = add_noise(NO_SAMPLES, inputs, profiles, IntegerRange.DIGITS).samples
    assert {sample.inputs["x"].shape for sample in noise} == {SMALL}
