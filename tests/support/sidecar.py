"""The real sidecar as a process, artefacts like those of the stages, and a proxy that changes answers."""

import contextlib
import http.client
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import onnx
from enginewright_contract.manifest import MANIFEST_NAME, Manifest, TensorSpec
from enginewright_contract.task import Promise, ServeTask, ShapeProfile
from enginewright_contract.verdict import Check, CheckVerdict, Verdict
from enginewright_runtime.core.paths import Paths
from enginewright_serving.probe_token import read_or_create
from enginewright_serving.sidecar.settings import INTERVALS
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from typing_extensions import override

from tests.support.forked import end, pod_process
from tests.support.ports import free_port
from tests.support.preparing import Workplace
from tests.support.serving import Answer, Feeds, Server, Wire, write_artifact
from tests.support.waiting import Deadline

READY_SECONDS = 30.0


def artifact(root: Path, model: onnx.ModelProto, samples: Sequence[Feeds]) -> ServeTask:
    task = write_artifact(root, model, samples)
    change_manifest(root, inputs=_specs(model.graph.input), outputs=_specs(model.graph.output))
    return task


def _specs(values: Any) -> tuple[TensorSpec, ...]:
    specs = []
    for value in values:
        kind = value.type.tensor_type.elem_type
        dtype = (
            "string"
            if kind == onnx.TensorProto.STRING
            else onnx.helper.tensor_dtype_to_np_dtype(kind).name
        )
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in value.type.tensor_type.shape.dim
        )
        specs.append(TensorSpec(name=value.name, dtype=dtype, shape=shape))
    return tuple(specs)


def change_manifest(root: Path, **fields: Any) -> Manifest:
    """Write the artefact's manifest again with other values."""
    path = root / "artifact" / MANIFEST_NAME
    manifest = Manifest.model_validate_json(path.read_bytes()).model_copy(update=fields)
    path.write_text(manifest.to_json())
    return manifest


def prepare_served(
    root: Path,
    model: onnx.ModelProto | Path,
    *,
    backend: str = "cpu",
    python: Path | None = None,
    shapes: Sequence[ShapeProfile] = (),
) -> ServeTask:
    """Prepare `model` with the real stages and fetch the artefact; return the task to serve it."""
    root.mkdir(exist_ok=True)
    place = Workplace(root, python or sys.executable, in_process=python is None)
    uri = place.put("model.onnx", model)
    name, outcome = place.prepare(place.task(uri, backend=backend, shapes=shapes))
    assert outcome.code == 0, f"{name}: {outcome.message}"
    assert outcome.report.published is not None
    key = outcome.report.published.key
    assert place.fetch_artifact(key, backend).code == 0
    return ServeTask(model="m", revision="r1", prepared_key=key, backend=backend)


def share_token(server: Server, root: Path) -> None:
    """Let the sidecar of another folder be one of the server's own."""
    token = Paths.under(root).probe_token
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_text(read_or_create(Paths.under(server.root).probe_token))


def promising(task: ServeTask, policy: str, **shares: float) -> ServeTask:
    """Return `task` with another promise."""
    promise = Promise.model_validate({"policy": policy, **shares})
    return task.model_copy(update={"promise": promise})


class Sidecar:
    """The sidecar as a process, for the server at `server_port`. Leaving the context ends it."""

    def __init__(
        self,
        root: Path,
        task: ServeTask,
        server_port: int,
        *,
        python: str | Path = sys.executable,
        pace: float = 1.0,
        fresh: bool = False,
        **settings: float,
    ) -> None:
        """Start it; `pace` multiplies the intervals of the checks, `fresh` is as for servers."""
        self.root = root
        self.port = free_port()
        intervals = {check: seconds * pace for check, seconds in INTERVALS.items()}
        arguments = {
            "task": task.model_dump(mode="json"),
            "root": str(root),
            "port": self.port,
            "server_port": server_port,
            "settings": {"intervals": intervals, **settings},
        }
        log = root / "sidecar.log"
        self.process = pod_process("watch", arguments, python=python, log=log, fresh=fresh)

    def __enter__(self) -> Self:
        try:
            self.until(lambda: self.get("/healthz").status == 200, "answers")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert "Traceback" not in self.log(), self.log()

    def stop(self) -> None:
        """Kill the process if it still runs."""
        end(self.process)

    def bound_memory(self, limit: int) -> None:
        """Let the process have as much private memory as a container with `limit` bytes leaves it.

        What it has mapped and not touched, such as stacks of threads, does not count: of the kernel's
        RLIMIT_DATA, which counts that, as much is added.
        """
        kilobytes = {
            key: int(line.split()[0])
            for key, _, line in (
                item.partition(":\t")
                for item in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            )
            if key in ("VmData", "VmRSS")
        }
        allowed = limit + 1024 * (kilobytes["VmData"] - kilobytes["VmRSS"])
        resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (allowed, allowed))

    def log(self) -> str:
        """Return what the sidecar has logged."""
        return (self.root / "sidecar.log").read_text()

    def get(self, path: str) -> Answer:
        with Wire(self.port) as wire:
            wire.send(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            return wire.receive()

    def is_ready(self) -> bool:
        """What /readyz answers."""
        return self.get("/readyz").status == 200

    def verdict(self, query: str = "") -> Verdict:
        return Verdict.model_validate_json(self.get(f"/verdict{query}").body)

    def annotate(self, until: float | None) -> None:
        """Write the annotation like the kubelet when the operator releases the pod, or remove it."""
        path = self.root / "podinfo/release"
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if until is None else str(int(until)))

    def shadow(self, order: str) -> None:
        """Write the annotation like the kubelet when the operator orders copies of requests."""
        path = self.root / "podinfo/shadow"
        path.parent.mkdir(exist_ok=True)
        path.write_text(order)

    def check(self, check: Check) -> CheckVerdict:
        return next(verdict for verdict in self.verdict().checks if verdict.check is check)

    def metrics(self) -> dict[str, list[Sample]]:
        """Return the samples by name, read by Prometheus' own parser."""
        text = self.get("/metrics").body.decode()
        samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample)
        return samples

    def until(self, holds: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> float:
        """Poll until `holds`; return the seconds that took."""
        began, deadline = time.monotonic(), Deadline(seconds)
        while not deadline.is_over():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.poll()}: {self.log()}")
            with contextlib.suppress(OSError):
                if holds():
                    return time.monotonic() - began
            time.sleep(0.02)
        raise AssertionError(f"never: {what}: {self.get('/verdict').body!r} {self.log()}")

    def until_ready(self) -> float:
        return self.until(self.is_ready, "ready")

    def until_state(self, check: Check, state: str, seconds: float = READY_SECONDS) -> CheckVerdict:
        """Poll until `check` is in `state`; return its verdict."""
        self.until(lambda: self.check(check).state == state, f"{check} is {state}", seconds)
        return self.check(check)


class Proxy:
    """A proxy in front of a real server that changes its answers. Leaving the context ends it."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.delay = 0.0  # seconds added to each inference
        self.refusing: dict[str, int] = {}  # answered by a status: the end of a path
        self.saying: bytes | None = None  # to everything, with 200
        self.asked: list[bytes] = []  # the last 8 bytes of each inference's body
        self.execution: Callable[[dict[str, Any]], dict[str, Any]] = lambda reported: reported
        self.metrics: Callable[[str], str] = lambda text: text
        # of an inference that was answered by 200: headers and body
        self.inference: Callable[[tuple[dict[str, str], bytes]], tuple[dict[str, str], bytes]] = (
            lambda answer: answer
        )
        self.port = free_port()

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            @override
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer._pass(self)

            do_POST = do_GET  # noqa: N815 - http.server names it so

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            @override
            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exc_info()[1], ConnectionError):
                    super().handle_error(request, client_address)

        self._server = Quiet(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _pass(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        status, headers, answer = self._answer(request, body)
        if self.saying is not None:
            answer = self.saying
        elif request.path.endswith("/execution") and status == 200:
            answer = json.dumps(self.execution(json.loads(answer))).encode()
        elif request.path.endswith("/metrics") and status == 200:
            answer = self.metrics(answer.decode()).encode()
        elif request.path.endswith("/infer") and status == 200:
            changed, answer = self.inference((dict(headers), answer))
            headers = list(changed.items())
        request.send_response(status)
        for name, value in headers:
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _answer(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        for suffix, status in self.refusing.items():
            if request.path.endswith(suffix):
                return status, [], b"{}"
        if request.path.endswith("/infer"):
            self.asked.append(body[-8:])
            time.sleep(self.delay)
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=20)
        try:
            connection.request(request.command, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            dropped = {"content-length", "connection", "date", "server"}
            headers = [pair for pair in answer.getheaders() if pair[0].lower() not in dropped]
            return answer.status, headers, answer.read()
        except OSError:
            return 502, [], b"{}"
        finally:
            connection.close()


def value(metrics: dict[str, list[Sample]], name: str, **labels: str) -> float | None:
    """Return the only sample of `name` with `labels`; None if there is none."""
    values = [
        sample.value
        for sample in metrics.get(name, [])
        if all(sample.labels.get(key) == text for key, text in labels.items())
    ]
    assert len(values) <= 1, values
    return values[0] if values else None
