"""The servers that are compared: how each is started, and its endpoints."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.serving.cases import Case
from bench.serving.cores import SERVER, pin
from bench.serving.environments import NATIVE, PEERS, program_of, python_of, site_packages_of
from bench.serving.exchange import BINARY, GRPC, JSON, MODEL, OWN_JSON
from bench.serving.processes import tree

REPOSITORY: Final = Path(__file__).resolve().parents[2]
OURS: Final = "Enginewright"
OURS_SINGLE: Final = "Enginewright, no batching"
TRITON: Final = "Triton"
TRITON_BATCHING: Final = "Triton, dynamic batching"
FURNACE: Final = "furnace"
FLOOR: Final = "floor (hyper)"
HTTP_PORT: Final = 18080
GRPC_PORT: Final = 18001
_START_SECONDS: Final = 90.0
_MAX_BATCH: Final = 64
_PROGRAMS: Final = {FURNACE: "furnace", FLOOR: "floor"}
_TRITON_TYPES: Final = {"FP32": "TYPE_FP32", "INT32": "TYPE_INT32"}


class NotStartedError(Exception):
    """A server ended or never became ready."""


@dataclass(frozen=True)
class Server:
    """A server and its transports; without an `environment`, it uses this repository's packages."""

    name: str
    transports: tuple[str, ...]
    environment: str | None = None
    path: str = f"/v2/models/{MODEL}/infer"
    ready: str = "/v2/health/ready"
    runs: int = 1  # of the model at the same time, at most; only of ours
    cores: int = 1  # for all runs
    input_name: str | None = None  # what it calls the model's input, if not by the model's name

    @property
    def is_python_peer(self) -> bool:
        """Whether its own process is Python, unlike ours that competes with it."""
        return self.environment not in {None, "triton", NATIVE}


SERVERS: Final = (
    Server(OURS, (BINARY, GRPC)),
    Server(OURS_SINGLE, (BINARY, GRPC)),
    Server(FURNACE, (BINARY, GRPC), NATIVE, input_name="input"),
    Server(FLOOR, (BINARY,), NATIVE),
    Server(TRITON, (BINARY, GRPC), "triton"),
    Server(TRITON_BATCHING, (BINARY, GRPC), "triton"),
    Server("KServe", (BINARY, GRPC), "kserve"),
    Server("MLServer", (JSON, GRPC), "mlserver"),
    Server("BentoML", (OWN_JSON,), "bentoml", "/infer", "/readyz"),
    Server("LitServe", (OWN_JSON,), "litserve", "/predict", "/health"),
)
_FEW: Final = (OURS, TRITON, TRITON_BATCHING, "KServe")
_ALL: Final = tuple(item.name for item in SERVERS if item.name != OURS_SINGLE)
COMPARED: Final = {  # by model; fewer where transports hardly matter
    "tiny": _ALL,
    "image": _ALL,
    "real": _FEW,
    "batching": (*_FEW, OURS_SINGLE),
}
AGED: Final = ("tiny", "batching")  # most time of the second are runs, which a limit stalls
QUICK: Final = (*_FEW, FURNACE, FLOOR)


def port_of(transport: str, place: int = 0) -> int:
    """Return the port of a transport, the same of every server: one runs at a time, or two of ours in their places."""
    return (GRPC_PORT if transport == GRPC else HTTP_PORT) + place


@contextmanager
def running(server: Server, case: Case, folder: Path, place: int = 0) -> Iterator[int]:
    """Run a server with a model, and its files in an empty folder; yield its process id.

    Only ours can be in another place than the first.

    Raises:
        NotStartedError: It does not become ready; with the end of its log.
    """
    log = folder / "server.log"
    with pin(*range(SERVER, SERVER + server.cores)), log.open("wb") as output:
        process = subprocess.Popen(
            _command(server, case, folder, place),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | _environment(server, case),
            cwd=REPOSITORY if server.environment is None else PEERS,
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, process, log, place)
        yield process.pid
    finally:
        _end(process)


def _wait_until_ready(
    server: Server, process: "subprocess.Popen[bytes]", log: Path, place: int
) -> None:
    url = f"http://127.0.0.1:{port_of(BINARY, place)}{server.ready}"
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = " ".join(log.read_text(errors="replace").split()[-60:])
                why = f"ended with {process.poll()}" if ended else "is not ready"
                raise NotStartedError(f"{server.name} {why}: {tail}") from None
            time.sleep(0.1)
        else:
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a server with everything that it has started."""
    for number in reversed(tree(process.pid)):
        try:
            os.kill(number, 9)
        except ProcessLookupError:
            continue
    process.wait()


def _environment(server: Server, case: Case) -> Mapping[str, str]:
    values = {
        "BENCH_MODEL": str(case.model),
        "BENCH_HTTP_PORT": str(HTTP_PORT),
        "BENCH_GRPC_PORT": str(GRPC_PORT),
        "ORT_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
    }
    if server.environment == NATIVE:
        values["BENCH_ONNXRUNTIME"] = str(_find_onnxruntime())
    if server.environment == "bentoml":
        values["BENTOML_DO_NOT_TRACK"] = "True"
    if server.environment == "triton":
        packages = site_packages_of("triton")
        values["BENCH_SITE_PACKAGES"] = str(packages)
        values["BENCH_PEERS"] = str(PEERS)
        values["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))  # of libpython
    return values


def _find_onnxruntime() -> Path:
    """Return the shared library of this environment's wheel."""
    package = importlib.util.find_spec("onnxruntime")
    assert package is not None  # noqa: S101 - our server needs it
    assert package.origin is not None  # noqa: S101 - it has an `__init__`
    (library,) = Path(package.origin).parent.glob("capi/libonnxruntime.so*")
    return library


def _command(server: Server, case: Case, folder: Path, place: int) -> list[str]:
    if server.environment is None:
        arguments = {
            "task": case.task
            | {"concurrent_runs": server.runs}
            | ({"batch_size": 1} if server.name == OURS_SINGLE else {}),
            "root": str(case.root),
            "port": port_of(BINARY, place),
            "grpc_port": port_of(GRPC, place),
            "settings": {},
            "before": "",
        }
        return [sys.executable, "-m", "tests.support.pod_process", "serve", json.dumps(arguments)]
    if server.environment == "triton":
        return _triton(case, folder, batching=server.name == TRITON_BATCHING)
    if server.environment == NATIVE:
        return [str(program_of(_PROGRAMS[server.name]))]
    python = python_of(server.environment)
    if server.environment == "bentoml":
        port = ["--host", "127.0.0.1", "--port", str(HTTP_PORT)]
        return [str(python.parent / "bentoml"), "serve", "bentoml_server:Onnx", *port]
    return [str(python), str(PEERS / f"{server.environment}_server.py")]


def _triton(case: Case, folder: Path, *, batching: bool) -> list[str]:
    """Write a model repository; return the server's command."""
    repository = folder / "repository"
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text((PEERS / "triton_model.py").read_text())
    (repository / MODEL / "config.pbtxt").write_text(_triton_config(case, batching=batching))
    home = site_packages_of("triton") / "pytriton/tritonserver"
    return [
        str(home / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={home / 'backends'}",
        *("--http-address=127.0.0.1", f"--http-port={HTTP_PORT}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={GRPC_PORT}"),
        *("--allow-metrics=false", "--log-info=false"),
    ]


def _triton_config(case: Case, *, batching: bool) -> str:
    """Return the model's configuration; its sizes are without the batch where it may batch."""

    def sizes(shape: tuple[int, ...]) -> str:
        sizes = shape[1:] if batching else (-1, *shape[1:])
        return ", ".join(map(str, sizes))

    kind = _TRITON_TYPES[case.datatype]
    lines = [
        f'name: "{MODEL}"',
        'backend: "python"',
        f"max_batch_size: {_MAX_BATCH if batching else 0}",
        f'input [{{ name: "{case.input}" data_type: {kind} dims: [{sizes(case.x.shape)}] }}]',
        f'output [{{ name: "{case.output}" data_type: TYPE_FP32 dims: [{sizes(case.y.shape)}] }}]',
        "instance_group [{ kind: KIND_CPU count: 1 }]",
    ]
    if batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines)
