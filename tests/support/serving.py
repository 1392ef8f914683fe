"""Real models, real artefacts and the real server in a process of its own, for the server's tests."""

import dataclasses
import hashlib
import json
import os
import select
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import onnxruntime as ort
from enginewright_contract.manifest import MANIFEST_NAME, ArtifactFile, Manifest, TensorSpec
from enginewright_contract.report import StageReport, read_termination_message
from enginewright_contract.shadow import shadow_token
from enginewright_contract.task import Recipe, ServeTask, ShapeProfile
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.value_sizes import find_sized_by_values
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_serving.exchanges import HEADER as SHADOW_HEADER
from enginewright_serving.probe_token import HEADER, read_or_create
from enginewright_serving.server.protocol.grpc.messages import InferRequest
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.support.broken_models import build, initializer, parse_text, value
from tests.support.forked import end, pod_process
from tests.support.optional import present
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.waiting import Deadline

OPSET = 17
IR_VERSION = 9
START_SECONDS = 60.0
SHADOW_TOKEN = shadow_token("uid-of-m")
COPY = {SHADOW_HEADER: SHADOW_TOKEN}  # of a request that is a copy
Feeds = dict[str, NDArray[Any]]
DATATYPES = {
    "float32": "FP32",
    "float64": "FP64",
    "float16": "FP16",
    "int64": "INT64",
    "int32": "INT32",
    "int8": "INT8",
    "uint8": "UINT8",
    "object": "BYTES",
}

# For `Server(before=...)`. When a provider fails during a run, ONNX Runtime automatically recreates the
# session on the CPU. SIGUSR1 triggers that here.
REPLACES_SESSION = """
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # of all threads that are yet to start
import onnxruntime
made = []
create = onnxruntime.InferenceSession.__init__
def remember(self, *arguments, **options):
    create(self, *arguments, **options)
    made.append(self)
onnxruntime.InferenceSession.__init__ = remember
def replace():
    signal.sigwait({signal.SIGUSR1})
    made[-1].set_providers(["CPUExecutionProvider"])
threading.Thread(target=replace, daemon=True).start()
"""


def asks_openvino_for(**options: str) -> str:
    """Return code that sets other options of OpenVINO, for `Server(before=...)`."""
    return f"""
from enginewright_runtime.session.openvino import OpenVinoBackend
OpenVinoBackend.provider_options = lambda self, request: {options!r}
"""


def has_runs_at_the_same_time(count: int) -> str:
    """Return code that has them pay and has CPUs for them, for `Server(before=...)`."""
    return f"""
import enginewright_runtime.core.limits
from enginewright_serving.server.startup import concurrency
enginewright_runtime.core.limits.threads = lambda: {count}
concurrency._SHORTEST = 0.0
concurrency.ConcurrencyProver._gains = lambda self, feeds, most, single: {{most: 2.0}}
"""


def read_report(root: Path) -> StageReport:
    """Return the termination message of the only container of a pod."""
    return present(read_termination_message((root / "dev/termination-log").read_text()))


def run_json(python: str | Path, program: str, *arguments: str, **environment: str) -> Any:
    """Run a program in another environment; return the JSON that it prints last."""
    done = run_program(
        [str(python), "-c", program, *arguments], timeout=120, env=os.environ | environment
    )
    return json.loads(done.stdout.splitlines()[-1])


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    return build(nodes, inputs, outputs, tensors, opset=OPSET, ir_version=IR_VERSION)


def tensor(name: str, kind: int, *shape: int | str | None) -> onnx.ValueInfoProto:
    return value(name, *shape, kind=kind)


def linear_model(size: int = 8) -> onnx.ModelProto:
    """Return x [batch, size] -> y [batch, 4] = x @ W, and its sum over the batch."""
    weights = np.arange(size * 4, dtype=np.float32).reshape(size, 4) / size
    return parse_text(
        f"""(float["batch", {size}] x) => (float["batch", 4] y, float total) {{
        y = MatMul(x, w) total = ReduceSum <keepdims = 0> (y) }}""",
        initializer("w", weights),
    )


def scale_linear(factor: float) -> onnx.ModelProto:
    """Return the linear model with its weights, and so its outputs, multiplied."""
    changed = linear_model()
    (weights,) = changed.graph.initializer
    values = numpy_helper.to_array(weights) * np.float32(factor)
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    return changed


def slow_model() -> onnx.ModelProto:
    """Return a model whose run time is proportional to its input `turns`, which it returns."""
    return parse_text(
        """(int64[1] turns) => (int64[1] done, float sum) {
        count = Squeeze(turns)
        state_out = Loop (count, , m) <body = body
            (int64 turn, bool go, float[256, 256] state) => (bool go_on, float[256, 256] next) {
            product = MatMul(state, m) next = Tanh(product) go_on = Identity(go) }>
        sum = ReduceSum <keepdims = 0> (state_out) done = Identity(turns) }""",
        initializer("m", np.eye(256)),
    )


def write_artifact(
    root: Path,
    onnx_model: onnx.ModelProto | Path,
    samples: Sequence[Feeds],
    *,
    golden: Sequence[Feeds] | None = None,
    shapes: Sequence[ShapeProfile] = (),
    name: str = "m",
    revision: str = "r1",
    **options: Any,
) -> ServeTask:
    """Write what `fetch-artifact` leaves under `root`, and return the task to serve it.

    `golden` gives the expected outputs where NumPy cannot hold the inputs' type; `options` are `ServingOptions`.
    """
    folder = root / "artifact"
    (folder / "golden").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "dev/termination-log").touch()
    path = folder / "model.onnx"
    if isinstance(onnx_model, Path):
        path.write_bytes(onnx_model.read_bytes())
    else:
        onnx.save(onnx_model, path)
    proto = graphs.parse(path)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    kinds = {spec.name: spec.dtype for spec in graphs.outputs_of(proto)}

    def run(feeds: Feeds) -> Feeds:
        return dict(zip(outputs, session.run(None, feeds), strict=True))

    inputs = {f"s{index}": feeds for index, feeds in enumerate(samples)}
    runs = {} if golden else {name: run(feeds) for name, feeds in inputs.items()}
    varying = observe(run, inputs, runs, kinds, random=is_random(proto))
    inputs_file: Feeds = {}
    outputs_file: Feeds = {}
    for index, feeds in enumerate(samples):
        inputs_file |= {f"s{index}/{key}": _storable(value) for key, value in feeds.items()}
        results = golden[index] if golden else runs[f"s{index}"]
        outputs_file |= {f"s{index}/{key}": _storable(value) for key, value in results.items()}
    np.savez(folder / "golden/inputs.npz", **inputs_file)  # type: ignore[arg-type]  # its stub takes allow_pickle for an array
    np.savez(folder / "golden/outputs.npz", **outputs_file)  # type: ignore[arg-type]  # likewise
    key = hashlib.sha256(name.encode()).hexdigest()
    files = tuple(
        ArtifactFile(
            path=str(file.relative_to(folder)),
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            size_bytes=file.stat().st_size,
        )
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    )
    manifest = Manifest(
        key=key,
        model_digest=files[-1].sha256,
        recipe=Recipe(
            backend="cpu",
            ort_version=ort.__version__,
            max_opset=26,
            max_ir_version=13,
            shapes=tuple(shapes),
        ),
        files=files,
        opset=OPSET,
        ir_version=IR_VERSION,
        nodes=1,
        inputs=tuple(
            TensorSpec(name=arg.name, dtype="float32", shape=tuple(arg.shape))
            for arg in session.get_inputs()
        ),
        outputs=(),
        golden_source="generated",
        versions={"onnxruntime": ort.__version__},
        varying=varying,
        sized_by_values=find_sized_by_values(proto),
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return ServeTask(
        model=name,
        revision=revision,
        prepared_key=key,
        backend="cpu",
        shadow_token=SHADOW_TOKEN,
        # a test that wants several runs says so: how many pay depends on the machine
        **{"concurrent_runs": 1, **options},
    )


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.str_) if array.dtype == object else array


def real_model(name: str) -> Path:
    """Return the path of a real model, from the packages of requirements/models.txt."""
    repository = Path(__file__).resolve().parents[2]
    shown = run_program([str(repository / "hack/models")], timeout=250)
    return next(Path(shown.stdout.strip().splitlines()[-1]).rglob(name))


def _describe_input(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": list(array.shape)}


def json_inputs(**arrays: NDArray[Any]) -> dict[str, Any]:
    """Return the document of an inference request in JSON."""
    inputs = [
        _describe_input(name, array) | {"data": array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    return {"inputs": inputs}


def binary_inputs(**arrays: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the document and the tensors of an inference request with inputs and outputs in binary."""
    inputs = [
        _describe_input(name, array) | {"parameters": {"binary_data_size": array.nbytes}}
        for name, array in arrays.items()
    ]
    tensors = b"".join(array.tobytes() for array in arrays.values())
    return {"inputs": inputs, "parameters": {"binary_data_output": True}}, tensors


def infer_message(**arrays: NDArray[Any]) -> Any:
    """Return the message of an inference over gRPC, with raw contents."""
    return InferRequest(
        model_name="m",
        inputs=[_describe_input(name, array) for name, array in arrays.items()],
        raw_input_contents=[array.tobytes() for array in arrays.values()],
    )


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def tensors(self) -> bytes:
        """Return what follows the JSON of an answer in binary."""
        return self.body[int(self.headers["inference-header-content-length"]) :]


def any_certificate() -> ssl.SSLContext:
    """Return what a kubelet's probes verify: nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Wire:
    """A raw connection, for requests that no client library would send."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout: float = 120.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        if tls is not None:
            self._socket = self.tls = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def shrink(self, size: int) -> None:
        """Make the receive buffer small, so that large answers must wait for us."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def finish(self) -> None:
        """Close our sending side."""
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self, *, head_only: bool = False) -> Answer:
        """Read one response; EOFError when the server closed instead."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines[1:])}
        length = 0 if head_only else int(headers.get("content-length", "0"))
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Answer(int(lines[0].split()[1]), headers, body)

    def is_readable(self) -> bool:
        """Whether the server has sent something, or closed."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def wait_closed(self) -> bool:
        """Wait until the server closes the connection; return whether it sent nothing more."""
        try:
            return not self._rest and not self._socket.recv(1)
        except ConnectionResetError:
            return not self._rest

    def _more(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise EOFError(f"closed after {self._rest!r}")
        self._rest += data


class ServerPorts:
    """How clients reach a server that any program has started."""

    def __init__(self, root: Path, task: ServeTask, port: int, grpc_port: int) -> None:
        self.root = root
        self.task = task
        self.port = port
        self.grpc_port = grpc_port

    def wire(self) -> Wire:
        return Wire(self.port, tls=any_certificate() if self.task.tls else None)

    def probe_header(self) -> dict[str, str]:
        """Return the header by which the server knows its own sidecar."""
        return {HEADER: read_or_create(Paths.under(self.root).probe_token)}

    def send(self, request: bytes, *, head_only: bool = False) -> Answer:
        """Send one request on a connection of its own."""
        with self.wire() as wire:
            wire.send(request)
            return wire.receive(head_only=head_only)

    def get(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Answer:
        lines = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items())
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{lines}\r\n"
        return self.send(head.encode(), head_only=method == "HEAD")

    def metric(self, *parts: str) -> float:
        """Return the series whose line has all `parts`, 0 if there is none."""
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#") and all(part in line for part in parts):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def post(self, document: object, tensors: bytes = b"", **how: Any) -> Answer:
        """Send an inference request, of which `how` says the same as for `infer_request`."""
        return self.send(self.infer_request(document, tensors, **how))

    def infer_request(
        self,
        document: object,
        tensors: bytes = b"",
        *,
        path: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the bytes of an inference request."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        fields = {"Host": "h", "Content-Length": str(len(body) + len(tensors))} | dict(
            headers or {}
        )
        if tensors:
            fields["Inference-Header-Content-Length"] = str(len(body))
        lines = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
        target = path or f"/v2/models/{self.task.model}/infer"
        return f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body + tensors


class Server(ServerPorts):
    """The server as a process. Leaving the context ends it."""

    def __init__(
        self,
        root: Path,
        task: ServeTask,
        *,
        port: int | None = None,
        grpc_port: int | None = None,
        python: str | Path = sys.executable,
        before: str = "",
        fresh: bool = False,
        start_seconds: float = START_SECONDS,
        **settings: float,
    ) -> None:
        """Start it; `fresh`: with a Python of its own, as in a container, instead of forked."""
        super().__init__(root, task, port or free_port(), grpc_port or free_port())
        self._start_seconds = start_seconds
        arguments = {
            "task": task.model_dump(mode="json"),
            "root": str(root),
            "port": self.port,
            "grpc_port": self.grpc_port,
            "settings": settings,
            "before": before,
        }
        log = root / "server.log"
        self.process = pod_process("serve", arguments, python=python, log=log, fresh=fresh)

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process if it still runs."""
        end(self.process)

    def log(self) -> str:
        return (self.root / "server.log").read_text()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = START_SECONDS) -> int:
        return self.process.wait(timeout)

    def wait_until_ready(self) -> None:
        """Poll readiness; fail with the log when the process ends."""
        deadline = Deadline(self._start_seconds)
        while not deadline.is_over():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.poll()}: {self.log()}")
            try:
                if self.get("/v2/health/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.log()}")
