"""Triton's and KServe's own clients, unchanged, against the real server.

In processes of .venv-clients: they need other versions, and both register the same message names.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.test_server_protocol import KINDS, echo_feeds, echo_model
from tests.support.broken_models import parse_text
from tests.support.programs import run_program
from tests.support.serving import (
    Server,
    run_json,
    slow_model,
    write_artifact,
)
from tests.support.waiting import until

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-clients/bin/python"
PROGRAMS = REPOSITORY / "tests/support/client_programs"
UNIMPLEMENTED = "StatusCode.UNIMPLEMENTED"
INVALID = "StatusCode.INVALID_ARGUMENT"


def halves_model() -> Any:
    """Return x -> y = 2 x of BF16."""
    return parse_text("""(bfloat16[n] x) => (bfloat16[n] y) {
        wide = Cast <to = 1> (x) twice = Add(wide, wide) y = Cast <to = 16> (twice) }""")


def build_typed_model() -> Any:
    """Return the echo model without FP16, which has no typed contents."""
    whole = echo_model()
    for part in (whole.graph.node, whole.graph.input, whole.graph.output):
        for item in [entry for entry in part if "FP16" in str(entry)]:
            part.remove(item)
    return whole


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    one = np.array([0x3F80], np.uint16)  # 1.0
    feeds = echo_feeds()
    typed = {name: array for name, array in feeds.items() if "FP16" not in name}
    made: dict[str, tuple[Any, Any, Any]] = {
        "echo": (echo_model(), [feeds], None),
        "typed": (build_typed_model(), [typed], None),
        "halves": (halves_model(), [{"x": one}], [{"y": np.array([0x4000], np.uint16)}]),
        "slow": (slow_model(), [{"turns": np.array([1], np.int64)}], None),
    }
    with ExitStack() as stack:
        started = {}
        for name, (onnx_model, samples, golden) in made.items():
            root = tmp_path_factory.mktemp(name)
            task = write_artifact(root, onnx_model, samples, golden=golden)
            started[name] = stack.enter_context(Server(root, task))
        yield started


def run(program: str, servers: dict[str, Server], port: str) -> Any:
    addresses = {name: f"127.0.0.1:{getattr(it, port)}" for name, it in servers.items()}
    return run_json(PYTHON, (PROGRAMS / f"{program}.py").read_text(), json.dumps(addresses))


@pytest.fixture(scope="module")
def triton(servers: dict[str, Server]) -> Any:
    return run("triton_grpc", servers, "grpc_port")


@pytest.fixture(scope="module")
def kserve(servers: dict[str, Server]) -> Any:
    return run("kserve_grpc", servers, "grpc_port")


@pytest.fixture(scope="module")
def kserve_http(servers: dict[str, Server]) -> Any:
    return run("kserve_http", servers, "port")


ALL = dict.fromkeys(KINDS, True)


def test_tritons_client_reads_health_and_metadata(triton: Any) -> None:
    assert [triton[key] for key in ("live", "ready", "model ready", "version ready")] == [True] * 4
    assert triton["server"] == "enginewright"
    assert triton["model"] == ["m", ["r1"], "onnx_onnxv1"]
    assert {"name": "in_FP32", "datatype": "FP32", "shape": ["-1", "3"]} in triton["inputs"]
    assert len(triton["inputs"]) == len(KINDS)


def test_tritons_client_reads_the_statistics(triton: Any) -> None:
    every, one, version = triton["statistics"]
    assert every == one == version
    (statistics,) = one["model_stats"]
    assert [statistics[key] for key in ("name", "version", "inference_count")] == ["m", "1", "1"]
    # of protobuf's JSON: numbers are strings, and those that are 0 are left out
    stats = {
        key: int(value.get("count", 0)) for key, value in statistics["inference_stats"].items()
    }
    assert stats == {
        **dict.fromkeys(("success", "queue", "compute_infer"), 1),
        **dict.fromkeys(("compute_input", "compute_output"), 1),
        **dict.fromkeys(("fail", "cache_hit", "cache_miss"), 0),
    }
    (batch,) = statistics["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == ("1", "1")


@pytest.mark.parametrize("how", ["echo", "gzip"])
def test_tritons_client_sends_and_receives_every_type(triton: Any, how: str) -> None:
    assert triton[how] == ALL


def test_tritons_client_sends_bf16_and_large_tensors(triton: Any) -> None:
    assert triton["halves"] == [2.0, 4.0]
    assert triton["large"] is True
    assert (triton["id"], triton["outputs"]) == ("é7", ["sum"])
    assert triton["in time"] == [3]


def test_tritons_client_waits_no_longer_than_it_wants(triton: Any) -> None:
    code, message = triton["timeout"]
    assert code == "StatusCode.DEADLINE_EXCEEDED"
    assert message == "the request waited longer than its timeout of 0.02 s"
    assert triton["deadline"][0] == "StatusCode.DEADLINE_EXCEEDED"
    assert triton["cancelled"][0] == "StatusCode.CANCELLED"


REFUSED = {
    "model": ("StatusCode.NOT_FOUND", "model 'n' is not served here; this server has 'm'"),
    "version": ("StatusCode.NOT_FOUND", "model 'm' has no such version here; it has 'r1'"),
    "ready": ("StatusCode.NOT_FOUND", "model 'n' is not served here"),
    "metadata": ("StatusCode.NOT_FOUND", "model 'n' is not served here"),
    "shape": (INVALID, "input 'turns': shape [2] has 2 in dimension 0; the model expects [1]"),
    "type": (INVALID, "input 'turns': datatype 'INT32', expected 'INT64'"),
    "missing": (INVALID, "missing input: 'turns'"),
    "sequence": (INVALID, "sequences are not supported"),
    "shared memory": (INVALID, "of input 'turns': shared memory is not supported"),
    "classification": (INVALID, "classification is not supported"),
    "deflate": (UNIMPLEMENTED, "compression 'deflate' is not supported; use gzip"),
    "statistics": ("StatusCode.NOT_FOUND", "model 'n' is not served here"),
    "config": ("StatusCode.NOT_FOUND", "model 'n' is not served here"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tritons_client_gets_the_reason(triton: Any, what: str) -> None:
    code, message = triton["refused"][what]
    assert code == REFUSED[what][0]
    assert REFUSED[what][1] in message


def test_all_were_asked_for(triton: Any) -> None:
    assert triton["refused"].keys() == REFUSED.keys()


def test_calls_are_counted_as_requests(triton: Any, servers: dict[str, Server]) -> None:
    def count(code: int) -> float:
        return servers["slow"].metric(f'enginewright_requests_total{{code="{code}"')

    until(lambda: count(499) + count(504) >= 3, "all are counted")
    assert count(499) >= 1, "the cancelled one"
    assert count(504) >= 1, "its timeout passed"
    assert count(499) + count(504) == 3, "of the third one the client's deadline passed"
    assert count(200) >= 3
    assert count(400) >= 6


def test_kserves_client_reads_health(kserve: Any) -> None:
    assert [kserve[key] for key in ("live", "ready", "model ready")] == [True] * 3
    assert kserve["unknown"][0] == "NOT_FOUND"


def test_kserves_client_sends_and_receives_every_type(kserve: Any) -> None:
    assert kserve["raw"] == ALL
    assert kserve["typed"] == {kind: True for kind in ALL if kind != "FP16"}


def test_kserves_client_gives_up_at_its_deadline(kserve: Any) -> None:
    assert kserve["deadline"][0] == "DEADLINE_EXCEEDED"


def test_raw_and_typed_contents_are_not_mixed(kserve: Any) -> None:
    code, message = kserve["mixed"]
    assert code == "INVALID_ARGUMENT"
    assert "give one of them, for all inputs" in message


def test_kserves_http_client_works_unchanged(kserve_http: Any) -> None:
    assert [kserve_http[key] for key in ("live", "ready", "model ready")] == [True] * 3
    assert kserve_http["unknown ready"] is False
    assert kserve_http["binary"] == ALL
    assert kserve_http["json"] == ALL
    assert "missing input" in kserve_http["refused"]
    assert "400" in kserve_http["refused"]


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/serving.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2, "HTTP and gRPC"
    negative = parse_text("(float[1, 3] x) => (float[1, 3] y) { y = Neg(x) }")
    samples = [{"x": np.ones((1, 3), np.float32)}]
    with Server(tmp_path, write_artifact(tmp_path, negative, samples, name="NAME")) as server:
        for example in examples:
            program = example.replace(":8080", f":{server.port}").replace(
                ":8001", f":{server.grpc_port}"
            )
            shown = run_program([PYTHON, "-c", program])
            assert shown.stdout.strip() == "[[-1. -1. -1.]]"
