"""A verdict names its backend, so that a reader does not take `cpu` for a class of that name."""

import pytest
from enginewright_cli.preflight.targets import parse, scope
from enginewright_contract.images import ImageFacts

from tests.support import broken_models as broken
from tests.support.plan_objects import image_facts
from tests.support.preflight_runs import Desk


def make_facts(*backends: str) -> ImageFacts:
    return image_facts("cpu").model_copy(update={"backends": dict.fromkeys(backends, "1.2")})


# fault: Commands | preflight's `cpu` passes, but a class prefers `openvino`, which refuses | each
#   target states its backend and scope | at once
@pytest.mark.parametrize(
    ("target", "looked", "unknown"),
    [
        ("cpu", ["cpu"], "openvino"),
        ("cpu", ["cpu", "openvino"], None),
        ("cpu:vnni", ["cpu:vnni"], "openvino"),
        ("openvino", ["openvino"], "cpu"),
        ("sm89", ["cpu", "sm89"], "tensorrt or cuda"),
        ("sm89", ["cpu", "sm89", "a100"], "cuda"),
        ("cuda", ["cuda"], "tensorrt or tensorrt-rtx"),
    ],
)
def test_unexamined_targets_are_unknown(
    target: str, looked: list[str], unknown: str | None
) -> None:
    targets = [parse(item) for item in looked]
    facts = make_facts("cpu", "openvino", "cuda", "tensorrt-rtx")
    reported = scope(parse(target), targets, facts)
    assert reported.startswith(
        f"backend {parse(target).backend} 1.2 (onnxruntime 1.31.1), as installed"
    )
    assert ("may behave differently" in reported) == (unknown is not None)
    if unknown:
        assert f"a class that lists {unknown} first may" in reported


def test_a_parser_alone_leaves_to_the_device_what_it_cannot_know() -> None:
    facts = make_facts("cpu", "tensorrt")
    reported = scope(parse("a100"), [parse("a100")], facts)
    assert reported.startswith("the parser of TensorRT 1.2, as installed here; kernels, memory,")
    assert "a class that lists tensorrt-rtx or cuda first" in reported


# fault: Commands | preflight's `cpu` passes, but a class prefers `openvino`, which refuses
def test_the_table_and_the_json_say_it(desk: Desk) -> None:
    path = desk.save(broken.relu())
    _, reported = desk.run_json(path, "--target", "cpu")
    wording = reported["targets"]["cpu"]["scope"]
    assert wording.startswith("backend cpu ")
    assert "a class that lists openvino first" in wording
    shown = " ".join(desk.run(path, "--target", "cpu").stdout.split())
    assert f"cpu: {wording}" in shown
