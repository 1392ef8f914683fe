"""The program of `helm test`, with an API server and a model server in its own words: what it reports and what it leaves."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from typing_extensions import override

from tests.support.ports import free_port
from tests.support.preparing import Workplace

PROGRAM = Path(__file__).resolve().parents[2] / "charts/enginewright/files/test/serve_a_model.py"


class Release(ThreadingHTTPServer):
    """The API server and the Service of the model that it was given."""

    ready = "True"
    wrong = 0.0  # by how much answers are
    model: dict[str, Any] | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.calls: list[str] = []

    def infer(self, request: Any) -> list[float]:
        """Fetch the model from its source, and run it."""
        assert self.model is not None
        with urllib.request.urlopen(self.model["spec"]["source"]["uri"], timeout=10) as source:
            session = ort.InferenceSession(source.read(), providers=["CPUExecutionProvider"])
        feeds = {
            one["name"]: np.array(one["data"], np.float32).reshape(one["shape"])
            for one in request["inputs"]
        }
        (output,) = session.run(None, feeds)
        return [float(number) + self.wrong for number in output]


class Handler(BaseHTTPRequestHandler):
    server: Release

    def answer(self, code: int, body: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self) -> None:
        if self.server.model is None:
            return self.answer(404, {})
        conditions = [
            {"type": "Ready", "status": self.server.ready, "reason": "Why", "message": "it is so"},
            {"type": "Stalled", "status": "False" if self.server.ready == "True" else "True"},
        ]
        return self.answer(200, self.server.model | {"status": {"conditions": conditions}})

    def do_POST(self) -> None:
        self.server.calls.append(f"POST {self.path}")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/infer"):
            return self.answer(200, {"outputs": [{"data": self.server.infer(body)}]})
        self.server.model = body
        return self.answer(201, body)

    def do_DELETE(self) -> None:
        self.server.model = None
        self.answer(200, {})

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def release() -> Iterator[Release]:
    with Release() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def program(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("serve_a_model", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which would be a file of the chart
    spec.loader.exec_module(module)
    (tmp_path / "token").write_text("secret")
    for name, value in {"ACCOUNT": tmp_path, "PORT": free_port(), "PAUSE": 0.01}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    variables = {
        "NAME": "test-e", "NAMESPACE": "home", "SPEC": '{"accelerators": [{"class": "cpu"}]}',
        "SERVER": release.url, "SERVICE": release.url, "SECONDS": "60",
        "POD": "e-test", "POD_UID": "1", "ADDRESS": "127.0.0.1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return module


@pytest.mark.parametrize(
    ("ready", "wrong", "code", "said"),
    [
        ("True", 0.0, 0, "the answer is [3.0, 5.0, -6.0], which is right"),
        ("True", 0.5, 1, "failed: the answer is [3.5, 5.5, -5.5], and"),
        ("False", 0.0, 1, "failed: the model is Stalled. Why: it is so"),
    ],
)
def test_the_answer_decides_and_the_model_is_removed(
    program: ModuleType, release: Release, capsys: pytest.CaptureFixture[str],
    ready: str, wrong: float, code: int, said: str,
) -> None:  # fmt: skip
    release.ready, release.wrong = ready, wrong
    release.model = {"metadata": {"name": "test-e"}}  # of a pod that was killed
    assert program.main() == code
    assert said in capsys.readouterr().out
    assert not release.model
    path = "/apis/enginewright.dev/v1alpha1/namespaces/home/inferencemodels"
    assert release.calls[0] == f"POST {path}"


def test_jobs_fetch_the_model_from_the_pod(program: ModuleType, place: Workplace) -> None:
    content = program.parser.parse_model(program.MODEL).SerializeToString(deterministic=True)
    source = program.serve_source(content, "127.0.0.1")
    assert place.fetch(f"{source}/model.onnx").code == 0
    assert place.stage("validate", place.task(f"{source}/model.onnx")).code == 0
