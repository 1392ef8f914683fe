"""NVIDIA's TensorRT 10 and 11 without a GPU: what their parsers say, by preflight and beside TensorRT-RTX's."""

import re
import sys
from pathlib import Path

import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.isolation import Call
from enginewright_runtime.tensorrt import native
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support import modelopt_models
from tests.support.engines import VERSION as RTX
from tests.support.engines import build_mixed, half_way
from tests.support.parser_differences import GRAPHS
from tests.support.preflight_runs import Desk
from tests.support.quantizing import attention, convolutions, mix_precisions, random
from tests.support.serving import run_json
from tests.support.tensorrt_libraries import VERSIONS, fetch

REPOSITORY = Path(__file__).resolve().parents[2]
_PAGE = REPOSITORY / "docs/builders.md"
_ROW = re.compile(
    r"^\| (?P<name>[^|]+) \| (?P<rtx>yes|no) \| (?P<ten>yes|no) \| (?P<eleven>yes|no) \|$"
)
_PARSE = """
import json, sys
from pathlib import Path
from enginewright_runtime.tensorrt import native
version, model, log = sys.argv[1:]
answer = native.parse(backend="tensorrt", version=version, model=Path(model), log=Path(log), plugins=[])
print(json.dumps({"parsed": answer.parsed, "errors": [error.message for error in answer.parser]}))
"""
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session", params=sorted(VERSIONS))
def major(request: pytest.FixtureRequest) -> str:
    """Return each major version, fetched."""
    fetch(request.param)
    return str(request.param)


def environment(major: str) -> dict[str, str]:
    return {"ENGINEWRIGHT_TENSORRT": str(fetch(major))}


def read_rows() -> list[tuple[str, tuple[bool, ...]]]:
    """Return the rows of the table in docs/builders.md: a graph, and whether each parser takes it."""
    _, _, rest = _PAGE.read_text().partition("## Where the parsers differ\n")
    section = rest.partition("\n## ")[0]
    rows = [match for line in section.splitlines() if (match := _ROW.match(line))]
    return [
        (row["name"], tuple(row[name] == "yes" for name in ("rtx", "ten", "eleven")))
        for row in rows
    ]


def test_the_library_speaks_for_a_target_of_its_backend(major: str, desk: Desk) -> None:
    code, reported = desk.run_json(
        desk.save(broken.relu()), "--target", "h100,sm80", environment=environment(major)
    )
    assert (code, reported["verdict"]) == (0, "warn")
    for name in ("h100", "sm80"):
        target = reported["targets"][name]
        assert (target["backend"], target["nodes_total"], target["nodes_accelerated"]) == (
            "tensorrt",
            1,
            1,
        )
        assert f"the parser of TensorRT {VERSIONS[major]}, as installed here" in target["scope"]
    (finding,) = reported["findings"]
    assert finding["reason"] == Reason.DRIVER_MISSING
    assert f"TensorRT {VERSIONS[major]} parses the whole model" in finding["message"]
    assert "kernels, memory, latency and outputs are unknown" in finding["message"]


def test_a_node_that_the_library_refuses_fails_the_target(major: str, desk: Desk) -> None:
    code, reported = desk.run_json(
        desk.save(build_mixed()), "--target", "a100", environment=environment(major)
    )
    target = reported["targets"]["a100"]
    assert (code, target["reason"]) == (1, Reason.UNSUPPORTED_OPERATOR)
    assert "det_bad (Det)" in target["message"]


def test_element_types_that_the_device_lacks_fail_the_target(major: str, desk: Desk) -> None:
    code, reported = desk.run_json(
        desk.save(half_way()), "--target", "t4,a100", environment=environment(major)
    )
    targets = reported["targets"]
    assert (code, targets["t4"]["reason"]) == (1, Reason.PRECISION_UNSUPPORTED)
    assert "whose tensors are BF16" in targets["t4"]["message"]
    assert targets["a100"]["verdict"] == "warn"


@pytest.mark.parametrize("name", ["fp8", "fp8_weights", "int4", "nvfp4", "mxfp8"])
def test_models_of_modelopt_are_parsed(name: str, major: str, desk: Desk) -> None:
    model = getattr(modelopt_models, name)()
    code, reported = desk.run_json(
        desk.save(model), "--target", "b200", environment=environment(major)
    )
    assert (code, reported["targets"]["b200"]["verdict"]) == (0, "warn"), reported["targets"]


@pytest.mark.parametrize("precision", ["INT8", "FP8"])
@pytest.mark.parametrize(
    ("source", "shape"),
    [(convolutions(), (2, 3, 16, 16)), (attention(), (2, 8, 32))],
    ids=["conv", "attention"],
)
def test_quantized_models_with_the_rest_in_fp16_are_parsed(
    source: ModelProto, shape: tuple[int, ...], precision: str, major: str, tmp_path: Path
) -> None:
    path, _ = mix_precisions(tmp_path, source, {"x": random(*shape)}, precision)
    program = (sys.executable, _PARSE, VERSIONS[major], str(path), str(tmp_path / "log"))
    assert run_json(*program, **environment(major)) == {"parsed": True, "errors": []}


@pytest.mark.parametrize(
    ("name", "taken"), read_rows(), ids=lambda item: item if isinstance(item, str) else ""
)
def test_the_parsers_differ_as_the_page_says(
    name: str, taken: tuple[bool, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(GRAPHS[name](), path)
    log = tmp_path / "log"
    rtx = Call(native.parse, "parsing").run(
        backend="tensorrt-rtx", version=RTX, model=path, log=log, plugins=[]
    )
    others = [
        run_json(sys.executable, _PARSE, version, str(path), str(log), **environment(major))
        for major, version in VERSIONS.items()
    ]
    answers = (rtx.parsed, *(answer["parsed"] for answer in others))
    assert answers == taken, [error.message for error in rtx.parser] + others


def test_the_page_has_a_row_for_every_graph() -> None:
    assert {name for name, _ in read_rows()} == set(GRAPHS)
