"""Signatures compared: what breaks clients, what does not, and how a signature gets into the status."""

import pytest
from enginewright.api.inference_model_status import ModelSignature
from enginewright.manifests.snapshot import Revision
from enginewright.plan.prepare.signature import (
    UNLISTED,
    SignatureChange,
    compare,
    describe_signature,
)
from enginewright_contract.signature import PublishedSignature, TensorText
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plan_objects import publish_model
from tests.support.plan_world import World


def contract(inputs: str = "", outputs: str = "y:FP32[-1,10]") -> PublishedSignature:
    taken, given_ = (map(TensorText.read, text.split()) for text in (inputs, outputs))
    return PublishedSignature.of(taken, given_)


def of(inputs: str = "", outputs: str = "y:FP32[-1,10]") -> ModelSignature:
    return describe_signature(contract(inputs, outputs))


X = "x:FP32[-1,3]"
Y = "y:FP32[-1,10]"


@pytest.mark.parametrize(
    ("old", "new", "breaking"),
    [
        (of("images:FP32[1,3]"), of("pixels:FP32[1,3]"), "input images is now called pixels"),
        (of("images:FP32[1,3]"), of("pixels:FP32[1,4]"), "input images is removed"),
        (of(f"{X} mask:INT64[1]"), of(X), "input mask is removed"),
        (of(X), of(f"{X} mask:INT64[1]"), "input mask is new: INT64[1]"),
        (of(X), of("x:FP16[-1,3]"), "input x: FP32[-1,3] → FP16[-1,3]"),
        (of(X), of("x:FP32[-1,3,1]"), "input x: FP32[-1,3] → FP32[-1,3,1]"),
        (of(X), of("x:FP32[]"), "input x: FP32[-1,3] → FP32[]"),
        (of(X), of("x:FP32[8,3]"), "input x: FP32[-1,3] → FP32[8,3]"),
        (of(X), of("x:FP32[1..32,3]"), "input x: FP32[-1,3] → FP32[1..32,3]"),
        (of("x:FP32[224]"), of("x:FP32[299]"), "input x: FP32[224] → FP32[299]"),
        (of("x:FP32[1..32]"), of("x:FP32[1..16]"), "input x: FP32[1..32] → FP32[1..16]"),
        (of("x:FP32[1..32]"), of("x:FP32[2..64]"), "input x: FP32[1..32] → FP32[2..64]"),
        (of("x:FP32[1..32]"), of("x:FP32[8]"), "input x: FP32[1..32] → FP32[8]"),
        (of("x:FP32[8,2]"), of("x:FP32[-1,1]"), "input x: FP32[8,2] → FP32[-1,1]"),
        (of(X, Y), of(X, "z:FP32[-1,10]"), "output y is now called z"),
        (of(X, f"{Y} z:FP32[1]"), of(X, Y), "output z is removed"),
        (of(X, Y), of(X, "y:FP16[-1,10]"), "output y: FP32[-1,10] → FP16[-1,10]"),
        (of(X, Y), of(X, "y:FP32[10]"), "output y: FP32[-1,10] → FP32[10]"),
        (of(X, Y), of(X, "y:FP32[-1,11]"), "output y: FP32[-1,10] → FP32[-1,11]"),
        (of(X, Y), of(X, "y:FP32[-1,-1]"), "output y: FP32[-1,10] → FP32[-1,-1]"),
    ],
)
def test_breaking_changes(old: ModelSignature, new: ModelSignature, breaking: str) -> None:
    change = compare(old, new)
    assert change.breaking[0] == breaking
    assert change.compatible == ()


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    [
        (of("x:FP32[8,3]"), of(X), "input x: FP32[8,3] → FP32[-1,3]"),
        (of("x:FP32[8]"), of("x:FP32[1..32]"), "input x: FP32[8] → FP32[1..32]"),
        (of("x:FP32[1..16]"), of("x:FP32[1..32]"), "input x: FP32[1..16] → FP32[1..32]"),
        (of("x:FP32[1..16]"), of("x:FP32[-1]"), "input x: FP32[1..16] → FP32[-1]"),
        (of(X, Y), of(X, f"{Y} z:FP32[1]"), "output z is new: FP32[1]"),
        (of(X, Y), of(X, "y:FP32[8,10]"), "output y: FP32[-1,10] → FP32[8,10]"),
    ],
)
def test_compatible_changes(old: ModelSignature, new: ModelSignature, compatible: str) -> None:
    assert compare(old, new) == SignatureChange(compatible=(compatible,))


def test_the_order_of_tensors_is_no_change() -> None:
    one, other = of(f"{X} m:INT64[1]", f"{Y} z:FP32[1]"), of(f"m:INT64[1] {X}", f"z:FP32[1] {Y}")
    assert one.digest == other.digest
    assert one.inputs != other.inputs, "the model's order is kept"
    assert compare(one, other) == SignatureChange()


def test_names_of_dimensions_are_no_change() -> None:
    other = "0" * 64
    named = of("x:FP32[batch,3]").model_copy(update={"digest": other})
    assert compare(named, of(X)) == SignatureChange()


def test_a_new_name_is_only_given_where_one_tensor_can_have_it() -> None:
    change = compare(of("a:FP32[1] b:FP32[1]"), of("c:FP32[1] d:FP32[1]"))
    assert change.breaking == (
        "input a is removed",
        "input b is removed",
        "input c is new: FP32[1]",
        "input d is new: FP32[1]",
    )


def test_unlisted_tensors_are_equal_only_by_digest() -> None:
    whole, other = of(X), of("x:FP32[-1,4]")
    digest_only = ModelSignature(digest=whole.digest)
    assert compare(whole, digest_only) == SignatureChange()
    for old, new in ((other, digest_only), (digest_only, other)):
        assert compare(old, new) == SignatureChange(breaking=(UNLISTED,))


SIZES = st.sampled_from(["-1", "1", "8", "1..8", "1..32"])
TENSORS = st.builds(
    TensorText,
    st.sampled_from(["a", "b", "c:d", "e[1]"]),
    st.sampled_from(["FP32", "INT64"]),
    st.lists(SIZES, max_size=2).map(tuple),
)


def _distinct(least: int) -> st.SearchStrategy[list[TensorText]]:
    return st.lists(TENSORS, min_size=least, unique_by=lambda tensor: tensor.name)


SIGNATURES = st.builds(PublishedSignature.of, _distinct(0), _distinct(1)).map(describe_signature)


@given(SIGNATURES, SIGNATURES)
def test_every_difference_is_one_of_both(old: ModelSignature, new: ModelSignature) -> None:
    assert compare(old, old) == SignatureChange()
    change = compare(old, new)
    assert set(change.breaking).isdisjoint(change.compatible)
    assert bool(change.breaking or change.compatible) == (old.digest != new.digest)
    if change.compatible and not change.breaking:
        back = compare(new, old)
        assert back.breaking, "what is wider is narrower in the other direction"
        assert not back.compatible


@given(SIGNATURES)
def test_another_output_never_breaks(old: ModelSignature) -> None:
    extra = describe_signature(contract("", "new:BOOL[]")).outputs
    new = old.model_copy(update={"digest": "f" * 64, "outputs": (*old.outputs, *extra)})
    assert compare(old, new) == SignatureChange(compatible=("output new is new: BOOL[]",))


@pytest.mark.parametrize("name", ["x", "a:b", "a[1]", "a,b", "zwei\nZeilen", "", "é:FP32[1]"])
@pytest.mark.parametrize("shape", [(), ("-1",), ("1..32", "3")])
def test_a_tensor_of_any_name_is_read_from_its_text(name: str, shape: tuple[str, ...]) -> None:
    tensor = TensorText(name, "FP32", shape)
    assert TensorText.read(str(tensor)) == tensor


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x:FP32",
        f"{'n' * 257}:FP32[1]",
        f"x:FP32[{','.join(['1'] * 17)}]",
        " ".join(f"x{index}:FP32[1]" for index in range(65)),
    ],
)
def test_large_signature_has_only_its_digest(text: str) -> None:
    reported = PublishedSignature(
        digest="a" * 64, inputs=tuple(text.split()), outputs=("y:FP32[1]",)
    )
    assert describe_signature(reported) == ModelSignature(digest="a" * 64)


def test_the_signature_is_kept_with_the_revision_and_changes_none() -> None:
    signature = contract("x:FP32[1..32,3]")
    reported = publish_model().model_copy(update={"signature": signature})
    with_it = World().settle().job_succeeds(reported)
    without = World().settle().job_succeeds()
    assert with_it.status["revision"] == without.status["revision"]
    assert with_it.status["prepared"]["signature"] == describe_signature(signature).manifest()
    assert "signature" not in without.status["prepared"]
    kept = with_it.the("ControllerRevision")
    read = Revision.read(kept)
    assert (read.signature, read.data()) == (describe_signature(signature), kept["data"])
    earlier = without.the("ControllerRevision")
    assert "signature" not in earlier["data"]
    assert Revision.read(earlier).signature is None
    assert with_it.the("Deployment") == without.the("Deployment")
