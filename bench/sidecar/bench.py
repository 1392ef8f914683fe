"""CPU and memory of the sidecar of a running server, from /proc, also relative to the server's.

Absolute values depend on the machine. Goals on every machine: less than 1% of a core and 60 MB at
one golden inference per second, and a negligible share of the server's own CPU time.
"""

import argparse
import http.client
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from onnx import ModelProto, TensorProto, helper

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from enginewright_contract.task import ShapeProfile

from tests.support.serving import Server, model, real_model, tensor
from tests.support.sidecar import Sidecar, prepare_served

TICKS: Final = os.sysconf("SC_CLK_TCK")
CPU_LIMIT: Final = 0.01  # of a core
MEMORY_LIMIT: Final = 60.0  # MB
KUBELET_SECONDS: Final = 5.0  # between two rounds of readiness probe, verdict and scrape


@dataclass(frozen=True)
class Case:
    """A model and how it is prepared."""

    name: str
    model: ModelProto | Path
    shapes: tuple[ShapeProfile, ...] = ()


def cases() -> list[Case]:
    """Return the cheapest model, one with 600 kB of input and 600 kB of output, and a real one."""
    tiny = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", TensorProto.FLOAT, 1, 16)],
        [tensor("y", TensorProto.FLOAT, 1, 4)],
        {"w": np.ones((16, 4), np.float32)},
    )
    image = model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, 1, 3, 224, 224)],
        [tensor("y", TensorProto.FLOAT, 1, 3, 224, 224)],
    )
    text = ShapeProfile(input="x", min=(1, 3, 48, 48), opt=(1, 3, 48, 192), max=(2, 3, 48, 192))
    return [
        Case("tiny (16 floats)", tiny),
        Case("image (600 kB both ways)", image),
        Case(
            "text direction (566 nodes)", real_model("ch_ppocr_mobile_v2.0_cls_infer.onnx"), (text,)
        ),
    ]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time (s) of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int, key: str) -> float:
    """Return a value of /proc/<pid>/status in MB (1,000,000 bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return kib * 1024 / 1e6


@dataclass(frozen=True)
class Shares:
    """CPU of server and sidecar, as shares of a core."""

    server: float
    sidecar: float


def measure(server: int, sidecar: int | None, seconds: float, act: Callable[[], None]) -> Shares:
    """Call `act` repeatedly for `seconds`, and return the CPU shares meanwhile."""
    pids = [server] if sidecar is None else [server, sidecar]
    before = [cpu_seconds(pid) for pid in pids]
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        act()
    took = time.monotonic() - began
    spent = [(cpu_seconds(pid) - at) / took for pid, at in zip(pids, before, strict=True)]
    return Shares(spent[0], spent[1] if sidecar is not None else 0.0)


def ask(sidecar: Sidecar) -> None:
    """Send the requests of kubelet, operator and Prometheus, and pause."""
    for path in ("/readyz", "/verdict", "/metrics"):
        sidecar.get(path)
    time.sleep(KUBELET_SECONDS)


def load(port: int, request: tuple[str, bytes, dict[str, str]], stop: threading.Event) -> None:
    """Send requests to the server one after another until `stop`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    path, body, headers = request
    while not stop.is_set():
        connection.request("POST", path, body, headers)
        connection.getresponse().read()
    connection.close()


def request_of(root: Path) -> tuple[str, bytes, dict[str, str]]:
    """Return the first golden sample as a request."""
    from enginewright_contract.manifest import Manifest  # noqa: PLC0415 - the sidecar's own parts,
    from enginewright_serving.sidecar.protocol import encode  # noqa: PLC0415 - used as a client
    from enginewright_serving.sidecar.samples import GoldenSamples  # noqa: PLC0415 - likewise

    artifact = root / "artifact"
    manifest = Manifest.model_validate_json((artifact / "manifest.json").read_bytes())
    samples = GoldenSamples(artifact, manifest)
    question = encode(samples.read(samples.names[0]), samples.types, binary=True)
    headers = {"Inference-Header-Content-Length": str(question.json_length)}
    return "/v2/models/m/infer", b"".join(question.parts), headers


def bench(case: Case, root: Path, seconds: float) -> bool:
    """Measure one model and print a row of the table; return whether it is within the limits."""
    task = prepare_served(root, case.model, shapes=case.shapes)
    with Server(root, task, fresh=True) as server:
        alone = measure(server.process.pid, None, seconds / 2, lambda: time.sleep(1))
        with Sidecar(root, task, server.port, fresh=True) as sidecar:
            pid = sidecar.process.pid
            sidecar.until(lambda: sidecar.verdict().baseline is not None, "baseline", 60)
            idle = measure(server.process.pid, pid, seconds, lambda: ask(sidecar))
            stop = threading.Event()
            client = threading.Thread(target=load, args=(server.port, request_of(root), stop))
            client.start()
            busy = measure(server.process.pid, pid, seconds / 2, lambda: ask(sidecar))
            stop.set()
            client.join()
            resident, peak = memory(pid, "VmRSS"), memory(pid, "VmHWM")
    caused = max(0.0, idle.server - alone.server)
    print(
        f"| {case.name} | {idle.sidecar:.2%} | {caused:.2%} | {busy.sidecar:.2%}"
        f" | {busy.server:.0%} | {busy.sidecar / busy.server:.1%} | {resident:.1f} | {peak:.1f} |",
        flush=True,
    )
    return max(idle.sidecar, busy.sidecar) < CPU_LIMIT and peak < MEMORY_LIMIT


def main() -> int:
    """Measure every case; return 1 if one exceeds the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="duration for each model")
    seconds = parser.parse_args().seconds
    print(
        "| model | sidecar, server idle | server, for the sidecar | sidecar, server busy"
        " | server | ratio | RSS MB | peak MB |\n|---|---|---|---|---|---|---|---|"
    )
    within = True
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            within &= bench(case, Path(folder), seconds)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
