"""Cost of serving compared with `session.run`: our server and, if installed, its peers.

Ratios within one run matter; absolute values depend on the machine. The server has one core, the
load generator another, ONNX Runtime one thread. Servers alternate, so that other load on the machine
affects all of them, and the cheapest of several rounds counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.support.ports import free_port
from tests.support.serving import Server, model, tensor, write_artifact

HERE: Final = Path(__file__).parent
CONNECTIONS: Final = (1, 8, 32)
PEERS: Final = ("asgi", "kserve")


@dataclass(frozen=True)
class Case:
    """A model and its only input."""

    name: str
    model: ModelProto
    x: NDArray[np.float32]


def cases() -> list[Case]:
    """Return a minimal model, and one with 600 kB of input."""
    rng = np.random.default_rng(0)
    tiny = model(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["y"]),
        ],
        [tensor("x", TensorProto.FLOAT, "n", 16)],
        [tensor("y", TensorProto.FLOAT, "n", 4)],
        {
            "a": rng.standard_normal((16, 16)).astype(np.float32),
            "b": rng.standard_normal((16, 4)).astype(np.float32),
        },
    )
    image = model(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, "n", 3, 224, 224)],
        [tensor("y", TensorProto.FLOAT, "n", 3, 1, 1)],
    )
    return [
        Case("tiny (16 floats)", tiny, np.ones((1, 16), np.float32)),
        Case("image (600 kB)", image, np.ones((1, 3, 224, 224), np.float32)),
    ]


def bare(path: Path, x: NDArray[np.float32]) -> float:
    """Return the CPU time (µs) of one `session.run`, the minimum of five rounds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(500):
            session.run(None, {"x": x})
        best = min(best, (time.process_time() - began) / 500 * 1e6)
    return best


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Start processes on one core if there are several."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def peer(kind: str, python: str, path: Path) -> Iterator[tuple[int, int]]:
    """Run a peer; yield its port and process id."""
    port = free_port()
    command = [python, str(HERE / f"peer_{kind}.py"), "--model", str(path), "--port", str(port)]
    with pinned(0):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/v2/health/ready", timeout=1
                ).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"peer {kind} did not start: {command}") from None
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def ours(root: Path, case: Case) -> Iterator[tuple[int, int]]:
    """Run our server; yield its port and process id."""
    task = write_artifact(root, case.model, [{"x": case.x}])
    with pinned(0):
        server = Server(root, task, fresh=True)
    with server:
        yield server.port, server.process.pid


def measure(
    port: int, pid: int, request: Path, tail: int, connections: int, seconds: float
) -> dict[str, Any]:
    """Run the load generator once."""
    command = [
        *(sys.executable, str(HERE / "load.py"), "--port", str(port), "--pid", str(pid)),
        *("--request", str(request), "--tail", str(tail)),
        *("--connections", str(connections), "--seconds", str(seconds)),
    ]
    with pinned(1):
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True, timeout=seconds * 2 + 30
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def request_bytes(x: NDArray[np.float32]) -> bytes:
    """Return a binary inference request in the format of Triton's client."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": list(x.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": x.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (len(header), len(header) + x.nbytes)
        + header
        + x.tobytes()
    )


def run_case(
    case: Case, peers: dict[str, str], rounds: int, seconds: float
) -> tuple[float, dict[tuple[str, int], dict[str, Any]]]:
    """Return the bare session's cost (µs), and the best round by server and connections."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    floor = float("inf")
    for turn in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            request = root / "request"
            request.write_bytes(request_bytes(case.x))
            path = root / "served/artifact/model.onnx"
            with ours(root / "served", case) as (port, pid):
                floor = min(floor, bare(path, case.x))
                take(best, "ours", port, pid, case, request, seconds)
            for kind, python in peers.items():
                print(f"… {case.name}, round {turn + 1} of {rounds}: {kind}", file=sys.stderr)
                with peer(kind, python, path) as (port, pid):
                    take(best, kind, port, pid, case, request, seconds)
    return floor, best


def take(
    best: dict[tuple[str, int], dict[str, Any]],
    server: str,
    port: int,
    pid: int,
    case: Case,
    request: Path,
    seconds: float,
) -> None:
    """Measure one server and keep results that are better than the previous ones."""
    tail = 16 if case.x.ndim == 2 else 12
    for connections in CONNECTIONS:
        found = measure(port, pid, request, tail, connections, seconds)
        before = best.get((server, connections))
        if before is None or found.get("cpu_us", 9e9) < before.get("cpu_us", 9e9):
            best[server, connections] = found


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--peer-python", help="interpreter with the packages of bench/server/peers.txt"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    peers = dict.fromkeys(PEERS, arguments.peer_python) if arguments.peer_python else {}
    rows = []
    for case in cases():
        floor, best = run_case(case, peers, arguments.rounds, arguments.seconds)
        for (server, connections), found in sorted(best.items(), key=lambda item: item[0][1]):
            rows.append(
                {
                    "model": case.name,
                    "server": server,
                    "connections": connections,
                    "bare_us": floor,
                    **found,
                }
            )
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("| model | server | connections | requests/s | p50 us | p99 us | CPU us | x bare |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "failure" in row:
            figures = f"{row['failure'][:80]} | | | | "
        else:
            figures = (
                f"{row['per_second']:,.0f} | {row['p50_us']:,.0f} | {row['p99_us']:,.0f} |"
                f" {row['cpu_us']:,.0f} | {row['cpu_us'] / row['bare_us']:.1f}"
            )
        print(f"| {row['model']} | {row['server']} | {row['connections']} | {figures} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
