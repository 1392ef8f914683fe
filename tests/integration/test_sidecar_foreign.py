"""The sidecar beside a server that is not ours, and its client on what other servers do with HTTP."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_serving.sidecar.client import Client, UnreachableError
from typing_extensions import override

from tests.support.ports import free_port
from tests.support.serving import Feeds, linear_model
from tests.support.sidecar import Sidecar, artifact, promising

SAMPLE: Feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}


class Foreign:
    """A server of the same protocol that knows JSON only and nothing of `/execution`."""

    def __init__(self, model: Path) -> None:
        self.session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.factor = 1.0
        self.probes = 0

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body."""
        if path in ("/v2/health/live", "/v2/health/ready"):
            return 200, b""
        if path == "/v2":
            return 200, json.dumps({"name": "foreign", "version": "1", "extensions": []}).encode()
        if path == "/v2/models/m/infer":
            self.probes += 1
            return 200, self.infer(json.loads(body))
        return 404, b"no such thing"

    def infer(self, request: dict[str, Any]) -> bytes:
        """Run the model on nested JSON."""
        feeds = {
            item["name"]: np.array(item["data"], np.float32).reshape(item["shape"])
            for item in request["inputs"]
        }
        names = [item["name"] for item in request["outputs"]]
        outputs = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": list(array.shape),
                "data": (array * self.factor).tolist(),
            }
            for name, array in zip(names, self.session.run(names, feeds), strict=True)
        ]
        return json.dumps({"model_name": "m", "outputs": outputs}).encode()


@contextmanager
def listening(foreign: Foreign, *, chunked: bool) -> Iterator[int]:
    """Serve; answers are chunked over HTTP/1.1 or end with the connection over HTTP/1.0."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if chunked else "HTTP/1.0"

        @override
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = foreign.answer(self.path, body)
            self.send_response(status)
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if not chunked:
                self.wfile.write(answer)
                return
            for at in range(0, len(answer), 20):
                part = answer[at : at + 20]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")

        do_POST = do_GET  # noqa: N815 - http.server names it so

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def task(tmp_path: Path) -> ServeTask:
    return artifact(tmp_path, linear_model(), [SAMPLE])


@pytest.mark.parametrize("chunked", [True, False])
def test_provable_checks_are_proven_beside_another_server(
    tmp_path: Path, task: ServeTask, chunked: bool
) -> None:
    foreign = Foreign(tmp_path / "artifact/model.onnx")
    with (
        listening(foreign, chunked=chunked) as port,
        Sidecar(tmp_path, promising(task, "Allow"), port, pace=0.2) as sidecar,
    ):
        sidecar.until_ready()
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 90)
        states = {check.check: check.state for check in sidecar.verdict().checks}
        assert states == {
            Check.SERVER: "ok",
            Check.PROVIDER: "unknown",
            Check.PLACEMENT: "unknown",
            Check.DISTRIBUTION: "unknown",
            Check.VERSIONS: "unknown",
            Check.GOLDEN: "ok",
            Check.PROBE_LATENCY: "ok",
            Check.LIVE_LATENCY: "unknown",
            Check.CLASS_LATENCY: "unknown",
            Check.ERRORS: "unknown",
        }
        assert "it is not Enginewright's server" in sidecar.check(Check.PLACEMENT).message
        assert sidecar.check(Check.ERRORS).message == "the server does not count its responses"
        verdict = sidecar.verdict()
        assert (verdict.provider, verdict.fallback) == (None, None)
        metrics = sidecar.metrics()
        for name in ("fallback_active", "placement_nodes", "info", "opset_supported"):
            assert f"enginewright_{name}" not in metrics
        foreign.factor = 1.5
        sidecar.until(lambda: not sidecar.is_ready(), "unready")
        assert sidecar.check(Check.GOLDEN).reason is Reason.PARITY_FAILED


# The client alone.

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def peer(act: Peer) -> Any:
    """Run a server that handles every connection by `act`; yield a client of it."""
    server = await asyncio.start_server(act, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1])
    try:
        yield client
    finally:
        client.close()
        server.close()


async def _head(reader: asyncio.StreamReader) -> None:
    with suppress(asyncio.IncompleteReadError):  # the client has gone
        await reader.readuntil(b"\r\n\r\n")


async def test_a_connection_is_kept_and_opened_anew_when_the_server_has_closed_it() -> None:
    connections = 0

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await _head(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with peer(act) as client:
        for _ in range(4):
            assert (await client.get("/", 5.0)).body == b"ok"
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "wording"),
    [
        (b"", "closed before it responded"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "the response was truncated"),
        (b"SSH-2.0-server\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "the response was truncated"),
    ],
)
async def test_an_invalid_response_is_reported(answer: bytes, wording: str) -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _head(reader)
        writer.write(answer)
        writer.close()

    async with peer(act) as client:
        with pytest.raises(UnreachableError, match=wording) as caught:
            await client.get("/", 5.0)
    assert not caught.value.unreachable


async def test_nothing_waits_for_ever_and_the_next_question_is_answered() -> None:
    silent = True

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _head(reader)
        if not silent:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")
            writer.close()

    async with peer(act) as client:
        with pytest.raises(UnreachableError, match=r"did not respond within 0\.2 s") as caught:
            await client.get("/", 0.2)
        assert caught.value.late
        silent = False
        assert (await client.get("/", 5.0)).body == b"to the end"
