"""A verdict is the cluster's: of the backend that a class prefers, or with a warning about what stays unknown."""

from pathlib import Path

import pytest
from enginewright_cli.preflight.config import ModelOptions
from enginewright_cli.preflight.request import request
from enginewright_cli.preflight.targets import parse, scope
from enginewright_contract.images import ImageFacts
from onnx import parser

from tests.support import broken_models as broken
from tests.support.plan_objects import image_facts
from tests.support.preflight_runs import Desk

# opset 26 came with ONNX Runtime 1.25; the openvino image has 1.24.1
NEWEST = """<ir_version: 13, opset_import: ["" : 26]>
    newest (float[2, 4] x) => (float[2, 4] y) <int64 axis = {1}> { y = CumProd(x, axis) }"""


def make_facts(*backends: str) -> ImageFacts:
    return image_facts("cpu").model_copy(update={"backends": dict.fromkeys(backends, "1.2")})


@pytest.mark.parametrize(
    ("target", "looked", "unknown"),
    [
        ("cpu", ["cpu"], "cpu"),
        ("cpu:vnni", ["cpu:vnni"], "cpu"),
        ("sm89", ["cpu", "sm89"], "tensorrt or cuda"),
        ("sm89", ["cpu", "sm89", "a100"], "cuda"),
        ("cuda", ["cuda"], "tensorrt or tensorrt-rtx"),
    ],
)
def test_unexamined_targets_are_unknown(target: str, looked: list[str], unknown: str) -> None:
    targets = [parse(item) for item in looked]
    facts = make_facts("cpu", "openvino", "cuda", "tensorrt-rtx")
    reported = scope(parse(target), targets, facts)
    assert reported.startswith(
        f"backend {parse(target).backend} 1.2 (onnxruntime 1.31.1), as installed"
    )
    assert f"a class that lists {unknown} first may behave differently" in reported


def test_a_parser_alone_leaves_to_the_device_what_it_cannot_know() -> None:
    facts = make_facts("cpu", "tensorrt")
    reported = scope(parse("a100"), [parse("a100")], facts)
    assert reported.startswith("the parser of TensorRT 1.2, as installed here; kernels, memory,")
    assert "a class that lists tensorrt-rtx or cuda first" in reported


@pytest.mark.parametrize(
    ("held", "image", "options", "backend", "stands_for", "runtime"),
    [
        (("cpu", "openvino"), None, {}, "openvino", None, None),
        (("cpu",), None, {}, "cpu", "openvino", "1.24.1"),
        (("cpu",), None, {"backend": "cpu"}, "cpu", None, None),
        (("cpu",), None, {"runtime_version": "1.20"}, "cpu", "openvino", None),
        (("cpu",), ("cpu", "openvino"), {}, "cpu", "openvino", None),
        (("cpu", "openvino"), ("cpu",), {}, "cpu", None, None),
    ],
)
def test_cpu_is_the_class_of_the_chart(
    tmp_path: Path,
    held: tuple[str, ...],
    image: tuple[str, ...] | None,
    options: dict[str, str],
    backend: str,
    stands_for: str | None,
    runtime: str | None,
) -> None:
    (tmp_path / "model.onnx").touch()
    source = str(tmp_path / "model.onnx")
    model_options = ModelOptions.model_validate({"targets": ("cpu",), **options})
    serves = ("example.com/image", make_facts(*image)) if image else None
    (target,) = request(source, model_options, lambda: make_facts(*held), serves).targets
    assert (target.backend, target.stands_for) == (backend, stands_for)
    assert target.runtime_version == runtime
    assert (target.describe_unknown() is None) is (stands_for is None)


# fault: Commands | preflight's `cpu` passes, but the cluster serves with `openvino`, which refuses |
#   its limits hold without it; a warning says what stays unknown | at once
def test_the_verdict_is_that_of_the_cluster(desk: Desk) -> None:
    newest = desk.save(parser.parse_model(NEWEST))
    code, reported = desk.run_json(newest, "--target", "cpu")
    assert (code, reported["targets"]["cpu"]["reason"]) == (1, "OpsetUnsupported")
    assert "ONNX Runtime 1.24.1 loads at most 25" in reported["findings"][0]["message"]
    assert desk.run(newest, "--target", "cpu", "--backend", "cpu").returncode == 0

    usual = desk.save(broken.relu())
    done = desk.run(usual, "--target", "cpu")
    assert (done.returncode, done.stdout.partition(" ")[0]) == (0, "WARN")
    assert "cpu: backend cpu" in done.stdout
    assert "within the limits of openvino's ONNX Runtime 1.24.1\n" in done.stdout
    assert (
        "warning ProviderMissing (examine; cpu): a cluster's class of CPUs prefers" in done.stdout
    )
    assert "pip install '.[preflight-openvino]'" in done.stdout
