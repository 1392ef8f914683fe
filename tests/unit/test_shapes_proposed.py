"""The shape profiles that a user is shown who gave none: for the layout that the model has."""

import pytest
import yaml
from enginewright.contract.manifest import TensorSpec
from enginewright_runtime.shapes import resolve


@pytest.mark.parametrize(
    ("shape", "usual"),
    [
        (("n", 3, "height", "width"), [1, 3, 320, 320]),
        (("n", "channels", "height", "width"), [1, 3, 320, 320]),
        (("n", "height", "width", 3), [1, 320, 320, 3]),
        (("n", "height", "width", 1), [1, 320, 320, 1]),
        (("n", 3, "frames", 160), [1, 3, 320, 160]),
        (("n", "length"), [1, 64]),
    ],
)
def test_proposal(shape: tuple[str | int, ...], usual: list[int]) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=shape)
    (finding,) = resolve((spec,), (), frozenset()).findings
    (proposed,) = yaml.safe_load(finding.message.partition("sizes of yours: ")[2])["shapes"]
    assert proposed["input"] == "x"
    assert proposed["opt"] == usual
