"""Every public method of Triton's clients, unchanged, against the real server: what docs/clients.md says of each.

In a process of .venv-clients, since they need other versions.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.serving_options import TracingTask

from tests.integration.test_server_grpc_inference import SERVICE, Client
from tests.support.serving import Server, linear_model, run_json
from tests.support.shared import share_server

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-clients/bin/python"
PROGRAM = REPOSITORY / "tests/support/client_programs/triton_surface.py"
DATA = np.ones((1, 8), np.float32)
NONE = ("no such method", "no such parameter")


server = share_server(
    linear_model,
    {"x": DATA},
    options={"tracing": TracingTask(share=0.01, endpoint="http://127.0.0.1:9")},
)


@pytest.fixture(scope="module")
def surface(server: Server) -> Any:
    addresses = {
        "http": f"127.0.0.1:{server.port}",
        "grpc": f"127.0.0.1:{server.grpc_port}",
    }
    return run_json(PYTHON, PROGRAM.read_text(), json.dumps(addresses))


def read_table() -> dict[str, dict[str, str]]:
    """Return what docs/clients.md says, by protocol and call."""
    rows = re.findall(
        r"^\| (`.*`) \| (.*) \| (.*) \|$",
        (REPOSITORY / "docs/clients.md").read_text(),
        re.MULTILINE,
    )
    table: dict[str, dict[str, str]] = {"http": {}, "grpc": {}}
    for calls, http, grpc in rows:
        for name in re.findall(r"`([^`]+)`", calls):
            table["http"][name], table["grpc"][name] = http, grpc
    return table


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_call_does_what_the_documentation_says(surface: Any, protocol: str) -> None:
    documented = {
        call: words for call, words in read_table()[protocol].items() if words not in NONE
    }
    called = surface[protocol]["called"]
    assert called.keys() == documented.keys()
    for call, outcome in called.items():
        if "works" in (outcome, documented[call]):
            assert outcome == documented[call], call
        else:
            assert documented[call] in outcome, call


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_documentation_has_every_public_method(surface: Any, protocol: str) -> None:
    words = {word for call in read_table()[protocol] for word in call.split(", ")}
    assert set(surface[protocol]["methods"]) <= words


INPUT = {"name": "x", "data_type": "TYPE_FP32"}


def test_the_configuration_has_tritons_fields(surface: Any) -> None:
    over_http, over_grpc = (surface["read"][protocol]["config"] for protocol in ("http", "grpc"))
    assert over_http == {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": 0,  # its sum over the batch keeps requests apart
        "input": [INPUT | {"dims": [-1, 8]}],
        "output": [
            {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 4]},
            {"name": "total", "data_type": "TYPE_FP32", "dims": []},
        ],
    }
    # of protobuf's JSON: numbers are strings, and what is 0 or empty is left out
    assert over_grpc["input"] == [INPUT | {"dims": ["-1", "8"]}]
    assert over_grpc["output"][1] == {"name": "total", "data_type": "TYPE_FP32"}
    assert [over_grpc[key] for key in ("name", "platform", "backend")] == [
        *("m", "onnxruntime_onnx", "onnxruntime")
    ]


def test_the_index_has_the_served_model(surface: Any) -> None:
    (model,) = surface["read"]["http"]["index"]
    assert model == {"name": "m", "version": "1", "state": "READY", "reason": ""}
    (model,) = surface["read"]["grpc"]["index"]["models"]
    assert model == {"name": "m", "version": "1", "state": "READY"}


def test_settings_are_read_and_no_region_is_registered(surface: Any) -> None:
    over_http, over_grpc = (surface["read"][protocol] for protocol in ("http", "grpc"))
    assert (over_http["trace"]["trace_level"], over_http["trace"]["trace_rate"]) == (
        *(["TIMESTAMPS"], "100"),
    )
    assert over_grpc["trace"]["settings"]["trace_rate"] == {"value": ["100"]}
    assert over_http["log"]["log_verbose_level"] == 0
    assert over_grpc["log"]["settings"]["log_info"] == {"bool_param": True}
    assert (over_http["memory"], over_grpc["memory"]) == ([], {})


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2/models/other/config", 404, "model 'other' is not served here"),
        ("GET", "/v2/models/other/trace/setting", 404, "model 'other' is not served here"),
        ("POST", "/v2/models/m/config", 405, "use GET, HEAD"),
        ("GET", "/v2/repository/index", 405, "use POST"),
        ("POST", "/v2/repository/models/other/load", 501, "model 'other' cannot be loaded"),
        ("GET", "/v2/cudasharedmemory/region/a%20b/status", 404, "region 'a b' is not registered"),
        ("POST", "/v2/repository/models/m", 404, "does not exist"),
    ],
)
def test_what_is_not_there_is_refused_with_words(
    server: Server, method: str, path: str, status: int, words: str
) -> None:
    answer = server.get(path, method=method)
    assert answer.status == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"ready": true}', 200),
        (b'{"ready": 1}', 400),
        (b"[]", 400),
        (b"{", 400),
        (b" " * 70_000, 413),
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_index_reads_its_question(server: Server, body: bytes, status: int) -> None:
    head = f"POST /v2/repository/index HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    assert server.send(head.encode() + body).status == status


def test_a_region_over_grpc_is_not_registered(server: Server) -> None:
    with Client(server) as client:
        code, details = client.call_refused(
            f"/{SERVICE}/SystemSharedMemoryStatus", _Region("weights")
        )
    assert code == "NOT_FOUND"
    assert details.startswith("region 'weights' is not registered")


class _Region:
    """The message of a question about one region."""

    def __init__(self, name: str) -> None:
        self._name = name

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return bytes([0x0A, len(self._name)]) + self._name.encode()
